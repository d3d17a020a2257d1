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

/* A window as its communicator knows it; for the user it has a name. */
typedef struct tuttiWindowState tuttiWindowState;

/* The live one of `c` with this name, or NULL. */
tuttiWindowState *tuttiWindowFind(const tuttiCommunicator *c, tuttiWindow_t win);
/* The communicator that has one of this name, or NULL; any thread. */
tuttiComm_t tuttiWindowOwner(tuttiWindow_t win);

/* What a window was registered with. */
void *tuttiWindowBuffer(const tuttiWindowState *window);

/* What one-sided operations know of a window. */
typedef struct {
  uint32_t number;          /* the same on all ranks */
  size_t size;              /* of each rank's part */
  const uint64_t *base;     /* [nranks] addresses in the ranks' processes */
  const tuttiRmaKeys *keys; /* [nranks] by which networks write there */
} tuttiWindowParts;
tuttiWindowParts tuttiWindowPartsOf(const tuttiWindowState *window);

/* Where a peer's part is mapped in this process, by which it can be stored to; NULL: nowhere, and
 * why, where that is an error: on GPUs. */
void *tuttiWindowMapped(const tuttiCommunicator *c, tuttiWindowState *window, int peer,
                        char why[TUTTI_SENTENCE]);
/* Where kernels of the user find the part of a rank of the local team; NULL: nowhere, and why. */
void *tuttiWindowFlat(const tuttiCommunicator *c, const tuttiWindowState *window, int rank,
                      char why[TUTTI_SENTENCE]);

/* Frees a window; its memory is the user's. */
void tuttiWindowRemove(tuttiCommunicator *c, tuttiWindowState *window);

/* What is left of them when the communicator ends. */
void tuttiCommWindowsFree(tuttiCommunicator *c);

#endif
