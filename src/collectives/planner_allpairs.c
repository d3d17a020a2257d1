/* Plans for GPUs that all store into each other's memory, or into host memory that they share: one
 * launch does all, so what is to be chosen follows from the size of the longest message. */
#include "collectives/allpairs.h"
#include "collectives/planner.h"

#define KB ((uint64_t)1 << 10)

/* Largest sizes in bytes, as measured on four GPUs of one NVSwitch. */
#define ONE_SHOT_REDUCE (160 * KB)  /* the whole buffer to every rank */
#define ONE_SHOT_COPY   (192 * KB)  /* the root's buffer to every rank */
#define LL_MESSAGE      (256 * KB)  /* to one peer, through slots */
#define REGION_MESSAGE  (2112 * KB) /* fits in a region */
/* The same where blocks are in host memory. */
#define STAGED_ONE_SHOT (32 * KB)
#define STAGED_REDUCE   (1024 * KB)
#define STAGED_MESSAGE  (64 * KB)

/* What one thread block is worth having for. */
#define LL_BLOCK     (6 * KB)
#define SIMPLE_BLOCK (16 * KB)
#define REGION_BLOCK (256 * KB) /* messages above it: the largest blocks */
#define WARP         32

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
static uint64_t messageBytes(int coll, int nranks, uint64_t bytes, bool twoShot) {
  uint64_t n = (uint64_t)nranks;
  if (!twoShot || n <= 2) return bytes;
  return ceilDiv(bytes, coll == tuttiCollAllReduce ? n : n - 1);
}

static void chooseRegions(uint64_t message, int proto, tuttiPlan *plan) {
  uint64_t threads = ceilDiv(message, TUTTI_ALLPAIRS_LINE_PAYLOAD) * 8;
  uint64_t most = message > REGION_BLOCK ? TUTTI_ALLPAIRS_THREADS : TUTTI_ALLPAIRS_THREADS / 2;
  plan->kernel = tuttiKernelRegions;
  plan->proto = (uint8_t)proto;
  plan->nthreads = (uint16_t)least(ceilDiv(threads, WARP) * WARP, most);
  plan->nblocks = (uint16_t)least(ceilDiv(threads, plan->nthreads), TUTTI_REGION_BLOCKS);
}

static void chooseSlots(const tuttiPlanInput *in, int coll, bool ll, uint64_t message,
                        tuttiPlan *plan) {
  uint64_t peers = in->nranks > 1 ? (uint64_t)in->nranks - 1 : 1;
  plan->kernel = tuttiKernelSlots;
  plan->proto = ll ? tuttiProtoLL128 : tuttiProtoSimple;
  /* The two sides of a SendRecv know of that one message. */
  uint64_t moved = coll == tuttiCollSendRecv ? message : message * peers;
  uint64_t blocks = ll ? least(ceilDiv(moved, LL_BLOCK), TUTTI_ALLPAIRS_LL_BLOCKS)
                       : least(ceilDiv(message, SIMPLE_BLOCK), TUTTI_ALLPAIRS_BLOCKS);
  /* A little message needs few threads, and few start sooner. */
  uint64_t threads =
      ll ? ceilDiv(message, TUTTI_ALLPAIRS_LINE_PAYLOAD) * 8 * peers : TUTTI_ALLPAIRS_THREADS;
  plan->nblocks = blocks > 0 ? (uint16_t)blocks : 1;
  plan->nthreads =
      (uint16_t)least(threads > 0 ? ceilDiv(threads, WARP) * WARP : WARP, TUTTI_ALLPAIRS_THREADS);
}

/* What may be used: lines that carry flags (in host memory LL, with a flag in every 8 bytes; over
 * NVLink lines of 128 bytes alone, which whoever allows LL gets too), and plain data. */
typedef struct {
  int proto; /* of lines */
  bool lines, simple;
} choice;

static choice allowed(const tuttiPlanInput *in) {
  int lines = in->staged ? tuttiProtoLL : tuttiProtoLL128;
  return (choice){.proto = lines,
                  .lines = (in->protoMask & (1u << tuttiProtoLL | 1u << lines)) != 0,
                  .simple = (in->protoMask & 1u << tuttiProtoSimple) != 0};
}

/* Largest message of a collective that goes through regions. */
static uint64_t regionMessage(const tuttiPlanInput *in, int coll) {
  if (in->nranks < 2 || coll == tuttiCollSendRecv) return 0;
  if (!in->staged) return REGION_MESSAGE;
  return tuttiCollHasRoot(coll) ? 0 : STAGED_MESSAGE;
}

/* Thread blocks wait for those of other ranks, so those of all ranks that share a GPU have to fit
 * at once. */
static unsigned limitBlocks(const tuttiPlanInput *in, const tuttiPlan *plan) {
  unsigned blocks = plan->nblocks, sharers = in->sharers > 1 ? (unsigned)in->sharers : 1;
  if (in->staged && plan->kernel == tuttiKernelSlots && blocks > TUTTI_STAGED_BLOCKS)
    blocks = TUTTI_STAGED_BLOCKS;
  if (in->maxBlocks > 0 && blocks > (unsigned)in->maxBlocks) blocks = (unsigned)in->maxBlocks;
  return (blocks + sharers - 1) / sharers;
}

void tuttiPlanAllPairs(const tuttiPlanInput *in, const tuttiSignature *op, tuttiPlan *plan) {
  choice may = allowed(in);
  uint64_t bytes = op->count * tuttiTypeSize(op->type);
  plan->twoShot = isTwoShot(op->coll, bytes, in->staged);
  uint64_t message = messageBytes(op->coll, in->nranks, bytes, plan->twoShot);
  if (plan->twoShot) message += TUTTI_ALLPAIRS_LINE - 1; /* slices are whole lines */
  if (may.lines && message > 0 && message <= regionMessage(in, op->coll)) {
    chooseRegions(message, may.proto, plan);
  } else {
    bool small = message <= LL_MESSAGE || !may.simple;
    bool ll = op->coll == tuttiCollSendRecv && may.lines && !in->staged && small;
    chooseSlots(in, op->coll, ll, message, plan);
  }
  plan->nblocks = (uint16_t)limitBlocks(in, plan);
}

void tuttiPlanExchange(const tuttiSchedule *s, int type, tuttiAllPairs *exchange) {
  tuttiAllPairsMake(s, TUTTI_ALLPAIRS_LINE / tuttiElementBytes(type), exchange);
}
