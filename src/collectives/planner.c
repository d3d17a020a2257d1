#include "collectives/planner.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/fifo.h"

const char *const tuttiAlgoNames[tuttiAlgoCount] = {TUTTI_ALGORITHMS(TUTTI_NAME)};
const char *const tuttiProtoNames[tuttiProtoCount] = {TUTTI_PROTOCOLS(TUTTI_NAME)};

/* What the model takes for granted of ranks, of networks between them, of loopback and of the
 * thread blocks of schedules on GPUs; what was measured of those that reach each other is in
 * planner_allpairs.c. Times are in us, of one rank or of one thread block. */
static const struct {
  double messageUs, slotUs, netMessageUs, yieldUs, copyGBs, netShare[3], treeShare, pairsShare;
  double crossShare;
  double cachedChunkBytes, leastChunkBytes, leastNetBytes, overlapPieces;
  double streamBytes, quickBytes, outOfCache, coldBytes, coldFetch, gain, buffersShare;
  int pairwiseRanks, pairsRanks, readRanks[2];
  double rootedWaits[2], rootedMessageUs[tuttiProtoCount], rootedPieceUs, scratchUs;
  double loopHopUs, loopTurns, loopMessageUs[2], loopGBs[2], loopCopyGBs[2], loopPairs;
  double loopGatherBytes;
  double loopSendUs[2], loopFirstUs[2], loopNextUs[2], loopWaits[2];
  double blockMessageUs, blockNetUs, blockWayUs, blockGBs, blockUs, blockPairsBytes, blockPairsUs;
} model = {
    .messageUs = 0.06,           /* work for one message, sent or received */
    .slotUs = 0.15,              /* what fetching the payload from a slot adds to a hop */
    .netMessageUs = 2.0,         /* work for a message over the network */
    .yieldUs = 5.0,              /* what a hop takes longer when ranks share cores */
    .copyGBs = 8.0,              /* of a rank whose host has no other, whose paths tell nothing */
    .netShare = {0.7, 0.9, 1.0}, /* of interGBs that 1, 2, 4 channels reach if one has not all */
    .treeShare = 0.85,           /* of that for a tree: an inner rank's links wait for each other */
    .pairsShare = 0.6,           /* of GPUs on several hosts that send to all others at once */
    .crossShare = 0.8,           /* of messages from one rail to another, through the spine */
    .cachedChunkBytes = 128 << 10, /* longest chunk inside a host: what stays in a core's cache */
    .leastChunkBytes = 16 << 10,   /* below it pieces cost more than their overlap gains */
    .leastNetBytes = 64 << 10,     /* the same between hosts */
    .overlapPieces = 4,            /* into which the direct algorithms split to overlap phases */
    .streamBytes = 8 << 20,        /* all-gather: such blocks are stored past the caches */
    .buffersShare = 4,             /* slots that need more than this part of the cache leave it */
    .quickBytes = 64 << 10,        /* blocks of no more than that slots carry no faster */
    .outOfCache = 1.15,            /* copies between processes, over those that are measured */
    .coldBytes = 1 << 20,          /* more than that leaves a core's own caches; */
    .coldFetch = 2.3,              /*   what its copy then takes for its only reader, over that */
    .gain = 0.95,           /* the best must be that much better than one that asks for less */
    .pairwiseRanks = 16,    /* most ranks that connect all pairs where another way exists */
    .pairsRanks = 8,        /* of more, a message between all pairs takes the longer */
    .readRanks = {256, 64}, /* that all read all others' FIFOs; [1]: processes on few cores */
    /* Collectives with a root, inside a host: whoever has no more to do goes on to the next one. */
    .rootedWaits = {0.15, 0.3}, /* of the waits that are felt all the same; [1]: oversubscribed */
    .rootedMessageUs = {[tuttiProtoLL] = 0.12, [tuttiProtoSimple] = 0.2}, /* many a writer's */
    .rootedPieceUs = 0.4, /* one of several pieces of a message */
    .scratchUs = 0.24,    /* blocks go through scratch memory */
    /* Ranks of one host over its loopback network: the system's work is done by the ranks' cores.
     * [1]: oversubscribed. */
    .loopHopUs = 1.5,            /* on the way, beside the work */
    .loopTurns = 3,              /* that takes so much longer, where all wait for each other */
    .loopMessageUs = {2.5, 5.0}, /* work for one message, sent or received */
    .loopGBs = {4.0, 1.5},       /* sent or received */
    .loopCopyGBs = {10.0, 3.0},  /* within a rank's memory; [1]: or more than a cache has */
    .loopPairs =
        0.125, /* bytes of exchanges with several peers take so much longer for each more */
    .loopGatherBytes = 64 << 10, /* beyond, rank 0 is too slow to gather and broadcast alone */
    /* With a root, where messages are there before they are asked for: one that is sent, the first
     * that is received, and one more. */
    .loopSendUs = {4.2, 12.0},
    .loopFirstUs = {2.4, 5.0},
    .loopNextUs = {0.3, 0.5},
    .loopWaits = {0.15, 0.12}, /* of the waits that are felt all the same */
    /* Thread blocks of a GPU. */
    .blockMessageUs = 1.5,   /* for a message, sent or received */
    .blockNetUs = 4.0,       /* of the one proxy of all, for a message over the network */
    .blockWayUs = 8.0,       /* on that message's way */
    .blockGBs = 20,          /* what one moves */
    .blockUs = 0.2,          /* what one more is to gain at least */
    .blockPairsBytes = 8000, /* with larger messages to and from all others of a host, */
    .blockPairsUs = 80,      /*   they take so much longer */
};

/* Bytes that a rank copies, in GB/s. A GPU's memory is faster than its thread blocks are. */
static double copyRate(const tuttiPlanInput *in) {
  if (in->gpu && in->maxRanksPerHost == 1) return INFINITY;
  return in->intraGBs > 0 ? in->intraGBs : model.copyGBs;
}

/* One way to run the operation, and what it is made of. */
typedef struct {
  int algo, proto, nchannels, twoShot, fetch;
  double chunk, longest; /* bytes; longest: that a message can be */
} candidate;

/* Costs of one operation for the rank that has the most to do. */
typedef struct {
  double waits;    /* us on hops that nothing hides */
  double messages; /* that this rank sends and receives */
  double copied;   /* bytes: half of those that the rank reads and writes */
  double wired;    /* bytes in the busier direction of a host's network */
  bool scratch;    /* blocks go through scratch memory */
} costs;

/* The communicator as the formulas want it. */
typedef struct {
  double n, hosts, perHost, remote; /* remote: ranks of other hosts */
  double bytes;                     /* count * size */
  double hopIn, hopOut, hopRing; /* us for one message to arrive; hopRing: mean around the ring */
  double writes;                 /* messages that reach all others: 1 if shared */
  double toOne, toAll; /* copies made to send to one rank, to all others: 0 if they read in place */
  double cache;        /* bytes that all slots of a host share with its ranks' buffers; 0: any */
  bool apart;          /* GPUs, each on a host of its own */
} setting;

static setting settingOf(const tuttiPlanInput *in, const tuttiSignature *op, int proto) {
  setting w = {.n = in->nranks, .hosts = in->nhosts, .perHost = in->maxRanksPerHost};
  w.remote = fmax(w.n - w.perHost, 0);
  w.bytes = (double)op->count * (double)tuttiTypeSize(op->type);
  w.hopIn = in->intraLatencyUs + (proto == tuttiProtoLL ? 0 : model.slotUs);
  if (in->oversubscribed) w.hopIn += model.yieldUs;
  w.hopOut = in->nhosts > 1 ? fmax(in->interLatencyUs, w.hopIn) : w.hopIn;
  w.hopRing = in->nhosts > 1 ? ((w.n - w.hosts) * w.hopIn + w.hosts * w.hopOut) / w.n : w.hopIn;
  w.writes = in->sharedFifos ? 1 : w.n - 1;
  w.toOne = in->directReads ? 0 : 1;
  w.toAll = in->directReads ? 0 : w.writes;
  w.apart = in->gpu && in->maxRanksPerHost == 1;
  w.cache = in->gpu || in->nhosts > 1 ? 0 : (double)in->cacheBytes / model.buffersShare;
  return w;
}

/* ---- chunks --------------------------------------------------------------------------------- */

static double treeHopsUs(const tuttiPlanInput *in, const setting *w) {
  double inside = 0;
  for (int ranks = in->maxRanksPerHost; ranks > 1; ranks /= 2)
    inside++;
  if (in->nhosts == 1) return fmax(in->treeDepth, 1) * w->hopIn;
  return inside * w->hopIn + fmax(in->treeDepth - inside, 1) * w->hopOut;
}

static double chainHops(const tuttiPlanInput *in, int algo) {
  if (algo == tuttiAlgoTree) return in->treeDepth;
  if (algo == tuttiAlgoDoubling) return tuttiRounds(in->nranks);
  return algo == tuttiAlgoRing ? in->nranks - 1 : 1;
}

/* Split to overlap the phases. A message between the memories of GPUs of several hosts costs the
 * NIC and two proxies about the same whatever its length: channels overlap each other there. Inside
 * a host all ranks write and read at the same time anyway if each has a core: whole blocks measured
 * up to twice as fast there, but for collectives in which every block is another one for each. */
static double directChunk(const tuttiPlanInput *in, const setting *w, int coll,
                          const candidate *c) {
  double whole = (c->twoShot ? w->bytes / w->n : w->bytes) / c->nchannels;
  bool several = coll == tuttiCollAlltoAll || coll == tuttiCollScatter;
  bool overlaps = in->nhosts > 1 ? !in->gpu : in->oversubscribed || several;
  return overlaps ? whole / model.overlapPieces : whole;
}

/* Pipelines. A chain of `hops` takes (hops + pieces) * (overhead + chunk / bandwidth), which is
 * least at chunk = sqrt(bytes * overhead * bandwidth / hops). */
static double wantedChunk(const tuttiPlanInput *in, const tuttiSignature *op, const candidate *c) {
  setting w = settingOf(in, op, c->proto);
  double each = w.bytes / c->nchannels;
  if (c->fetch) return c->longest; /* nothing to overlap */
  bool chain = op->coll == tuttiCollBroadcast || op->coll == tuttiCollReduce;
  bool passedOn = w.n > 2 && (chain || c->algo == tuttiAlgoTree);
  if (in->loopback) /* passed on while it is in the cache and the next one arrives */
    return passedOn ? model.cachedChunkBytes : c->longest;
  if (c->algo == tuttiAlgoTree || chain) {
    double hops = chainHops(in, c->algo);
    double overNet = in->gpu ? model.blockWayUs : model.netMessageUs;
    double overhead = in->nhosts > 1 ? overNet : w.hopIn;
    double GBs = in->nhosts > 1 ? in->interGBs : in->intraGBs;
    return sqrt(each * overhead * GBs * 1e3 / fmax(hops, 1));
  }
  if (c->algo == tuttiAlgoDirect) return directChunk(in, &w, op->coll, c);
  return c->longest;
}

static void setChunk(const tuttiPlanInput *in, const tuttiSignature *op, candidate *c) {
  if (c->proto == tuttiProtoLL) {
    c->longest = c->chunk = TUTTI_INLINE_MAX;
    return;
  }
  bool network = in->nhosts > 1 || in->loopback;
  double least = network ? model.leastNetBytes : model.leastChunkBytes;
  c->longest = (double)in->slotBytes;
  if (!network && !c->fetch) c->longest = fmin(c->longest, model.cachedChunkBytes);
  c->chunk = fmin(fmax(wantedChunk(in, op, c), least), c->longest);
}

static uint64_t chunkElements(const tuttiSignature *op, const candidate *c) {
  uint64_t elements = (uint64_t)c->chunk / tuttiElementBytes(op->type);
  uint64_t aligned = elements >> TUTTI_SLICE_SHIFT << TUTTI_SLICE_SHIFT;
  if (aligned > 0) return aligned;
  return elements > 0 ? elements : 1;
}

/* ---- costs ---------------------------------------------------------------------------------- */

/* In a ring every loop waits for each of its hops, as all ranks move in step; chains overlap. */
static costs ringCosts(const setting *w, const tuttiSignature *op, const candidate *c) {
  double n = w->n, S = w->bytes, each = S / c->nchannels;
  double loops = fmax(each / c->chunk, 1);
  switch (op->coll) {
  case tuttiCollAllReduce:
    loops = fmax(each / n / c->chunk, 1);
    return (costs){.waits = loops * 2 * (n - 1) * w->hopRing,
                   .messages = loops * 4 * (n - 1),
                   .copied = (3 * n - 2) / n * S,
                   .wired = 2 * (n - 1) / n * S};
  case tuttiCollAllGather:
  case tuttiCollReduceScatter:
    return (costs){.waits = loops * (n - 1) * w->hopRing,
                   .messages = loops * 2 * (n - 1),
                   .copied = 1.5 * (n - 1) * S + S,
                   .wired = (n - 1) * S};
  default:
    return (costs){.waits = (n - 1) * w->hopRing,
                   .messages = 2 * (n - 1 + loops),
                   .copied = 1.5 * (S + (n - 1) * fmin(each, c->chunk)),
                   .wired = S};
  }
}

/* By way of the receiver's place; a host has `inside` other ranks, and there are `across` other
 * hosts. */
static costs relayCosts(const setting *w, const candidate *c) {
  double inside = w->perHost - 1, across = w->hosts - 1, S = w->bytes;
  double pieces = fmax(S / c->nchannels / c->longest, 1);
  double sent = w->hosts * inside + w->perHost * across;
  return (costs){.waits = w->hopIn + w->hopOut,
                 .messages = pieces * 2 * sent,
                 .copied = (sent + w->n) * S,
                 .wired = w->perHost * w->remote * S};
}

/* As a ring, but that less crosses borders. A message between hosts takes its time beside those
 * inside that the rank has meanwhile. */
static costs gridCosts(const setting *w, const tuttiSignature *op, const candidate *c) {
  if (op->coll == tuttiCollAlltoAll) return relayCosts(w, c);
  costs k = ringCosts(w, op, c);
  double all = op->coll == tuttiCollAllReduce ? w->bytes : w->n * w->bytes;
  double phases = op->coll == tuttiCollAllReduce ? 2 : 1;
  k.wired = phases * (w->hosts - 1) / w->hosts * all;
  return k;
}

/* An inner rank with two children; with two channels or more it is a leaf in every other one. */
static costs treeCosts(const tuttiPlanInput *in, const setting *w, const tuttiSignature *op,
                       const candidate *c) {
  double S = w->bytes, each = S / c->nchannels;
  double pieces = fmax(each / c->chunk, 1), first = fmin(each, c->chunk);
  double hops = treeHopsUs(in, w), levels = fmax(in->treeDepth, 1);
  bool twoTrees = c->nchannels > 1;
  if (op->coll != tuttiCollAllReduce)
    return (costs){.waits = hops,
                   .messages = 3 * pieces + 2 * levels,
                   .copied = 2 * S + 1.5 * levels * first,
                   .wired = (w->hosts > 2 ? 2 * S : S) / model.treeShare};
  double wired = twoTrees ? 2 * S : 3 * S;
  return (costs){.waits = 2 * hops,
                 .messages = 6 * pieces + 4 * levels,
                 .copied = (twoTrees ? 3 : 4) * S + 3 * levels * first,
                 .wired = (w->hosts > 2 ? wired : S) / model.treeShare};
}

/* What slots between all pairs, for messages of so many bytes, cost more where they do not stay in
 * the cache. */
static double coldShare(const setting *w, double bytes, const candidate *c) {
  if (w->cache <= 0) return 0;
  double slots = w->n * (w->n - 1) * fmin(bytes, TUTTI_FIFO_DEPTH * c->longest);
  return slots / (slots + w->cache);
}

/* Splitting beyond need must pay for itself: only the messages that must be are counted. */
static costs directCosts(const setting *w, const tuttiSignature *op, const candidate *c) {
  double n = w->n, S = w->bytes, each = S / c->nchannels, loops;
  double pieces = fmax(each / c->longest, 1), first = fmin(each, c->chunk);
  double hop = w->remote > 0 ? w->hopOut : w->hopIn;
  double toAllHosts = w->perHost * w->remote * S, toPeers = (n - 1) * (w->toOne + 1);
  double reduced = (n - 1) * w->toOne + (n + 1) / 2; /* blocks, sent and read */
  switch (op->coll) {
  case tuttiCollAllReduce:
    if (!c->twoShot)
      return (costs){.waits = hop,
                     .messages = pieces * (w->writes + n - 1),
                     .copied = (2 * w->toAll + n + 1) / 2 * S,
                     .wired = toAllHosts};
    loops = fmax(each / n / c->longest, 1);
    return (costs){.waits = 2 * hop,
                   .messages = loops * (3 * (n - 1) + w->writes),
                   .copied =
                       (reduced * (1 + w->toOne * coldShare(w, S / n, c)) + n - 1 + w->writes / 2) /
                       n * S,
                   .wired = 2 * toAllHosts / n};
  case tuttiCollAllGather:
    return (costs){.waits = hop,
                   .messages = pieces * (w->writes + n - 1),
                   .copied = (2 + w->toAll) / 2 * S + (n - 1) * S,
                   .wired = toAllHosts};
  case tuttiCollReduceScatter:
    return (costs){.waits = hop,
                   .messages = pieces * 2 * (n - 1),
                   .copied = reduced * (1 + w->toOne * coldShare(w, S, c)) * S,
                   .wired = toAllHosts};
  case tuttiCollAlltoAll:
    return (costs){.waits = hop,
                   .messages = pieces * 2 * (n - 1),
                   .copied = (toPeers * (1 + w->toOne * coldShare(w, S, c)) + 1) * S,
                   .wired = toAllHosts};
  case tuttiCollBroadcast:
    return (costs){.waits = hop,
                   .messages = pieces * w->writes + 1,
                   .copied = (2 + w->toAll) / 2 * S + first,
                   .wired = w->remote * S};
  case tuttiCollReduce:
    return (costs){.waits = hop,
                   .messages = pieces * (n - 1) + 1,
                   .copied = (n + 1) / 2 * S + first,
                   .wired = w->remote * S};
  case tuttiCollSendRecv:
    return (costs){.waits = hop, .messages = pieces, .copied = S + w->toOne * first, .wired = S};
  default: /* Gather, Scatter: the root */
    return (costs){.waits = hop,
                   .messages = pieces * (n - 1) + 1,
                   .copied = n * S + first,
                   .wired = w->remote * S};
  }
}

/* Of the doubling algorithm: rounds that wait for each other, messages that the busiest rank sends
 * and receives, bytes of these, and bytes copied into and out of scratch memory. */
typedef struct {
  double hops, messages, moved, copied;
} rounds;

static double chunksOf(double bytes, const candidate *c) {
  return fmax(bytes / c->chunk, 1);
}

/* One rank's way through all of a row of n blocks of S bytes: round k moves 2^k of them, the last
 * what is missing. Once for a gather, once for a reduction. Loops, which bound the scratch memory,
 * have the rounds once each. */
static void addRow(double n, double S, const candidate *c, rounds *r) {
  double loops = chunksOf(n / 2 * S, c);
  for (int k = 0; k < tuttiRounds((int)n); k++) {
    double has = exp2(k), bytes = fmin(has, n - has) * S;
    r->hops += loops;
    r->messages += 2 * chunksOf(bytes, c);
    r->moved += 2 * bytes;
  }
  r->copied += n * S;
}

/* The root of a binomial tree, whose children have 1, 2, 4, ... ranks. */
static void addRoot(double n, double S, bool blocks, const candidate *c, rounds *r) {
  for (int k = 0; k < tuttiRounds((int)n); k++) {
    double has = exp2(k), bytes = blocks ? fmin(has, n - has) * S : S;
    r->hops++;
    r->messages += chunksOf(bytes, c);
    r->moved += bytes;
  }
  if (blocks) r->copied += n * S;
}

static rounds roundsOf(double n, double S, const tuttiSignature *op, const candidate *c) {
  rounds r = {.hops = 0};
  double all = ceil(log2(n)), taking = exp2(floor(log2(n)));
  switch (op->coll) {
  case tuttiCollAllReduce:
    if (c->twoShot) {
      addRow(n, S / n, c, &r);
      addRow(n, S / n, c, &r);
      return r;
    }
    r.hops = (log2(taking) + (taking < n ? 2 : 0)) * chunksOf(S, c);
    r.messages = 2 * (log2(taking) + (taking < n)) * chunksOf(S, c);
    r.moved = r.messages / chunksOf(S, c) * S;
    r.copied = (log2(taking) - 1) * S;
    return r;
  case tuttiCollAlltoAll:
    r.hops = all * chunksOf(n / 2 * S, c);
    r.messages = 2 * all * chunksOf(n / 2 * S, c);
    r.moved = all * n * S;
    r.copied = (all + 2) * n * S;
    return r;
  case tuttiCollBroadcast:
  case tuttiCollReduce:
    addRoot(n, S, false, c, &r);
    return r;
  case tuttiCollGather:
  case tuttiCollScatter:
    addRoot(n, S, true, c, &r);
    return r;
  default:
    addRow(n, S, c, &r);
    return r;
  }
}

/* Ranks of a host are taken to have numbers in a row: so many rounds, those of the longest ways,
 * cross its border. */
static costs doublingCosts(const tuttiPlanInput *in, const setting *w, const tuttiSignature *op,
                           const candidate *c) {
  rounds r = roundsOf(w->n, w->bytes, op, c);
  double far = in->nhosts > 1 ? ceil(log2(w->hosts)) : 0, S = w->bytes;
  double twice = op->coll == tuttiCollAllReduce && c->twoShot ? 2 : 1;
  double wired = w->perHost * (w->n - w->perHost) * S;
  if (op->coll == tuttiCollAllReduce)
    wired = c->twoShot ? 2 * wired / w->n : w->perHost * S * (far + (exp2(far) > w->hosts));
  else if (op->coll == tuttiCollAlltoAll)
    wired = w->perHost * w->n / 2 * S * far;
  else if (op->coll == tuttiCollBroadcast || op->coll == tuttiCollReduce)
    wired = far * S;
  else if (tuttiCollHasRoot(op->coll))
    wired = w->remote * S;
  return (costs){.waits = fmax(r.hops - twice * far, 0) * w->hopIn + twice * far * w->hopOut,
                 .messages = r.messages,
                 .copied = r.moved + r.copied,
                 .wired = wired,
                 .scratch = r.copied > 0};
}

/* Over loopback: `hops` that wait for each other, and `messages` of `unit` bytes, cut into chunks,
 * that the busiest rank sends or receives; and bytes that it copies besides. */
typedef struct {
  double hops, messages, unit, copied;
} loopCosts;

/* Where ranks share cores each step waits until all have had their turn, and what is reduced on the
 * way is read and written at each rank while others want the core. */
static loopCosts ringLoopCosts(const tuttiPlanInput *in, const tuttiSignature *op, double each) {
  double n = in->nranks, turns = in->oversubscribed ? model.loopTurns : 1;
  bool reduces = tuttiCollReduces(op->coll);
  if (op->coll == tuttiCollAllReduce)
    return (loopCosts){.hops = turns * 2 * (n - 1), .messages = 4 * (n - 1), .unit = each / n};
  return (loopCosts){.hops = turns * (n - 1),
                     .messages = 2 * (n - 1),
                     .unit = each,
                     .copied = reduces && in->oversubscribed ? (n - 1) * each : 0};
}

/* Edges of the rank of a tree that has most: of four ranks two. */
static double treeEdges(double n) {
  return n == 4 ? 2 : fmin(n - 1, 3);
}

/* An all-reduce. Twice the edges of a tree are spread over n ranks: where these share cores, that
 * others have fewer than the busiest counts too. */
static loopCosts treeLoopCosts(const tuttiPlanInput *in, double each) {
  double n = in->nranks, mean = 2 * (n - 1) / n;
  return (loopCosts){.hops = 2 * fmax(in->treeDepth, 1),
                     .messages = 2 * (in->oversubscribed ? mean : treeEdges(n)),
                     .unit = each};
}

static loopCosts doublingLoopCosts(const tuttiPlanInput *in, const setting *w,
                                   const tuttiSignature *op, const candidate *c) {
  costs k = doublingCosts(in, w, op, c);
  rounds r = roundsOf(w->n, w->bytes, op, c);
  return (loopCosts){.hops = r.hops,
                     .messages = k.messages,
                     .unit = r.moved / fmax(k.messages, 1),
                     .copied = r.copied};
}

static loopCosts directLoopCosts(double n, const tuttiSignature *op, const candidate *c,
                                 double each) {
  bool allReduce = op->coll == tuttiCollAllReduce;
  if (c->twoShot && allReduce)
    return (loopCosts){.hops = 2, .messages = 4 * (n - 1), .unit = each / n};
  if (c->twoShot) /* an all-gather; counted as in trees */
    return (loopCosts){.hops = 2, .messages = 2 * (n - 1) * (2 / n), .unit = each * (n / 2)};
  if (op->coll == tuttiCollSendRecv) return (loopCosts){.hops = 1, .messages = 1, .unit = each};
  return (loopCosts){.hops = 1, .messages = 2 * (n - 1), .unit = each};
}

/* With a root: of the rank that has most to do. The others go on to the next operation meanwhile.
 */
typedef struct {
  double hops, sends, recvs, bytes, copied;
} rootedCosts;

static rootedCosts rootedLoopCosts(const tuttiPlanInput *in, const setting *w,
                                   const tuttiSignature *op, const candidate *c, double each) {
  double n = w->n, edges = treeEdges(n);
  bool down = op->coll == tuttiCollBroadcast || op->coll == tuttiCollScatter;
  rounds r;
  switch (c->algo) {
  case tuttiAlgoRing: /* one that passes on what it gets */
    return (rootedCosts){
        .hops = n - 1, .sends = 1, .recvs = n > 2, .bytes = (n > 2 ? 2 : 1) * each};
  case tuttiAlgoTree:
    return (rootedCosts){.hops = fmax(in->treeDepth, 1),
                         .sends = down ? fmin(edges, 2) : 1,
                         .recvs = down ? fmax(edges - 2, 0) : edges - 1,
                         .bytes = edges * each};
  case tuttiAlgoDoubling: /* the root; on the way up, one that sends what half the ranks have */
    r = roundsOf(n, w->bytes, op, c);
    return (rootedCosts){.hops = r.hops,
                         .sends = down ? r.messages : 1,
                         .recvs = down ? 0 : r.messages - 1,
                         .bytes = r.moved,
                         .copied = r.copied};
  default: /* the root alone has all peers */
    return (rootedCosts){
        .hops = 1, .sends = down ? n - 1 : 0, .recvs = down ? 0 : n - 1, .bytes = (n - 1) * each};
  }
}

/* Of bytes that a rank copies within its memory. Scratch memory is as large as the operation's
 * larger buffer: whether a core's cache has it decides how fast that is. */
static double loopCopyUs(const tuttiPlanInput *in, const tuttiSignature *op, double copied) {
  double bytes = (double)op->count * (double)tuttiTypeSize(op->type);
  if (op->coll != tuttiCollAllReduce) bytes *= in->nranks; /* with a root only blocks are copied */
  bool cached = !in->oversubscribed && bytes <= model.cachedChunkBytes;
  return copied / (model.loopCopyGBs[!cached] * 1e3);
}

static double rootedLoopTime(const tuttiPlanInput *in, const tuttiSignature *op,
                             const candidate *c) {
  int shared = in->oversubscribed != 0;
  setting w = settingOf(in, op, c->proto);
  double each = w.bytes / c->nchannels, perByte = 1 / (model.loopGBs[shared] * 1e3);
  rootedCosts k = rootedLoopCosts(in, &w, op, c, each);
  double send = model.loopSendUs[shared], first = model.loopFirstUs[shared];
  double received = k.recvs > 0 ? first + (k.recvs - 1) * model.loopNextUs[shared] : 0;
  double busiest =
      fmax(k.sends * send + received, send); /* some rank sends, whatever this one does */
  double more = c->algo == tuttiAlgoDoubling ? 0 : fmax(each / c->chunk, 1) - 1; /* pieces */
  double pieces = more * (k.sends + k.recvs) * (send + first) / 2;
  return c->nchannels * (busiest + pieces + k.bytes * perByte) + loopCopyUs(in, op, k.copied) +
         model.loopWaits[shared] * k.hops * (model.loopHopUs + send + first);
}

static double loopTime(const tuttiPlanInput *in, const tuttiSignature *op, const candidate *c) {
  if (tuttiCollHasRoot(op->coll)) return rootedLoopTime(in, op, c);
  double n = in->nranks, each = (double)op->count * (double)tuttiTypeSize(op->type) / c->nchannels;
  setting w = settingOf(in, op, c->proto);
  loopCosts k = c->algo == tuttiAlgoRing       ? ringLoopCosts(in, op, each)
                : c->algo == tuttiAlgoTree     ? treeLoopCosts(in, each)
                : c->algo == tuttiAlgoDoubling ? doublingLoopCosts(in, &w, op, c)
                                               : directLoopCosts(n, op, c, each);
  int shared = in->oversubscribed != 0;
  double most = op->coll == tuttiCollAlltoAll ? 4 : 8; /* what is only copied suffers less */
  double pairs = c->algo == tuttiAlgoDirect ? 1 + model.loopPairs * (fmin(n, most) - 2) : 1;
  double perByte = 1 / (model.loopGBs[shared] * 1e3);
  double chunkUs = fmax(k.unit / c->chunk, 1) * model.loopMessageUs[shared];
  double byteUs = pairs * k.unit * perByte;
  double copyUs = loopCopyUs(in, op, k.copied);
  /* Each hop is a message sent and one received, by whomever, if all have a core to do that on:
   * its first chunk, as the next ones follow it. With fewer ranks all ways have as many. */
  bool waits = !shared && n >= 4;
  double message = model.loopMessageUs[0] + fmin(k.unit, c->chunk) * perByte;
  double others = waits ? fmax(2 * k.hops - k.messages, 0) * message : 0;
  return k.hops * model.loopHopUs + c->nchannels * k.messages * (chunkUs + byteUs) + copyUs +
         others;
}

/* By how much slots are faster than this model has them, if what is fetched takes what is measured:
 * it was made where cores store about as fast as the kernel copies. */
static double quickSlots(const tuttiPlanInput *in, double bytes) {
  if (in->storeKibUs <= 0 || bytes <= model.quickBytes) return 1;
  return fmax(model.outOfCache * in->fetchKibUs / in->storeKibUs, 1);
}

/* On one host, without slots: what the busiest rank copies within its memory, and what it fetches.
 * Readers of one process get in each other's way, as the kernel counts who uses its pages; `crowd`:
 * by which part of all ranks they do more than slots do. Those of one broadcast want the same pages
 * at once, and have them one after the other. */
static double fetchTime(const tuttiPlanInput *in, const setting *w, const tuttiSignature *op,
                        const candidate *c, double copyGBs) {
  static const struct {
    double own, crowd;
  } shapes[tuttiCollCount] = {[tuttiCollBroadcast] = {.crowd = 0.25},
                              [tuttiCollScatter] = {.crowd = 0.5},
                              [tuttiCollAllGather] = {.own = 0.5, .crowd = 0.25},
                              [tuttiCollAlltoAll] = {.own = 0.5, .crowd = 0.25}};
  double S = w->bytes, pieces = fmax(S / c->longest, 1);
  double messages = op->coll == tuttiCollScatter ? 1 : w->n - 1;
  double crowd = in->oversubscribed ? 1 : fmax(shapes[op->coll].crowd * w->n, 1);
  bool cold = op->coll == tuttiCollBroadcast && w->n == 2 && S > model.coldBytes;
  if (cold) crowd *= model.coldFetch;
  double fetched = pieces * in->fetchUs + S * crowd * in->fetchKibUs / 1024;
  double us = 2 * w->hopIn + messages * fetched + shapes[op->coll].own * S / (copyGBs * 1e3);
  return us * quickSlots(in, S);
}

/* Of the bandwidth between hosts. Where each channel has a rail, the busiest one counts. */
static double netShare(const tuttiPlanInput *in, const candidate *c) {
  int nchannels = c->nchannels;
  if (in->rails > 1 && c->algo == tuttiAlgoHierarchical) return 1; /* each place has its own */
  if (in->rails > 1 && c->algo == tuttiAlgoDirect) return model.crossShare;
  if (in->rails > 1 && c->algo != tuttiAlgoDirect) {
    int busiest = (nchannels + in->rails - 1) / in->rails; /* its channels */
    return (double)nchannels / (in->rails * busiest);
  }
  if (in->oneFlow) return 1;
  return model.netShare[nchannels >= 4 ? 2 : nchannels >= 2 ? 1 : 0];
}

/* An all-gather gains where ranks share cores, by fewer messages. Between hosts one-shot is
 * faster: rank 0 alone would have as many messages as there each rank has, and one more hop. */
static bool canTwoShot(const tuttiPlanInput *in, const tuttiSignature *op, const candidate *c) {
  if (c->algo == tuttiAlgoDoubling) return op->coll == tuttiCollAllReduce;
  if (c->algo != tuttiAlgoDirect) return false;
  if (op->coll != tuttiCollAllGather) return op->coll == tuttiCollAllReduce;
  double all = (double)op->count * in->nranks, bytes = all * (double)tuttiElementBytes(op->type);
  return in->loopback && !in->gpu && in->oversubscribed && in->nranks > 3 && c->nchannels == 1 &&
         all <= (double)chunkElements(op, c) && bytes <= model.loopGatherBytes;
}

/* Of a collective with a root, inside a host. What goes by descriptors alone, and is too long for
 * one, is not for those who take a message as they pass, but for an executor's loop. */
static double rootedMessage(const setting *w, const tuttiSignature *op, const candidate *c) {
  bool blocks = op->coll == tuttiCollGather || op->coll == tuttiCollScatter;
  double most = c->algo == tuttiAlgoDoubling && blocks ? w->n / 2 * w->bytes : w->bytes;
  bool cut = c->proto == tuttiProtoLL && most > c->longest;
  return cut ? model.rootedPieceUs : model.rootedMessageUs[c->proto];
}

/* One thread of the rank does all its work. */
static double threadTime(const tuttiPlanInput *in, const setting *w, const tuttiSignature *op,
                         const costs *k, const candidate *c, double copyGBs) {
  bool rooted = in->nhosts == 1 && tuttiCollHasRoot(op->coll);
  double message = rooted ? rootedMessage(w, op, c) : model.messageUs;
  /* Measured, with more ranks than eight, for what can double; all-gathers and all-to-alls, which
   * have no better way there, take no part. */
  bool pairs = c->algo == tuttiAlgoDirect && in->nhosts == 1 && !rooted;
  if (pairs && tuttiPlanDoubles(in, op->coll)) message *= fmax(w->n / model.pairsRanks, 1);
  double us = k->copied / (copyGBs * 1e3) + k->messages * c->nchannels * message;
  if (rooted && k->scratch) us += model.scratchUs;
  return us + k->waits * (rooted ? model.rootedWaits[in->oversubscribed != 0] : 1);
}

/* Each channel has a thread block of the GPU. */
static double blocksTime(const costs *k, const setting *w, const candidate *c, double copyGBs) {
  double GBs = fmin(copyGBs, c->nchannels * model.blockGBs);
  double message = (c->twoShot ? w->bytes / w->n : w->bytes) / c->nchannels;
  double us = k->waits + k->copied / (GBs * 1e3);
  bool pairs = c->algo == tuttiAlgoDirect && w->perHost > 1;
  if (pairs && message > model.blockPairsBytes) us += model.blockPairsUs;
  return us + (k->messages * model.blockMessageUs + c->nchannels * model.blockUs);
}

static costs algorithmCosts(const tuttiPlanInput *in, const setting *w, const tuttiSignature *op,
                            const candidate *c) {
  switch (c->algo) {
  case tuttiAlgoRing:
    return ringCosts(w, op, c);
  case tuttiAlgoHierarchical:
    return gridCosts(w, op, c);
  case tuttiAlgoTree:
    return treeCosts(in, w, op, c);
  case tuttiAlgoDoubling:
    return doublingCosts(in, w, op, c);
  default:
    return directCosts(w, op, c);
  }
}

/* Of the messages of the rank that has most to do: those that leave or enter its host. A host's way
 * in or out takes every other one of the rank that holds it. */
static double crossing(const setting *w, const tuttiSignature *op, const candidate *c) {
  if (w->apart) return 1;
  if (c->algo == tuttiAlgoDirect) return w->remote / w->n;
  if (c->algo != tuttiAlgoHierarchical) return 0.5;
  double across = w->hosts - 1;
  if (op->coll != tuttiCollAlltoAll) return across / (w->n - 1);
  return w->perHost * across / (w->perHost * across + w->hosts * (w->perHost - 1));
}

static double candidateTime(const tuttiPlanInput *in, const tuttiSignature *op,
                            const candidate *c) {
  if (c->twoShot && !canTwoShot(in, op, c)) return INFINITY;
  setting w = settingOf(in, op, c->proto);
  double copyGBs = copyRate(in);
  if (in->nranks == 1) return w.bytes / (copyGBs * 1e3);
  if (in->loopback && !in->gpu) return loopTime(in, op, c);
  if (c->fetch) return fetchTime(in, &w, op, c, copyGBs);
  costs k = algorithmCosts(in, &w, op, c);
  double us = in->gpu ? blocksTime(&k, &w, c, copyGBs) : threadTime(in, &w, op, &k, c, copyGBs);
  if (in->nhosts < 2) return us;
  double message = in->gpu ? model.blockNetUs : model.netMessageUs;
  us += k.messages * c->nchannels * crossing(&w, op, c) * message;
  bool pairs = in->gpu && c->algo == tuttiAlgoDirect && w.hosts > 2;
  double share = netShare(in, c) * (pairs ? model.pairsShare : 1);
  us += k.wired / (share * fmax(in->interGBs, 0.001) * 1e3);
  return us;
}

/* ---- choice --------------------------------------------------------------------------------- */

/* The communicator is such that the algorithm can run. */
static bool hasPlace(const tuttiPlanInput *in, int algo) {
  if (algo == tuttiAlgoHierarchical) return in->grid;
  return !in->gpu || tuttiSchedulesOnGpus(algo);
}

/* All that can run for `coll`, as a mask, whatever is allowed. */
static uint32_t existing(const tuttiPlanInput *in, int coll) {
  uint32_t exist = 0, direct = 1u << tuttiAlgoDirect;
  for (int algo = 0; algo < tuttiAlgoCount; algo++)
    if (tuttiScheduleExists(coll, algo) && hasPlace(in, algo)) exist |= 1u << algo;
  if (in->deterministic && tuttiCollReduces(coll)) return exist & direct;
  bool wide = coll != tuttiCollAlltoAll && exist != direct; /* a step of it has one peer */
  if (in->widest && in->nranks > in->widest && wide) exist &= ~direct;
  return exist;
}

float tuttiPlanTime(const tuttiPlanInput *in, const tuttiSignature *op, int algo, int proto,
                    int nchannels, int twoShot) {
  bool slots = proto == tuttiProtoLL || proto == tuttiProtoSimple; /* what FIFOs have */
  if (!tuttiScheduleExists(op->coll, algo) || !slots || nchannels < 1 ||
      nchannels > in->maxChannels || !hasPlace(in, algo))
    return INFINITY;
  candidate c = {.algo = algo, .proto = proto, .nchannels = nchannels, .twoShot = twoShot};
  setChunk(in, op, &c);
  return (float)candidateTime(in, op, &c);
}

/* Most ranks between which the direct algorithms are worth while. In an all-reduce all read what
 * all have written: n^2 reads, and as many mappings between processes, which ranks that share cores
 * make one after the other. */
static int mostRanks(const tuttiPlanInput *in, const tuttiSignature *op) {
  if (!in->sharedFifos) return model.pairwiseRanks;
  if (op->coll != tuttiCollAllReduce) return INT_MAX;
  return model.readRanks[in->oversubscribed && !in->directReads];
}

static uint32_t narrowed(uint32_t mask, uint32_t selected) {
  return mask & selected ? mask & selected : mask;
}

uint32_t tuttiPlanAlgos(const tuttiPlanInput *in, int coll) {
  if (in->allPairs) return 1u << tuttiAlgoDirect;
  uint32_t exist = existing(in, coll);
  if (in->deterministic && tuttiCollReduces(coll)) return exist;
  return narrowed(exist & in->algoMask, in->algos.of[coll]);
}

bool tuttiPlanDoubles(const tuttiPlanInput *in, int coll) {
  bool network = in->nhosts > 1 || in->loopback, rooted = tuttiCollHasRoot(coll);
  bool each = coll == tuttiCollAlltoAll || coll == tuttiCollReduceScatter;
  bool reduces = coll == tuttiCollAllReduce || coll == tuttiCollReduceScatter;
  if (in->nranks < 4 || !hasPlace(in, tuttiAlgoDoubling)) return false;
  if (in->oversubscribed) return in->loopback && (rooted || each);
  return network || reduces || (rooted && coll != tuttiCollBroadcast);
}

/* Doubling is left out where it can't gain, unless nothing else is allowed. */
static uint32_t withoutDoubling(const tuttiPlanInput *in, const tuttiSignature *op,
                                uint32_t usable) {
  uint32_t others = usable & ~(1u << tuttiAlgoDoubling);
  return !tuttiPlanDoubles(in, op->coll) && others != 0 ? others : usable;
}

/* An all-to-all by way of the receiver's place spares nothing where there are no rails to keep to:
 * left out, unless nothing else is allowed. */
static uint32_t withoutRelay(const tuttiPlanInput *in, const tuttiSignature *op, uint32_t usable) {
  uint32_t others = usable & ~(1u << tuttiAlgoHierarchical);
  return op->coll == tuttiCollAlltoAll && in->rails < 2 && others != 0 ? others : usable;
}

/* The allowed algorithms that have a schedule; without any, all that have. */
static uint32_t usableAlgorithms(const tuttiPlanInput *in, const tuttiSignature *op) {
  static tuttiAtomic32 said;
  uint32_t exist = existing(in, op->coll), usable = exist & in->algoMask;
  if (in->deterministic && tuttiCollReduces(op->coll)) return exist;
  if (usable == 0) {
    if (tuttiCompareExchange32(&said, 0, 1))
      TUTTI_INFO(TUNING,
                 "TUTTI_ALGO allows no algorithm that has a schedule for %s%s; using others",
                 tuttiCollName(op->coll), in->gpu ? " on GPUs" : "");
    return withoutRelay(in, op, withoutDoubling(in, op, exist));
  }
  usable = withoutRelay(in, op, withoutDoubling(in, op, usable));
  /* Doubling is no way for large blocks that each rank has of, or for, every other. */
  bool all =
      op->coll == tuttiCollAlltoAll || op->coll == tuttiCollGather || op->coll == tuttiCollScatter;
  uint32_t others = usable & ~(1u << tuttiAlgoDirect);
  return in->nranks > mostRanks(in, op) && others != 0 && !all ? others : usable;
}

/* The next number of channels to try: a power of two, or what loads all rails alike. */
static int moreChannels(const tuttiPlanInput *in, int n) {
  int next = 1;
  while (next <= n)
    next *= 2;
  int even = in->rails > 1 ? (n / in->rails + 1) * in->rails : next;
  return even < next ? even : next;
}

/* Sets c's channels and chunk to the best; returns the time. On one host channels only help to
 * balance two trees, as one thread does all the work of a rank. */
static double tune(const tuttiPlanInput *in, const tuttiSignature *op, candidate *c) {
  int least = in->minChannels > 1 ? in->minChannels : 1;
  int useful = in->nhosts > 1 ? 4 : c->algo == tuttiAlgoTree && !in->loopback ? 2 : 1;
  if (c->algo == tuttiAlgoDoubling) useful = 1; /* parts of blocks are packed one by one */
  if (in->gpu) useful = in->maxChannels;
  double bestTime = INFINITY;
  candidate trial = *c;
  for (int n = 1; n <= useful; n = moreChannels(in, n)) {
    if (n > 1 && (n <= least || n > in->maxChannels)) continue;
    trial.nchannels = n > least ? n : least;
    setChunk(in, op, &trial);
    double time = candidateTime(in, op, &trial);
    if (time >= bestTime) continue;
    *c = trial;
    bestTime = time;
  }
  return bestTime;
}

/* Receivers that reduce have the message in their cache, from a slot, when they need it. */
static bool canFetch(const tuttiPlanInput *in, const tuttiSignature *op) {
  /* The root of a gather would make all copies alone, of which its peers make half with slots. */
  bool gathers = op->coll == tuttiCollGather;
  bool fits = op->count * tuttiElementBytes(op->type) >= TUTTI_FETCH_MIN;
  return in->fetches && in->nhosts == 1 && in->nranks > 1 && !tuttiCollReduces(op->coll) &&
         !gathers && fits;
}

/* Each rank of a host writes all blocks, more than the caches hold. Other collectives, and smaller
 * blocks, measured slower or no faster this way. */
static bool shouldStream(const tuttiPlanInput *in, const tuttiSignature *op) {
  return op->coll == tuttiCollAllGather && in->nhosts == 1 && !in->loopback &&
         (double)op->count * (double)tuttiElementBytes(op->type) >= model.streamBytes;
}

static void consider(const tuttiPlanInput *in, const tuttiSignature *op, candidate c,
                     candidate *best, double *bestTime) {
  double time = tune(in, op, &c);
  if (best->algo >= 0 && time >= model.gain * *bestTime) return;
  *best = c;
  *bestTime = time;
}

/* Candidates come in the order of what they ask for: direct before tree before ring, which makes
 * fewer dependent hops; one-shot before two-shot; fewer channels before more. Doubling comes last,
 * so that what is chosen among the others does not depend on it. */
static void planSchedule(const tuttiPlanInput *in, const tuttiSignature *op, tuttiPlan *plan) {
  static const int order[tuttiAlgoCount] = {tuttiAlgoDirect, tuttiAlgoTree, tuttiAlgoHierarchical,
                                            tuttiAlgoRing, tuttiAlgoDoubling};
  uint32_t algos = usableAlgorithms(in, op);
  const uint32_t have = 1u << tuttiProtoLL | 1u << tuttiProtoSimple; /* LL128 is for GPUs */
  uint32_t protos = in->protoMask & have ? in->protoMask & have : have;
  /* A second line takes longer to arrive than a slot; GPUs use lines in any case. */
  bool more = (double)op->count * (double)tuttiElementBytes(op->type) > TUTTI_INLINE_MAX;
  if (in->gpu || (more && protos >> tuttiProtoSimple & 1)) protos = 1u << tuttiProtoSimple;
  candidate best = {.algo = -1};
  double time = 0;
  for (int i = 0; i < tuttiAlgoCount * tuttiProtoCount; i++) {
    int algo = order[i / tuttiProtoCount], proto = i % tuttiProtoCount;
    if (!(algos >> algo & 1) || !(protos >> proto & 1)) continue;
    candidate c = {.algo = algo, .proto = proto};
    consider(in, op, c, &best, &time);
    bool direct = algo == tuttiAlgoDirect;
    candidate twoShot = c, fetch = c;
    twoShot.twoShot = fetch.fetch = 1;
    if (direct || algo == tuttiAlgoDoubling) consider(in, op, twoShot, &best, &time);
    if (direct && proto == tuttiProtoSimple && canFetch(in, op))
      consider(in, op, fetch, &best, &time);
  }
  *plan = (tuttiPlan){
      .chunk = chunkElements(op, &best),
      .timeUs = (float)time,
      .nchannels = (uint16_t)best.nchannels,
      .algo = (uint8_t)best.algo,
      .proto = (uint8_t)best.proto,
      .kernel = tuttiKernelSchedule,
      .twoShot = (uint8_t)best.twoShot,
      .fetch = (uint8_t)best.fetch,
      .oneTree = tuttiCollReduces(op->coll) && in->algoMask == 1u << tuttiAlgoTree,
      .streams = shouldStream(in, op),
  };
}

/* Of a message to one peer: any path may be its, so the worst is expected. */
static float messageTime(const tuttiPlanInput *in, const tuttiSignature *op) {
  float latency = in->nhosts > 1 ? in->interLatencyUs : in->intraLatencyUs;
  float GBs = in->nhosts > 1 ? in->interGBs : in->intraGBs;
  return latency + (float)(op->count * tuttiElementBytes(op->type)) / (GBs * 1e3f);
}

void tuttiPlanChoose(const tuttiPlanInput *all, const tuttiSignature *op, tuttiPlan *plan) {
  tuttiPlanInput own = *all, *in = &own;
  own.algoMask = narrowed(all->algoMask, all->algos.of[op->coll]);
  own.protoMask = narrowed(all->protoMask, all->protos.of[op->coll]);
  bool message = op->coll == tuttiCollSendRecv;
  if (!message && !in->allPairs) {
    planSchedule(in, op, plan);
    return;
  }
  /* One message of a schedule, or one launch: nothing to weigh. */
  *plan = (tuttiPlan){
      .chunk = in->slotBytes / tuttiElementBytes(op->type),
      .timeUs = message ? messageTime(in, op)
                        : tuttiPlanTime(in, op, tuttiAlgoDirect, tuttiProtoSimple, 1, 0),
      .nchannels = 1,
      .algo = tuttiAlgoDirect,
      .proto = tuttiProtoSimple,
      .kernel = tuttiKernelSchedule,
  };
  if (in->allPairs) tuttiPlanAllPairs(in, op, plan);
}

void tuttiPlanPart(uint64_t count, int type, int c, int n, uint64_t *begin, uint64_t *part) {
  unsigned shift = (unsigned)__builtin_ctzll(TUTTI_LINE / tuttiElementBytes(type));
  tuttiSplit(0, count, (uint64_t)n, (uint64_t)c, shift, begin, part);
}
