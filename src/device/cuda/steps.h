/* Runs schedules on a GPU: finds the connections of a task's steps, lets the GPU know them, and
 * launches kernels/steps.cu. For communicators that cannot exchange (tuttiPlanInput.exchange). */
#ifndef TUTTI_DEVICE_CUDA_STEPS_H_
#define TUTTI_DEVICE_CUDA_STEPS_H_

#include <sys/cdefs.h>

#include "collectives/task.h"
#include "kernels/steps.h"
#include "proxy/proxy.h"
#include "transport/transport.h"

__BEGIN_DECLS

/* What a proxy's operation for the kernels knows. */
typedef struct {
  struct tuttiCudaSteps *steps;
  uint32_t finished;  /* launches that had ended at its last turn */
  uint64_t busyUntil; /* with graphs: when the proxy may come to rest */
} tuttiCudaServer;

/* Of one communicator. */
typedef struct tuttiCudaSteps {
  tuttiTaskHost *host;
  const tuttiWires *wires;
  int nranks, nchannels;
  tuttiStepsEnd *ends;     /* GPU: [nchannels + 1 for messages][recv, send][nranks] */
  uint8_t *opened;         /* the same in host memory: that end is known to the GPU */
  int32_t *rings;          /* GPU: [nchannels][nranks] */
  uint8_t *ringKnown;      /* [nchannels] */
  tuttiExchangeMail *mail; /* as the host sees it */
  tuttiAtomic32 launched;  /* by the host; those of graphs are counted in the mail */
  tuttiAtomic32 captured;  /* there may be graphs with launches */
  tuttiCudaServer servers[2];
  int served; /* so many of them are with their proxies */
  tuttiStream_t copies;
  tuttiStepsArgs args; /* of the next launch */
} tuttiCudaSteps;

/* On the current device. `mail` is pinned; `copies` is a stream that waits for no other. Undone by
 * Close, also after a failure; no kernel may be running then. */
tuttiResult_t tuttiCudaStepsInit(tuttiCudaSteps *s, tuttiWires *w, tuttiTaskHost *host,
                                 tuttiExchangeMail *mail, tuttiStream_t copies);
void tuttiCudaStepsClose(tuttiCudaSteps *s, tuttiWires *w);

/* Enqueues n <= TUTTI_STEPS_TASKS tasks, which run side by side: the channels of one collective, or
 * messages. */
tuttiResult_t tuttiCudaStepsLaunch(tuttiCudaSteps *s, const tuttiTask *tasks, int n,
                                   bool capturing);
/* A server's turn: keeps its proxy looking at slots while kernels are under way. */
tuttiProxyState tuttiCudaStepsServe(void *server, tuttiProxyTurn *turn);

__END_DECLS

#endif
