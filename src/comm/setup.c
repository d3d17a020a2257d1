/* Setting a communicator up (rendezvous, peers, transports, graph, plan) and taking it down. */
#include "comm/setup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "bootstrap/handshake.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/handle.h"
#include "comm/operation.h"
#include "comm/options.h"
#include "comm/record.h"
#include "comm/registration.h"
#include "comm/window.h"
#include "comm/worker.h"
#include "kernels/allpairs.h"
#include "kernels/ringtree.h"
#include "topology/xml.h"
#include "transport/net.h"
#include "transport/segment.h"
#include "transport/symmetric.h"
#include "wireup/paths.h"

#define CHANNELS_ONE_HOST 2 /* the two trees; more only cost host threads context switches */
#define CHANNELS_NETWORK  4
/* Slots are so much larger where all GPUs are on hosts of their own: RDMA wants large messages, and
 * no symmetric block, which has room for every channel, holds them. */
#define NETWORK_SLOTS 4
#define SPINS         20000 /* idle passes before a waiter yields, about a millisecond */
#define SPINS_SHARED  100   /* where the kernel needs the core, too: longer than RDMA takes */
#define COMM_BYTES    65536 /* at most, without what grows with ranks and channels */

/* Same for all communicators of this process: tells threads from processes. */
static uint64_t processId(void) {
  static tuttiAtomic64 id;
  uint64_t v = tuttiLoadAcquire(&id);
  if (v) return v;
  if (tuttiRandom(&v, sizeof v) != tuttiSuccess || v == 0)
    v = tuttiNow() ^ (uint64_t)getpid() << 32 ^ 1;
  return tuttiCompareExchange(&id, 0, v) ? v : tuttiLoadAcquire(&id);
}

static void describeSelf(const tuttiCommunicator *c, uint32_t graph, tuttiPeer *p) {
  const tuttiOptions *o = &c->options;
  memset(p, 0, sizeof *p);
  p->cores = tuttiCpuCount();
  p->version = TUTTI_VERSION_CODE;
  p->rank = c->rank;
  p->nranks = c->nranks;
  p->device = c->device->kind;
  p->cudaDevice = -1;
  p->pid = getpid();
  p->process = processId();
  p->hostId = tuttiHostId();
  p->p2pDisabled = (int32_t)tuttiSettingInt(TUTTI_SETTING_P2P_DISABLE);
  p->shmDisabled = (int32_t)tuttiSettingInt(TUTTI_SETTING_SHM_DISABLE);
  /* What ranks must agree on, so that they plan alike. */
  snprintf(p->config, sizeof p->config,
           "channels %d-%d, device %d, net '%s', buffsize %" PRId64
           ", algo '%.24s', proto '%.16s', "
           "p2p_disable %d, shm_disable %d, deterministic %d, nsocks %d, mem_limit %" PRId64 ", "
           "TUTTI_GRAPH_FILE with hash %08x (0: no file)",
           o->minChannels, o->maxChannels, (int)o->device, o->net,
           tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), tuttiSettingString(TUTTI_SETTING_ALGO),
           tuttiSettingString(TUTTI_SETTING_PROTO), p->p2pDisabled, p->shmDisabled,
           (int)tuttiSettingInt(TUTTI_SETTING_DETERMINISTIC),
           (int)tuttiSettingInt(TUTTI_SETTING_SOCKET_NSOCKS),
           tuttiSettingInt(TUTTI_SETTING_MEM_LIMIT), graph);
  snprintf(p->host, sizeof p->host, "%s", tuttiHostname());
}

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

static size_t watchState(void *comm, void *out) {
  tuttiRankState state;
  (void)tuttiCommFailure(comm); /* a suspicion may have come true though this rank calls nothing */
  tuttiRecordState(&((tuttiCommunicator *)comm)->record, &state);
  state.offer = tuttiLoadAcquire(&((tuttiCommunicator *)comm)->offer);
  memcpy(out, &state, sizeof state);
  return sizeof state;
}

/* The proxy's thread is in no call that would say whose trouble it is. */
static void proxyFailed(void *comm, tuttiResult_t code, const char *text) {
  const tuttiCommunicator *c = comm;
  const tuttiPeer *mine = &c->peers[c->rank];
  char who[TUTTI_ERROR_TEXT + 160];
  snprintf(who, sizeof who, "rank %d (host %s, pid %d): %s", c->rank, mine->host, mine->pid, text);
  tuttiErrorAdopt(code, who); /* marks what no longer fits */
  tuttiCommSuspect(comm, code, tuttiErrorText());
}

static tuttiResult_t startWatch(tuttiCommunicator *c) {
  TUTTI_FRESH(tuttiWho, who, c->nranks, "names of ranks", NULL);
  for (int r = 0; r < c->nranks; r++) {
    who[r].rank = r;
    who[r].pid = c->peers[r].pid;
    memcpy(who[r].host, c->peers[r].host, sizeof who[r].host);
  }
  tuttiWatchCalls calls = {.ctx = c, .failed = watchFailed, .state = watchState};
  tuttiWatch *watch;
  TUTTI_TRY(tuttiWatchStart(c->bootstrap, who, &calls, &c->memory, &watch));
  TUTTI_LOCKED(&c->failureLock); /* the proxy may be failing already */
  c->watch = watch;
  return tuttiSuccess;
}

static tuttiResult_t exchangePeers(tuttiCommunicator *c, uint32_t graph, tuttiWait wait) {
  tuttiPeer *mine = &c->peers[c->rank];
  describeSelf(c, graph, mine);
  TUTTI_TRY(c->device->describe(c->options.ordinal, &c->view, mine));
  tuttiPeer self = *mine;
  TUTTI_TRY(tuttiTransportsPrepare(&c->view, &self));
  *mine = self;
  TUTTI_TRY(tuttiBootstrapAllGather(c->bootstrap, c->peers, sizeof *c->peers, wait));
  for (int r = 0; r < c->nranks; r++)
    TUTTI_TRY(tuttiPeerCheck(&c->peers[r], r, &self));
  return tuttiSuccess;
}

static int mostChannels(const tuttiCommunicator *c) {
  int most = c->device->kind == tuttiDeviceCuda ? TUTTI_SYMMETRIC_CHANNELS : TUTTI_MAX_CHANNELS;
  return c->options.maxChannels && c->options.maxChannels < most ? c->options.maxChannels : most;
}

static int channelCount(const tuttiCommunicator *c, int nhosts) {
  int n = nhosts > 1 ? CHANNELS_NETWORK : CHANNELS_ONE_HOST, most = mostChannels(c);
  if (n < c->options.minChannels) n = c->options.minChannels;
  return c->device->kind == tuttiDeviceCuda || n > most ? most : n;
}

/* Read from the `size` bytes of `file`, or computed where there is none. */
static tuttiResult_t makeGraph(tuttiCommunicator *c, const char *file, const char *text,
                               size_t size) {
  TUTTI_FRESH(uint64_t, hosts, c->nranks, "hosts of ranks", NULL);
  int nhosts = 1;
  for (int r = 0; r < c->nranks; r++) {
    hosts[r] = c->peers[r].hostId;
    if (hosts[r] != hosts[0]) nhosts = 2; /* one or more */
  }
  const char *dump = tuttiSettingString(TUTTI_SETTING_GRAPH_DUMP_FILE);
  TUTTI_TRY(text ? tuttiGraphParseXml(text, size, file, hosts, c->nranks, &c->graph)
                 : tuttiGraphCreate(hosts, c->nranks, channelCount(c, nhosts), &c->graph));
  return dump[0] && c->rank == 0 ? tuttiGraphWriteXml(c->graph, dump) : tuttiSuccess;
}

/* Worst path of each kind, over the pairs that rings use and rank 0 with everyone. */
static tuttiResult_t surveyPair(tuttiCommunicator *c, int a, int b) {
  tuttiPath path;
  const tuttiPeer *from = &c->peers[a], *to = &c->peers[b];
  if (a == b) return tuttiSuccess;
  tuttiTransportSelect(from, to, &path);
  if (!path.transport) return tuttiPathMissing(&path, from, to);
  tuttiPlanInput *in = &c->plan;
  bool inside = c->peers[a].hostId == c->peers[b].hostId;
  float *latency = inside ? &in->intraLatencyUs : &in->interLatencyUs;
  float *bandwidth = inside ? &in->intraGBs : &in->interGBs;
  if (path.latencyUs > *latency) *latency = path.latencyUs;
  if (*bandwidth == 0 || path.bandwidthGBs < *bandwidth) *bandwidth = path.bandwidthGBs;
  if (!path.sharedFifos) in->sharedFifos = 0;
  if (path.network && in->nhosts == 1) in->loopback = 1;
  /* From the first operation on, whoever waits runs it. */
  if (path.network) c->context.proxy = c->view.proxy;
  if (!path.direct) in->directReads = 0;
  if (!path.fetches) in->fetches = 0;
  return tuttiSuccess;
}

/* Ranks per host, against the cores they have. Where these leave none for the kernel's part of a
 * network, spinning for long would keep it from its work. */
static tuttiResult_t countHosts(tuttiCommunicator *c) {
  tuttiPlanInput *in = &c->plan;
  const int32_t *host = c->graph->host;
  TUTTI_FRESH(int, ranks, in->nhosts, "ranks per host", NULL);
  for (int r = 0; r < c->nranks; r++)
    if (++ranks[host[r]] > in->maxRanksPerHost) in->maxRanksPerHost = ranks[host[r]];
  for (int r = 0; r < c->nranks; r++)
    if (ranks[host[r]] > c->peers[r].cores) in->oversubscribed = c->view.oversubscribed = true;
  int spare = c->peers[c->rank].cores - ranks[host[c->rank]];
  c->context.spins = spare < 0 ? 0 : spare == 0 && c->context.proxy ? SPINS_SHARED : SPINS;
  return tuttiSuccess;
}

/* A list of words meant for NCCL may name what tutti has not: then nothing is excluded. */
static tuttiResult_t allowed(tuttiSettingId id, const char *const *names, int n, uint32_t *mask) {
  const char *origin = tuttiSettingOrigin(id), *value = tuttiSettingString(id);
  tuttiResult_t result = tuttiPlanMask(origin, value, names, n, mask);
  if (result == tuttiSuccess || strncmp(origin, "NCCL_", 5) != 0) return result;
  TUTTI_WARN(ENV, "%s=%s is ignored: it names what this version of tutti has not", origin, value);
  *mask = (1u << n) - 1;
  return tuttiSuccess;
}

/* Can every GPU store into the memory of every other, or into host memory that all of them share?
 * And how many ranks share one? */
static void surveyGpus(tuttiCommunicator *c, tuttiPlanInput *in) {
  tuttiPath path;
  bool linked = true;
  size_t staged = tuttiAllPairsLayOut(c->nranks, true).bytes;
  in->gpu = c->device->kind == tuttiDeviceCuda;
  in->widest = in->gpu ? TUTTI_RINGTREE_FAN + 1 : 0;
  in->allPairs = c->view.symmetric && c->nranks <= TUTTI_ALLPAIRS_MAX &&
                 c->view.symmetric->bytes >= tuttiAllPairsLayOut(c->nranks, false).bytes &&
                 (in->algoMask & 1u << tuttiAlgoDirect);
  in->staged = in->gpu && c->nranks > 1 && c->nranks <= TUTTI_ALLPAIRS_MAX &&
               (in->algoMask & 1u << tuttiAlgoDirect);
  in->maxBlocks = c->options.maxChannels;
  for (int a = 0; a < c->nranks && (in->allPairs || in->staged); a++) {
    int sharers = 0, most = c->peers[a].blocks;
    if (most > 0 && (!in->maxBlocks || in->maxBlocks > most)) in->maxBlocks = most;
    for (int b = 0; b < c->nranks; b++) {
      const tuttiPeer *p = &c->peers[a], *q = &c->peers[b];
      sharers += p->hostId == q->hostId && p->busId == q->busId;
      if (b >= a) continue;
      tuttiTransportSelect(p, q, &path);
      if (!path.stores) in->allPairs = 0;
      if (!path.staged) in->staged = 0;
      linked = linked && (p->busId == q->busId || (p->nvlink && q->nvlink));
    }
    if (sharers > in->sharers) in->sharers = sharers;
  }
  if (in->allPairs && !linked) { /* PCIe keeps no line whole */
    in->protoMask &= ~(1u << tuttiProtoLL | 1u << tuttiProtoLL128);
    TUTTI_INFO(INIT,
               "protocol LL128 is not used: NVLinks do not join all GPUs, as far as is known");
  }
  if (in->staged) in->allPairs = 1;
  c->view.stagedBytes = in->staged ? staged : 0;
}

/* Smaller slots, then fewer channels, until all that a rank may take is within TUTTI_MEM_LIMIT, but
 * for connections over a network with more ranks than rings and trees join. The same on all ranks.
 * The memory of a GPU is taken already. */
static tuttiResult_t fitMemory(tuttiCommunicator *c) {
  tuttiPlanInput *in = &c->plan;
  tuttiCommView *v = &c->view;
  int nlocal = in->loopback ? 1 : in->maxRanksPerHost, ends = 0;
  if (in->gpu) v->memLimit = 0;
  if (in->nhosts > 1 || in->loopback)
    ends = 2 * (c->nranks <= TUTTI_MAX_FAN + 2 ? c->nranks - 1 : TUTTI_MAX_FAN + 2);
  for (;;) {
    v->nchannels = c->graph->nchannels = in->maxChannels;
    v->memTaken = COMM_BYTES + (size_t)c->nranks * TUTTI_RANK_BYTES + tuttiLocalBytes(v, nlocal);
    size_t most = v->memTaken + (size_t)(ends * (v->nchannels + 1)) * tuttiNetEndpointBytes(v);
    if (!v->memLimit || most <= v->memLimit) return tuttiSuccess;
    if (tuttiSlotsShrink(v)) continue;
    if (in->maxChannels == in->minChannels) return tuttiMemExceeded(v, most);
    in->maxChannels--;
  }
}

static tuttiResult_t makePlanInput(tuttiCommunicator *c) {
  tuttiPlanInput *in = &c->plan;
  TUTTI_TRY(allowed(TUTTI_SETTING_ALGO, tuttiAlgoNames, tuttiAlgoCount, &in->algoMask));
  TUTTI_TRY(allowed(TUTTI_SETTING_PROTO, tuttiProtoNames, tuttiProtoCount, &in->protoMask));
  surveyGpus(c, in);
  in->nranks = c->nranks;
  in->nhosts = c->graph->nhosts;
  in->minChannels = c->options.minChannels ? c->options.minChannels : 1;
  in->maxChannels = mostChannels(c);
  if (in->maxChannels > c->graph->nchannels) in->maxChannels = c->graph->nchannels;
  if (in->minChannels > in->maxChannels) in->minChannels = in->maxChannels;
  in->deterministic = (int)tuttiSettingInt(TUTTI_SETTING_DETERMINISTIC);
  if (in->deterministic && in->widest && in->nranks > in->widest)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "%s=1 needs the algorithm Direct, which connects up to %d ranks on GPUs, not "
                      "%d; unset it",
                      tuttiSettingOrigin(TUTTI_SETTING_DETERMINISTIC), in->widest, in->nranks);
  in->sharedFifos = in->directReads = in->fetches = 1;
  in->treeDepth = c->graph->depth[0];
  for (int i = 0; i < c->nranks; i++) {
    int r = c->graph->ring[i], next = c->graph->ring[(i + 1) % c->nranks];
    TUTTI_TRY(surveyPair(c, r, next));
    TUTTI_TRY(surveyPair(c, 0, i));
  }
  TUTTI_TRY(countHosts(c));
  if (in->gpu && in->nhosts == in->nranks) c->view.slotBytes *= NETWORK_SLOTS;
  TUTTI_TRY(fitMemory(c));
  in->slotBytes = c->view.slotBytes;
  return tuttiSuccess;
}

static void logPath(const tuttiCommunicator *c, int channel, int from, int to) {
  char gpus[64] = ", ", why[TUTTI_SENTENCE], via[TUTTI_VIA];
  const tuttiPeer *p = &c->peers[from], *q = &c->peers[to];
  bool near = p->busId && p->hostId == q->hostId, sending = from == c->rank;
  const tuttiPath *path = &c->paths[sending ? to : from];
  if (!path->transport) return;
  tuttiTopologyPath(c->view.topology, p->busId, q->busId, gpus + 2, sizeof gpus - 2);
  TUTTI_INFO(INIT, "Channel %02d/%02d : %d[%d] -> %d[%d] [%s] via %s%s (%s)", channel,
             c->graph->nchannels, from, p->cudaDevice, to, q->cudaDevice,
             sending ? "send" : "receive", tuttiPathVia(path, p, q, via), near ? gpus : "",
             tuttiPathText(path, p, q, why));
}

static void logSetup(const tuttiCommunicator *c) {
  if (!tuttiLogEnabled(TUTTI_LOG_INFO, TUTTI_SUBSYS(INIT))) return;
  tuttiGraphLog(c->graph, c->rank);
  for (int ch = 0; ch < c->graph->nchannels; ch++) {
    size_t row = (size_t)ch * (size_t)c->nranks;
    int at = c->graph->position[row + (size_t)c->rank];
    logPath(c, ch, c->graph->ring[row + (size_t)((at + c->nranks - 1) % c->nranks)], c->rank);
    logPath(c, ch, c->rank, c->graph->ring[row + (size_t)((at + 1) % c->nranks)]);
  }
}

static tuttiResult_t openConn(void *comm, int peer, int channel, tuttiDirection direction,
                              bool shared, tuttiConn **out) {
  tuttiCommunicator *c = comm;
  tuttiConn ***row = &c->conns[direction][shared][channel];
  size_t at = peer >= 0 ? (size_t)peer : (size_t)c->nranks;
  if (!*row) TUTTI_NEW(*row, c->nranks + 1, "connections", &c->memory); // NOLINT
  if (!(*row)[at]) {
    int other = peer >= 0 ? peer : (c->rank + 1) % c->nranks; /* shared: that of any pair */
    const tuttiTransport *t = c->paths[other].transport;
    if (!t) return tuttiPathMissing(&c->paths[other], &c->peers[c->rank], &c->peers[other]);
    TUTTI_FRESH(tuttiConn, conn, 1, "a connection", &c->memory);
    TUTTI_TRY(t->open(&c->view, peer, channel, direction, shared, conn));
    conn->transport = t;
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
  v->peers = c->peers;
  v->paths = c->paths;
  /* GPUs pin their FIFOs, and have many channels. */
  bool gpu = c->device->kind == tuttiDeviceCuda;
  size_t slots = TUTTI_FIFO_DEPTH * (gpu ? 8 : 1);
  v->slotBytes = (size_t)tuttiSettingInt(TUTTI_SETTING_BUFFSIZE) / slots / TUTTI_LINE * TUTTI_LINE;
  v->memLimit = (size_t)tuttiSettingInt(TUTTI_SETTING_MEM_LIMIT);
  v->timeoutMs = (uint64_t)c->options.timeoutMs;
  v->failed = &c->failed;
  v->memory = &c->memory;
  v->netName = c->options.net;
  v->trafficClass = (uint8_t)c->options.trafficClass;
  if (!c->options.name[0]) /* after its hash, so alike on all ranks, also those that grow it */
    snprintf(c->options.name, sizeof c->options.name, "%016" PRIx64, v->commHash);
  TUTTI_TRY(tuttiTopologyHost(&v->topology));
  TUTTI_TRY(tuttiProxyCreate(&v->proxy, proxyFailed, c));
  /* Two threads copy faster; on host memory those who wait do it themselves. */
  if (gpu) TUTTI_TRY(tuttiProxyCreate(&v->receiver, proxyFailed, c));
  c->context.comm = c;
  c->context.failed = &c->failed;
  c->context.conns = c->conns;
  c->context.conn = openConn;
  c->context.mismatch = tuttiCommMismatch;
  c->context.stalled = tuttiCommStalled;
  c->context.failure = tuttiCommFailure;
  c->context.exchange = tuttiCommExchange;
  c->context.plan = &c->plan;
  return tuttiSuccess;
}

tuttiResult_t tuttiCommSetup(tuttiCommunicator *c, const tuttiUniqueId *ids, int nids) {
  tuttiWait wait = {tuttiDeadline(c->options.timeoutMs), &c->failed};
  const char *file = tuttiSettingString(TUTTI_SETTING_GRAPH_FILE);
  TUTTI_FREED char *text = NULL;
  size_t size = 0;
  uint64_t t0 = tuttiNow();
  TUTTI_TRY(chooseDevice(c));
  TUTTI_NEW(c->peers, c->nranks, "peer records", &c->memory);
  TUTTI_NEW(c->paths, c->nranks, "paths to peers", &c->memory);
  TUTTI_NEW(c->sent, c->nranks, "message counts", &c->memory);
  TUTTI_NEW(c->received, c->nranks, "message counts", &c->memory);
  TUTTI_NEW(c->followed, c->nranks, "offers of ranks", &c->memory);
  TUTTI_TRY(tuttiBootstrapJoin(ids, nids, c->rank, c->nranks, wait, &c->bootstrap));
  uint64_t t1 = tuttiNow();
  TUTTI_TRY(setView(c));
  if (file[0]) TUTTI_TRY(tuttiXmlLoad(file, &text, &size));
  TUTTI_TRY(exchangePeers(c, text ? (uint32_t)tuttiHash(text, size) : 0, wait));
  TUTTI_TRY(startWatch(c));
  uint64_t t2 = tuttiNow();
  tuttiPathsFill(c->peers, c->rank, c->nranks, c->paths);
  TUTTI_TRY(makeGraph(c, file, text, size));
  c->view.nchannels = c->graph->nchannels;
  TUTTI_TRY(makePlanInput(c));
  uint64_t t3 = tuttiNow();
  TUTTI_TRY(tuttiTransportsAttach(&c->view));
  TUTTI_TRY(c->device->attach(&c->view, &c->context));
  uint64_t t4 = tuttiNow();
  logSetup(c);
  tuttiStoreRelease32(&c->state, tuttiCommUsable);
  TUTTI_INFO(INIT,
             "comm %s rank %d nranks %d hosts %d device %s: init complete in %.1f ms (rendezvous "
             "%.1f, peers %.1f, graph %.1f, transports %.1f), memory %.1f KiB",
             c->options.name, c->rank, c->nranks, c->graph->nhosts, c->device->name,
             tuttiMs(t0, t4), tuttiMs(t0, t1), tuttiMs(t1, t2), tuttiMs(t2, t3), tuttiMs(t3, t4),
             (double)tuttiLoadRelaxed(&c->memory.bytes) / 1024);
  return tuttiSuccess;
}

tuttiResult_t tuttiCommNew(int rank, int nranks, const tuttiOptions *options,
                           tuttiCommunicator **out) {
  TUTTI_FRESH(tuttiCommunicator, c, 1, "a communicator", NULL);
  c->rank = rank;
  c->nranks = nranks;
  c->options = *options;
  pthread_mutex_init(&c->failureLock, NULL);
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
  tuttiHandleFree(c); /* and the scope of errors: its name goes with it */
  tuttiCommWindowsFree(c);
  if (c->device) c->device->detach(&c->view, &c->context);
  if (c->view.proxy) {
    closeConns(c);
    tuttiTransportsDetach(&c->view);
    tuttiProxyDestroy(c->view.receiver);
    tuttiProxyDestroy(c->view.proxy);
  }
  tuttiWatchStop(c->watch);
  tuttiBootstrapClose(c->bootstrap);
  tuttiCommDeregisterAll(c);
  tuttiGraphFree(c->graph);
  tuttiFree(c->premul);
  tuttiFree(c->followed);
  tuttiFree(c->received);
  tuttiFree(c->sent);
  tuttiFree(c->paths);
  tuttiFree(c->peers);
  pthread_mutex_destroy(&c->failureLock);
  tuttiFree(c);
  tuttiErrorAdopt(tuttiSuccess, text);
}
