/* Waking those who sleep at a connection (tuttiConnBell). */
#ifndef TUTTI_TRANSPORT_BELL_H_
#define TUTTI_TRANSPORT_BELL_H_

#include "base/backoff.h"
#include "base/os.h"
#include "transport/fifo.h"

/* Wakes whoever sleeps until this endpoint has advanced. */
static inline void tuttiConnRing(const tuttiConn *conn) {
  for (int r = 0; r < conn->nreaders; r++) {
    tuttiReader *reader = &conn->readers[r];
    tuttiAtomic32 *bell = conn->direction == TUTTI_RECV ? &reader->writerBell : &reader->readerBell;
    if (tuttiLoadRelaxed32(bell) != 0) tuttiBellRing(bell);
  }
}

#endif
