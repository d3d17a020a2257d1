/* The operation record: what this rank's last operations were and which have ended. Written by the
 * executing thread at the cost of a few stores, read by the watch at any time: the flight recorder,
 * the hang report and the check for mismatched calls. */
#ifndef TUTTI_COMM_RECORD_H_
#define TUTTI_COMM_RECORD_H_

#include <stdbool.h>

#include "base/atomic.h"
#include "collectives/signature.h"

#define TUTTI_RECORD_DEPTH 64u

typedef struct {
  tuttiAtomic64 entry[TUTTI_RECORD_DEPTH][3]; /* a tuttiSignature each */
  tuttiAtomic64 started; /* operations entered so far; number n is at entry[n % DEPTH] */
  tuttiAtomic64 ended;   /* operations done: all below it */
} tuttiRecord;

void tuttiRecordStart(tuttiRecord *r, const tuttiSignature *sig);
void tuttiRecordEnd(tuttiRecord *r); /* everything started has ended */

/* What one rank tells of itself: TUTTI_WATCH_STATE bytes at most. */
#define TUTTI_STATE_SIGS 4
typedef struct {
  uint64_t started, ended;               /* as in the record */
  tuttiSignature last[TUTTI_STATE_SIGS]; /* last[0] is the newest; started of them, at most 4 */
  uint64_t offer;                        /* of the rank's last shrink, see shrink.c; 0: none */
} tuttiRankState;

/* Copies the newest entries; safe against the writer. */
void tuttiRecordState(const tuttiRecord *r, tuttiRankState *out);
/* Checks bytes that came over a socket. */
bool tuttiRankStateParse(const void *bytes, size_t size, tuttiRankState *out);

#endif
