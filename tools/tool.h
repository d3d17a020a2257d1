/* The commands of the `tutti` tool. Each takes its own name as argv[0] and returns the exit code:
 * 0, 1 on a failure, 2 on bad arguments. */
#ifndef TUTTI_TOOLS_TOOL_H_
#define TUTTI_TOOLS_TOOL_H_

int tuttiToolTopo(int argc, char **argv);

#endif
