/* Frames on their way between staging and memory, and the copies that they wait for. */
#include "hca.h"

#include <stdlib.h>
#include <string.h>

softFlight *softFlightNew(softConn *conn, const softFrame *frame, uint8_t *chunk) {
  softFlight *flight = calloc(1, sizeof *flight);
  if (!flight) return NULL;
  flight->conn = conn;
  flight->frame = *frame;
  flight->chunk = chunk;
  conn->users++;
  return flight;
}

void softFlightAppend(softFlights *list, softFlight *flight) {
  flight->next = NULL;
  if (list->last)
    list->last->next = flight;
  else
    list->first = flight;
  list->last = flight;
}

softFlight *softFlightPop(softFlights *list) {
  softFlight *flight = list->first;
  list->first = flight->next;
  if (!list->first) list->last = NULL;
  return flight;
}

void softRelease(softConn *conn, uint8_t *chunk) {
  if (!chunk || !softChunkFree(conn->staging, chunk)) return;
  softFrame room = {.kind = SOFT_ROOM};
  softConnSend(conn, &room, SOFT_NOWHERE);
  softConnFlush(conn); /* the engine may be asleep */
}

void softFlightDrop(softFlight *flight) {
  if (!softFlightDone(flight)) {
    softFlightAppend(&hca.dropped, flight);
    return;
  }
  softRelease(flight->conn, flight->chunk);
  flight->conn->users--;
  free(flight);
}

bool softFlightSend(softFlight *flight, uint16_t portId) {
  bool sent = !flight->conn->dead && softConnSend(flight->conn, &flight->frame, portId);
  if (sent) flight->chunk = NULL; /* the receiver's now */
  softFlightDrop(flight);
  return sent;
}

void softFlightsDrop(softFlights *list) {
  while (list->first)
    softFlightDrop(softFlightPop(list));
}

bool softFlightsReap(void) {
  softFlights all = hca.dropped;
  bool any = false;
  hca.dropped = (softFlights){NULL, NULL};
  while (all.first) {
    softFlight *flight = softFlightPop(&all);
    any = any || softFlightDone(flight);
    softFlightDrop(flight);
  }
  return any;
}

bool softFlightsLinger(uint32_t qpn) {
  for (const softFlight *f = hca.dropped.first; f; f = f->next)
    if ((f->frame.fromQpn == qpn || f->frame.toQpn == qpn) && !softFlightDone(f)) return true;
  return false;
}

/* ---- between lists and bytes ---------------------------------------------------------------- */

/* A part of a list that lies in one registration. */
typedef struct {
  softMr *mr;
  cuPointer at;
  uint32_t length;
} Part;

/* The part at an offset of a list, or all that is left of `length`; false: its key does not fit. */
static bool partAt(struct ibv_pd *pd, const struct ibv_sge *sge, int nsge, uint32_t offset,
                   uint32_t length, unsigned access, Part *part) {
  int i = 0;
  for (; i < nsge && offset >= sge[i].length; i++)
    offset -= sge[i].length;
  if (i == nsge) return false;
  part->length = sge[i].length - offset < length ? sge[i].length - offset : length;
  part->mr = softMrFind(pd, sge[i].lkey, sge[i].addr + offset, part->length, access);
  if (part->mr) part->at = softMrAt(part->mr, sge[i].addr + offset);
  return part->mr;
}

static void *hostPointer(cuPointer at) {
  return (void *)(uintptr_t)at; /* NOLINT: the ABI's integer */
}

bool softGather(softFlight *flight, struct ibv_pd *pd, const struct ibv_sge *sge, int nsge,
                uint32_t offset, void *to, uint32_t length) {
  Part part;
  for (uint8_t *at = to; length > 0; at += part.length, offset += part.length) {
    if (!partAt(pd, sge, nsge, offset, length, 0, &part)) return false;
    softJob job = {.move = SOFT_COPY,
                   .gpu = part.mr->gpu,
                   .to = (uintptr_t)at,
                   .from = part.at,
                   .bytes = part.length,
                   .mr = part.mr,
                   .flight = flight};
    if (softIsMovers(part.mr, part.length))
      softMoverSubmit(&job, flight->frame.fromQpn);
    else
      memcpy(at, hostPointer(part.at), part.length);
    length -= part.length;
  }
  return true;
}

/* The bytes are in memory of a GPU, and perhaps of another process; or of the host. False: in
 * memory of this process that is not registered any more. */
static bool fetch(softFlight *flight, const Part *part, uint32_t done) {
  softDirect *direct = (softDirect *)(void *)flight->chunk;
  softMr *source = NULL;
  if (direct->slot == hca.slot) {
    source = softMrByKey(direct->lkey);
    if (!source) return false;
  } else if (direct->gpu < 0) {
    return false;
  }
  softJob job = {.move = part->mr->gpu >= 0 ? SOFT_TO_GPU : SOFT_COPY,
                 .gpu = part->mr->gpu >= 0 ? part->mr->gpu : direct->gpu,
                 .to = part->at,
                 .from = done,
                 .bytes = part->length,
                 .direct = direct,
                 .mr = part->mr,
                 .also = source ? &source->copies : NULL,
                 .flight = flight};
  softMoverSubmit(&job, flight->frame.toQpn);
  return true;
}

/* Each word appears as a whole and after what was written before: programs poll flags, also those
 * that end a record of some words. Payloads are larger. */
enum { RECORD_BYTES = 256 };

static void storeHost(cuPointer at, const uint8_t *from, uint32_t length) {
  uint64_t word;
  uint32_t done = 0;
  if (length <= RECORD_BYTES && at % sizeof word == 0)
    for (; length - done >= sizeof word; done += sizeof word) {
      memcpy(&word, from + done, sizeof word);
      __atomic_store_n((uint64_t *)hostPointer(at + done), word, __ATOMIC_RELEASE);
    }
  memcpy(hostPointer(at + done), from + done, length - done);
}

static void store(softFlight *flight, const Part *part, const uint8_t *from) {
  softJob job = {.move = SOFT_TO_GPU,
                 .gpu = part->mr->gpu,
                 .to = part->at,
                 .from = (uintptr_t)from,
                 .bytes = part->length,
                 .mr = part->mr,
                 .flight = flight};
  if (part->mr->gpu >= 0 && hca.config.invisible)
    softHide(&job, flight->frame.toQpn);
  else if (softIsMovers(part->mr, part->length))
    softMoverSubmit(&job, flight->frame.toQpn);
  else
    storeHost(part->at, from, part->length);
}

bool softScatter(softFlight *flight, struct ibv_pd *pd, const struct ibv_sge *sge, int nsge,
                 uint32_t offset, unsigned access) {
  Part part;
  uint32_t length = flight->frame.length;
  const uint8_t *payload = flight->chunk ? flight->chunk : (uint8_t *)&flight->frame.operand;
  for (uint32_t done = 0; done < length; done += part.length) {
    if (!partAt(pd, sge, nsge, offset + done, length - done, access, &part)) return false;
    if (!(flight->frame.flags & SOFT_BY_ADDRESS))
      store(flight, &part, payload + done);
    else if (!fetch(flight, &part, done))
      return false;
  }
  return true;
}
