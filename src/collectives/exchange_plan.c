#include "collectives/exchange_plan.h"

#include "collectives/exchange.h"

#define KB ((uint64_t)1 << 10)

/* Largest sizes in bytes, as measured on four GPUs of one NVSwitch. */
#define ONE_SHOT_REDUCE (160 * KB)  /* the whole buffer to every rank */
#define ONE_SHOT_COPY   (192 * KB)  /* the root's buffer to every rank */
#define LL_MESSAGE      (256 * KB)  /* to one peer, through slots */
#define UNIFORM_MESSAGE (2112 * KB) /* fits in a region */
/* The same where blocks are in host memory. */
#define STAGED_ONE_SHOT (32 * KB)
#define STAGED_REDUCE   (1024 * KB)
#define STAGED_UNIFORM  (64 * KB)

/* What one thread block is worth having for. */
#define LL_BLOCK      (6 * KB)
#define SIMPLE_BLOCK  (16 * KB)
#define UNIFORM_BLOCK (256 * KB) /* messages above it: the largest blocks */
#define WARP          32

static uint64_t ceilDiv(uint64_t a, uint64_t b) {
  return a / b + (a % b != 0);
}
static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static bool isTwoShot(int coll, uint64_t bytes, bool staged) {
  if (staged) /* all read what the root of a broadcast has written */
    return (coll == tuttiCollAllReduce && bytes > STAGED_ONE_SHOT) ||
           (coll == tuttiCollReduce && bytes > STAGED_REDUCE);
  if (coll == tuttiCollAllReduce) return bytes > ONE_SHOT_REDUCE;
  return (coll == tuttiCollReduce || coll == tuttiCollBroadcast) && bytes > ONE_SHOT_COPY;
}

/* Largest message to one peer. */
static uint64_t messageBytes(const tuttiSchedule *s, uint64_t bytes, bool twoShot) {
  uint64_t n = (uint64_t)s->nranks;
  if (!twoShot || n <= 2) return bytes;
  return ceilDiv(bytes, s->coll == tuttiCollAllReduce ? n : n - 1);
}

static void chooseUniform(uint64_t message, tuttiExchangePlan *plan) {
  uint64_t threads = ceilDiv(message, TUTTI_EXCHANGE_LINE_PAYLOAD) * 8;
  uint64_t most = message > UNIFORM_BLOCK ? TUTTI_EXCHANGE_THREADS : TUTTI_EXCHANGE_THREADS / 2;
  plan->uniform = 1;
  plan->proto = tuttiProtoLL;
  plan->nthreads = (int)least(ceilDiv(threads, WARP) * WARP, most);
  plan->nblocks = (int)least(ceilDiv(threads, (uint64_t)plan->nthreads), TUTTI_UNIFORM_BLOCKS);
}

static void chooseFifos(const tuttiSchedule *s, bool ll, uint64_t message,
                        tuttiExchangePlan *plan) {
  uint64_t peers = s->nranks > 1 ? (uint64_t)s->nranks - 1 : 1;
  plan->proto = ll ? tuttiProtoLL : tuttiProtoSimple;
  /* The two sides of a SendRecv know of that one message. */
  uint64_t moved = s->coll == tuttiCollSendRecv ? message : message * peers;
  uint64_t blocks = ll ? least(ceilDiv(moved, LL_BLOCK), TUTTI_EXCHANGE_LL_BLOCKS)
                       : least(ceilDiv(message, SIMPLE_BLOCK), TUTTI_EXCHANGE_BLOCKS);
  /* A little message needs few threads, and few start sooner. */
  uint64_t threads =
      ll ? ceilDiv(message, TUTTI_EXCHANGE_LINE_PAYLOAD) * 8 * peers : TUTTI_EXCHANGE_THREADS;
  plan->nblocks = blocks > 0 ? (int)blocks : 1;
  plan->nthreads =
      (int)least(threads > 0 ? ceilDiv(threads, WARP) * WARP : WARP, TUTTI_EXCHANGE_THREADS);
}

void tuttiExchangeChoose(const tuttiPlanInput *in, const tuttiSchedule *s, size_t size,
                         tuttiExchangePlan *plan) {
  bool mayLL = (in->protoMask & 1u << tuttiProtoLL) != 0;
  bool maySimple = (in->protoMask & 1u << tuttiProtoSimple) != 0;
  uint64_t bytes = s->count * size;
  *plan = (tuttiExchangePlan){.twoShot = isTwoShot(s->coll, bytes, in->staged)};
  uint64_t message = messageBytes(s, bytes, plan->twoShot);
  if (plan->twoShot) message += 127; /* slices are whole lines of 128 bytes */
  bool one = s->coll == tuttiCollSendRecv;
  bool ll = one && mayLL && !in->staged && (message <= LL_MESSAGE || !maySimple);
  uint64_t most = !in->staged ? UNIFORM_MESSAGE : tuttiCollHasRoot(s->coll) ? 0 : STAGED_UNIFORM;
  if (!one && mayLL && s->nranks > 1 && message && message <= most)
    chooseUniform(message, plan);
  else
    chooseFifos(s, ll, message, plan);
  if (in->staged && !plan->uniform && plan->nblocks > (int)TUTTI_STAGED_BLOCKS)
    plan->nblocks = (int)TUTTI_STAGED_BLOCKS;
  if (in->maxBlocks > 0 && plan->nblocks > in->maxBlocks) plan->nblocks = in->maxBlocks;
  /* Thread blocks wait for those of other ranks, so all of them have to fit at once. */
  if (in->sharers > 1) plan->nblocks = (plan->nblocks + in->sharers - 1) / in->sharers;
}
