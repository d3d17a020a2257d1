/* The life of a communicator: rendezvous, wire-up, transports, device; and the way back. */
#include "comm/setup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "comm/communicator.h"
#include "comm/deaths.h"
#include "comm/devcomm.h"
#include "comm/facts.h"
#include "comm/failure.h"
#include "comm/handle.h"
#include "comm/muster.h"
#include "comm/onesided.h"
#include "comm/operation.h"
#include "comm/options.h"
#include "comm/registration.h"
#include "comm/window.h"
#include "comm/worker.h"
#include "transport/rma.h"

#define SPINS        20000 /* idle passes before a waiter yields, about a millisecond */
#define SPINS_NET    5     /* where a network's part in the kernel needs the core, too */
#define SPINS_SHARED 100   /* where two may be on one core, in shared memory: some microseconds */
/* Naps of a waiter, for each rank that its core has: of hundreds that wait, each wakes so rarely
 * that half of the core is left for those who have something to do. */
#define NAP_US_RANK 10
/* Threads of a rank on a GPU that keep looking: a proxy's, and the caller's, which waits for the
 * stream in CUDA. Two proxies are one more. */
#define GPU_THREADS 2

static tuttiResult_t chooseDevice(tuttiCommunicator *c) {
  const char *why;
  const tuttiDevice *gpu = c->options.device != tuttiDeviceHost ? tuttiDeviceCudaTable(&why) : NULL;
  if (c->options.device == tuttiDeviceCuda && !gpu)
    return TUTTI_FAIL(tuttiInvalidArgument, "no CUDA device: %s; use device host or auto", why);
  c->device = gpu ? gpu : &tuttiDeviceCpuTable;
  return tuttiSuccess;
}

static void watchFailed(void *comm, tuttiResult_t code, const char *text) {
  tuttiCommFailText(comm, code, text, false);
}

static void watchEnded(void *comm, tuttiResult_t code, const char *text) {
  tuttiCommSuspect(comm, code, text, true);
}

static void watchDied(void *comm, int rank, const char *text) {
  tuttiCommDied(comm, rank, text);
}

/* The proxy's thread is in no call that would say whose trouble it is. */
static void proxyFailed(void *comm, tuttiResult_t code, const char *text) {
  const tuttiCommunicator *c = comm;
  const tuttiPeer *mine = &c->wireup.peers[c->rank];
  char who[TUTTI_ERROR_TEXT + 160];
  snprintf(who, sizeof who, "rank %d (host %s, pid %d): %s", c->rank, mine->host, mine->pid, text);
  tuttiErrorAdopt(code, who); /* marks what no longer fits */
  tuttiCommSuspect(comm, code, tuttiErrorText(), false);
}

static tuttiResult_t startWatch(tuttiCommunicator *c) {
  TUTTI_FRESH(tuttiWho, who, c->nranks, "names of ranks", NULL);
  for (int r = 0; r < c->nranks; r++) {
    who[r].rank = r;
    who[r].pid = c->wireup.peers[r].pid;
    memcpy(who[r].host, c->wireup.peers[r].host, sizeof who[r].host);
  }
  tuttiWatchCalls calls = {.ctx = c,
                           .failed = watchFailed,
                           .ended = watchEnded,
                           .died = watchDied,
                           .state = tuttiCommTellState,
                           .report = tuttiCommTellReport};
  tuttiWatch *watch;
  TUTTI_TRY(tuttiWatchStart(c->bootstrap, who, &calls, &c->memory, &watch));
  TUTTI_LOCKED(&c->failureLock); /* the proxy may be failing already */
  c->watch = watch;
  return tuttiSuccess;
}

static tuttiResult_t openConn(void *comm, int peer, int channel, tuttiDirection direction,
                              bool shared, tuttiConn **out) {
  tuttiCommunicator *c = comm;
  tuttiConn ***row = &c->conns[direction][shared][channel];
  size_t at = peer >= 0 ? (size_t)peer : (size_t)c->nranks;
  if (!*row) TUTTI_NEW(*row, c->nranks + 1, "connections", &c->memory); // NOLINT
  if (!(*row)[at]) {
    int other = peer >= 0 ? peer : (c->rank + 1) % c->nranks; /* shared: that of any pair */
    const tuttiPath *path = &c->wireup.paths[other];
    const tuttiPeer *peers = c->wireup.peers;
    if (!path->transport) return tuttiPathMissing(path, &peers[c->rank], &peers[other]);
    TUTTI_FRESH(tuttiConn, conn, 1, "a connection", &c->memory);
    TUTTI_TRY(path->transport->open(&c->view, peer, channel, direction, shared, conn));
    conn->transport = path->transport;
    if (conn->network) c->context.proxy = c->view.proxy;
    (*row)[at] = conn;
    conn = NULL;
  }
  *out = (*row)[at];
  return tuttiSuccess;
}

static tuttiResult_t setView(tuttiCommunicator *c) {
  tuttiCommView *v = &c->view;
  v->rank = c->rank;
  v->nranks = c->nranks;
  v->commHash = c->bootstrap->hash;
  memcpy(v->secret, c->bootstrap->secret, sizeof v->secret);
  v->tls = c->bootstrap->tls;
  /* GPUs pin their FIFOs, and have many channels. */
  bool gpu = c->device->kind == tuttiDeviceCuda;
  size_t slots = TUTTI_FIFO_DEPTH * (gpu ? 8 : 1);
  v->slotBytes = (size_t)tuttiSettingInt(TUTTI_SETTING_BUFFSIZE) / slots / TUTTI_LINE * TUTTI_LINE;
  v->memLimit = (size_t)tuttiSettingInt(TUTTI_SETTING_MEM_LIMIT);
  v->rmaContexts = c->options.rmaContexts;
  v->rmaSignals = c->options.rmaSignals;
  v->timeoutMs = (uint64_t)c->options.timeoutMs;
  v->failed = &c->failed;
  v->memory = &c->memory;
  v->netName = c->options.net;
  v->trafficClass = (uint8_t)c->options.trafficClass;
  if (!c->options.name[0]) /* after its hash, so alike on all ranks, also those that grow it */
    snprintf(c->options.name, sizeof c->options.name, "%016" PRIx64, v->commHash);
  TUTTI_TRY(tuttiTopologyHost(gpu, &v->topology));
  TUTTI_TRY(tuttiProxyCreate(&v->proxy, proxyFailed, c));
  /* Two threads copy faster; on host memory those who wait do it themselves. */
  if (!gpu) return tuttiSuccess;
  if (v->rmaContexts > 0) TUTTI_TRY(tuttiProxyCreate(&v->taker, proxyFailed, c));
  return tuttiProxyCreate(&v->receiver, proxyFailed, c);
}

static void setContext(tuttiCommunicator *c) {
  c->context.comm = c;
  c->context.failed = &c->failed;
  c->context.conns = c->conns;
  c->context.conn = openConn;
  c->context.mismatch = tuttiCommMismatch;
  c->context.waits = tuttiCommWaits;
  c->context.stalled = tuttiCommStalled;
  c->context.signalsLate = tuttiSignalsLate;
  c->context.failure = tuttiCommFailure;
  c->context.exchange = tuttiCommExchange;
  c->context.plan = &c->wireup.plan;
  c->context.idle = &c->record.idle;
}

static bool shareCores(const tuttiPeer *a, const tuttiPeer *b) {
  return a->hostId == b->hostId && a->cpuSet == b->cpuSet;
}

/* Where the ranks that share this one's cores leave none free, a network's part in the kernel needs
 * theirs, and spinning for long would keep it from its work. Moreover the scheduler may leave two
 * ranks on one core and another core idle for tens of milliseconds, and each gets on only as the
 * other yields. A pass over sockets is a system call, one over shared memory some loads.
 *
 * Where GPUs' ranks have no core for a second proxy, one has both directions: another would only
 * take another turn of a core for each message. Where they have none for the first, those of one
 * process have one thread. It takes the time of no more than one core from those who wait in CUDA;
 * several, that spin, would keep each other from their messages for whole time slices, and so they
 * nap. */
static void setSpins(tuttiCommunicator *c) {
  const tuttiPeer *mine = &c->wireup.peers[c->rank];
  int ranks = 0, own = 0, cores = mine->cores;
  for (int r = 0; r < c->nranks; r++) {
    const tuttiPeer *peer = &c->wireup.peers[r];
    ranks += shareCores(peer, mine);
    own += shareCores(peer, mine) && peer->process == mine->process;
  }
  int others = ranks - own;
  c->ranksOnCores = ranks = tuttiCrowdJoin(&c->crowd, ranks);
  bool gpu = c->device->kind == tuttiDeviceCuda, network = c->wireup.survey.network;
  int looking = gpu && network ? ranks * GPU_THREADS : 0;
  bool crowded = looking && looking + ranks > cores, together = looking > cores;
  bool napping = ranks + (together ? others : 0) > cores; /* threads, but for one */
  c->context.napUs = napping ? NAP_US_RANK * (uint32_t)(ranks < cores ? 1 : ranks / cores) : 0;
  if (crowded) { /* they have nothing to do yet */
    tuttiProxyDestroy(c->view.receiver);
    c->view.receiver = NULL;
  }
  if (together) tuttiProxyShare(c->view.proxy);
  uint32_t shared = network ? SPINS_NET : SPINS_SHARED;
  c->context.spins = cores < ranks ? 0 : cores == ranks ? shared : SPINS;
  /* From the first operation on, whoever waits runs it. */
  if (network) c->context.proxy = c->view.proxy;
}

static void logSetup(const tuttiCommunicator *c, const uint64_t t[5]) {
  tuttiWireupLog(&c->wireup, &c->view);
  TUTTI_INFO(INIT,
             "comm %s rank %d nranks %d hosts %d device %s: init complete in %.1f ms (rendezvous "
             "%.1f, peers %.1f, graph %.1f, transports %.1f), memory %.1f KiB",
             c->options.name, c->rank, c->nranks, c->wireup.graph->nhosts, c->device->name,
             tuttiMs(t[0], t[4]), tuttiMs(t[0], t[1]), tuttiMs(t[1], t[2]), tuttiMs(t[2], t[3]),
             tuttiMs(t[3], t[4]), (double)tuttiLoadRelaxed(&c->memory.bytes) / 1024);
}

static tuttiResult_t prepare(tuttiCommunicator *c) {
  TUTTI_TRY(chooseDevice(c));
  TUTTI_NEW(c->sent, c->nranks, "message counts", &c->memory);
  TUTTI_NEW(c->received, c->nranks, "message counts", &c->memory);
  TUTTI_NEW(c->followed, c->nranks, "offers of ranks", &c->memory);
  TUTTI_NEW(c->leftOfSignals, c->nranks, "ranks that signals are awaited from", &c->memory);
  return tuttiSuccess;
}

tuttiResult_t tuttiCommSetup(tuttiCommunicator *c, const tuttiUniqueId *ids, int nids,
                             const tuttiKin *kin) {
  tuttiWait wait = {tuttiDeadline(c->options.timeoutMs), &c->failed, c->failure};
  uint64_t t[5] = {tuttiNow()};
  tuttiCommAppear(c, ids);
  tuttiResult_t result = prepare(c);
  if (result != tuttiSuccess) { /* or the others would wait for this rank */
    tuttiBootstrapDecline(ids, nids, c->rank, c->nranks, result);
    return result;
  }
  TUTTI_TRY(tuttiBootstrapJoin(ids, nids, c->rank, c->nranks, wait, kin, &c->bootstrap));
  t[1] = tuttiNow();
  TUTTI_TRY(setView(c));
  setContext(c);
  tuttiWireupWishes wishes = {.asked = (tuttiDevice_t)c->options.device,
                              .device = c->device->kind,
                              .minChannels = c->options.minChannels,
                              .maxChannels = c->options.maxChannels};
  TUTTI_TRY(tuttiWireupStart(&c->wireup, &wishes, &c->view));
  TUTTI_TRY(c->device->describe(c->options.ordinal, &c->view, &c->wireup.peers[c->rank]));
  TUTTI_TRY(tuttiWireupMeet(&c->wireup, &c->view, c->bootstrap, wait));
  TUTTI_TRY(startWatch(c));
  tuttiCommMet(c);
  tuttiBootstrapDone(c->bootstrap);
  t[2] = tuttiNow();
  TUTTI_TRY(tuttiWireupFinish(&c->wireup, &c->view));
  setSpins(c);
  t[3] = tuttiNow();
  tuttiStoreRelease32(&c->told.met, TUTTI_PATHS_KNOWN);
  TUTTI_TRY(tuttiTransportsAttach(&c->view));
  TUTTI_TRY(c->device->attach(&c->view, &c->context));
  /* Kernels of one that has come so far may wait for one whose allocations then wait for them. */
  if (c->device->kind == tuttiDeviceCuda) TUTTI_TRY(tuttiMusterWait(&c->view, wait));
  t[4] = tuttiNow();
  logSetup(c, t);
  tuttiStoreRelease32(&c->state, tuttiCommUsable);
  return tuttiSuccess;
}

tuttiResult_t tuttiCommNew(int rank, int nranks, const tuttiOptions *options,
                           tuttiCommunicator **out) {
  TUTTI_FRESH(tuttiCommunicator, c, 1, "a communicator", NULL);
  c->rank = rank;
  c->nranks = nranks;
  c->options = *options;
  pthread_mutex_init(&c->failureLock, NULL);
  pthread_mutex_init(&c->told.lock, NULL);
  tuttiFetchAddAcqRel(&c->memory.bytes, sizeof *c);
  TUTTI_TRY(tuttiHandleCreate(c));
  *out = c;
  c = NULL;
  return tuttiSuccess;
}

static void closeConns(tuttiCommunicator *c) {
  size_t rows = sizeof c->conns / sizeof c->conns[0][0][0];
  for (tuttiConn ***at = &c->conns[0][0][0]; rows-- > 0; at++) {
    for (int r = 0; *at && r <= c->nranks; r++) {
      tuttiConn *conn = (*at)[r];
      if (conn) conn->transport->close(&c->view, conn);
      tuttiFree(conn);
    }
    tuttiFree(*at);
    *at = NULL;
  }
}

void tuttiCommFree(tuttiCommunicator *c, bool aborted) {
  char text[TUTTI_ERROR_TEXT];
  snprintf(text, sizeof text, "%s", tuttiErrorText());
  /* At once, since ranks that share a GPU with this one may have to end before it can; and when an
   * init under way, which may have made the watch since, has ended. */
  if (aborted) tuttiCommTellAbort(c);
  tuttiWorkerStop(c);
  if (aborted) tuttiCommTellAbort(c);
  tuttiCommDisappear(c);
  tuttiHandleFree(c); /* and the scope of errors: its name goes with it */
  tuttiCommWindowsFree(c);
  tuttiDevCommsForget(c);
  tuttiRmaFree(c->rma);
  if (c->device) c->device->detach(&c->view, &c->context);
  if (c->view.proxy) {
    closeConns(c);
    tuttiTransportsDetach(&c->view);
    tuttiProxyDestroy(c->view.taker);
    tuttiProxyDestroy(c->view.receiver);
    tuttiProxyDestroy(c->view.proxy);
  }
  tuttiCrowdLeave(&c->crowd);
  tuttiWatchStop(c->watch);
  tuttiDeathsForget(c);
  tuttiBootstrapClose(c->bootstrap);
  tuttiCommDeregisterAll(c);
  tuttiWireupFree(&c->wireup);
  tuttiFree(c->premul);
  tuttiFree(c->leftOfSignals);
  tuttiFree(c->followed);
  tuttiFree(c->received);
  tuttiFree(c->sent);
  tuttiFree(c->awaited);
  pthread_mutex_destroy(&c->told.lock);
  pthread_mutex_destroy(&c->failureLock);
  tuttiFree(c);
  tuttiErrorAdopt(tuttiSuccess, text);
}
