#include "collectives/exchange_plan.h"

#include <stdlib.h>

#define KB ((uint64_t)1 << 10)

/* Largest sizes, in bytes, measured on four GPUs of one NVSwitch (bench/results). */
#define ONE_SHOT_REDUCE  (64 * KB)   /* the whole buffer to every rank */
#define ONE_SHOT_COPY    (512 * KB)  /* the root's buffer to every rank */
#define LL_MESSAGE       (256 * KB)  /* to one peer, with credits */
#define UNIFORM_MESSAGE  (2048 * KB) /* without; what a region holds */

/* What one thread block is worth having for. */
#define LL_BLOCK     (6 * KB)
#define SIMPLE_BLOCK (16 * KB)
#define BLOCKS       64
#define LINE         120
#define UNIFORM_BLOCKS 128
#define MAX_THREADS  512
#define UNIFORM_THREADS 256

static uint64_t ceilDiv(uint64_t a, uint64_t b) {
  return a / b + (a % b != 0);
}
static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
static uint64_t tuned(const char *name, uint64_t value) { // TUNE
  const char *text = getenv(name);
  return text ? (uint64_t)atoll(text) : value;
}

static bool everyPair(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollAllGather ||
         coll == tuttiCollReduceScatter || coll == tuttiCollAlltoAll;
}

/* Largest message to one peer. */
static uint64_t messageBytes(const tuttiSchedule *s, uint64_t bytes, bool twoShot) {
  uint64_t n = (uint64_t)s->nranks;
  if (!twoShot || n <= 2) return bytes;
  return ceilDiv(bytes, s->coll == tuttiCollAllReduce ? n : n - 1);
}

static bool isTwoShot(const tuttiSchedule *s, uint64_t bytes) {
  if (s->coll == tuttiCollAllReduce) return tuned("TUTTI_TUNE_TWOSHOT", bytes > ONE_SHOT_REDUCE);
  bool rooted = s->coll == tuttiCollReduce || s->coll == tuttiCollBroadcast;
  return rooted && tuned("TUTTI_TUNE_TWOSHOT", bytes > ONE_SHOT_COPY);
}

static void chooseUniform(uint64_t message, tuttiExchangePlan *plan) {
  uint64_t threads = ceilDiv(message, LINE) * 8;
  plan->uniform = 1;
  plan->proto = tuttiProtoLL;
  uint64_t perBlock = tuned("TUTTI_TUNE_UTHREADS", UNIFORM_THREADS);
  plan->nthreads = (int)least(ceilDiv(threads, 32) * 32, perBlock);
  plan->nblocks = (int)least(ceilDiv(threads, (uint64_t)plan->nthreads), tuned("TUTTI_TUNE_UBLOCKS", UNIFORM_BLOCKS));
}

void tuttiExchangeChoose(const tuttiPlanInput *in, const tuttiSchedule *s, size_t size,
                         tuttiExchangePlan *plan) {
  uint64_t bytes = s->count * size, peers = s->nranks > 1 ? (uint64_t)s->nranks - 1 : 1;
  bool mayLL = in->protoMask & 1u << tuttiProtoLL, maySimple = in->protoMask & 1u << tuttiProtoSimple;
  *plan = (tuttiExchangePlan){.twoShot = isTwoShot(s, bytes)};
  uint64_t message = messageBytes(s, bytes, plan->twoShot);
  if (mayLL && everyPair(s->coll) && s->nranks > 1 && message > 0 && message + 128 <= tuned("TUTTI_TUNE_UNIFORM", UNIFORM_MESSAGE)) {
    chooseUniform(message + 127, plan); /* slices are whole lines of 128 bytes */
    return;
  }
  bool ll = mayLL && (message <= tuned("TUTTI_TUNE_LL", LL_MESSAGE) || !maySimple);
  plan->proto = ll ? tuttiProtoLL : tuttiProtoSimple;
  uint64_t moved = s->coll == tuttiCollSendRecv ? message : message * peers;
  uint64_t blocks = ceilDiv(moved, ll ? LL_BLOCK : SIMPLE_BLOCK * peers);
  blocks = least(blocks, tuned("TUTTI_TUNE_BLOCKS", BLOCKS));
  plan->nblocks = blocks > 0 ? (int)blocks : 1;
  /* A line takes eight threads; a little message needs few, and few start sooner. */
  uint64_t threads = ll ? ceilDiv(message, LINE) * 8 * peers : MAX_THREADS;
  threads = ceilDiv(threads, 32) * 32;
  plan->nthreads = threads < MAX_THREADS ? (threads ? (int)threads : 32) : MAX_THREADS;
}
