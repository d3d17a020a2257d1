#include "bootstrap/bootstrap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/seat.h"

/* A rank that declines tries so long to reach its root. */
#define DECLINE_MS 1000
/* Every address of an id's root or of a rank's listener refuses this long: it is gone. */
#define REFUSED_MS 1500
/* The root speaks so long before this rank stops to wait for it. */
#define GRACE_SLACK_MS 1000
/* What a root that does not speak TLS, or has another key, is asked so long. */
#define EXPLAIN_MS 2000

/* A rank that waits for others looks so often whether they may never come, and if so, asks who they
 * are; and a millisecond more for each rank, so that all together ask a thousand times a second at
 * most. */
#define DOUBT_MS 200

/* What Join's phases hand on to each other. */
typedef struct {
  tuttiBootstrap *b;
  tuttiWait wait;
  const tuttiKin *kin; /* NULL: none */
  const tuttiId *ids;
  int nroots;
  uint64_t idHash, ticket;
  tuttiTlsKey tls; /* of the ring: by the first id */
  tuttiAddressList self;
  bool tried, seated; /* to check in with the own root; it has worked */
  bool declines;      /* does not come to stay */
  tuttiNeighbour next;
  /* ring */
  tuttiGreeter greeter;
} joining;

/* ---- rendezvous ----------------------------------------------------------------------------- */

/* One turn of waiting for a root, no longer than `until`. */
static tuttiResult_t awaitDial(const joining *j, const tuttiDial *dial, uint64_t until) {
  struct pollfd wanted;
  int ready;
  uint64_t next = tuttiDialWaitOn(dial, &wanted);
  return tuttiPollSlice(&wanted, 1, dial->who, j->wait, next < until ? next : until, &ready);
}

/* Waits for the failure that a root tells in answer to a check-in. */
static tuttiResult_t awaitFailure(const joining *j, tuttiDial *dial, uint64_t until) {
  tuttiSeat seat = {.fd = -1};
  tuttiReply head;
  char text[TUTTI_ERROR_TEXT + 1];
  int took = 0, ready;
  tuttiResult_t result = tuttiSuccess;
  tuttiSeatTake(&seat, dial);
  while (result == tuttiSuccess && took >= 0 && tuttiNow() < until) {
    struct pollfd readable = {.fd = seat.fd, .events = POLLIN};
    took = tuttiMessageTake(seat.fd, &seat.session, &head, text);
    if (took > 0 && head.kind == tuttiReplyFailed)
      result = tuttiErrorAdopt(head.code > tuttiSuccess && head.code < tuttiNumResults
                                   ? (tuttiResult_t)head.code
                                   : tuttiRemoteError,
                               text);
    else if (took == 0)
      result = tuttiPollSlice(&readable, 1, dial->who, j->wait, until, &ready);
  }
  tuttiFdClose(&seat.fd);
  return result;
}

/* The root has ended a handshake of TLS. If it does not encrypt, or has another key, all ranks are
 * to hear of that: so this rank, whose job encrypts, checks in once in the clear, without names, to
 * say so, and fails with what the root makes of it. tuttiSuccess: the root knows of no trouble. */
static tuttiResult_t explainTo(const joining *j, const tuttiId *id, const uint8_t secret[16],
                               tuttiCheckIn in, const tuttiDial *failed) {
  uint64_t until = tuttiDeadline(EXPLAIN_MS);
  const tuttiWait unbounded = {TUTTI_NO_DEADLINE, j->wait.failed, j->wait.why};
  tuttiResult_t result = tuttiSuccess;
  memset(in.peer.hello.host, 0, sizeof(in.peer.hello.host));
  in.peer.listeners = (tuttiAddressList){.n = 1, .a[0].v4 = {.sin_family = AF_INET, .sin_port = 1}};
  in.peer.ticket = 0;
  in.process = 0;
  if (failed->unsecured)
    in.encrypts = failed->unsecured == EKEYREJECTED ? tuttiEncryptsOtherwise : tuttiEncryptsYes;
  tuttiDial dial __attribute__((cleanup(tuttiDialClose)));
  tuttiDialInit(&dial, &id->roots, &in, sizeof(in), secret, NULL, failed->who);
  /* Where nobody listens any more, the root has died, and there is nothing to explain. */
  while (result == tuttiSuccess && dial.state != TUTTI_DIAL_DONE && !dial.hungUp &&
         !tuttiConnectorRefused(&dial.connector, 0) && tuttiNow() < until) {
    result = tuttiDialStep(&dial, unbounded);
    if (result == tuttiSuccess && dial.state != TUTTI_DIAL_DONE)
      result = awaitDial(j, &dial, until);
  }
  if (result != tuttiSuccess || dial.state != TUTTI_DIAL_DONE) return result;
  return awaitFailure(j, &dial, until);
}

/* The root of TUTTI_COMM_ID has hung up on this rank, which has a key: it may have another, or
 * none. As explainTo, but under the secret that is made without a key. */
static tuttiResult_t explainKey(const joining *j, const tuttiId *id, tuttiCheckIn in,
                                const tuttiDial *failed) {
  uint8_t secret[16];
  if (!id->keyed || !tuttiIdOpenSecret(secret)) return tuttiSuccess;
  in.peer.hello.hash = tuttiIdHash(0, id->secret);
  return explainTo(j, id, secret, in, failed);
}

/* Of a dial that has been ended: says why that may be, once a second. */
static tuttiResult_t explain(const joining *j, const tuttiId *id, const tuttiCheckIn *in,
                             tuttiDial *dial, uint64_t *next) {
  if (dial->unsecured) TUTTI_TRY(explainTo(j, id, id->secret, *in, dial));
  if ((dial->unsecured || dial->hungUp) && tuttiNow() >= *next) {
    TUTTI_TRY(explainKey(j, id, *in, dial));
    *next = tuttiDeadline(1000);
  }
  dial->unsecured = 0;
  return tuttiSuccess;
}

/* A refusal may be a moment of overload, but not of a process that is no more. */
static void heedDeath(const tuttiId *id, tuttiDial *dial) {
  if (!id->fixed && tuttiConnectorRefused(&dial->connector, 0) && tuttiIdRootGone(id))
    dial->refusedMs = 1;
}

/* Connects and checks in with one root. */
static tuttiResult_t checkIn(joining *j, int root, bool bridge) {
  const tuttiBootstrap *b = j->b;
  const tuttiId *id = &j->ids[root];
  tuttiTlsKey key;
  tuttiResult_t result = tuttiTlsKeyMake(id->secret, &key);
  /* Who can't encrypt declines in the clear: he is one who does not, as all are told then. */
  if (!j->declines) TUTTI_TRY(result);
  uint64_t explainAt = 0;
  tuttiCheckIn in;
  memset(&in, 0, sizeof(in));
  tuttiHelloFill(&in.peer.hello, j->idHash, tuttiHelloCheckIn, b->rank, -1, b->nranks);
  in.peer.listeners = j->self;
  in.peer.ticket = j->ticket;
  in.root = root;
  in.nroots = j->nroots;
  in.bridge = bridge;
  in.encrypts = key.on ? tuttiEncryptsYes : tuttiEncryptsNot;
  in.keyed = id->keyed;
  if (j->kin) in.askMs = j->kin->askMs < TUTTI_KIN_MS ? j->kin->askMs : TUTTI_KIN_MS;
  in.process = tuttiProcessId();
  uint64_t now = tuttiNow(), deadline = j->wait.deadline;
  in.remainingMs = deadline == TUTTI_NO_DEADLINE ? UINT64_MAX
                   : deadline > now              ? (deadline - now) / 1000000u
                                                 : 0;
  char who[160];
  tuttiDial dial __attribute__((cleanup(tuttiDialClose)));
  tuttiDialInit(&dial, &id->roots, &in, sizeof(in), id->secret, &key,
                tuttiIdRootText(id, who, sizeof(who)));
  dial.refusedMs = id->fixed ? 0 : j->declines ? 1 : REFUSED_MS;
  dial.remedy = id->fixed
                    ? "Is rank 0 running, is TUTTI_COMM_ID an address of its host, and has it "
                      "the same key (TUTTI_PSK_FILE)?"
                    : "Is the id stale? The process that made it has ended, or the init it "
                      "was made for is over";
  for (;;) {
    TUTTI_TRY(tuttiDialStep(&dial, j->wait));
    if (dial.state == TUTTI_DIAL_DONE) break;
    heedDeath(id, &dial);
    if (!j->declines) TUTTI_TRY(explain(j, id, &in, &dial, &explainAt));
    TUTTI_TRY(awaitDial(j, &dial, TUTTI_NO_DEADLINE));
  }
  tuttiSeatTake(&j->b->seats[bridge], &dial);
  return tuttiSuccess;
}

/* The deadline of the root has passed, and it asks what keeps the missing ranks. It waits so long
 * for an answer that this rank must not go before; if this has kin, it is one of those who ask. */
static void answerMissing(joining *j, tuttiSeat *seat) {
  char text[TUTTI_ERROR_TEXT] = "";
  uint64_t until = tuttiDeadline((int64_t)seat->missing.graceMs + GRACE_SLACK_MS);
  if (j->wait.deadline < until) j->wait.deadline = until;
  seat->asked = false;
  if (!j->kin || j->kin->askMs <= 0) return;
  for (int i = 0; i < seat->missing.n; i++)
    if (seat->missing.ranks[i] < 0 || seat->missing.ranks[i] >= j->b->nranks) return;
  j->kin->explain(j->kin->ctx, seat->missing.ranks, seat->missing.n, text, sizeof text);
  tuttiReplySend(seat->fd, &seat->session, tuttiReplyMissing, 0, text, strlen(text), NULL);
}

/* Whoever is missing and has left the communicator of this rank's kin is not awaited. He may have
 * come, and left that only then, since the root said who is missing: so it is asked once more. */
static tuttiResult_t heedAbsent(const joining *j, tuttiSeat *seat, uint64_t *next) {
  char text[TUTTI_ERROR_TEXT];
  const tuttiMissing *absent = &seat->absent;
  int32_t before = seat->left;
  seat->told = false;
  for (int i = 0; i < absent->n; i++)
    if (absent->ranks[i] < 0 || absent->ranks[i] >= j->b->nranks) return tuttiSuccess;
  seat->left = j->kin->leaves(j->kin->ctx, absent->ranks, absent->n, text, sizeof text);
  if (seat->left < 0) return tuttiSuccess;
  if (seat->left == before) return TUTTI_FAIL(tuttiRemoteError, "%s", text);
  *next = tuttiNow();
  return tuttiSuccess;
}

/* Asks now and then who is missing, once the communicator of this rank's kin was ended. *next: when
 * to look again. */
static tuttiResult_t doubtMissing(const joining *j, tuttiSeat *seat, uint64_t *next) {
  const tuttiKin *kin = j->kin;
  if (!kin || !kin->doubts) return tuttiSuccess;
  if (seat->told) TUTTI_TRY(heedAbsent(j, seat, next));
  if (tuttiNow() < *next) return tuttiSuccess;
  if (seat->fd >= 0 && kin->doubts(kin->ctx))
    tuttiReplySend(seat->fd, &seat->session, tuttiReplyWho, 0, NULL, 0, NULL);
  *next = tuttiDeadline(DOUBT_MS + j->b->nranks);
  return tuttiSuccess;
}

/* Waits for the root's word on who is next. */
static tuttiResult_t awaitNext(joining *j) {
  struct pollfd fds[TUTTI_SEATS];
  tuttiSeat *seats = j->b->seats;
  uint64_t doubtAt = j->kin ? tuttiDeadline(DOUBT_MS) : TUTTI_NO_DEADLINE;
  int ready;
  for (bool met = false;;) {
    TUTTI_TRY(tuttiSeatHear(&seats[0], &j->next, &met));
    if (met) return tuttiSuccess;
    if (seats[0].asked) answerMissing(j, &seats[0]);
    TUTTI_TRY(doubtMissing(j, &seats[0], &doubtAt));
    TUTTI_TRY(tuttiSeatHear(&seats[1], NULL, NULL));
    tuttiSeatsWaitOn(seats, fds);
    TUTTI_TRY(
        tuttiPollSlice(fds, TUTTI_SEATS, "the root of the unique id", j->wait, doubtAt, &ready));
    if (!ready && tuttiNow() >= j->wait.deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "receiving from the root of the unique id, in %s: nothing moved until the "
                        "deadline; see what that side is doing, or raise TUTTI_TIMEOUT",
                        seats[0].root);
  }
}

/* Checks in, and waits until everybody of the slice has: the root then says who is next. */
static tuttiResult_t rendezvous(joining *j) {
  const char *who = "the root of the unique id";
  int rank = j->b->rank, nranks = j->b->nranks, root = tuttiRootOfRank(rank, j->nroots, nranks);
  if (j->ids[0].fixed && rank == 0) TUTTI_TRY(tuttiRootStartFixed(&j->ids[0], j->wait));
  j->tried = true;
  TUTTI_TRY(checkIn(j, root, false));
  j->seated = true;
  if (j->nroots > 1 && rank == tuttiFirstOfRoot(root, j->nroots, nranks))
    TUTTI_TRY(checkIn(j, (root + j->nroots - 1) % j->nroots, true));
  TUTTI_TRY(awaitNext(j));
  if (j->next.hello.from != (rank + 1) % nranks || !tuttiAddressListValid(&j->next.listeners))
    return TUTTI_FAIL(tuttiInternalError, "%s sent rank %d's record instead of rank %d's", who,
                      j->next.hello.from, (rank + 1) % nranks);
  return tuttiSuccess;
}

/* ---- ring ----------------------------------------------------------------------------------- */

static tuttiVerdict checkPrev(void *ctx, const void *hello) {
  const joining *j = ctx;
  const tuttiBootstrap *b = j->b;
  tuttiHello h;
  memcpy(&h, hello, sizeof(h));
  bool ok = h.kind == tuttiHelloRing && h.hash == j->ticket && h.nranks == b->nranks &&
            h.to == b->rank && h.from == (b->rank + b->nranks - 1) % b->nranks;
  return ok ? TUTTI_GUEST_ACCEPT : TUTTI_GUEST_DROP;
}

static void welcomePrev(void *ctx, const void *hello, int fd) {
  joining *j = ctx;
  tuttiHello h;
  memcpy(&h, hello, sizeof(h));
  tuttiHelloName(&h, j->b->prevName, sizeof(j->b->prevName));
  tuttiFdClose(&j->b->prevFd);
  j->b->prevFd = fd;
}

static tuttiResult_t lostNeighbour(const char *name, ssize_t error) {
  return TUTTI_FAIL(tuttiRemoteError,
                    "the connection of the bootstrap ring to %s is lost: %s. Its process has ended "
                    "or given up; its own log says why",
                    name, tuttiErrnoText((int)-error));
}

/* Connects to the next rank and lets the previous one in, both at once: were every rank to connect
 * before it accepts, full queues of strangers could stop the whole ring. */
static tuttiResult_t ringLoop(joining *j, tuttiDial *dial) {
  enum { DIAL, GREETER, PREV, NEXT, ROOTS, FDS = ROOTS + TUTTI_SEATS };
  for (;;) {
    if (dial->state != TUTTI_DIAL_DONE) TUTTI_TRY(tuttiDialStep(dial, j->wait));
    TUTTI_TRY(tuttiGreeterStep(&j->greeter));
    bool hasNext = dial->state == TUTTI_DIAL_DONE;
    if (hasNext && j->b->prevFd >= 0) return tuttiSuccess;
    if (tuttiNow() >= j->wait.deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "%s, the previous in the ring, did not connect to this rank until the "
                        "deadline; see its log, and whether it can reach this host",
                        j->b->prevName);
    struct pollfd fds[FDS];
    uint64_t until = tuttiDialWaitOn(dial, &fds[DIAL]), greeterNext = tuttiGreeterNext(&j->greeter);
    if (greeterNext < until) until = greeterNext;
    fds[GREETER] = (struct pollfd){.fd = j->greeter.epollFd, .events = POLLIN};
    fds[PREV] = (struct pollfd){.fd = j->b->prevFd, .events = POLLRDHUP};
    fds[NEXT] = (struct pollfd){.fd = hasNext ? dial->fd : -1, .events = POLLRDHUP};
    tuttiSeatsWaitOn(j->b->seats, &fds[ROOTS]);
    int ready;
    TUTTI_TRY(tuttiPollSlice(fds, FDS, "the ring", j->wait, until, &ready));
    TUTTI_TRY(tuttiSeatsHear(j->b->seats, &fds[ROOTS]));
    if (fds[PREV].revents) return lostNeighbour(j->b->prevName, -ECONNRESET);
    if (fds[NEXT].revents) return lostNeighbour(dial->who, -ECONNRESET);
  }
}

static tuttiResult_t formRing(joining *j) {
  tuttiBootstrap *b = j->b;
  tuttiHelloName(&j->next.hello, b->nextName, sizeof(b->nextName));
  snprintf(b->prevName, sizeof(b->prevName), "rank %d", (b->rank + b->nranks - 1) % b->nranks);
  const uint8_t *secret = j->ids[0].secret; /* all ranks know it, whatever their root */
  tuttiHello hello;
  tuttiHelloFill(&hello, j->next.ticket, tuttiHelloRing, b->rank, j->next.hello.from, b->nranks);
  tuttiDial dial;
  tuttiDialInit(&dial, &j->next.listeners, &hello, sizeof(hello), secret, &j->tls, b->nextName);
  dial.refusedMs = REFUSED_MS;
  dial.remedy = "Its process has ended or its init failed; its own log says why";
  j->greeter = (tuttiGreeter){.listener = &b->listener,
                              .what = "the ring of a communicator",
                              .helloBytes = sizeof(hello),
                              .nguests = TUTTI_GUESTS,
                              .secret = secret,
                              .tls = &j->tls,
                              .ctx = j,
                              .check = checkPrev,
                              .welcome = welcomePrev};
  tuttiResult_t result = tuttiGreeterOpen(&j->greeter, NULL);
  if (result == tuttiSuccess) {
    result = ringLoop(j, &dial);
    tuttiGreeterClose(&j->greeter);
  }
  if (dial.state == TUTTI_DIAL_DONE) b->nextFd = dial.fd;
  b->secureMs = dial.securedMs;
  tuttiDialClose(&dial);
  return result;
}

/* By the flag, which an abort sets: what other ranks see is tuttiRemoteError then, unless it is of
 * another rank already. */
static bool isStopped(tuttiWait wait) {
  return wait.failed && tuttiLoadAcquire32(wait.failed) != 0 &&
         tuttiLoadAcquire32(wait.failed) != tuttiRemoteError;
}

/* ---- all-gather ----------------------------------------------------------------------------- */

/* Bytes sent or received by one call, whose result is n; 0: nothing now; else -errno. */
static ssize_t moved(ssize_t n) {
  if (n >= 0) return n;
  return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

/* What goes over one connection of the ring: all records in order of rank, but for that of the rank
 * they go to. A rank has, of those that it sends, what came before its own as soon as that is here,
 * and all others when they are here; so the records run once round the ring from rank 0 to the
 * last, gathering, and once more to those who lack them. Each connection carries a few large
 * pieces: where ranks share cores, a message and a turn for each record would take n^2 of both. */
typedef struct {
  char *all;
  size_t size, skipped; /* of a record; the rank that has its own */
  size_t moved, total;  /* bytes */
} recordStream;

/* Bytes from where the stream stands that lie together in `all`, up to the end of `known` bytes of
 * it; *at: the first. */
static size_t nextPiece(const recordStream *s, size_t known, char **at) {
  size_t hole = s->skipped * s->size, from = s->moved < hole ? s->moved : s->moved + s->size;
  size_t end = from < hole && hole < known ? hole : known;
  *at = s->all + from;
  return from < end ? end - from : 0;
}

/* How far `all` is filled, from its start. */
static size_t knownBytes(const recordStream *in) {
  size_t own = in->skipped * in->size;
  return in->moved < own ? in->moved : in->moved + in->size;
}

/* Takes what has come. */
static tuttiResult_t takeRecords(const tuttiBootstrap *b, recordStream *in) {
  char *at;
  size_t room = nextPiece(in, (size_t)b->nranks * in->size, &at);
  if (room == 0) return tuttiSuccess;
  ssize_t n = tuttiSecureRecv(b->prevFd, at, room);
  n = n == 0 ? -ECONNRESET : moved(n);
  if (n < 0) return lostNeighbour(b->prevName, n);
  in->moved += (size_t)n;
  return tuttiSuccess;
}

/* Sends of what is here what there is room for, but not to a rank that has given up: the kernel
 * would take it, and nobody would know. */
static tuttiResult_t giveRecords(const tuttiBootstrap *b, recordStream *out, size_t known) {
  char *at;
  size_t size = nextPiece(out, known, &at);
  if (size == 0) return tuttiSuccess;
  struct pollfd next = {.fd = b->nextFd, .events = POLLRDHUP};
  if (poll(&next, 1, 0) > 0) return lostNeighbour(b->nextName, -ECONNRESET);
  ssize_t n = moved(tuttiSecureSend(b->nextFd, at, size));
  if (n < 0) return lostNeighbour(b->nextName, n);
  out->moved += (size_t)n;
  return tuttiSuccess;
}

/* Waits until either can go on, for a slice of time; fails if that can no longer be. */
static tuttiResult_t awaitNeighbours(const tuttiBootstrap *b, const recordStream *in,
                                     const recordStream *out, tuttiWait wait) {
  enum { PREV, NEXT, ROOTS, FDS = ROOTS + TUTTI_SEATS };
  char *at;
  bool giving = nextPiece(out, knownBytes(in), &at) > 0;
  /* The next rank cannot be done before it has everything from here, and what else comes from it
   * is for the watch. */
  struct pollfd fds[FDS] = {
      [PREV] = {.fd = in->moved < in->total ? b->prevFd : -1, .events = POLLIN},
      [NEXT] = {.fd = out->moved < out->total ? b->nextFd : -1,
                .events = giving ? POLLOUT | POLLRDHUP : POLLRDHUP},
  };
  int ready;
  tuttiSeatsWaitOn(b->seats, &fds[ROOTS]);
  TUTTI_TRY(tuttiPollSlice(fds, FDS, "the bootstrap ring", wait, TUTTI_NO_DEADLINE, &ready));
  TUTTI_TRY(tuttiSeatsHear(b->seats, &fds[ROOTS]));
  if (fds[NEXT].revents & (POLLRDHUP | POLLHUP | POLLERR))
    return lostNeighbour(b->nextName, -ECONNRESET);
  if (ready || tuttiNow() < wait.deadline) return tuttiSuccess;
  return TUTTI_FAIL(tuttiTimeout,
                    "all-gather of the bootstrap ring: %zu of %zu bytes came from %s and %zu "
                    "went to %s until the deadline; see what those ranks are doing, or raise "
                    "TUTTI_TIMEOUT",
                    in->moved, in->total, b->prevName, out->moved, b->nextName);
}

static tuttiResult_t passRecords(const tuttiBootstrap *b, recordStream *in, recordStream *out,
                                 tuttiWait wait) {
  while (in->moved < in->total || out->moved < out->total) {
    size_t before = in->moved + out->moved;
    TUTTI_TRY(takeRecords(b, in));
    TUTTI_TRY(giveRecords(b, out, knownBytes(in)));
    if (in->moved + out->moved == before) TUTTI_TRY(awaitNeighbours(b, in, out, wait));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiBootstrapAllGather(tuttiBootstrap *b, void *all, size_t size, tuttiWait wait) {
  if (b->nranks == 1 || size == 0) return tuttiSuccess;
  if (b->prevFd < 0 || b->nextFd < 0)
    return TUTTI_FAIL(tuttiInternalError, "all-gather on a ring that the watch has taken");
  recordStream in = {.all = all,
                     .size = size,
                     .skipped = (size_t)b->rank,
                     .total = (size_t)(b->nranks - 1) * size};
  recordStream out = in;
  out.skipped = (size_t)((b->rank + 1) % b->nranks);
  tuttiResult_t result = passRecords(b, &in, &out, wait);
  if (result == tuttiSuccess) return tuttiSuccess;
  result = tuttiSeatsJudge(b->seats, result, wait);
  /* The stream is cut in the middle: nobody can go on. */
  tuttiBootstrapGiveUp(b, isStopped(wait) ? tuttiInternalError : result);
  return result;
}

/* Exchanges listeners, and makes hash and secret this communicator's own: those of a fixed id are
 * the same for all that were made with it. */
static tuttiResult_t exchange(joining *j) {
  tuttiBootstrap *b = j->b;
  typedef struct {
    tuttiAddressList listeners;
    uint8_t salt[16];
    uint64_t process;
  } record;
  size_t n = (size_t)b->nranks;
  TUTTI_FRESH(record, all, n, "records of the ranks", NULL);
  all[b->rank].listeners = j->self;
  all[b->rank].process = tuttiProcessId();
  TUTTI_TRY(tuttiRandom(all[b->rank].salt, sizeof(all[b->rank].salt)));
  TUTTI_TRY(tuttiBootstrapAllGather(b, all, sizeof(record), j->wait));
  b->together = n > 1;
  for (size_t r = 0; r < n; r++) {
    b->together &= all[r].process == all[0].process;
    if (n > 1 && !tuttiAddressListValid(&all[r].listeners))
      return TUTTI_FAIL(tuttiInternalError, "the record of rank %zu holds no address", r);
    b->listeners[r] = all[r].listeners;
  }
  const tuttiMacPart salt = {all[0].salt, sizeof(all[0].salt)};
  tuttiDerive((tuttiMacPart){j->ids[0].secret, sizeof(j->ids[0].secret)}, salt,
              (tuttiMacPart){"tutti communicator", 18}, b->secret, sizeof(b->secret));
  tuttiTlsKeyNext(&j->tls, b->secret, &b->tls);
  b->hash = tuttiIdHash(j->idHash, all[0].salt);
  if (b->together) tuttiListenerClose(&b->listener);
  return tuttiSuccess;
}

/* ---- join ----------------------------------------------------------------------------------- */

static tuttiResult_t joinRing(joining *j) {
  uint64_t startedAt = tuttiNow();
  TUTTI_TRY(rendezvous(j));
  uint64_t metAt = tuttiNow();
  TUTTI_TRY(formRing(j));
  uint64_t ringAt = tuttiNow();
  TUTTI_TRY(exchange(j));
  TUTTI_INFO(BOOTSTRAP,
             "rank %d of %d joined: rendezvous %.1f ms, ring %.1f ms, all-gather %.1f ms; listens "
             "on %s; its connections are %s",
             j->b->rank, j->b->nranks, tuttiMs(startedAt, metAt), tuttiMs(metAt, ringAt),
             tuttiMs(ringAt, tuttiNow()), j->b->interfaces[0].name, tuttiSecureText(j->b->nextFd));
  return tuttiSuccess;
}

static tuttiResult_t openListener(joining *j) {
  tuttiBootstrap *b = j->b;
  tuttiResult_t result = tuttiInterfaces(b->interfaces, TUTTI_MAX_INTERFACES, &b->ninterfaces);
  if (b->nranks == 1 && result == tuttiSystemError) {
    tuttiErrorClear(); /* one rank meets nobody, so a host without any network will do */
    return tuttiSuccess;
  }
  TUTTI_TRY(result);
  if (b->nranks == 1) return tuttiSuccess;
  TUTTI_TRY(tuttiListenAny(b->interfaces, b->ninterfaces, &j->self, &b->listener));
  return tuttiRandom(&j->ticket, sizeof(j->ticket));
}

/* Fills parsed[nids], NULL at first and for tuttiFree in any case. */
static tuttiResult_t parseIds(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                              tuttiId **parsed) {
  if (nids < 1 || nranks < 1 || nranks > TUTTI_MAX_RANKS || rank < 0 || rank >= nranks)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "rank %d of nranks %d with %d unique ids: nranks must be 1 to %d, rank 0 to "
                      "nranks - 1, and there must be an id",
                      rank, nranks, nids, TUTTI_MAX_RANKS);
  TUTTI_NEW(*parsed, nids, "unique ids", NULL);
  for (int i = 0; i < nids; i++)
    TUTTI_TRY(tuttiIdParse(&ids[i], &(*parsed)[i]));
  return tuttiSuccess;
}

/* What all ranks of a communicator have in common, and no connections yet. */
static tuttiResult_t makeBootstrap(joining *j, const tuttiId *ids, int nids, int rank, int nranks) {
  size_t size = sizeof(*j->b) + (size_t)nranks * sizeof(*j->b->listeners) +
                TUTTI_SEATS * sizeof(*j->b->seats);
  TUTTI_TRY(tuttiAlloc((void **)&j->b, 1, size, "the bootstrap", NULL));
  j->b->rank = rank;
  j->b->nranks = nranks;
  j->b->prevFd = j->b->nextFd = -1;
  j->b->listeners = (tuttiAddressList *)(j->b + 1);
  j->b->seats = (tuttiSeat *)(j->b->listeners + nranks);
  for (int i = 0; i < TUTTI_SEATS; i++)
    j->b->seats[i].fd = -1;
  j->ids = ids;
  j->nroots = ids[0].fixed ? 1 : nids < nranks ? nids : nranks;
  for (int i = 0; i < j->nroots; i++) /* secrets alone: a name may resolve to other addresses */
    j->idHash = tuttiIdHash(j->idHash, ids[i].secret);
  return tuttiSuccess;
}

/* Checks in with the own root, and gives up there. */
static void decline(joining *j, tuttiResult_t code) {
  char text[TUTTI_ERROR_TEXT];
  const tuttiBootstrap *b = j->b;
  snprintf(text, sizeof(text), "%s", tuttiErrorText());
  j->wait = (tuttiWait){.deadline = tuttiDeadline(DECLINE_MS)};
  j->declines = true;
  j->self = (tuttiAddressList){.n = 1, .a[0].v4 = {.sin_family = AF_INET, .sin_port = 1}};
  tuttiResult_t result = checkIn(j, tuttiRootOfRank(b->rank, j->nroots, b->nranks), false);
  tuttiErrorAdopt(code, text);
  if (result != tuttiSuccess) return;
  bool alone = code == tuttiInvalidUsage; /* as of an abort */
  tuttiBootstrapGiveUp(j->b, alone ? tuttiInternalError : code);
}

/* Finds out who is to blame for `result`, which the caller returns, and tells the others; those who
 * wait at the root for a rank that never checked in, too, unless the root could not be reached. */
static tuttiResult_t endJoin(joining *j, tuttiResult_t result) {
  bool stopped = isStopped(j->wait);
  bool kept = j->wait.failed && tuttiLoadAcquire32(j->wait.failed) != 0; /* from its check-in */
  if (j->seated) {
    result = tuttiSeatsJudge(j->b->seats, result, j->wait);
    tuttiBootstrapGiveUp(j->b, stopped ? tuttiInternalError : result);
  } else if (!j->tried || kept) {
    decline(j, result);
  }
  return result;
}

tuttiResult_t tuttiBootstrapJoin(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                                 tuttiWait wait, const tuttiKin *kin, tuttiBootstrap **out) {
  joining j = {.wait = wait, .kin = kin};
  TUTTI_FREED tuttiId *parsed = NULL;
  TUTTI_TRY(parseIds(ids, nids, rank, nranks, &parsed));
  TUTTI_TRY(makeBootstrap(&j, parsed, nids, rank, nranks));
  tuttiResult_t result = tuttiTlsKeyMake(parsed[0].secret, &j.tls);
  if (result == tuttiSuccess) result = openListener(&j);
  if (result == tuttiSuccess) result = nranks > 1 ? joinRing(&j) : exchange(&j);
  if (result != tuttiSuccess && nranks > 1) result = endJoin(&j, result);
  /* Roots that nobody will come to: of a rank alone, of ids past the first nranks; and of a fixed
   * address, which the next communicator needs. */
  for (int i = nranks > 1 ? j.nroots : 0; i < nids && !parsed[0].fixed; i++)
    tuttiRootCancel(parsed[i].secret, tuttiSuccess);
  if (parsed[0].fixed && rank == 0 && result != tuttiSuccess)
    tuttiRootCancel(parsed[0].secret, tuttiSuccess);
  if (result == tuttiSuccess)
    *out = j.b;
  else
    tuttiBootstrapClose(j.b);
  return result;
}

int64_t tuttiBootstrapAskingMs(const tuttiBootstrap *b) {
  return (int64_t)b->secureMs * (b->nranks - 1);
}

void tuttiBootstrapDone(tuttiBootstrap *b) {
  if (b->seats) tuttiSeatsDone(b->seats);
}

tuttiResult_t tuttiBootstrapAccount(const tuttiBootstrap *b, tuttiResult_t code, char *text,
                                    size_t size) {
  char who[160];
  tuttiHello self;
  if (code == tuttiRemoteError) {
    snprintf(text, size, "%s", tuttiErrorText());
    return code;
  }
  tuttiHelloFill(&self, 0, tuttiHelloCheckIn, b->rank, -1, b->nranks);
  snprintf(text, size, "%s failed in its init: %.800s", tuttiHelloName(&self, who, sizeof(who)),
           tuttiErrorText());
  /* What ranks disagree on, and how long they wait, is the same for all. */
  return code == tuttiInvalidUsage || code == tuttiTimeout ? code : tuttiRemoteError;
}

void tuttiBootstrapGiveUp(tuttiBootstrap *b, tuttiResult_t code) {
  char text[TUTTI_ERROR_TEXT];
  if (!b->seats) return;
  bool relayed = b->seats[0].ended || b->seats[1].ended; /* what one root told, to the other */
  if (relayed)
    snprintf(text, sizeof(text), "%s", tuttiErrorText());
  else
    code = tuttiBootstrapAccount(b, code, text, sizeof(text));
  tuttiSeatsGiveUp(b->seats, code, text);
}

void tuttiBootstrapDecline(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                           tuttiResult_t code) {
  joining j = {0};
  TUTTI_FREED tuttiId *parsed = NULL;
  char text[TUTTI_ERROR_TEXT];
  snprintf(text, sizeof(text), "%s", tuttiErrorText());
  tuttiResult_t result = nranks > 1 ? parseIds(ids, nids, rank, nranks, &parsed) : tuttiSuccess;
  if (parsed && result == tuttiSuccess) result = makeBootstrap(&j, parsed, nids, rank, nranks);
  tuttiErrorAdopt(code, text);
  if (j.b && result == tuttiSuccess) decline(&j, code);
  tuttiBootstrapClose(j.b);
}

void tuttiBootstrapClose(tuttiBootstrap *b) {
  if (!b) return;
  tuttiBootstrapDone(b); /* unless it has given up: then it has no seats any more */
  tuttiFdClose(&b->prevFd);
  tuttiFdClose(&b->nextFd);
  tuttiListenerClose(&b->listener);
  tuttiFree(b);
}
