#ifdef TUTTI_HAVE_CUDA

#include "device/cuda/messages.h"

#include <string.h>

#include "base/error.h"
#include "device/cuda/arguments.h"
#include "device/cuda/launch.h"

/* Messages through FIFOs: from here on in so many parts. */
#define MESSAGE_LARGE ((uint64_t)256 << 10)
#define MESSAGE_PARTS 4

/* Streams of one group wait for each other, before its messages and behind them. */
static tuttiResult_t join(tuttiCuda *s, const tuttiTask *tasks, int n, cudaStream_t stream,
                          bool before) {
  for (int i = 0; i < n; i++) {
    cudaStream_t other = tasks[i].stream;
    if (tuttiCudaIsMessage(s, &tasks[i]))
      TUTTI_TRY(tuttiCudaOrder(s, before ? other : stream, before ? stream : other));
  }
  return tuttiSuccess;
}

/* The messages of a group go in rounds: in round i the i-th of each pair and direction. So the two
 * sides of a message agree on its round, in whatever order they have called. */
static bool inRound(const tuttiCuda *s, const tuttiTask *t, int round) {
  return tuttiCudaIsMessage(s, t) && t->round == round;
}

/* Those of one protocol. Protocol, thread blocks and so the parts of a message depend on that
 * message alone: its two sides know of no other. */
static tuttiResult_t allPairsRound(tuttiCuda *s, const tuttiTask *tasks, int n, int round,
                                   int proto) {
  tuttiPlan most = {
      .proto = (uint8_t)proto, .kernel = tuttiKernelSlots, .nblocks = 1, .nthreads = 32};
  tuttiCudaArgsBegin(s);
  for (int i = 0; i < n; i++) {
    const tuttiPlan *plan = &tasks[i].plan;
    if (!inRound(s, &tasks[i], round) || plan->proto != proto) continue;
    tuttiCudaArgsMessage(s, &tasks[i]);
    if (plan->nblocks > most.nblocks) most.nblocks = plan->nblocks;
    if (plan->nthreads > most.nthreads) most.nthreads = plan->nthreads;
  }
  tuttiCudaArgsEnd(s, &tasks[0], proto);
  return tuttiCudaLaunch(s, &tasks[0], &most);
}

/* Adds a message to a launch: a large one in parts, over FIFOs of several channels. */
static void addMessage(const tuttiCuda *s, const tuttiTask *t, bool large, tuttiTask *tasks,
                       int *n) {
  int parts = large && s->ringTree.nchannels >= MESSAGE_PARTS ? MESSAGE_PARTS : 1;
  for (int p = 0; p < parts; p++) {
    tuttiTask *part = &tasks[*n];
    *part = *t;
    part->channel = p > 0 ? p : TUTTI_P2P_CHANNEL;
    tuttiPlanPart(t->schedule.count, t->type, p, parts, &part->schedule.begin,
                  &part->schedule.part);
    if (part->schedule.part > 0) (*n)++;
  }
}

/* As many as a launch takes: those between ranks that are about as far apart. */
static tuttiResult_t scheduleRound(tuttiCuda *s, const tuttiTask *tasks, int n, int round,
                                   bool large) {
  tuttiTask parts[TUTTI_RINGTREE_TASKS];
  int nranks = s->ringTree.nranks,
      reach = (int)TUTTI_RINGTREE_TASKS / 2 / (large ? MESSAGE_PARTS : 1);
  for (int from = 0; from < nranks; from += reach) {
    int k = 0;
    for (int i = 0; i < n; i++) {
      const tuttiTask *t = &tasks[i];
      if (!inRound(s, t, round)) continue;
      int ahead = t->schedule.root - t->schedule.rank;
      int distance = ((t->schedule.sending ? ahead : -ahead) + nranks) % nranks;
      bool isLarge = t->schedule.count * tuttiTypeSize(t->type) >= MESSAGE_LARGE;
      if (distance / reach == from / reach && isLarge == large) addMessage(s, t, large, parts, &k);
    }
    parts[0].stream = tasks[0].stream; /* which all others wait for, and it for them */
    TUTTI_TRY(tuttiCudaRunSchedules(s, parts, k));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaRunMessages(tuttiCuda *s, tuttiTask *tasks, int n) {
  for (; n > 0 && !tuttiCudaIsMessage(s, tasks); n--)
    tasks++;
  if (n == 0) return tuttiSuccess;
  int rounds = 0;
  memset(s->rounds, 0, 2 * (size_t)tasks[0].schedule.nranks * sizeof *s->rounds);
  for (int i = 0; i < n; i++) {
    tuttiTask *t = &tasks[i];
    if (!tuttiCudaIsMessage(s, t)) continue;
    t->round = s->rounds[2 * t->schedule.root + t->schedule.sending]++;
    if (t->round >= rounds) rounds = t->round + 1;
  }
  cudaStream_t stream = tasks[0].stream;
  TUTTI_TRY(join(s, tasks, n, stream, true));
  for (int r = 0; r < 2 * rounds; r++) { /* first the small ones of each */
    bool large = r % 2;
    TUTTI_TRY(s->context->plan->allPairs
                  ? allPairsRound(s, tasks, n, r / 2, large ? tuttiProtoSimple : tuttiProtoLL128)
                  : scheduleRound(s, tasks, n, r / 2, large));
  }
  return join(s, tasks, n, stream, false);
}

#endif
