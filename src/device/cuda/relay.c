#include "device/cuda/relay.h"

#include "base/os.h"
#include "device/cuda/ringtree.h"

/* ---- proxies ---------------------------------------------------------------------------------
 * Kernels of one-sided operations run beside each other and in graphs, so that their launches
 * cannot be counted; while they have messages on their way they say so now and then, and proxies
 * look for that, less often once nothing has happened for a while. */

enum {
  LINGER_NS = 1000000,
  LOOK_NS = 200000,
  OFTEN_NS = 200000000,
  RARELY_NS = 2000000,
  NEVER_YET_NS = 10000000
};

/* How long after its last look a proxy makes the next one, `quiet` after there was something. */
static uint64_t pauseNs(uint64_t quiet, bool neverYet) {
  if (neverYet) return NEVER_YET_NS;
  return quiet > OFTEN_NS ? RARELY_NS : LOOK_NS;
}

tuttiProxyState tuttiCudaRelayServe(void *self, tuttiProxyTurn *turn) {
  tuttiCudaRelayServer *server = self;
  const tuttiCudaRelay *r = server->relay;
  uint64_t now = tuttiNow(), told = __atomic_load_n(&r->status->busy, __ATOMIC_ACQUIRE);
  uint64_t announced = tuttiLoadAcquire(&r->busyUntil);
  if (told != server->seen) server->busyUntil = now + LINGER_NS;
  if (announced > server->busyUntil) server->busyUntil = announced;
  server->seen = told;
  turn->polled++;
  if (now >= server->busyUntil) {
    tuttiProxyWakeBy(turn, now + pauseNs(now - server->busyUntil, server->busyUntil == 0));
    return TUTTI_PROXY_IDLE;
  }
  tuttiProxyWakeBy(turn, r->napUs ? now + (uint64_t)r->napUs * 1000 : 0);
  return TUTTI_PROXY_WAITING;
}

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>

#include "base/cuda.h"
#include "base/error.h"

/* NULL: there is none, or it has nothing to look for. */
static tuttiProxy *proxyOf(const tuttiCudaRelay *r, int i) {
  const tuttiCommView *v = r->view;
  if (i < 2 && !r->network) return NULL;
  return i == 0 ? v->proxy : i == 1 ? v->receiver : v->taker;
}

/* From the first window on, also where no kernel of this rank ever puts: what comes of a network is
 * found by looks alone, and a GPU's memory may want several of them for each message. */
static tuttiResult_t serve(tuttiCudaRelay *r) {
  for (; r->served < TUTTI_RELAY_PROXIES; r->served++) {
    tuttiCudaRelayServer *server = &r->servers[r->served];
    tuttiProxyOp op = {.advance = tuttiCudaRelayServe,
                       .close = tuttiProxyNothingToClose,
                       .halt = tuttiProxyNothingToHalt,
                       .tell = tuttiProxyNothingToTell,
                       .self = server};
    server->relay = r;
    if (proxyOf(r, r->served)) TUTTI_TRY(tuttiProxyAdd(proxyOf(r, r->served), &op));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaRelayAnnounce(tuttiCudaRelay *r) {
  TUTTI_TRY(serve(r));
  tuttiStoreRelease(&r->busyUntil, tuttiNow() + LINGER_NS);
  for (int i = 0; i < r->served; i++)
    if (proxyOf(r, i)) tuttiProxyKick(proxyOf(r, i));
  return tuttiSuccess;
}

#define THREADS 4  /* of a rank that keep looking: three proxies, and the caller's, in CUDA */
#define NAP_US  10 /* and their naps where these have no core each */

/* ---- life ------------------------------------------------------------------------------------ */

bool tuttiCudaRelays(const tuttiCudaRelay *r, int peer) {
  const tuttiCommView *v = r->view;
  if (peer == v->rank || v->rmaContexts == 0) return false;
  return v->paths[peer].transport && !v->paths[peer].stores;
}

/* By the taker's thread, which has nothing else to do. The slot is pinned, or memory of this GPU.
 * Where one has come, more may be on their way. */
static tuttiResult_t store(void *owner, void *to, const void *from, size_t bytes) {
  tuttiCudaRelay *r = owner;
  tuttiStoreRelease(&r->busyUntil, tuttiNow() + LINGER_NS);
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(r->device, &before));
  CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, r->copies));
  return CUDA_CHECK(cudaStreamSynchronize(r->copies));
}

/* Counters of a rank. */
static size_t rowOf(const tuttiCommView *v) {
  return (size_t)v->rmaContexts * (size_t)v->rmaSignals;
}

static tuttiResult_t makeNet(tuttiCudaRelay *r) {
  tuttiCommView *v = r->view;
  tuttiRmaHome home = {.view = v,
                       .taker = v->taker,
                       .counters = r->arrived,
                       .row = rowOf(v),
                       .used = rowOf(v),
                       .store = store,
                       .owner = r,
                       .lookMs = 10};
  return tuttiRmaNetCreate(&home, &r->net);
}

/* One that spins on a core that another needs keeps it for whole time slices: see setSpins. */
static uint32_t napOf(const tuttiCommView *v, uint32_t others) {
  int threads = THREADS;
  for (int p = 0; p < v->nranks; p++)
    if (p != v->rank && v->peers[p].hostId == v->peers[v->rank].hostId) threads += THREADS;
  return others == 0 && threads > v->peers[v->rank].cores ? NAP_US : others;
}

/* Memory, which could not be had later but behind kernels that may wait for this rank. */
static tuttiResult_t reserve(tuttiCudaRelay *r) {
  const tuttiCommView *v = r->view;
  size_t n = (size_t)v->nranks;
  TUTTI_NEW(r->opened, v->nranks, "connections of puts", v->memory);
  TUTTI_NEW(r->listening, v->nranks, "connections of puts", v->memory);
  r->arrivedBytes = tuttiPagesUp(n * rowOf(v) * sizeof *r->arrived);
  TUTTI_TRY(tuttiMap((void **)&r->arrived, r->arrivedBytes, -1, "signals of one-sided operations",
                     v->memory));
  TUTTI_TRY(tuttiPin(v->rank, r->device, r->arrived, r->arrivedBytes, &r->pinned));
  CUDA_TRY(cudaHostGetDevicePointer((void **)&r->arrivedOnDevice, r->arrived, 0));
  r->endpointsBytes = n * (sizeof *r->endpoints + sizeof *r->guards);
  CUDA_TRY(cudaMalloc((void **)&r->endpoints, r->endpointsBytes));
  r->guards = (uint32_t *)(r->endpoints + n);
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaRelayInit(tuttiCudaRelay *r, tuttiCommView *v, tuttiTaskContext *context,
                                 tuttiKernelStatus *status) {
  r->context = context;
  r->view = v;
  r->device = v->peers[v->rank].cudaDevice;
  r->status = status;
  for (int p = 0; p < v->nranks; p++) {
    if (!tuttiCudaRelays(r, p)) continue;
    r->any = true;
    r->network |= v->paths[p].network;
  }
  r->napUs = r->any ? napOf(v, context->napUs) : 0;
  return r->any ? reserve(r) : tuttiSuccess;
}

/* What else operations need, with the first window: a communicator without one has no stream of
 * these, as there are few queues to the GPU, and kernels of one stream wait behind those of others
 * that have the same. After a failure it goes on where it ended. */
static tuttiResult_t prepare(tuttiCudaRelay *r) {
  int least, greatest;
  CUDA_TRY(cudaHostGetDevicePointer((void **)&r->statusOnDevice, r->status, 0));
  CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest)); /* not behind waits for them */
  if (!r->copies)
    CUDA_TRY(cudaStreamCreateWithPriority(&r->copies, cudaStreamNonBlocking, greatest));
  CUDA_TRY(cudaMemsetAsync(r->endpoints, 0, r->endpointsBytes, r->copies));
  CUDA_TRY(cudaStreamSynchronize(r->copies));
  return makeNet(r);
}

void tuttiCudaRelayStop(tuttiCudaRelay *r) {
  for (; r->served > 0; r->served--)
    if (proxyOf(r, r->served - 1))
      tuttiProxyRemove(proxyOf(r, r->served - 1), &r->servers[r->served - 1]);
  tuttiRmaNetFree(r->net);
  r->net = NULL;
}

void tuttiCudaRelayClose(tuttiCudaRelay *r) {
  tuttiUnpin(&r->pinned);
  if (r->arrived) tuttiUnmap(r->arrived, r->arrivedBytes, r->view->memory);
  if (r->copies) cudaStreamDestroy(r->copies);
  cudaFree(r->endpoints);
  tuttiFree(r->listening);
  tuttiFree(r->opened);
}

/* ---- windows --------------------------------------------------------------------------------- */

tuttiResult_t tuttiCudaRelayOpen(tuttiCudaRelay *r, uint32_t number, void *base, size_t size,
                                 tuttiRmaKeys *keys) {
  if (!r->any) return tuttiSuccess;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(r->device, &before)); /* connections pin their memory */
  if (!r->net) TUTTI_TRY(prepare(r));
  for (int p = 0; p < r->view->nranks; p++) {
    tuttiConn *conn;
    if (!tuttiCudaRelays(r, p) || r->listening[p]) continue;
    TUTTI_TRY(r->context->conn(r->context->comm, p, TUTTI_RMA_CHANNEL, TUTTI_RECV, false, &conn));
    TUTTI_TRY(tuttiRmaNetListen(r->net, conn));
    r->listening[p] = true;
  }
  TUTTI_TRY(serve(r));
  return tuttiRmaNetWindowOpen(r->net, number, base, size, keys);
}

void tuttiCudaRelayShut(tuttiCudaRelay *r, uint32_t number) {
  if (r->net) tuttiRmaNetWindowClose(r->net, number);
}

/* ---- puts ------------------------------------------------------------------------------------ */

tuttiResult_t tuttiCudaRelayPrepare(tuttiCudaRelay *r, int peer) {
  tuttiConn *conn;
  tuttiRingTreeEndpoint endpoint;
  if (r->opened[peer]) return tuttiSuccess;
  TUTTI_TRY(r->context->conn(r->context->comm, peer, TUTTI_RMA_CHANNEL, TUTTI_SEND, false, &conn));
  TUTTI_TRY(tuttiCudaEndpoint(conn, &endpoint));
  TUTTI_TRY(tuttiCudaTell(&r->endpoints[peer], &endpoint, sizeof endpoint, r->copies));
  r->opened[peer] = 1;
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaRelayPut(tuttiCudaRelay *r, const tuttiRmaPut *put, uint32_t counter,
                                tuttiStream_t stream) {
  const tuttiCommView *v = r->view;
  tuttiRelayArgs args = {
      .endpoint = &r->endpoints[put->peer],
      .guard = &r->guards[put->peer],
      .from = put->data,
      .bytes = put->bytes,
      .target = {.header = {.offset = put->offset,
                            .window = put->window,
                            .counter = (uint32_t)(put->context * v->rmaSignals + put->signal)},
                 .to = put->at,
                 .keys = put->keys},
      .status = r->statusOnDevice,
      .counter = counter};
  TUTTI_TRY(tuttiCudaRelayAnnounce(r));
  return tuttiCudaCheck((cudaError_t)tuttiRelayLaunch(&args, stream), "the launch of a put");
}

#endif
