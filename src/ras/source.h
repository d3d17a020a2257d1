/* The communicators of this process, as those who ask it see them, and who asks: clients of the RAS
 * port (TUTTI_RAS_ADDR), and `tutti status` of the same user through a Unix socket. The watch's
 * thread serves them; while nobody asks, it has nothing to do for them. */
#ifndef TUTTI_RAS_SOURCE_H_
#define TUTTI_RAS_SOURCE_H_

#include <sys/cdefs.h>

#include "ras/facts.h"

__BEGIN_DECLS

/* A communicator's entry, which is its own; zeroed but for what it sets before Enter. The calls are
 * made from the watch's thread, and must neither block nor call a watch. */
typedef struct tuttiRasSource {
  void *ctx;
  int rank, nranks;
  void (*facts)(void *ctx, tuttiFacts *out);
  void (*member)(void *ctx, int rank, tuttiWho *out); /* once its ranks have met */
  tuttiWatch *watch;                                  /* from then on */
  tuttiInquiry *inquiry;                              /* to its ranks, that is under way */
  struct tuttiRasSource *next;
} tuttiRasSource;

/* The first one opens the port; what keeps that from listening is told in the log, and fails
 * nothing. */
void tuttiRasEnter(tuttiRasSource *s);
/* Its ranks have met, and can be asked through `watch`. */
void tuttiRasMeet(tuttiRasSource *s, tuttiWatch *watch);
/* Before its watch stops; after it returns no call is made. The last one closes the port. Does
 * nothing to one that has not entered. */
void tuttiRasLeave(tuttiRasSource *s);

/* Adds to the snapshot what an inquiry of `source` has brought; NULL: what this rank itself knows.
 * In the thread that may call the source. */
tuttiResult_t tuttiRasCollect(const tuttiRasSource *source, tuttiInquiry *q, tuttiSnapshot *out);

__END_DECLS

#endif
