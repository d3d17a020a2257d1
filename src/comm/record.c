#include "comm/record.h"

#include <string.h>

#include "watch/watch.h"

_Static_assert(sizeof(tuttiSignature) == sizeof(((tuttiRecord *)0)->entry[0]),
               "an entry holds one signature");
_Static_assert(sizeof(tuttiRankState) <= TUTTI_WATCH_STATE, "a heartbeat carries the state");

void tuttiRecordStart(tuttiRecord *r, const tuttiSignature *sig) {
  uint64_t n = tuttiLoadRelaxed(&r->started), word;
  tuttiAtomic64 *e = r->entry[n % TUTTI_RECORD_DEPTH];
  for (size_t i = 0; i < 3; i++) { /* as it was just written: a wider load would wait for that */
    memcpy(&word, (const char *)sig + i * sizeof word, sizeof word);
    tuttiStoreRelaxed(&e[i], word);
  }
  tuttiStoreRelease(&r->started, n + 1);
}

void tuttiRecordEnd(tuttiRecord *r) {
  tuttiStoreRelease(&r->ended, tuttiLoadRelaxed(&r->started));
}

void tuttiRecordState(const tuttiRecord *r, tuttiRankState *out) {
  uint64_t after;
  do {
    memset(out, 0, sizeof *out);
    out->ended = tuttiLoadAcquire(&r->ended);
    out->started = tuttiLoadAcquire(&r->started);
    for (uint64_t i = 0; i < TUTTI_STATE_SIGS && i < out->started; i++) {
      const tuttiAtomic64 *e = r->entry[(out->started - 1 - i) % TUTTI_RECORD_DEPTH];
      uint64_t words[3];
      for (int w = 0; w < 3; w++)
        words[w] = tuttiLoadAcquire(&e[w]);
      memcpy(&out->last[i], words, sizeof words);
    }
    /* The entries read are intact unless the writer lapped them meanwhile; the acquire loads
     * above keep this load behind them. */
    after = tuttiLoadRelaxed(&r->started);
  } while (after - out->started >= TUTTI_RECORD_DEPTH - TUTTI_STATE_SIGS);
}

bool tuttiRankStateParse(const void *bytes, size_t size, tuttiRankState *out) {
  tuttiRankState s;
  if (size != sizeof s) return false;
  memcpy(&s, bytes, sizeof s);
  if (s.ended > s.started) return false;
  for (uint64_t i = 0; i < TUTTI_STATE_SIGS && i < s.started; i++)
    if (s.last[i].coll >= tuttiCollCount || s.last[i].type >= tuttiNumTypes) return false;
  *out = s;
  return true;
}
