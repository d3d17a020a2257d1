/* The commands of the `tutti` tool. Each takes its own name as argv[0] and returns the exit code:
 * 0, 1 on a failure, 2 on bad arguments. */
#ifndef TUTTI_TOOLS_TOOL_H_
#define TUTTI_TOOLS_TOOL_H_

#include <sys/cdefs.h>

__BEGIN_DECLS

enum { TUTTI_EXIT_OK = 0, TUTTI_EXIT_FAILED = 1, TUTTI_EXIT_USAGE = 2 };

int tuttiToolPerf(int argc, char **argv);
int tuttiToolRun(int argc, char **argv);
int tuttiToolTopo(int argc, char **argv);
int tuttiToolEnv(int argc, char **argv);

__END_DECLS

#endif
