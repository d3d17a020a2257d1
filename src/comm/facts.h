/* What this rank of a communicator tells of itself, to whom it may concern: its watch's questions,
 * the RAS port, `tutti status` and the hang report. */
#ifndef TUTTI_COMM_FACTS_H_
#define TUTTI_COMM_FACTS_H_

#include "comm/communicator.h"

/* From here to Quit, before it is freed, a communicator is seen by those who ask this process.
 * `ids`: those that it is made with. */
void tuttiCommAppear(tuttiCommunicator *c, const tuttiUniqueId *ids);
void tuttiCommDisappear(tuttiCommunicator *c);
/* Its ranks have met: they can be asked. */
void tuttiCommMet(tuttiCommunicator *c);

/* What heartbeats and answers say of this rank. */
void tuttiCommFillState(tuttiCommunicator *c, tuttiRankState *out);
/* The watch's `state` and `report`; under its lock. */
size_t tuttiCommTellState(void *comm, void *out);
size_t tuttiCommTellReport(void *comm, void *out);

/* A task context's `waits`; and a stall, in the operation `in`, of which no connections are known
 * (peer -1: nor that). */
void tuttiCommWaits(void *comm, const tuttiAwaited *list, int n);
void tuttiCommStalls(tuttiCommunicator *c, const tuttiSignature *in, int peer, uint64_t waitedMs);

/* A wait of one-sided operations has lasted so long: for d->opCnt signals, of which so many have
 * come, or with none for room to put to d->peer. Told again ten times a second, as it may be over.
 */
void tuttiCommAwaitsSignals(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d, uint64_t come,
                            uint64_t waitedMs);
/* It is over. */
void tuttiCommAwaitsNone(tuttiCommunicator *c);

/* What this rank's own connections with `peer` (-1: with any) say of how they are: "rank 1 (host a,
 * pid 17) waits for rank 0 on channel 0 via NET/IB ...; port 1 of hca0 of this rank is down"; "":
 * nothing. Returns buf. */
const char *tuttiCommPathText(tuttiCommunicator *c, int peer, char *buf, size_t size);

/* Writes what is known of all ranks, once, to the log and to TUTTI_HANG_REPORT: this rank has
 * waited for so long. Asks the others, for less than two seconds. */
void tuttiCommTellHang(tuttiCommunicator *c, uint64_t waitedMs);

/* Writes what this rank's record holds to `path`, whole or not at all: see tuttiCommDump. */
tuttiResult_t tuttiCommWriteRecord(tuttiCommunicator *c, const char *path);

#endif
