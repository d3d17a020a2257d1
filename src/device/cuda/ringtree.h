/* Runs schedules on a GPU: finds the connections of a task's steps, lets the GPU know them, and
 * launches kernels/ringtree.cu. For plans with tuttiKernelSchedule.
 */
#ifndef TUTTI_DEVICE_CUDA_RINGTREE_H_
#define TUTTI_DEVICE_CUDA_RINGTREE_H_

#include <sys/cdefs.h>

#include "collectives/task.h"
#include "kernels/ringtree.h"
#include "proxy/proxy.h"
#include "transport/transport.h"

__BEGIN_DECLS

/* What a proxy's operation for the kernels knows. */
typedef struct {
  struct tuttiCudaRingTree *ringTree;
  uint32_t finished;  /* launches that had ended at its last turn */
  uint64_t busyUntil; /* with graphs: when the proxy may come to rest */
} tuttiCudaServer;

/* Of one communicator. */
typedef struct tuttiCudaRingTree {
  tuttiTaskContext *context;
  const tuttiCommView *view;
  int nranks, nchannels;
  tuttiRingTreeEndpoint *endpoints; /* GPU: [nchannels + 1 for messages][recv, send][nranks] */
  uint8_t *opened;                  /* the same in host memory: that endpoint is known to the GPU */
  int32_t *rings;                   /* GPU: [nchannels][2][nranks], of ring and grid */
  uint8_t *ringKnown;               /* [nchannels][2] */
  tuttiKernelStatus *status;        /* as the host sees it */
  tuttiAtomic32 launched;           /* by the host; those of graphs are counted in the status */
  tuttiAtomic32 captured;           /* there may be graphs with launches */
  tuttiCudaServer servers[2];
  int served; /* so many of them are with their proxies */
  tuttiStream_t copies;
  tuttiRingTreeArgs args; /* of the next launch */
} tuttiCudaRingTree;

/* On the current device. `status` is pinned; `copies` is a stream that waits for no other. Undone
 * by Close, also after a failure; no kernel may be running then. */
tuttiResult_t tuttiCudaRingTreeInit(tuttiCudaRingTree *s, tuttiCommView *v,
                                    tuttiTaskContext *context, tuttiKernelStatus *status,
                                    tuttiStream_t copies);
void tuttiCudaRingTreeClose(tuttiCudaRingTree *s, tuttiCommView *v);

/* Enqueues n <= TUTTI_RINGTREE_TASKS tasks, which run side by side: the channels of one collective,
 * or messages. */
tuttiResult_t tuttiCudaRingTreeLaunch(tuttiCudaRingTree *s, const tuttiTask *tasks, int n,
                                      bool capturing);
/* A connection as this GPU sees it: host memory, but for P2P's and what says that it is not. */
tuttiResult_t tuttiCudaEndpoint(const tuttiConn *conn, tuttiRingTreeEndpoint *out);
/* A server's turn: keeps its proxy looking at slots while kernels are under way. */
tuttiProxyState tuttiCudaRingTreeServe(void *server, tuttiProxyTurn *turn);

__END_DECLS

#endif
