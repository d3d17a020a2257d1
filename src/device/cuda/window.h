/* Windows on GPUs: ranges of the user's memory that every rank maps, so that peers can store right
 * into them. Kernels know a window by its index, which is the same on all ranks, and find their own
 * mapping of it in the head of their symmetric block. */
#ifndef TUTTI_DEVICE_CUDA_WINDOW_H_
#define TUTTI_DEVICE_CUDA_WINDOW_H_

#include <sys/cdefs.h>

#include "collectives/task.h"
#include "device/cuda/flat.h"
#include "device/cuda/window_table.h"
#include "kernels/allpairs.h"
#include "transport/transport.h"

__BEGIN_DECLS

typedef struct tuttiCudaWindow {
  struct tuttiCudaWindow *next;
  uintptr_t at; /* 0: no longer a window of this rank */
  size_t size;
  uint64_t region; /* 0: none any more */
  int rank, nranks;
  int index;       /* the same on all ranks; -1: there are too many, and none has mapped it */
  bool everywhere; /* all ranks have mapped all parts: operations may use it */
  char why[TUTTI_SENTENCE]; /* this rank's part is not exported */
  tuttiFlat flat;           /* parts that can be mapped where one wants them; `at` is there */
  tuttiWindow_t seen;       /* how kernels of the user see it; NULL: not at all, and why: */
  char unseen[TUTTI_SENTENCE];
  const tuttiWindowTable *table;
  struct {
    uintptr_t at;    /* where this rank stores into it; 0: nowhere */
    void *opened;    /* of another process: what to close */
    bool unexported; /* by its rank */
    int error;       /* a cudaError_t of mapping it */
  } part[];          /* [nranks] */
} tuttiCudaWindow;

/* Of one communicator. */
typedef struct {
  tuttiCudaWindow *list;
  bool any;           /* there has been one: on all ranks alike, for the operations that follow */
  uint64_t **signals; /* [nranks] what each has reserved for one-sided operations, where this rank
                         can store to it; NULL before the first window */
  tuttiFlatPost post;
  tuttiWindowTable table;
} tuttiCudaWindows;

/* A collective call, on the current device, `device`. Where a rank's memory cannot be mapped by
 * all, operations go on as without the window and the log says why. `stream` is for copies to the
 * GPU, waited for. */
tuttiResult_t tuttiCudaWindowAdd(tuttiCudaWindows *set, tuttiCommView *v, tuttiTaskContext *context,
                                 void *buff, size_t size, int device, tuttiStream_t stream,
                                 tuttiCudaWindow **window);
/* Operations from now on do not use this tuttiCudaWindow, or NULL. Peers may still do with theirs,
 * so what this rank has mapped of them stays until all have dropped the window and another is
 * added, or to the end. */
void tuttiCudaWindowDrop(void *window);
/* Ends all; peers may be gone. */
void tuttiCudaWindowsClose(tuttiCudaWindows *set);

/* Where this rank stores into the part of `rank` of a tuttiCudaWindow, or NULL; or NULL, and why
 * not.
 */
void *tuttiCudaWindowPart(const void *window, int rank, char why[TUTTI_SENTENCE]);
/* Where kernels of the user find the part of a rank of the local team, or NULL, and why not. */
void *tuttiCudaWindowFlat(const void *window, int rank, char why[TUTTI_SENTENCE]);

/* Where peers are to store [buff, buff + bytes): TUTTI_ALLPAIRS_WHERE(), or 0 for slots, also for
 * memory that is not aligned to 16 bytes, in which kernels move it. */
uint64_t tuttiCudaWindowWhere(const tuttiCudaWindows *set, const void *buff, uint64_t bytes);

__END_DECLS

#endif
