/* NET/Socket: messages over TCP. See endpoint.h for what is on the wire, and meet.c for how the
 * endpoints find each other.
 *
 * Flow control is TCP's: a receive endpoint reads the next message only when its slot is free, and
 * a sending endpoint gives credit when the kernel has taken the message. One system call per socket
 * and turn keeps any end from starving the others; each carries as many messages, or as much of a
 * payload, as there is. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/socket/endpoint.h"
#include "transport/stub.h"

/* Of an interface whose driver does not tell its speed, in Mb/s. */
#define UNTOLD_MEGABITS 10000
/* What one connection carries in any case. More share such a line, and finish one after the other;
 * one of a cloud, whose driver seldom tells, may limit each. */
#define FLOW_MEGABITS 10000

#define PATIENCE_NS 200000

enum { MAX_IOV = 2 * TUTTI_FIFO_DEPTH, MAX_SEND = 1 << 20, SHARE_UNIT = 4096, ACK_MESSAGES = 64 };

void tuttiSocketShare(size_t bytes, int parts, int part, size_t *begin, size_t *share) {
  size_t each = bytes;
  if (bytes > TUTTI_STRIPE_MIN && parts > 1)
    each = (bytes / (size_t)parts / SHARE_UNIT + 1) * SHARE_UNIT;
  *begin = each * (size_t)part < bytes ? each * (size_t)part : bytes;
  *share = bytes - *begin < each ? bytes - *begin : each;
}

const char *tuttiSocketDescriptorCheck(const tuttiSlotDescriptor *d, uint64_t number,
                                       size_t slotBytes, bool windows) {
  if (tuttiLoadRelaxed(&d->seq) != number + 1) return "its number is out of order";
  if (d->where == TUTTI_WHERE_INLINE)
    return d->bytes <= TUTTI_INLINE_MAX ? NULL : "it is too long for its descriptor";
  if (d->where != TUTTI_WHERE_SLOT && !(windows && d->where == TUTTI_WHERE_WINDOW))
    return "its payload is at an unknown place";
  return d->bytes <= slotBytes ? NULL : "it is too long for its slot";
}

/* ---- failures ------------------------------------------------------------------------------- */

/* `err` 0: the peer closed the connection in the middle of a message. */
static tuttiResult_t socketFailed(const tuttiSocketEndpoint *e, int part, int err) {
  tuttiAddress local, remote;
  socklen_t n = sizeof local, m = sizeof remote;
  char from[96] = "(no address)", to[80] = "(no address)", remedy[128];
  int fd = e->parts[part].source.fd;
  memset(&local, 0, sizeof local);
  memset(&remote, 0, sizeof remote);
  if (getsockname(fd, &local.sa, &n) == 0) tuttiInterfaceOf(&local, from, sizeof from);
  if (getpeername(fd, &remote.sa, &m) == 0) tuttiAddressText(&remote, to, sizeof to);
  return TUTTI_FAIL(tuttiRemoteError, "rank %d: %s %s failed: %s, %s to address %s; %s",
                    e->view->rank,
                    e->fifo.direction == TUTTI_SEND ? "sending to" : "receiving from", e->who,
                    err ? tuttiErrnoText(err) : "it closed the connection in mid-message", from, to,
                    tuttiSocketRemedy(err ? err : ECONNRESET, remedy, sizeof remedy));
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Bytes of known message `m` that go over `part`, and where in the payload they begin. */
static size_t shareOf(const tuttiSocketEndpoint *e, int part, uint64_t m, size_t *begin) {
  size_t share;
  tuttiSocketShare(e->payload[m % TUTTI_FIFO_DEPTH], e->nparts, part, begin, &share);
  return share;
}

static size_t descriptorBytes(int part) {
  return part == 0 ? TUTTI_LINE : 0;
}

/* The descriptor goes out as a copy: `where`, `addr` and a tuttiRmaTarget mean something in this
 * process only. */
void tuttiSocketLook(tuttiSocketEndpoint *e, uint64_t until) {
  while (e->known < until) {
    size_t i = e->known % TUTTI_FIFO_DEPTH;
    const tuttiSlotDescriptor *slot = &e->fifo.descriptors[i];
    if (tuttiLoadAcquire(&slot->seq) != e->known + 1) return;
    bool inlined = slot->where == TUTTI_WHERE_INLINE;
    uint32_t where = inlined ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
    memcpy(e->descriptors[i], slot, TUTTI_LINE);
    memcpy(e->descriptors[i] + offsetof(tuttiSlotDescriptor, where), &where, sizeof where);
    memset(e->descriptors[i] + offsetof(tuttiSlotDescriptor, addr), 0, sizeof slot->addr);
    if (!inlined && e->fifo.channel == TUTTI_RMA_CHANNEL)
      memset(e->descriptors[i] + offsetof(tuttiSlotDescriptor, inlined) + sizeof(tuttiRmaHeader), 0,
             sizeof slot->inlined - sizeof(tuttiRmaHeader));
    e->payload[i] = inlined ? 0 : slot->bytes;
    e->known++;
  }
}

static const uint8_t *payloadOf(const tuttiSocketEndpoint *e, uint64_t m) {
  size_t i = m % TUTTI_FIFO_DEPTH;
  const tuttiSlotDescriptor *slot = &e->fifo.descriptors[i];
  return slot->where == TUTTI_WHERE_DIRECT ? (const uint8_t *)(uintptr_t)slot->addr
                                           : e->fifo.data + i * e->fifo.slotBytes;
}

static int addPiece(struct iovec *iov, int n, const void *data, size_t bytes, size_t *skip) {
  size_t skipped = *skip < bytes ? *skip : bytes;
  *skip -= skipped;
  if (skipped == bytes) return n;
  iov[n] = (struct iovec){.iov_base = (uint8_t *)data + skipped, .iov_len = bytes - skipped};
  return n + 1;
}

/* What `part` can send now; returns the number of pieces. */
static int gatherPieces(const tuttiSocketEndpoint *e, int part, struct iovec *iov) {
  const tuttiSocketPart *p = &e->parts[part];
  size_t skip = p->offset, bytes = 0, begin;
  int n = 0;
  for (uint64_t m = p->number; m < e->known && bytes < MAX_SEND; m++) {
    size_t share = shareOf(e, part, m, &begin);
    n = addPiece(iov, n, e->descriptors[m % TUTTI_FIFO_DEPTH], descriptorBytes(part), &skip);
    if (share) n = addPiece(iov, n, payloadOf(e, m) + begin, share, &skip);
    bytes += descriptorBytes(part) + share;
  }
  return n;
}

/* `bytes` more have passed on `part`; goes past what has nothing for it, too. */
static void countSent(tuttiSocketEndpoint *e, int part, size_t bytes) {
  tuttiSocketPart *p = &e->parts[part];
  size_t begin;
  p->offset += bytes;
  while (p->number < e->known) {
    size_t whole = descriptorBytes(part) + shareOf(e, part, p->number, &begin);
    if (p->offset < whole) return;
    p->offset -= whole;
    p->number++;
  }
}

static tuttiResult_t sendPart(tuttiSocketEndpoint *e, int part, bool eager, bool *moved) {
  tuttiSocketPart *p = &e->parts[part];
  countSent(e, part, 0);
  if (part >= e->join.part) return tuttiSuccess;
  /* Also when this part has nothing to send: the message may be waiting for another's share. */
  if (p->source.hangup && e->passed < e->known) return socketFailed(e, part, ECONNRESET);
  if (p->number == e->known) return tuttiSuccess;
  if (!eager && !p->source.writable) return tuttiSuccess;
  struct iovec iov[MAX_IOV];
  ssize_t n = tuttiSecureSendPieces(p->source.fd, iov, (size_t)gatherPieces(e, part, iov));
  if (n < 0) {
    if (errno != EAGAIN && errno != EINTR) return socketFailed(e, part, errno);
    if (errno == EAGAIN) p->source.writable = false;
    return tuttiSuccess;
  }
  *moved = true;
  countSent(e, part, (size_t)n);
  return tuttiSuccess;
}

static tuttiResult_t advanceSend(tuttiSocketEndpoint *e, tuttiProxyTurn *turn, bool *moved) {
  int before = e->join.part;
  if (before < e->nparts) TUTTI_TRY(tuttiSocketJoinStep(e, turn));
  *moved = e->join.part != before;
  tuttiSocketLook(e, e->passed + TUTTI_FIFO_DEPTH);
  uint64_t passed = e->known;
  for (int i = 0; i < e->nparts; i++) {
    TUTTI_TRY(sendPart(e, i, turn->eager, moved));
    if (e->parts[i].number < passed) passed = e->parts[i].number;
  }
  if (passed != e->passed) {
    e->passed = passed;
    tuttiStoreRelease(&e->fifo.readers->credit, passed);
  }
  return tuttiSuccess;
}

/* ---- receiving ------------------------------------------------------------------------------ */

static bool slotFree(const tuttiSocketEndpoint *e, uint64_t m) {
  return m < tuttiLoadAcquire(&e->fifo.readers->credit) + TUTTI_FIFO_DEPTH;
}

/* A reader that posted a receive for the message before is about to say where it wants this one,
 * too. While it has not taken the other there is no hurry to copy, and no harm, as it alone can be
 * waiting; nor is there for a moment more while it runs the loop itself, perhaps for other peers'
 * messages. Ranks that both send first may wait for each other to take what they sent. */
static bool isWorthAWait(tuttiSocketEndpoint *e, uint64_t m) {
  const tuttiSlotDescriptor *before = &e->fifo.descriptors[(m - 1) % TUTTI_FIFO_DEPTH];
  if (m == 0 || before->where != TUTTI_WHERE_DIRECT || tuttiIsAsked(&e->fifo, m)) return false;
  if (tuttiLoadAcquire(&e->fifo.readers->credit) < m) return true;
  if (!e->attended) return false;
  uint64_t now = tuttiNow();
  if (e->waitsFor != m) e->waitsUntil = now + PATIENCE_NS;
  e->waitsFor = m;
  return now < e->waitsUntil;
}

/* Settles where the payload of message `known - 1` goes, when its first byte is at hand. False: not
 * yet. */
static bool place(tuttiSocketEndpoint *e) {
  if (e->placed == e->known) return true;
  uint64_t m = e->placed, i = m % TUTTI_FIFO_DEPTH;
  tuttiSlotDescriptor *slot = &e->fifo.descriptors[i];
  uint8_t *posted = e->payload[i] ? tuttiPosted(&e->fifo, m, e->payload[i]) : NULL;
  if (!posted && e->payload[i] && isWorthAWait(e, m)) return false;
  e->target[i] = posted ? posted : e->fifo.data + i * e->fifo.slotBytes;
  if (posted) {
    slot->where = TUTTI_WHERE_DIRECT;
    slot->addr = (uintptr_t)posted;
  }
  e->placed++;
  return true;
}

/* A small message that is read is acknowledged at once by the kernel, in a packet of its own that
 * costs the receiver 1 us, unless it believes that an answer will carry the acknowledgement. It
 * loses that belief now and then. */
static void delayAcks(const tuttiSocketEndpoint *e) {
  int off = 0;
  setsockopt(e->parts[0].source.fd, IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off);
}

tuttiResult_t tuttiSocketTakeDescriptor(tuttiSocketEndpoint *e, uint64_t number,
                                        const tuttiSlotDescriptor *d) {
  const char *wrong = tuttiSocketDescriptorCheck(d, number, e->fifo.slotBytes, e->windows);
  if (wrong)
    return TUTTI_FAIL(
        tuttiRemoteError,
        "rank %d: message %llu from %s is not to be believed: %s (number %llu, %u bytes at place "
        "%u); memory of that process or the network corrupts data",
        e->view->rank, (unsigned long long)number, e->who, wrong,
        (unsigned long long)tuttiLoadRelaxed(&d->seq) - 1, d->bytes, d->where);
  size_t i = number % TUTTI_FIFO_DEPTH;
  tuttiSlotDescriptor *slot = &e->fifo.descriptors[i];
  bool inlined = d->where == TUTTI_WHERE_INLINE;
  slot->addr = 0;
  slot->bytes = d->bytes;
  slot->where = d->where;
  slot->sig = d->sig;
  if (inlined)
    memcpy(slot->inlined, d->inlined, d->bytes);
  else if (e->fifo.channel == TUTTI_RMA_CHANNEL)
    memcpy(slot->inlined, d->inlined, sizeof(tuttiRmaHeader));
  e->payload[i] = inlined ? 0 : d->bytes;
  return tuttiSuccess;
}

static void countCame(tuttiSocketEndpoint *e, tuttiSocketPart *p, size_t bytes) {
  p->offset += bytes;
  e->carried += bytes;
  e->listener->carried += bytes;
}

/* Uses up what part 0 has read ahead: descriptors and the payload behind them. */
static tuttiResult_t digest(tuttiSocketEndpoint *e) {
  tuttiSocketPart *p = &e->parts[0];
  for (;;) {
    if (p->number == e->known) {
      if (e->aheadEnd - e->aheadBegin < TUTTI_LINE || !slotFree(e, e->known)) return tuttiSuccess;
      tuttiSlotDescriptor d; /* a copy, for what was read ahead is not aligned */
      memcpy(&d, e->ahead + e->aheadBegin, TUTTI_LINE);
      TUTTI_TRY(tuttiSocketTakeDescriptor(e, e->known, &d));
      e->aheadBegin += TUTTI_LINE;
      if (e->known++ % ACK_MESSAGES == 0) delayAcks(e);
    }
    if (!place(e)) return tuttiSuccess;
    size_t begin, share = shareOf(e, 0, p->number, &begin);
    size_t there = e->aheadEnd - e->aheadBegin;
    size_t n = share - p->offset < there ? share - p->offset : there;
    memcpy(e->target[p->number % TUTTI_FIFO_DEPTH] + begin + p->offset, e->ahead + e->aheadBegin,
           n);
    e->aheadBegin += n;
    countCame(e, p, n);
    if (p->offset < share) return tuttiSuccess;
    p->offset = 0;
    p->number++;
  }
}

/* `err` 0: by a close. */
static tuttiResult_t partEnded(tuttiSocketEndpoint *e, int part, int err, bool inMessage) {
  tuttiSocketPart *p = &e->parts[part];
  if (!p->carried) {
    /* The sender lost patience before it saw the welcome, and dials again: a close with the welcome
     * unread is a reset. If it died rather, the watch says so. */
    tuttiSocketCloseFd(tuttiNetProxy(e->view, TUTTI_RECV), &p->source);
    return tuttiSuccess;
  }
  if (err != 0 || inMessage) return socketFailed(e, part, err);
  p->closed = true; /* if it died rather than finished, the watch says so */
  return tuttiSuccess;
}

/* One system call; *n is what came, 0 also when nothing did. */
static tuttiResult_t readPart(tuttiSocketEndpoint *e, int part, struct iovec *iov, size_t pieces,
                              bool inMessage, size_t *n) {
  tuttiSocketPart *p = &e->parts[part];
  size_t room = 0;
  for (size_t i = 0; i < pieces; i++)
    room += iov[i].iov_len;
  ssize_t got = tuttiSecureRecvPieces(p->source.fd, iov, pieces);
  int err = got < 0 ? errno : 0;
  *n = got > 0 ? (size_t)got : 0;
  if (err == EINTR) return tuttiSuccess;
  if (err == EAGAIN) {
    p->source.readable = false;
    return tuttiSuccess;
  }
  if (*n == 0) return partEnded(e, part, err, inMessage);
  p->carried = true;
  /* Fewer bytes than there is room for: the next ones raise a new event (epoll(7)), unless the end
   * of the stream, whose event may have come already, is behind these. */
  if (*n < room && !p->source.hangup && !tuttiSecurePending(p->source.fd))
    p->source.readable = false;
  return tuttiSuccess;
}

static tuttiResult_t receiveFirst(tuttiSocketEndpoint *e, bool eager, bool *moved) {
  tuttiSocketPart *p = &e->parts[0];
  TUTTI_TRY(digest(e));
  bool inPayload = p->number < e->known;
  if (p->closed || (!eager && !p->source.readable)) return tuttiSuccess;
  if (inPayload ? e->placed < e->known : !slotFree(e, e->known)) return tuttiSuccess;
  struct iovec iov[2];
  size_t pieces = 0, rest = 0, begin, n;
  if (inPayload) {
    rest = shareOf(e, 0, p->number, &begin) - p->offset;
    iov[pieces++] =
        (struct iovec){e->target[p->number % TUTTI_FIFO_DEPTH] + begin + p->offset, rest};
  }
  size_t kept = e->aheadEnd - e->aheadBegin; /* part of a descriptor, if anything */
  /* Whole descriptors: their slot has become free since digest() looked, and the reader kicks.
   * There may be no room left behind them, and a read of nothing would look like the end of the
   * stream. */
  if (!inPayload && kept >= TUTTI_LINE) return tuttiSuccess;
  memmove(e->ahead, e->ahead + e->aheadBegin, kept);
  e->aheadBegin = 0;
  e->aheadEnd = kept;
  iov[pieces++] = (struct iovec){e->ahead + kept, sizeof e->ahead - kept};
  TUTTI_TRY(readPart(e, 0, iov, pieces, inPayload || kept > 0, &n));
  *moved |= n > 0;
  countCame(e, p, n < rest ? n : rest);
  e->aheadEnd += n < rest ? 0 : n - rest;
  return digest(e);
}

static tuttiResult_t receiveShare(tuttiSocketEndpoint *e, int part, bool eager, bool *moved) {
  tuttiSocketPart *p = &e->parts[part];
  for (bool tried = false; p->number < e->placed;) {
    size_t begin, share = shareOf(e, part, p->number, &begin), n;
    if (p->offset == share) {
      p->offset = 0;
      p->number++;
      continue;
    }
    if (p->closed) return socketFailed(e, part, 0);
    if (tried || p->source.fd < 0 || (!eager && !p->source.readable)) break;
    struct iovec iov = {e->target[p->number % TUTTI_FIFO_DEPTH] + begin + p->offset,
                        share - p->offset};
    TUTTI_TRY(readPart(e, part, &iov, 1, true, &n));
    countCame(e, p, n);
    *moved |= n > 0;
    tried = true;
  }
  return tuttiSuccess;
}

/* Sets the meter's mark where the sockets have been read empty in the midst of a large payload: the
 * sender has it all, and there is a place for it. Between two payloads nobody here knows whether
 * the sender had the second one yet. */
static void measure(tuttiSocketEndpoint *e, bool moved) {
  bool large =
      e->placed > e->passed && e->payload[e->passed % TUTTI_FIFO_DEPTH] >= TUTTI_METER_PAYLOAD;
  if (!large || e->metered != e->passed) tuttiMeterBreak(&e->meter);
  e->metered = e->passed;
  if (!large || (!moved && e->meter.at)) return;
  for (int i = 0; i < e->nparts; i++)
    if (e->parts[i].source.readable) return;
  tuttiMeterMark(&e->meter, tuttiNow(), e->carried, e->listener->carried);
}

static tuttiResult_t advanceRecv(tuttiSocketEndpoint *e, const tuttiProxyTurn *turn, bool *moved) {
  e->attended = turn->attended;
  if (!e->listed) tuttiSocketAwait(e);
  if (e->nparts == 0 || e->parts[0].source.fd < 0) return tuttiSuccess;
  TUTTI_TRY(receiveFirst(e, turn->eager, moved));
  uint64_t passed = e->parts[0].number;
  for (int i = 1; i < e->nparts; i++) {
    TUTTI_TRY(receiveShare(e, i, turn->eager, moved));
    if (e->parts[i].number < passed) passed = e->parts[i].number;
  }
  for (; e->passed < passed; e->passed++)
    tuttiStoreRelease(&e->fifo.descriptors[e->passed % TUTTI_FIFO_DEPTH].seq, e->passed + 1);
  measure(e, *moved);
  return tuttiSuccess;
}

/* ---- the backend ---------------------------------------------------------------------------- */

static tuttiProxyState socketProgress(void *end, tuttiProxyTurn *turn) {
  tuttiSocketEndpoint *e = end;
  bool moved = false;
  if (tuttiLoadRelaxed32(e->view->failed)) return TUTTI_PROXY_IDLE;
  turn->result =
      e->fifo.direction == TUTTI_SEND ? advanceSend(e, turn, &moved) : advanceRecv(e, turn, &moved);
  if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
  if (moved) return TUTTI_PROXY_MOVED;
  bool joining = e->fifo.direction == TUTTI_SEND && e->join.part < e->nparts;
  return joining || e->passed < e->known ? TUTTI_PROXY_WAITING : TUTTI_PROXY_IDLE;
}

/* What the kernel says of a socket; true: it sends in vain. */
static bool socketText(int fd, char *buf, size_t size) {
  struct tcp_info info;
  socklen_t length = sizeof info, addressLength = sizeof(tuttiAddress);
  tuttiAddress local = {0}, remote = {0};
  char from[80], to[80];
  if (getsockname(fd, &local.sa, &addressLength) != 0) return false;
  addressLength = sizeof remote;
  if (getpeername(fd, &remote.sa, &addressLength) != 0) {
    snprintf(buf, size, "the socket has lost its peer");
    return true;
  }
  snprintf(buf, size, "TCP %s to %s", tuttiAddressText(&local, from, sizeof from),
           tuttiAddressText(&remote, to, sizeof to));
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (info.tcpi_unacked == 0 || info.tcpi_backoff == 0) return false;
  tuttiAppend(buf, size, ": nothing acknowledged for %.1f s, sent again %u times",
              info.tcpi_last_ack_recv / 1e3, info.tcpi_backoff);
  return true;
}

/* True if the handle of a record is well-formed. */
static bool readHandle(const tuttiPeer *peer, tuttiSocketHandle *handle) {
  memcpy(handle, peer->net, sizeof *handle);
  return tuttiAddressListValid(&handle->addresses) &&
         memchr(handle->interface, '\0', sizeof handle->interface);
}

/* The interface of this side, looked up once, for that takes calls; "": it has none now. */
static const char *ownInterface(tuttiSocketEndpoint *e) {
  tuttiAddress local = {0};
  socklen_t length = sizeof local;
  char text[96];
  if (e->interface[0] || getsockname(e->parts[0].source.fd, &local.sa, &length) != 0)
    return e->interface;
  tuttiInterfaceOf(&local, text, sizeof text); /* "eth0 (...)", or "(...)" */
  snprintf(e->interface, sizeof e->interface, "%.*s", (int)strcspn(text, " ("), text);
  return e->interface;
}

/* That of the peer, if it is the one that its record names: of its first address. */
static const char *peerInterface(const tuttiSocketEndpoint *e, tuttiSocketHandle *handle) {
  tuttiAddress remote = {0}, *first = &handle->addresses.a[0];
  socklen_t length = sizeof remote;
  char text[80], other[80];
  if (!readHandle(&e->view->peers[e->fifo.peer], handle) ||
      getpeername(e->parts[0].source.fd, &remote.sa, &length) != 0)
    return "";
  remote.v4.sin_port = first->v4.sin_port = 0; /* for IPv6, too */
  tuttiAddressText(&remote, text, sizeof text);
  return strcmp(text, tuttiAddressText(first, other, sizeof other)) == 0 ? handle->interface : "";
}

/* struct tcp_info goes on, in kernels since 4.9. */
typedef struct {
  struct tcp_info head;
  uint64_t pacingRate, maxPacingRate, bytesAcked, bytesReceived;
  uint32_t segmentsOut, segmentsIn, notSent, minRtt, dataSegmentsIn, dataSegmentsOut;
  uint64_t deliveryRate; /* bytes per second */
} longTcpInfo;

/* What a sender knows: the rate that the kernel has seen acknowledged, the highest one while there
 * was little to send. Of a reader that takes its time it tells nothing, so it is no measure. */
static uint32_t deliveryRate(int fd) {
  longTcpInfo info;
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || length < sizeof info) return 0;
  uint64_t rate = info.deliveryRate / 1000;
  if (info.bytesAcked < (uint64_t)TUTTI_METER_LEAST * TUTTI_METER_SAMPLE) return 0;
  return rate < UINT32_MAX ? (uint32_t)rate : UINT32_MAX;
}

static void tellRate(tuttiSocketEndpoint *e, tuttiProxyFacts *out) {
  tuttiSocketHandle handle;
  bool known = out->sends || tuttiMeterRate(&e->meter, &out->rate, &out->allRate);
  if (out->sends) {
    out->rate = out->allRate = deliveryRate(e->parts[0].source.fd);
    out->atLeast = true;
  }
  if (!known || out->rate == 0) return;
  int here = out->sends ? 0 : 1;
  snprintf(out->nic[here], sizeof out->nic[0], "%s", ownInterface(e));
  snprintf(out->nic[!here], sizeof out->nic[0], "%s", peerInterface(e, &handle));
}

bool tuttiSocketTell(void *end, tuttiProxyFacts *out) {
  tuttiSocketEndpoint *e = end;
  bool sends = e->fifo.direction == TUTTI_SEND;
  uint64_t taken = tuttiLoadAcquire(&e->fifo.readers->credit);
  uint64_t written = e->known;
  while (sends && written < taken + TUTTI_FIFO_DEPTH &&
         tuttiLoadAcquire(&e->fifo.descriptors[written % TUTTI_FIFO_DEPTH].seq) == written + 1)
    written++;
  bool joining = sends ? e->join.part < e->nparts : e->nparts == 0;
  *out = (tuttiProxyFacts){.peer = e->fifo.peer,
                           .channel = e->fifo.channel,
                           .sends = sends,
                           .busy = e->passed < written || (sends && joining),
                           .written = written,
                           .taken = taken};
  if (joining)
    snprintf(out->text, sizeof out->text,
             sends ? "its sockets are not connected yet" : "its sender has not connected yet");
  else if (e->parts[0].source.fd >= 0)
    out->busy |= socketText(e->parts[0].source.fd, out->text, sizeof out->text);
  if (!joining) tellRate(e, out);
  return true;
}

static bool socketDrained(void *end) {
  const tuttiSocketEndpoint *e = end;
  if (tuttiLoadAcquire32(e->view->failed)) return true;
  uint64_t taken = tuttiLoadAcquire(&e->fifo.readers->credit);
  return tuttiLoadAcquire(&e->fifo.descriptors[taken % TUTTI_FIFO_DEPTH].seq) != taken + 1;
}

static tuttiResult_t socketConnect(tuttiCommView *v, void *node, tuttiSocketListener *listener,
                                   const tuttiNetHello *hello, tuttiConn *fifo, void **end) {
  (void)node;
  TUTTI_TRY(
      tuttiAlloc(end, 1, sizeof(tuttiSocketEndpoint), "the endpoint of a connection", v->memory));
  tuttiSocketEndpointInit(*end, v, listener, hello, fifo,
                          (int)tuttiSettingInt(TUTTI_SETTING_SOCKET_NSOCKS));
  return tuttiSuccess;
}

#define SOCKET_REASONS(X)                                                                          \
  X(SOCKET_LOCAL, "TCP inside host %.63s, which can always connect", a->host)                      \
  X(SOCKET_HOSTS, "TCP from %s of host %.63s to %s of host %.63s, %.3g Gb/s", from.interface,      \
    a->host, to.interface, b->host, (double)path->bandwidthGBs * 8)                                \
  X(SOCKET_NO_ADDRESS, "rank %d or rank %d has no valid network address", a->rank, b->rank)
enum { SOCKET_REASONS(TUTTI_REASON_NAME) };

static void socketExplain(tuttiReason why, const tuttiPath *path, const tuttiPeer *a,
                          const tuttiPeer *b, char *buf, size_t size) {
  tuttiSocketHandle from, to;
  bool valid = readHandle(a, &from) && readHandle(b, &to);
  if (!valid) why.code = SOCKET_NO_ADDRESS;
  switch (why.code) { SOCKET_REASONS(TUTTI_REASON_TEXT) }
}

static tuttiNetAnswer socketCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path,
                                       tuttiReason *why) {
  tuttiSocketHandle mine, theirs;
  *why = (tuttiReason){.code = SOCKET_NO_ADDRESS};
  if (!readHandle(a, &mine) || !readHandle(b, &theirs)) return tuttiNetRefuses;
  uint32_t slower = mine.megabits < theirs.megabits ? mine.megabits : theirs.megabits;
  uint32_t megabits = slower ? slower : UNTOLD_MEGABITS;
  bool local = a->hostId == b->hostId;
  *why = (tuttiReason){.code = local ? SOCKET_LOCAL : SOCKET_HOSTS};
  path->via = "NET/Socket";
  path->latencyUs = 15;
  path->bandwidthGBs = local ? 3 : (float)megabits / 8000;
  path->oneFlow = !local && slower > 0 && slower <= FLOW_MEGABITS;
  return tuttiNetConnects;
}

const tuttiNet tuttiNetSocket = {
    .name = "Socket",
    .open = tuttiNetNothingToOpen,
    .canConnect = socketCanConnect,
    .explain = socketExplain,
    .ports = tuttiNetNoPorts,
    .join = tuttiNetNoPortsToJoin,
    .attach = tuttiNetNoGpuToAttach,
    .room = tuttiNetNoRoom,
    .takeData = tuttiNetNoDataToTake,
    .giveData = tuttiNetNoDataToGive,
    .reaches = tuttiNetReachesNothing,
    .expose = tuttiNetNothingToExpose,
    .withdraw = tuttiNetNothingToWithdraw,
    .connect = socketConnect,
    .serve = tuttiNetNothingToServe,
    .progress = socketProgress,
    .drained = socketDrained,
    .haltEndpoint = tuttiProxyNothingToHalt,
    .tell = tuttiSocketTell,
    .trouble = tuttiNetNoTrouble,
    .closeEndpoint = tuttiSocketEndpointFree,
    .close = tuttiNetNothingToClose,
};
