/* Windows: ranges of memory that all ranks of a communicator name together. */
#ifndef TUTTI_COMM_WINDOW_H_
#define TUTTI_COMM_WINDOW_H_

#include "comm/communicator.h"
#include "comm/job.h"

/* The registration of a window, as a job; its run is tuttiWindowRun. */
typedef struct {
  tuttiJob job;
  void *buff;
  size_t size;
  int flags;
  tuttiWindow_t *out;
} tuttiWindowJob;

/* Waits for all ranks; fails on all of them if they disagree or one cannot take part. Sets *out. */
tuttiResult_t tuttiWindowRun(tuttiJob *job);

/* Is `win` one of `c`? Looks at no window that may be gone. */
bool tuttiWindowLives(const tuttiCommunicator *c, tuttiWindow_t win);

/* What a live window was registered with. */
void *tuttiWindowBuffer(tuttiWindow_t win);

/* What one-sided operations know of a live window. */
typedef struct {
  uint32_t number;      /* the same on all ranks */
  size_t size;          /* of each rank's part */
  const uint64_t *base; /* [nranks] addresses in the ranks' processes; NULL on GPUs */
} tuttiWindowParts;
tuttiWindowParts tuttiWindowPartsOf(tuttiWindow_t win);

/* Where a peer's part is mapped in this process, by which it can be stored to; NULL: nowhere, and
 * why, where that is an error: on GPUs. */
void *tuttiWindowMapped(const tuttiCommunicator *c, tuttiWindow_t win, int peer,
                        char why[TUTTI_SENTENCE]);

/* Frees a live window; its memory is the user's. */
void tuttiWindowRemove(tuttiCommunicator *c, tuttiWindow_t win);

/* What is left of them when the communicator ends. */
void tuttiCommWindowsFree(tuttiCommunicator *c);

#endif
