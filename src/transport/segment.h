/* The symmetric block of one rank: the memory that holds every FIFO it writes to neighbours on its
 * host, and nothing of anyone else's. Its readers map it (SHM: a memfd passed over a Unix socket)
 * or use the owner's pointer (P2P: threads of one process). Pages that no message touches cost
 * nothing.
 *
 *   [shared FIFO per channel: DEPTH lines, nranks heads, data]
 *   [pair FIFO per (channel or P2P channel, reader): DEPTH lines, 1 head, data]
 *
 * Only ranks that share memory with the owner have a place; `local` maps a rank to it. In one
 * process the segment is counted, and goes when its owner and all readers have let go. */
#ifndef TUTTI_TRANSPORT_SEGMENT_H_
#define TUTTI_TRANSPORT_SEGMENT_H_

#include "transport/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tuttiSegment tuttiSegment;

/* Owner's side. */
tuttiResult_t tuttiSegmentCreate(tuttiWires *w, tuttiSegment **segment);
/* Reader's side. */
tuttiResult_t tuttiSegmentMap(tuttiWires *w, const tuttiPeer *owner, int fd,
                              tuttiSegment **segment);
tuttiResult_t tuttiSegmentShare(tuttiWires *w, const tuttiPeer *owner, tuttiSegment **segment);
void tuttiSegmentRelease(tuttiWires *w, tuttiSegment *segment);

/* Fills slots, heads, data of *conn for the FIFO that `writer` (the segment's owner) writes. */
void tuttiSegmentConn(const tuttiWires *w, tuttiSegment *segment, int reader, int channel,
                      bool shared, tuttiDirection direction, tuttiConn *conn);

#ifdef __cplusplus
}
#endif

#endif
