/* SIGUSR2 as a wish to have the record of this process's ranks written (TUTTI_DUMP_FILE). */
#ifndef TUTTI_RAS_SIGNAL_H_
#define TUTTI_RAS_SIGNAL_H_

#include <stdbool.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* An fd that becomes readable with each SIGUSR2, or -1: TUTTI_DUMP_FILE is not set, or the program
 * has a handler of its own, which the log says. Once until it is closed. */
int tuttiRasSignalOpen(void);
/* Since the last time; the fd is quiet then. */
bool tuttiRasSignalTake(int fd);
/* Gives the signal back, as it was before; -1 is left alone. */
void tuttiRasSignalClose(int *fd);

__END_DECLS

#endif
