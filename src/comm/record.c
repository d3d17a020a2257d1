#include "comm/record.h"

#include <string.h>

#include "base/ticks.h"

/* Words of an entry behind the signature's. */
enum { SIG_WORDS = 3, ENQUEUED = SIG_WORDS, START, END, PLAN };
#define LONG_TICKS 65536 /* tens of microseconds: next to them one stamp more costs nothing */

_Static_assert(sizeof(tuttiSignature) == SIG_WORDS * sizeof(uint64_t),
               "the first words of an entry hold one signature");
_Static_assert(sizeof(tuttiOpFacts) == TUTTI_RECORD_WORDS * sizeof(uint64_t),
               "an entry is what is told of an operation");
_Static_assert(sizeof(tuttiRecordPlan) == sizeof(uint64_t), "a word holds the plan");
_Static_assert(TUTTI_FACTS_OPS >= TUTTI_RECORD_DEPTH, "all of the record is told");

static void count(tuttiAtomic64 *counter, uint64_t more) { /* it has one writer */
  tuttiStoreRelaxed(counter, tuttiLoadRelaxed(counter) + more);
}

void tuttiRecordStart(tuttiRecord *r, const tuttiSignature *sig, tuttiRecordPlan plan,
                      uint64_t enqueued, bool brief) {
  uint64_t n = tuttiLoadRelaxed(&r->started), word;
  tuttiAtomic64 *e = r->entry[n % TUTTI_RECORD_DEPTH];
  bool sampled = sig->seq % TUTTI_RECORD_SAMPLE == 0 && sig->coll != tuttiCollSendRecv;
  bool stamped = r->traces || sampled;
  uint64_t now = stamped && !brief ? tuttiTicks() : 0;
  for (size_t i = 0; i < SIG_WORDS; i++) { /* as it was just written: a wider load would wait */
    memcpy(&word, (const char *)sig + i * sizeof word, sizeof word);
    tuttiStoreRelaxed(&e[i], word);
  }
  tuttiStoreRelaxed(&e[START], now);
  r->idle = (tuttiIdle){.first = stamped && brief ? &e[START] : NULL};
  if (stamped) {
    tuttiStoreRelaxed(&e[ENQUEUED], enqueued != 0 ? enqueued : now);
    tuttiStoreRelaxed(&e[END], 0);
    r->stamped = true;
  }
  memcpy(&word, &plan, sizeof word);
  tuttiStoreRelaxed(&e[PLAN], word);
  count(&r->counts[sig->coll], 1);
  count(&r->bytes[sig->coll], sig->count * tuttiTypeSizes[sig->type]);
  tuttiStoreRelease(&r->started, n + 1);
}

/* Of the operations since the last end those that have a start get their end. */
static void stampEnds(tuttiRecord *r, uint64_t from, uint64_t to) {
  uint64_t now = 0;
  if (to - from > TUTTI_RECORD_DEPTH) from = to - TUTTI_RECORD_DEPTH;
  for (; from < to; from++) {
    tuttiAtomic64 *e = r->entry[from % TUTTI_RECORD_DEPTH];
    if (tuttiLoadRelaxed(&e[START]) == 0) continue;
    if (now == 0) now = tuttiTicks();
    tuttiStoreRelaxed(&e[END], now);
  }
}

/* The newest alone is brief. It ended right after it last waited, unless the thread was kept from
 * its core just then; whoever has waited for long looks at the clock once more. */
static void stampBrief(tuttiRecord *r) {
  tuttiAtomic64 *e = r->idle.first - START;
  uint64_t first = tuttiLoadRelaxed(&e[START]), last = r->idle.last;
  if (last - first >= LONG_TICKS || last == 0) last = tuttiTicks();
  if (first == 0) tuttiStoreRelaxed(&e[START], last);
  tuttiStoreRelaxed(&e[END], last);
  r->idle.first = NULL;
}

void tuttiRecordEnd(tuttiRecord *r) {
  uint64_t started = tuttiLoadRelaxed(&r->started);
  if (r->stamped) {
    if (r->idle.first)
      stampBrief(r);
    else
      stampEnds(r, tuttiLoadRelaxed(&r->ended), started);
    r->stamped = false;
  }
  tuttiStoreRelease(&r->ended, started);
}

void tuttiRecordState(const tuttiRecord *r, tuttiRankState *out) {
  uint64_t after;
  do {
    memset(out, 0, sizeof *out);
    out->ended = tuttiLoadAcquire(&r->ended);
    out->started = tuttiLoadAcquire(&r->started);
    for (uint64_t i = 0; i < TUTTI_STATE_SIGS && i < out->started; i++) {
      const tuttiAtomic64 *e = r->entry[(out->started - 1 - i) % TUTTI_RECORD_DEPTH];
      uint64_t words[SIG_WORDS];
      for (int w = 0; w < SIG_WORDS; w++)
        words[w] = tuttiLoadAcquire(&e[w]);
      memcpy(&out->last[i], words, sizeof words);
    }
    /* The entries read are intact unless the writer lapped them meanwhile; the acquire loads
     * above keep this load behind them. */
    after = tuttiLoadRelaxed(&r->started);
  } while (after - out->started >= TUTTI_RECORD_DEPTH - TUTTI_STATE_SIGS);
}

/* Here and not where they are taken, as few stamps are ever read. */
static void convertStamps(tuttiOpFacts *ops, uint32_t nops) {
  tuttiTickScale scale = tuttiTickScaleNow();
  for (uint32_t i = 0; i < nops; i++) {
    uint64_t *stamps[] = {&ops[i].enqueued, &ops[i].start, &ops[i].end};
    for (int s = 0; s < 3; s++)
      if (*stamps[s] != 0) *stamps[s] = tuttiTicksToNs(&scale, *stamps[s]);
  }
}

void tuttiRecordFacts(const tuttiRecord *r, tuttiFacts *out) {
  for (int i = 0; i < tuttiCollCount; i++) {
    out->counts[i] = tuttiLoadRelaxed(&r->counts[i]);
    out->bytes[i] = tuttiLoadRelaxed(&r->bytes[i]);
  }
  out->ended = tuttiLoadAcquire(&r->ended);
  out->started = tuttiLoadAcquire(&r->started);
  uint64_t n = out->started < TUTTI_RECORD_DEPTH ? out->started : TUTTI_RECORD_DEPTH;
  for (uint64_t i = 0; i < n; i++) {
    const tuttiAtomic64 *e = r->entry[(out->started - 1 - i) % TUTTI_RECORD_DEPTH];
    uint64_t words[TUTTI_RECORD_WORDS];
    for (int w = 0; w < TUTTI_RECORD_WORDS; w++)
      words[w] = tuttiLoadAcquire(&e[w]);
    if (words[START] == 0) words[ENQUEUED] = words[END] = 0;  /* of an older one that was stamped */
    if (words[ENQUEUED] == 0) words[ENQUEUED] = words[START]; /* of one that is brief */
    memcpy(&out->ops[i], words, sizeof words);
  }
  /* What the writer has begun to overwrite meanwhile is the oldest; one more than it tells. */
  uint64_t lapped = tuttiLoadRelaxed(&r->started) - out->started;
  bool full = out->started + lapped >= TUTTI_RECORD_DEPTH;
  uint64_t gone = full ? lapped + 1 : 0;
  out->nops = gone < n ? (uint32_t)(n - gone) : 0;
  convertStamps(out->ops, out->nops);
}
