#include "collectives/exchange_plan.h"

#include <stdlib.h>

#define KB ((uint64_t)1 << 10)

/* Largest sizes, in bytes, measured on four GPUs of one NVSwitch (bench/results). */
#define ONE_SHOT_REDUCE (64 * KB)  /* the whole buffer to every rank */
#define ONE_SHOT_COPY   (64 * KB)  /* the root's buffer to every rank */
#define LL_MESSAGE      (128 * KB) /* to one peer */

/* What one thread block is worth having for. */
#define LL_BLOCK     (6 * KB)
#define SIMPLE_BLOCK (16 * KB)
#define MAX_BLOCKS   64
#define LL_BLOCKS    64
#define MAX_THREADS  512

static uint64_t ceilDiv(uint64_t a, uint64_t b) {
  return a / b + (a % b != 0);
}

void tuttiExchangeChoose(const tuttiPlanInput *in, const tuttiSchedule *s, size_t size,
                         tuttiExchangePlan *plan) {
  uint64_t bytes = s->count * size, n = (uint64_t)s->nranks;
  bool all = s->coll == tuttiCollAllReduce;
  plan->twoShot = all ? bytes > ONE_SHOT_REDUCE
                      : (s->coll == tuttiCollReduce || s->coll == tuttiCollBroadcast) &&
                            bytes > ONE_SHOT_COPY;
  uint64_t owners = all ? n : n - 1;
  uint64_t message = plan->twoShot && n > 2 ? ceilDiv(bytes, owners) : bytes;
  const char *tune = getenv("TUTTI_TUNE_TWOSHOT"); // TUNE
  if (tune) plan->twoShot = atoi(tune), message = plan->twoShot && n > 2 ? ceilDiv(bytes, owners) : bytes;
  tune = getenv("TUTTI_TUNE_LL");
  bool ll = message <= (tune ? (uint64_t)atoi(tune) : LL_MESSAGE);
  if (!(in->protoMask & 1u << tuttiProtoLL)) ll = false;
  if (!(in->protoMask & 1u << tuttiProtoSimple)) ll = true;
  plan->proto = ll ? tuttiProtoLL : tuttiProtoSimple;
  uint64_t moved = s->coll == tuttiCollSendRecv ? message : message * (n - 1);
  uint64_t blocks = ceilDiv(moved, ll ? LL_BLOCK : SIMPLE_BLOCK * (n - 1));
  uint64_t most = ll ? LL_BLOCKS : MAX_BLOCKS;
  if (blocks > most) blocks = most;
  tune = getenv("TUTTI_TUNE_BLOCKS");
  if (tune && blocks > (uint64_t)atoi(tune)) blocks = atoi(tune);
  plan->nblocks = blocks > 0 ? (int)blocks : 1;
  /* A line of LL takes eight threads; a little message needs few, and few start sooner. */
  uint64_t threads = ll ? ceilDiv(message, 120) * 8 * (n - 1) : MAX_THREADS;
  threads = ceilDiv(threads, 32) * 32;
  plan->nthreads = threads < MAX_THREADS ? (threads ? (int)threads : 32) : MAX_THREADS;
}
