/* Programs of others, run to be read. */
#ifndef TUTTI_TOOLS_DOCTOR_COMMAND_H_
#define TUTTI_TOOLS_DOCTOR_COMMAND_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

__BEGIN_DECLS

/* One that runs. What it prints beyond its room is read and dropped. */
typedef struct {
  pid_t pid; /* 0: it did not start */
  int fd;    /* of its output; -1: it has ended */
  char *out; /* [size], of the caller; ends in a '\0' */
  size_t size, length;
  double endedAt; /* when its output ended, seconds of CLOCK_REALTIME; 0: it did not */
  int status;     /* of waitpid, once it has ended; -1: it was not waited for */
} tuttiCommand;

/* Starts argv[0], looked up in PATH, with `variable` ("NAME=VALUE", may be NULL) in its environment
 * and no input; its stderr is dropped if `quiet`. False: it cannot be started. */
bool tuttiCommandStart(tuttiCommand *c, char *const argv[], const char *variable, bool quiet,
                       char *out, size_t size);
/* Reads what n of them print until they end; kills those that run at the deadline (tuttiNow()
 * clock), with all that they have started. */
void tuttiCommandsAwait(tuttiCommand *c, int n, uint64_t deadline);
/* Both for one, within `ms`; true if it ended with exit code 0. */
bool tuttiCommandRun(char *const argv[], const char *variable, char *out, size_t size, int ms);

__END_DECLS

#endif
