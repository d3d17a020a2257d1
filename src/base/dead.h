/* Processes that are known to have died. One death may show in several communicators, and in some
 * of them only by what survivors do because of it. */
#ifndef TUTTI_BASE_DEAD_H_
#define TUTTI_BASE_DEAD_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* The process whose tuttiProcessId() this is has died; 0 is none. Of many the oldest is forgotten.
 * From any thread. */
void tuttiDeadNote(uint64_t process);
bool tuttiDeadKnown(uint64_t process);

__END_DECLS

#endif
