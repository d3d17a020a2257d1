/* The log: stderr or TUTTI_DEBUG_FILE, never stdout.
 *   host:pid:tid TUTTI INFO text */
#ifndef TUTTI_BASE_LOG_H_
#define TUTTI_BASE_LOG_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

__BEGIN_DECLS

typedef enum {
  TUTTI_LOG_NONE = 0,
  TUTTI_LOG_VERSION = 1,
  TUTTI_LOG_WARN = 2,
  TUTTI_LOG_INFO = 3,
  TUTTI_LOG_TRACE = 4
} tuttiLogLevel;

/* Subsystems, one bit each; TUTTI_DEBUG_SUBSYS=INIT,NET or ^COLL or ALL. Names are of this list. */
#define TUTTI_LOG_SUBSYSTEMS(X)                                                                    \
  X(INIT) X(COLL) X(P2P) X(SHM) X(NET) X(GRAPH) X(TUNING) X(ENV) X(ALLOC) X(PROXY) X(BOOTSTRAP)

#define TUTTI_LOG_SUBSYSTEM(name) TUTTI_SUBSYS_INDEX_##name,
typedef enum { TUTTI_LOG_SUBSYSTEMS(TUTTI_LOG_SUBSYSTEM) TUTTI_SUBSYS_COUNT } tuttiSubsysIndex;

#define TUTTI_SUBSYS(name) (1u << TUTTI_SUBSYS_INDEX_##name)

/* Cheap: one relaxed load; false means skip formatting. */
bool tuttiLogEnabled(tuttiLogLevel level, unsigned subsys);
void tuttiLogWrite(tuttiLogLevel level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The kernel's number of this thread, as each line has it: gettid(3), which glibc has from 2.30 on.
 */
pid_t tuttiThreadId(void);

/* What is wrong with a level word or a list of subsystems, or NULL. */
const char *tuttiLogCheckLevel(const char *level);
const char *tuttiLogCheckSubsystems(const char *list);
/* What calls tuttiLogConfigure where a line is logged before anything else has: the settings, which
 * the log lies below, register it when the library is loaded. */
void tuttiLogConfigurator(void (*configure)(void));
/* Takes over level, subsystems and file, checked and valid for ever. For the settings, which call
 * it under their lock whenever they are loaded; log calls never take that lock afterwards. */
void tuttiLogConfigure(const char *level, const char *subsystems, const char *file);

__END_DECLS

/* Lines that strangers can cause, of one kind and place: one a minute, which says how many events
 * it stands for. All zero at first. For one thread at a time, or under a lock. */
typedef struct {
  uint64_t quietUntil; /* of CLOCK_MONOTONIC, in ns */
  uint32_t events;     /* that no line has told */
} tuttiLogRate;
/* One more event; returns how many the line that is due now stands for, or 0: none is. */
uint32_t tuttiLogCount(tuttiLogRate *rate);
/* The events that no line has told, for a last line; 0: none. */
uint32_t tuttiLogRest(tuttiLogRate *rate);

#define TUTTI_LOG(level, subsys, ...)                                                              \
  do {                                                                                             \
    if (tuttiLogEnabled(TUTTI_LOG_##level, TUTTI_SUBSYS(subsys)))                                  \
      tuttiLogWrite(TUTTI_LOG_##level, __VA_ARGS__);                                               \
  } while (0)
#define TUTTI_WARN(subsys, ...)  TUTTI_LOG(WARN, subsys, __VA_ARGS__)
#define TUTTI_INFO(subsys, ...)  TUTTI_LOG(INFO, subsys, __VA_ARGS__)
#define TUTTI_TRACE(subsys, ...) TUTTI_LOG(TRACE, subsys, __VA_ARGS__)

#endif
