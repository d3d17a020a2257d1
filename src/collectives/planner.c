#include "collectives/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/fifo.h"

const char *const tuttiAlgoNames[tuttiAlgoCount] = {
#define X(name) #name,
    TUTTI_ALGORITHMS(X)
#undef X
};

const char *const tuttiProtoNames[tuttiProtoCount] = {
#define X(name) #name,
    TUTTI_PROTOCOLS(X)
#undef X
};

/* What the model takes for granted of a host; all that is to be tuned by measuring is here. */
static const struct {
  double messageUs;    /* one rank's work for one message, sent or received */
  double slotUs;       /* what fetching the payload from a slot adds to a hop */
  double netMessageUs; /* the same for a message over the network */
  double yieldUs;      /* what a hop takes longer when ranks share cores */
  double copyGBs;      /* of a rank whose host has no other, whose paths tell nothing */
  double netShare[3];  /* of interGBs that 1, 2, 4 channels reach */
  double treeShare; /* of that, what a tree reaches, as an inner rank's links wait for each other */
  double cachedChunkBytes; /* longest chunk inside a host: what stays in a core's cache */
  double leastChunkBytes;  /* below it pieces cost more than their overlap gains */
  double leastNetBytes;    /* the same between hosts */
  double overlapPieces;    /* into which the direct algorithms split to overlap phases */
  double fetchGBs;         /* of a copy out of another process, from its cache; falls with the */
  double fetchCachedBytes; /*   square root of the size beyond this */
  double fetchUs;          /* of the system call */
  double streamBytes;      /* blocks of an all-gather from here on are stored past the caches */
  double gain;             /* a candidate must be that much better than the ones before it */
  int pairwiseRanks;       /* most ranks that connect all pairs where another way exists */
  /* Ranks of one host over its loopback network: the system's work is done by the ranks' cores. */
  double loopHopUs;        /* on the way, beside the work */
  double loopMessageUs[2]; /* work for one message, sent or received; [1]: oversubscribed */
  double loopGBs[2];       /* sent or received */
  double loopPairs;        /* bytes of exchanges with several peers at once take so much longer */
} model = {
    .messageUs = 0.06,
    .slotUs = 0.15,
    .netMessageUs = 2.0,
    .yieldUs = 5.0,
    .copyGBs = 8.0,
    .netShare = {0.7, 0.9, 1.0},
    .treeShare = 0.85,
    .cachedChunkBytes = 128 << 10,
    .leastChunkBytes = 16 << 10,
    .leastNetBytes = 64 << 10,
    .overlapPieces = 4,
    .fetchGBs = 22,
    .fetchCachedBytes = 1 << 20,
    .fetchUs = 0.5,
    .streamBytes = 8 << 20,
    .gain = 0.95,
    .pairwiseRanks = 16,
    .loopHopUs = 1.5,
    .loopMessageUs = {2.5, 5.0},
    .loopGBs = {4.0, 1.5},
    .loopPairs = 1.25,
};

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
} costs;

/* The communicator as the formulas want it. */
typedef struct {
  double n, hosts, perHost, remote; /* remote: ranks of other hosts */
  double bytes;                     /* count * size */
  double hopIn, hopOut, hopRing; /* us for one message to arrive; hopRing: mean around the ring */
  double writes;                 /* messages that reach all others: 1 if shared */
  double toOne, toAll; /* copies made to send to one rank, to all others: 0 if they read in place */
} setting;

static double atLeast(double a, double b) {
  return a > b ? a : b;
}
static double atMost(double a, double b) {
  return a < b ? a : b;
}

static setting settle(const tuttiPlanInput *in, const tuttiSignature *op, int proto) {
  setting w = {.n = in->nranks, .hosts = in->nhosts, .perHost = in->maxRanksPerHost};
  w.remote = atLeast(w.n - w.perHost, 0);
  w.bytes = (double)op->count * (double)tuttiTypeSize(op->type);
  w.hopIn = in->intraLatencyUs + (proto == tuttiProtoLL ? 0 : model.slotUs);
  if (in->oversubscribed) w.hopIn += model.yieldUs;
  w.hopOut = in->nhosts > 1 ? atLeast(in->interLatencyUs, w.hopIn) : w.hopIn;
  w.hopRing = in->nhosts > 1 ? ((w.n - w.hosts) * w.hopIn + w.hosts * w.hopOut) / w.n : w.hopIn;
  w.writes = in->sharedFifos ? 1 : w.n - 1;
  w.toOne = in->directReads ? 0 : 1;
  w.toAll = in->directReads ? 0 : w.writes;
  return w;
}

/* ---- chunks --------------------------------------------------------------------------------- */

static double treeHopsUs(const tuttiPlanInput *in, const setting *w) {
  double inside = 0;
  for (int ranks = in->maxRanksPerHost; ranks > 1; ranks /= 2)
    inside++;
  if (in->nhosts == 1) return atLeast(in->treeDepth, 1) * w->hopIn;
  return inside * w->hopIn + atLeast(in->treeDepth - inside, 1) * w->hopOut;
}

/* Pipelines. A chain of `hops` takes (hops + pieces) * (overhead + chunk / bandwidth), which is
 * least at chunk = sqrt(bytes * overhead * bandwidth / hops). The direct exchanges are split only
 * to overlap their phases. */
static double wantedChunk(const tuttiPlanInput *in, const tuttiSignature *op, const candidate *c) {
  setting w = settle(in, op, c->proto);
  double each = w.bytes / c->nchannels;
  if (c->fetch) return c->longest; /* nothing to overlap */
  bool chain = op->coll == tuttiCollBroadcast || op->coll == tuttiCollReduce;
  bool passedOn = w.n > 2 && (chain || c->algo == tuttiAlgoTree);
  if (in->loopback) /* passed on while it is in the cache and the next one arrives */
    return passedOn ? model.cachedChunkBytes : c->longest;
  if (c->algo == tuttiAlgoTree || chain) {
    double hops = c->algo == tuttiAlgoTree ? in->treeDepth : c->algo == tuttiAlgoRing ? w.n - 1 : 1;
    double overhead = in->nhosts > 1 ? model.netMessageUs : w.hopIn;
    double GBs = in->nhosts > 1 ? in->interGBs : in->intraGBs;
    return sqrt(each * overhead * GBs * 1e3 / atLeast(hops, 1));
  }
  if (c->algo == tuttiAlgoDirect) return (c->twoShot ? each / w.n : each) / model.overlapPieces;
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
  if (!network && !c->fetch) c->longest = atMost(c->longest, model.cachedChunkBytes);
  c->chunk = atMost(atLeast(wantedChunk(in, op, c), least), c->longest);
}

/* Never 0: callers check the type, but a plan must not trap on a wrong one. */
static uint64_t elementBytes(int type) {
  uint64_t bytes = tuttiTypeSize(type);
  return bytes > 0 ? bytes : 1;
}

static uint64_t chunkElements(const tuttiSignature *op, const candidate *c) {
  uint64_t elements = (uint64_t)c->chunk / elementBytes(op->type);
  uint64_t aligned = elements >> TUTTI_SLICE_SHIFT << TUTTI_SLICE_SHIFT;
  if (aligned > 0) return aligned;
  return elements > 0 ? elements : 1;
}

/* ---- costs ---------------------------------------------------------------------------------- */

/* In a ring every loop waits for each of its hops, as all ranks move in step; chains overlap. */
static costs ringCosts(const setting *w, const tuttiSignature *op, const candidate *c) {
  double n = w->n, S = w->bytes, each = S / c->nchannels;
  double loops = atLeast(each / c->chunk, 1);
  switch (op->coll) {
  case tuttiCollAllReduce:
    loops = atLeast(each / n / c->chunk, 1);
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
                   .copied = 1.5 * (S + (n - 1) * atMost(each, c->chunk)),
                   .wired = S};
  }
}

/* An inner rank with two children; with two channels or more it is a leaf in every other one. */
static costs treeCosts(const tuttiPlanInput *in, const setting *w, const tuttiSignature *op,
                       const candidate *c) {
  double S = w->bytes, each = S / c->nchannels;
  double pieces = atLeast(each / c->chunk, 1), first = atMost(each, c->chunk);
  double hops = treeHopsUs(in, w), levels = atLeast(in->treeDepth, 1);
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

/* Splitting beyond need must pay for itself: only the messages that must be are counted. */
static costs directAllReduceCosts(const setting *w, const candidate *c, double hop) {
  double n = w->n, S = w->bytes, each = S / c->nchannels;
  if (!c->twoShot) {
    double pieces = atLeast(each / c->longest, 1);
    return (costs){.waits = hop,
                   .messages = pieces * (w->writes + n - 1),
                   .copied = (2 * w->toAll + n + 1) / 2 * S,
                   .wired = w->perHost * w->remote * S};
  }
  double loops = atLeast(each / n / c->longest, 1);
  return (costs){.waits = 2 * hop,
                 .messages = loops * (3 * (n - 1) + w->writes),
                 .copied = ((n - 1) * (w->toOne + 1) + (n + 1 + w->writes) / 2) / n * S,
                 .wired = 2 * w->perHost * w->remote / n * S};
}

static costs directCosts(const setting *w, const tuttiSignature *op, const candidate *c) {
  double n = w->n, S = w->bytes, each = S / c->nchannels;
  double pieces = atLeast(each / c->longest, 1), first = atMost(each, c->chunk);
  double hop = w->remote > 0 ? w->hopOut : w->hopIn;
  switch (op->coll) {
  case tuttiCollAllReduce:
    return directAllReduceCosts(w, c, hop);
  case tuttiCollAllGather:
    return (costs){.waits = hop,
                   .messages = pieces * (w->writes + n - 1),
                   .copied = (2 + w->toAll) / 2 * S + (n - 1) * S,
                   .wired = w->perHost * w->remote * S};
  case tuttiCollReduceScatter:
    return (costs){.waits = hop,
                   .messages = pieces * 2 * (n - 1),
                   .copied = (n - 1) * w->toOne * S + (n + 1) / 2 * S,
                   .wired = w->perHost * w->remote * S};
  case tuttiCollAlltoAll:
    return (costs){.waits = hop,
                   .messages = pieces * 2 * (n - 1),
                   .copied = ((n - 1) * (w->toOne + 1) + 1) * S,
                   .wired = w->perHost * w->remote * S};
  case tuttiCollBroadcast:
    return (costs){.waits = hop,
                   .messages = pieces * w->writes + 1,
                   .copied = atLeast(w->toAll, 1) * S + first,
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

/* Dependent hops of one operation over loopback, the messages and bytes of its busiest rank. */
typedef struct {
  double hops, messages, bytes;
} loopWork;

static loopWork loopRing(double n, double S, double chunk, int coll) {
  switch (coll) {
  case tuttiCollAllReduce:
    return (loopWork){2 * (n - 1), 4 * (n - 1) * atLeast(S / n / chunk, 1), 4 * (n - 1) / n * S};
  case tuttiCollAllGather:
  case tuttiCollReduceScatter:
    return (loopWork){n - 1, 2 * (n - 1) * atLeast(S / chunk, 1), 2 * (n - 1) * S};
  default: {
    double links = n > 2 ? 2 : 1; /* the busiest rank of a chain passes on what it gets */
    return (loopWork){n - 1, links * atLeast(S / chunk, 1), links * S};
  }
  }
}

/* Twice the edges of a tree are spread over n ranks; the busiest has three, of four ranks two.
 * Where ranks share cores in an all-reduce, that others have fewer counts too. */
static loopWork loopTree(const tuttiPlanInput *in, double S, double chunk, int coll) {
  double n = in->nranks, depth = atLeast(in->treeDepth, 1), pieces = atLeast(S / chunk, 1);
  double links = n == 4 ? 2 : atMost(n - 1, 3);
  if (coll != tuttiCollAllReduce) return (loopWork){depth, links * pieces, links * S};
  if (in->oversubscribed) links = 2 * (n - 1) / n;
  return (loopWork){2 * depth, 2 * links * pieces, 2 * links * S};
}

static loopWork loopDirect(double n, double S, double chunk, const tuttiSignature *op,
                           int twoShot) {
  double pieces = atLeast(S / chunk, 1);
  switch (op->coll) {
  case tuttiCollSendRecv:
    return (loopWork){1, pieces, S};
  case tuttiCollAllReduce:
    if (twoShot) return (loopWork){2, 4 * (n - 1) * atLeast(S / n / chunk, 1), 4 * (n - 1) / n * S};
    break;
  case tuttiCollAllGather:
  case tuttiCollReduceScatter:
  case tuttiCollAlltoAll:
    break;
  default: /* the root alone has all peers */
    return (loopWork){1, (n - 1) * pieces, (n - 1) * S};
  }
  return (loopWork){1, 2 * (n - 1) * pieces, 2 * (n - 1) * S};
}

static double loopTime(const tuttiPlanInput *in, const tuttiSignature *op, const candidate *c) {
  double n = in->nranks, each = (double)op->count * (double)tuttiTypeSize(op->type) / c->nchannels;
  int shared = in->oversubscribed != 0;
  double pairs = c->algo == tuttiAlgoDirect && n > 2 ? model.loopPairs : 1;
  loopWork w = c->algo == tuttiAlgoRing   ? loopRing(n, each, c->chunk, op->coll)
               : c->algo == tuttiAlgoTree ? loopTree(in, each, c->chunk, op->coll)
                                          : loopDirect(n, each, c->chunk, op, c->twoShot);
  double work =
      w.messages * model.loopMessageUs[shared] + pairs * w.bytes / (model.loopGBs[shared] * 1e3);
  return w.hops * model.loopHopUs + c->nchannels * work;
}

/* On one host, without slots: what a rank copies within its memory, which costs half as no other
 * core has it, and what it fetches. The readers of one broadcast get in each other's way, as the
 * kernel counts who uses a page. */
static double fetchTime(const setting *w, const tuttiSignature *op, const candidate *c,
                        double copyGBs) {
  double S = w->bytes, pieces = atLeast(S / c->longest, 1);
  bool fromAll = op->coll == tuttiCollAllGather || op->coll == tuttiCollAlltoAll ||
                 op->coll == tuttiCollGather;
  bool broadcast = op->coll == tuttiCollBroadcast;
  double messages = fromAll || broadcast ? w->n - 1 : 1, own = broadcast ? 0 : S / 2;
  double GBs = model.fetchGBs / sqrt(1 + (fromAll ? messages : 1) * S / model.fetchCachedBytes);
  return 2 * w->hopIn + messages * pieces * model.fetchUs + own / (copyGBs * 1e3) +
         messages * S / (GBs * 1e3);
}

static double netShare(int nchannels) {
  return model.netShare[nchannels >= 4 ? 2 : nchannels >= 2 ? 1 : 0];
}

static double candidateTime(const tuttiPlanInput *in, const tuttiSignature *op,
                            const candidate *c) {
  setting w = settle(in, op, c->proto);
  double copyGBs = in->intraGBs > 0 ? in->intraGBs : model.copyGBs;
  if (in->nranks == 1) return w.bytes / (copyGBs * 1e3);
  if (in->loopback) return loopTime(in, op, c);
  if (c->fetch) return fetchTime(&w, op, c, copyGBs);
  costs k = c->algo == tuttiAlgoRing   ? ringCosts(&w, op, c)
            : c->algo == tuttiAlgoTree ? treeCosts(in, &w, op, c)
                                       : directCosts(&w, op, c);
  double us = k.waits + k.messages * c->nchannels * model.messageUs + k.copied / (copyGBs * 1e3);
  if (in->nhosts > 1) {
    /* A host's way in or out takes every other message of the rank that holds it. */
    double crossing = c->algo == tuttiAlgoDirect ? w.remote / w.n : 0.5;
    us += k.messages * c->nchannels * crossing * model.netMessageUs;
    us += k.wired / (netShare(c->nchannels) * atLeast(in->interGBs, 0.001) * 1e3);
  }
  return us;
}

/* ---- choice --------------------------------------------------------------------------------- */

float tuttiPlanTime(const tuttiPlanInput *in, const tuttiSignature *op, int algo, int proto,
                    int nchannels, int twoShot) {
  bool canSplit = op->coll == tuttiCollAllReduce && algo == tuttiAlgoDirect;
  if (!tuttiScheduleExists(op->coll, algo) || proto < 0 || proto >= tuttiProtoCount ||
      nchannels < 1 || nchannels > in->maxChannels || (twoShot && !canSplit))
    return INFINITY;
  candidate c = {.algo = algo, .proto = proto, .nchannels = nchannels, .twoShot = twoShot};
  setChunk(in, op, &c);
  return (float)candidateTime(in, op, &c);
}

/* The allowed algorithms that have a schedule; without any, all that have. */
static uint32_t usableAlgorithms(const tuttiPlanInput *in, const tuttiSignature *op) {
  static tuttiAtomic32 said;
  uint32_t exist = 0;
  for (int algo = 0; algo < tuttiAlgoCount; algo++)
    if (tuttiScheduleExists(op->coll, algo)) exist |= 1u << algo;
  uint32_t usable = exist & in->algoMask;
  if (usable == 0) {
    if (tuttiCompareExchange32(&said, 0, 1))
      TUTTI_INFO(TUNING, "TUTTI_ALGO allows no algorithm that has a schedule for %s; using others",
                 tuttiCollName(op->coll));
    return exist;
  }
  bool everyPair = !in->sharedFifos && in->nranks > model.pairwiseRanks;
  uint32_t others = usable & ~(1u << tuttiAlgoDirect);
  return everyPair && others != 0 ? others : usable;
}

/* Sets c's channels and chunk to the best; returns the time. On one host channels only help to
 * balance two trees, as one thread does all the work of a rank. */
static double tune(const tuttiPlanInput *in, const tuttiSignature *op, candidate *c) {
  int least = in->minChannels > 1 ? in->minChannels : 1;
  int useful = in->nhosts > 1 ? 4 : c->algo == tuttiAlgoTree && !in->loopback ? 2 : 1;
  double bestTime = INFINITY;
  candidate trial = *c;
  for (int n = 1; n <= useful; n *= 2) {
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
  return in->fetches && in->nhosts == 1 && in->nranks > 1 && !tuttiCollReduces(op->coll);
}

/* Each rank of a host writes all blocks, more than the caches hold. Other collectives, and smaller
 * blocks, measured slower or no faster this way. */
static bool shouldStream(const tuttiPlanInput *in, const tuttiSignature *op) {
  return op->coll == tuttiCollAllGather && in->nhosts == 1 && !in->loopback &&
         (double)op->count * (double)elementBytes(op->type) >= model.streamBytes;
}

static void consider(const tuttiPlanInput *in, const tuttiSignature *op, candidate c,
                     candidate *best, double *bestTime) {
  double time = tune(in, op, &c);
  if (best->algo >= 0 && time >= model.gain * *bestTime) return;
  *best = c;
  *bestTime = time;
}

/* Candidates come in the order of what they ask for: direct before tree before ring, which makes
 * fewer dependent hops; one exchange before two; fewer channels before more. */
void tuttiPlanChoose(const tuttiPlanInput *in, const tuttiSignature *op, tuttiPlan *plan) {
  uint32_t algos = usableAlgorithms(in, op);
  uint32_t protos = in->protoMask & ((1u << tuttiProtoCount) - 1);
  if (protos == 0) protos = (1u << tuttiProtoCount) - 1;
  candidate best = {.algo = -1};
  double time = 0;
  for (int algo = tuttiAlgoCount - 1; algo >= 0; algo--)
    for (int proto = 0; proto < tuttiProtoCount; proto++) {
      if (!(algos >> algo & 1) || !(protos >> proto & 1)) continue;
      candidate c = {.algo = algo, .proto = proto};
      consider(in, op, c, &best, &time);
      bool direct = algo == tuttiAlgoDirect;
      candidate twoShot = c, fetch = c;
      twoShot.twoShot = fetch.fetch = 1;
      if (direct && op->coll == tuttiCollAllReduce) consider(in, op, twoShot, &best, &time);
      if (direct && proto == tuttiProtoSimple && canFetch(in, op))
        consider(in, op, fetch, &best, &time);
    }
  plan->algo = best.algo;
  plan->proto = best.proto;
  plan->nchannels = best.nchannels;
  plan->twoShot = best.twoShot;
  plan->fetch = best.fetch;
  plan->streams = shouldStream(in, op);
  plan->chunk = chunkElements(op, &best);
  plan->timeUs = (float)time;
}

void tuttiPlanPart(uint64_t count, int type, int c, int n, uint64_t *begin, uint64_t *part) {
  unsigned shift = (unsigned)__builtin_ctzll(TUTTI_LINE / elementBytes(type));
  tuttiSplit(0, count, (uint64_t)n, (uint64_t)c, shift, begin, part);
}

/* ---- settings ------------------------------------------------------------------------------- */

static tuttiResult_t unknownWord(const char *setting, const char *text, const char *word,
                                 size_t length, const char *const *names, int n) {
  char accepted[128] = "";
  for (int i = 0; i < n; i++) {
    size_t used = strlen(accepted);
    snprintf(accepted + used, sizeof accepted - used, "%s%s", i > 0 ? ", " : "", names[i]);
  }
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "%s=\"%s\": \"%.*s\" is none of %s; give a list with commas, with ^ before "
                    "it to exclude, that leaves at least one",
                    setting, text, (int)length, word, accepted);
}

tuttiResult_t tuttiPlanMask(const char *setting, const char *text, const char *const *names, int n,
                            uint32_t *mask) {
  uint32_t all = (1u << n) - 1, listed = 0;
  const char *word = text + strspn(text, " ");
  if (*word == '\0') {
    *mask = all;
    return tuttiSuccess;
  }
  bool exclude = *word == '^';
  if (exclude) word++;
  for (bool more = true; more;) {
    word += strspn(word, " ");
    size_t span = strcspn(word, ","), length = span;
    while (length > 0 && word[length - 1] == ' ')
      length--;
    int i = 0;
    while (i < n && (strlen(names[i]) != length || strncasecmp(names[i], word, length) != 0))
      i++;
    if (i == n) return unknownWord(setting, text, word, length, names, n);
    listed |= 1u << i;
    more = word[span] == ',';
    word += span + more;
  }
  uint32_t chosen = exclude ? all & ~listed : listed;
  if (chosen == 0)
    return TUTTI_FAIL(tuttiInvalidArgument, "%s=\"%s\" excludes everything; leave at least one",
                      setting, text);
  *mask = chosen;
  return tuttiSuccess;
}
