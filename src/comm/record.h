/* The operation record: what this rank's last operations were and which have ended. Written by the
 * executing thread at the cost of a few stores, read by the watch at any time: the flight recorder,
 * the hang report and the check for mismatched calls.
 *
 * One collective in TUTTI_RECORD_SAMPLE is stamped with the time, the same on all ranks; with
 * TUTTI_TRACE all operations are. To read the clock takes up to 16 ns, and a small operation 300:
 * those are stamped by the executor when they first ask for messages, while these are on their way,
 * and while they wait, so they start when they first do, and end when they last did; those that do
 * not wait have one stamp for both. */
#ifndef TUTTI_COMM_RECORD_H_
#define TUTTI_COMM_RECORD_H_

#include <stdbool.h>

#include "base/atomic.h"
#include "collectives/task.h"
#include "ras/facts.h"

#define TUTTI_RECORD_DEPTH  64u
#define TUTTI_RECORD_SAMPLE 16u
/* Words of an entry: the signature, then as in tuttiOpFacts, but times are in ticks (base/ticks.h);
 * without a start the other times are of an older entry. */
#define TUTTI_RECORD_WORDS 7

typedef struct {
  tuttiAtomic64 entry[TUTTI_RECORD_DEPTH][TUTTI_RECORD_WORDS];
  tuttiAtomic64 started; /* operations entered so far; number n is at entry[n % DEPTH] */
  tuttiAtomic64 ended;   /* operations done: all below it */
  tuttiAtomic64 counts[tuttiCollCount], bytes[tuttiCollCount];
  tuttiIdle idle; /* of the writer: the stamps of the newest, if that is brief */
  bool traces;    /* all are stamped */
  bool stamped;   /* of the writer: some that have not ended are */
} tuttiRecord;

/* How an operation is carried out: its tuttiAlgo, tuttiProto and channels. */
typedef struct {
  uint8_t algo, proto;
  uint16_t channels;
  uint32_t unused;
} tuttiRecordPlan;

/* Where operations are stamped, tuttiTicksStart has been called before. `enqueued`: when the call
 * was made, in ticks, of an operation that runs later; 0: now. `brief`: it is run alone, by an
 * executor that fills r->idle, and is small. */
void tuttiRecordStart(tuttiRecord *r, const tuttiSignature *sig, tuttiRecordPlan plan,
                      uint64_t enqueued, bool brief);
void tuttiRecordEnd(tuttiRecord *r); /* everything started has ended */

/* Copies the newest entries; safe against the writer. */
void tuttiRecordState(const tuttiRecord *r, tuttiRankState *out);
/* Copies all of it that is intact, the newest first, into the record's part of *out. */
void tuttiRecordFacts(const tuttiRecord *r, tuttiFacts *out);

#endif
