#include "wireup/plan.h"

#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "collectives/schedule.h"
#include "kernels/allpairs.h"
#include "kernels/ringtree.h"
#include "transport/net.h"
#include "transport/segment.h"
#include "transport/symmetric.h"

#define CHANNELS_ONE_HOST 2 /* the two trees; more only cost host threads context switches */
#define CHANNELS_NETWORK  4
/* Slots of GPUs are so much larger where these reach each other by networks alone: RDMA wants large
 * messages, and no symmetric block, which has room for every channel, holds them. */
#define NETWORK_SLOTS 8
/* Between GPUs of one host, which may be one, those in host memory are as large as all that a rank
 * opens finds room in what is pinned at init (TUTTI_NET_PINNED, by default): ranks of a process
 * hung where as much was pinned while a connection was opened, perhaps until kernels of others end,
 * which wait for this rank. */
#define PINNED_SLOTS ((size_t)256 << 20)
/* Between hosts of several GPUs they are up to TUTTI_SYMMETRIC_GROWTH times as large, as far as the
 * block has room, and a slab of GPUDirect RDMA as large as it is by default: for messages with
 * every rank of another host and for the neighbours in rings and trees. */
#define MIXED_SLAB ((size_t)512 << 20)
#define COMM_BYTES 65536 /* at most, without what grows with ranks and channels */

static int mostChannels(bool gpu, int maxChannels) {
  int most = gpu ? TUTTI_SYMMETRIC_CHANNELS : TUTTI_MAX_CHANNELS;
  return maxChannels && maxChannels < most ? maxChannels : most;
}

int tuttiWireupChannels(tuttiDevice_t device, int nhosts, int minChannels, int maxChannels) {
  bool gpu = device == tuttiDeviceCuda;
  int n = nhosts > 1 ? CHANNELS_NETWORK : CHANNELS_ONE_HOST, most = mostChannels(gpu, maxChannels);
  if (n < minChannels) n = minChannels;
  return gpu || n > most ? most : n;
}

/* What the setting selects, and in *mask what any collective may use. Words of NCCL for what tutti
 * has not select nothing: where only such are named all is allowed. */
static tuttiResult_t allowed(tuttiSettingId id, const tuttiSelectionWords *words,
                             tuttiSelection *selection, uint32_t *mask) {
  const char *origin = tuttiSettingOrigin(id), *value = tuttiSettingString(id);
  bool missing = false;
  TUTTI_TRY(tuttiSelectionParse(origin, value, words, selection));
  *mask = 0;
  for (int coll = 0; coll < tuttiCollCount; coll++) {
    missing |= selection->of[coll] == 0;
    if (selection->of[coll] == 0) selection->of[coll] = (1u << words->nhas) - 1;
    *mask |= selection->of[coll];
  }
  if (missing)
    TUTTI_WARN(ENV,
               "%s=%s names for some collective only what this version of tutti has not; that part "
               "is ignored",
               origin, value);
  return tuttiSuccess;
}

/* A communicator of GPUs has kernels between all pairs for all collectives or for none. */
static bool mayExchange(const tuttiPlanInput *in) {
  for (int coll = 0; coll < tuttiCollSendRecv; coll++)
    if (!(in->algos.of[coll] & 1u << tuttiAlgoDirect)) return false;
  return true;
}

/* Kernels between all pairs: in memory of the GPUs, of which each rank has made a block, or else in
 * host memory that they share. */
static void planGpus(const tuttiSurvey *s, const tuttiCommView *v, int maxChannels,
                     tuttiPlanInput *in) {
  size_t block = v->symmetric ? v->symmetric->bytes : 0;
  bool few = s->nranks <= TUTTI_ALLPAIRS_MAX && mayExchange(in);
  in->gpu = s->gpu;
  in->widest = s->gpu ? TUTTI_RINGTREE_FAN + 1 : 0;
  in->allPairs = few && s->stores && block >= tuttiAllPairsLayOut(s->nranks, false).bytes;
  in->staged = few && s->staged && s->nranks > 1;
  in->sharers = s->sharers;
  in->maxBlocks = maxChannels;
  if (s->blocks && (!maxChannels || maxChannels > s->blocks)) in->maxBlocks = s->blocks;
  if (in->allPairs && !s->linked) { /* PCIe keeps no line whole */
    in->protoMask &= ~(1u << tuttiProtoLL | 1u << tuttiProtoLL128);
    TUTTI_INFO(INIT,
               "protocol LL128 is not used: NVLinks do not join all GPUs, as far as is known");
  }
  if (in->staged) in->allPairs = 1;
}

/* But for connections over a network with more ranks than rings, trees and rounds of doubling join.
 * The memory of a GPU is taken already. */
static tuttiResult_t fitMemory(tuttiCommView *v, tuttiPlanInput *in) {
  int nlocal = in->loopback ? 1 : in->maxRanksPerHost, ends = 0, n = in->nranks;
  if (in->gpu) v->memLimit = 0;
  int neighbours = TUTTI_MAX_FAN + (in->grid ? 4 : 2);
  /* Of all collectives those with a root may double wherever any may. */
  if (in->algoMask & 1u << tuttiAlgoDoubling && tuttiPlanDoubles(in, tuttiCollScatter))
    neighbours += tuttiSchedulePeers(tuttiCollScatter, tuttiAlgoDoubling, n);
  v->neighbours = neighbours;
  if (in->nhosts > 1 || in->loopback) ends = 2 * (n <= neighbours ? n - 1 : neighbours);
  for (;;) {
    v->nchannels = in->maxChannels;
    v->memTaken = COMM_BYTES + (size_t)n * TUTTI_RANK_BYTES + tuttiLocalBytes(v, nlocal);
    size_t most = v->memTaken + (size_t)(ends * (v->nchannels + 1)) * tuttiNetEndpointBytes(v);
    if (!v->memLimit || most <= v->memLimit) return tuttiSuccess;
    if (tuttiSlotsShrink(v)) continue;
    if (in->maxChannels == in->minChannels) return tuttiMemExceeded(v, most);
    in->maxChannels--;
  }
}

static size_t apartTimes(const tuttiSurvey *s, const tuttiCommView *v, const tuttiPlanInput *in) {
  size_t peers = (size_t)s->nranks - 1;
  size_t joined = peers < TUTTI_MAX_FAN + 2 ? peers : TUTTI_MAX_FAN + 2;
  size_t connections = 2 * (joined * (size_t)in->maxChannels + 2 * peers);
  size_t times = NETWORK_SLOTS;
  while (s->throughHost && times > 1 &&
         connections * (TUTTI_NET_ENDPOINT_BYTES + TUTTI_FIFO_DEPTH * times * v->slotBytes) >
             PINNED_SLOTS)
    times /= 2;
  return times;
}

/* How much larger than for GPUs of one host slots are. */
static size_t slotsTimes(const tuttiSurvey *s, const tuttiCommView *v, const tuttiPlanInput *in) {
  if (!in->gpu) return 1;
  if (s->apart) return apartTimes(s, v, in);
  if (s->nhosts == 1 || !v->symmetric) return 1;
  size_t connections =
      2 * (size_t)(s->nranks - s->maxRanksPerHost) + (TUTTI_MAX_FAN + 1) * (size_t)in->maxChannels;
  size_t times = TUTTI_SYMMETRIC_GROWTH;
  while (times > 1 && (tuttiSymmetricFifos(s->nranks, times * v->slotBytes) > v->symmetric->bytes ||
                       connections * TUTTI_FIFO_DEPTH * times * v->slotBytes > MIXED_SLAB))
    times /= 2;
  return times;
}

/* Where a network alone joins the GPUs of a host, they are to each other as those of others. */
static void planApart(const tuttiSurvey *s, tuttiPlanInput *in) {
  if (!in->gpu || !in->loopback) return;
  in->nhosts = s->nranks;
  in->maxRanksPerHost = 1;
  in->interLatencyUs = s->intraLatencyUs;
  in->interGBs = s->intraGBs;
  in->loopback = 0;
}

static void planChannels(const tuttiGraph *graph, int minChannels, int maxChannels,
                         tuttiPlanInput *in) {
  in->minChannels = minChannels ? minChannels : 1;
  in->maxChannels = mostChannels(in->gpu, maxChannels);
  if (in->maxChannels > graph->nchannels) in->maxChannels = graph->nchannels;
  if (in->minChannels > in->maxChannels) in->minChannels = in->maxChannels;
}

static tuttiResult_t planOrder(tuttiPlanInput *in) {
  in->deterministic = (int)tuttiSettingInt(TUTTI_SETTING_DETERMINISM);
  if (!in->deterministic || !in->widest || in->nranks <= in->widest) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "%s=1 needs the algorithm Direct, which connects up to %d ranks on GPUs, not "
                    "%d; unset it",
                    tuttiSettingOrigin(TUTTI_SETTING_DETERMINISM), in->widest, in->nranks);
}

tuttiResult_t tuttiPlanInputMake(const tuttiSurvey *s, const tuttiGraph *graph, int minChannels,
                                 int maxChannels, tuttiCommView *v, tuttiPlanInput *in) {
  tuttiPlanInput made = {.nranks = s->nranks,
                         .nhosts = s->nhosts,
                         .maxRanksPerHost = s->maxRanksPerHost,
                         .sharedFifos = s->sharedFifos,
                         .directReads = s->direct,
                         .fetches = s->fetches,
                         .fetchUs = s->fetch.call,
                         .fetchKibUs = s->fetch.kib,
                         .storeKibUs = s->fetch.store,
                         .intraLatencyUs = s->intraLatencyUs,
                         .intraGBs = s->intraGBs,
                         .interLatencyUs = s->interLatencyUs,
                         .interGBs = s->interGBs,
                         .oneFlow = s->oneFlow,
                         .treeDepth = graph->depth[0],
                         .grid = tuttiGraphIsGrid(graph),
                         .rails = graph->nrails,
                         .oversubscribed = s->oversubscribed,
                         .cacheBytes = s->cache,
                         .loopback = s->network && s->nhosts == 1};
  TUTTI_TRY(allowed(TUTTI_SETTING_ALGO, &tuttiAlgoWords, &made.algos, &made.algoMask));
  TUTTI_TRY(allowed(TUTTI_SETTING_PROTO, &tuttiProtoWords, &made.protos, &made.protoMask));
  if (s->fetches && s->nranks > 1)
    TUTTI_INFO(INIT,
               "copies out of another process take %.2f us and %.3f us for each KiB, stores past "
               "the caches %.3f us, measured",
               (double)s->fetch.call, (double)s->fetch.kib, (double)s->fetch.store);
  planGpus(s, v, maxChannels, &made);
  planApart(s, &made);
  planChannels(graph, minChannels, maxChannels, &made);
  TUTTI_TRY(planOrder(&made));
  v->oversubscribed = s->oversubscribed;
  v->stagedBytes = made.staged ? tuttiAllPairsLayOut(s->nranks, true).bytes : 0;
  v->slotBytes *= slotsTimes(s, v, &made);
  TUTTI_TRY(fitMemory(v, &made));
  made.slotBytes = v->slotBytes;
  *in = made;
  return tuttiSuccess;
}
