/* What the CUDA device knows of one communicator. For the files of this folder. */
#ifndef TUTTI_DEVICE_CUDA_STATE_H_
#define TUTTI_DEVICE_CUDA_STATE_H_

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/pinned.h"
#include "collectives/task.h"
#include "device/cuda/relay.h"
#include "device/cuda/ringtree.h"
#include "device/cuda/window.h"
#include "kernels/allpairs.h"
#include "kernels/onesided.h"
#include "transport/transport.h"

__BEGIN_DECLS

#define TUTTI_CUDA_STAGE_BYTES 16384

/* Waits for signals. */
typedef struct {
  uint64_t launched; /* which add themselves up on the device as they end: tuttiSignalsEnded */
  bool captured;     /* there are some in graphs, too */
} tuttiCudaWaits;

/* Used by the thread that has the communicator; the monitor reads context, status, stop and layout,
 * and has `heard` and `hearNext` for itself. */
typedef struct tuttiCuda {
  tuttiTaskContext *context;
  int device;
  tuttiKernelStatus *status; /* as the host sees it */
  tuttiKernelStatus *statusOnDevice;
  tuttiPinned pinned; /* status and stage */
  bool launched;
  struct tuttiCudaDevComm *devComms;
  bool servesKernels; /* of the user, of which nobody knows when they run */
  /* The last launch and its stream: of an eager call, and of one captured in `graph`. */
  cudaEvent_t done[2];
  cudaStream_t last[2];
  uint64_t graph; /* id of the capture; 0: none yet */
  cudaEvent_t joined;
  uint8_t *stage; /* TUTTI_CUDA_STAGE_BYTES for the communicator's own all-gathers, on a stream of
                     their own */
  cudaStream_t stageStream;
  pthread_t monitor;
  bool monitoring;
  int stop; /* eventfd: tells the monitor to stop */
  tuttiCudaWindows windows;
  tuttiAllPairsArgs args;     /* of the next launch through slots; what never changes stays */
  tuttiRegionsArgs regions;   /* of the next through regions */
  bool mayBeEarly;            /* see tuttiAllPairsLoad */
  tuttiCudaRingTree ringTree; /* without kernels between all pairs */
  const tuttiCommView *view;
  /* Of one-sided operations. */
  tuttiSignalLayout layout;
  uint64_t *rows; /* of this rank's counters; NULL: none */
  void *ownRows;  /* the memory of these where there is no symmetric block */
  tuttiCudaRelay relay;
  bool addsSignals; /* by atomic operations on the memory of the receiver */
  tuttiCudaWaits waits;
  cudaStream_t signalStream; /* of signals that their streams do not wait for */
  /* The last such signal in a graph, and the id of the capture; 0: none yet. */
  cudaGraphNode_t signalNode;
  uint64_t signalGraph;
  /* The last reports of waits that were looked at, and which is the next. */
  uint64_t heard[TUTTI_SIGNALS_LATE];
  uint32_t hearNext;
  int *rounds; /* [2 * nranks]: messages of a group so far, by peer and direction */
} tuttiCuda;

__END_DECLS

#endif
