#include "bootstrap/bootstrap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "bootstrap/rendezvous.h"

/* Every address of an id's root or of a rank's listener refuses this long: it is gone. */
#define REFUSED_MS 2000

/* What Join's phases hand on to each other. */
typedef struct {
  tuttiBootstrap *b;
  tuttiWait wait;
  const tuttiId *ids;
  int nroots;
  bool fixed;
  uint64_t idHash, ticket;
  tuttiAddressList self;
  int rootFds[2]; /* own root, and as a bridge that of the slice before; -1: none */
  tuttiNeighbour next;
  /* ring */
  tuttiGreeter greeter;
  int prevFd;
  char prevName[96];
  uint64_t startedAt, metAt, ringAt;
} joining;

static double ms(uint64_t from, uint64_t to) {
  return (double)(to - from) / 1e6;
}

/* ---- rendezvous ----------------------------------------------------------------------------- */

/* Connects and checks in with one root. */
static tuttiResult_t checkIn(joining *j, int root, bool bridge, int *fd) {
  const tuttiBootstrap *b = j->b;
  const tuttiId *id = &j->ids[root];
  tuttiCheckIn in;
  memset(&in, 0, sizeof(in));
  tuttiHelloFill(&in.peer.hello, id->secret, j->idHash, tuttiHelloCheckIn, b->rank, b->nranks);
  in.peer.listeners = j->self;
  in.peer.ticket = j->ticket;
  in.root = root;
  in.nroots = j->nroots;
  in.bridge = bridge;
  uint64_t now = tuttiNow(), deadline = j->wait.deadline;
  in.remainingMs = deadline == TUTTI_NO_DEADLINE ? UINT64_MAX
                   : deadline > now              ? (deadline - now) / 1000000u
                                                 : 0;
  tuttiDial dial;
  tuttiDialInit(&dial, &id->roots, b->interfaces, b->ninterfaces, &in, sizeof(in),
                "the root of the unique id");
  dial.refusedMs = id->fixed ? 0 : REFUSED_MS;
  dial.remedy = id->fixed ? "Is rank 0 running, and is TUTTI_COMM_ID an address of its host?"
                          : "Is the id stale? The process that made it has ended, or the init it "
                            "was made for is over";
  tuttiResult_t result;
  while ((result = tuttiDialStep(&dial, j->wait)) == tuttiSuccess &&
         dial.state != TUTTI_DIAL_DONE) {
    struct pollfd fds[TUTTI_DIAL_FDS];
    uint64_t until = tuttiDialWaitOn(&dial, fds);
    int ready;
    TUTTI_TRY_GOTO(tuttiPollSlice(fds, TUTTI_DIAL_FDS, dial.who, j->wait, until, &ready), result,
                   done);
  }
done:
  tuttiDialClose(&dial);
  if (result == tuttiSuccess) *fd = dial.fd;
  return result;
}

/* Takes the reply that is coming in from a root; the own one says who is next. */
static tuttiResult_t takeReply(joining *j, int which) {
  const char *who = "the root of the unique id";
  int fd = j->rootFds[which];
  tuttiReply reply;
  TUTTI_TRY(tuttiRecvAll(fd, &reply, sizeof(reply), who, j->wait));
  if (!tuttiReplyValid(&reply))
    return TUTTI_FAIL(tuttiRemoteError, "%s answered with garbage; see what listens there", who);
  if (reply.kind == tuttiReplyFailed) return tuttiReplyAdopt(fd, &reply, who, j->wait);
  int nranks = j->b->nranks, wanted = (j->b->rank + 1) % nranks;
  if (which == 0) {
    if (reply.kind != tuttiReplyNext || reply.bytes != sizeof(j->next))
      return TUTTI_FAIL(tuttiRemoteError, "%s answered with garbage; see what listens there", who);
    TUTTI_TRY(tuttiRecvAll(fd, &j->next, sizeof(j->next), who, j->wait));
    if (j->next.hello.from != wanted || !tuttiAddressListValid(&j->next.listeners))
      return TUTTI_FAIL(tuttiInternalError, "%s sent rank %d's record instead of rank %d's", who,
                        j->next.hello.from, wanted);
  }
  tuttiFdClose(&j->rootFds[which]);
  return tuttiSuccess;
}

static tuttiResult_t rendezvous(joining *j) {
  const tuttiBootstrap *b = j->b;
  int root = tuttiRootOfRank(b->rank, j->nroots, b->nranks);
  if (j->fixed && b->rank == 0) TUTTI_TRY(tuttiRootStartFixed(&j->ids[0], j->wait));
  TUTTI_TRY(checkIn(j, root, false, &j->rootFds[0]));
  if (j->nroots > 1 && b->rank == tuttiFirstOfRoot(root, j->nroots, b->nranks))
    TUTTI_TRY(checkIn(j, (root + j->nroots - 1) % j->nroots, true, &j->rootFds[1]));
  while (j->rootFds[0] >= 0 || j->rootFds[1] >= 0) {
    struct pollfd fds[] = {{.fd = j->rootFds[0], .events = POLLIN},
                           {.fd = j->rootFds[1], .events = POLLIN}};
    int ready;
    TUTTI_TRY(tuttiPollSlice(fds, 2, "the root", j->wait, TUTTI_NO_DEADLINE, &ready));
    for (int i = 0; i < 2; i++)
      if (fds[i].revents) TUTTI_TRY(takeReply(j, i));
    if (!ready && tuttiNow() >= j->wait.deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "checked in with the root of the unique id, but it did not say until the "
                        "deadline who else came; see the other ranks, or raise TUTTI_TIMEOUT");
  }
  return tuttiSuccess;
}

/* ---- ring ----------------------------------------------------------------------------------- */

static tuttiVerdict checkPrev(void *ctx, const void *hello, int fd) {
  (void)fd;
  const joining *j = ctx;
  const tuttiBootstrap *b = j->b;
  tuttiHello h;
  memcpy(&h, hello, sizeof(h));
  bool ok = h.kind == tuttiHelloRing && h.hash == j->ticket && h.nranks == b->nranks &&
            h.from == (b->rank + b->nranks - 1) % b->nranks;
  return ok ? TUTTI_GUEST_ACCEPT : TUTTI_GUEST_DROP;
}

static void welcomePrev(void *ctx, const void *hello, int fd) {
  joining *j = ctx;
  tuttiHello h;
  memcpy(&h, hello, sizeof(h));
  tuttiHelloName(&h, j->prevName, sizeof(j->prevName));
  tuttiFdClose(&j->prevFd);
  j->prevFd = fd;
}

static tuttiResult_t lostNeighbour(const char *name) {
  return TUTTI_FAIL(tuttiRemoteError,
                    "%s closed its connection during init: its process has ended or its init "
                    "failed; its own log says why",
                    name);
}

/* Connects to the next rank and lets the previous one in, both at once: were every rank to connect
 * before it accepts, full queues of strangers could stop the whole ring. */
static tuttiResult_t ringLoop(joining *j, tuttiDial *dial) {
  enum { GREETER = TUTTI_DIAL_FDS, PREV, NEXT, FDS };
  for (;;) {
    if (dial->state != TUTTI_DIAL_DONE) TUTTI_TRY(tuttiDialStep(dial, j->wait));
    TUTTI_TRY(tuttiGreeterStep(&j->greeter));
    bool hasNext = dial->state == TUTTI_DIAL_DONE;
    if (hasNext && j->prevFd >= 0) return tuttiSuccess;
    if (tuttiNow() >= j->wait.deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "%s, the previous in the ring, did not connect to this rank until the "
                        "deadline; see its log, and whether it can reach this host",
                        j->prevName);
    struct pollfd fds[FDS];
    uint64_t until = tuttiDialWaitOn(dial, fds), greeterNext = tuttiGreeterNext(&j->greeter);
    if (greeterNext < until) until = greeterNext;
    fds[GREETER] = (struct pollfd){.fd = j->greeter.epollFd, .events = POLLIN};
    fds[PREV] = (struct pollfd){.fd = j->prevFd, .events = POLLRDHUP};
    fds[NEXT] = (struct pollfd){.fd = hasNext ? dial->fd : -1, .events = POLLRDHUP};
    int ready;
    TUTTI_TRY(tuttiPollSlice(fds, FDS, "the ring", j->wait, until, &ready));
    if (fds[PREV].revents) return lostNeighbour(j->prevName);
    if (fds[NEXT].revents) return lostNeighbour(dial->who);
  }
}

static tuttiResult_t formRing(joining *j) {
  tuttiBootstrap *b = j->b;
  tuttiHelloName(&j->next.hello, b->nextName, sizeof(b->nextName));
  snprintf(j->prevName, sizeof(j->prevName), "rank %d", (b->rank + b->nranks - 1) % b->nranks);
  const uint8_t *secret = j->ids[0].secret; /* all ranks know it, whatever their root */
  tuttiHello hello;
  tuttiHelloFill(&hello, secret, j->next.ticket, tuttiHelloRing, b->rank, b->nranks);
  tuttiDial dial;
  tuttiDialInit(&dial, &j->next.listeners, b->interfaces, b->ninterfaces, &hello, sizeof(hello),
                b->nextName);
  dial.refusedMs = REFUSED_MS;
  dial.remedy = "Its process has ended or its init failed; its own log says why";
  j->greeter = (tuttiGreeter){.listenFd = b->listenFd,
                              .helloBytes = sizeof(hello),
                              .nguests = TUTTI_GUESTS,
                              .secret = secret,
                              .ctx = j,
                              .check = checkPrev,
                              .welcome = welcomePrev};
  tuttiResult_t result = tuttiGreeterOpen(&j->greeter, NULL);
  if (result == tuttiSuccess) {
    result = ringLoop(j, &dial);
    tuttiGreeterClose(&j->greeter);
  }
  if (dial.state == TUTTI_DIAL_DONE) b->nextFd = dial.fd;
  tuttiDialClose(&dial);
  b->prevFd = j->prevFd;
  memcpy(b->prevName, j->prevName, sizeof(b->prevName));
  return result;
}

/* ---- all-gather ----------------------------------------------------------------------------- */

/* Bytes sent or received by one call, whose result is n; 0: nothing now; else -errno. */
static ssize_t moved(ssize_t n) {
  if (n >= 0) return n;
  return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

static tuttiResult_t gatherFailed(const char *name, ssize_t error) {
  return TUTTI_FAIL(tuttiRemoteError,
                    "the connection of the bootstrap ring to %s is lost: %s. Its process has ended "
                    "or given up; its own log says why",
                    name, tuttiErrnoText((int)-error));
}

/* Sends one block to the next rank while another comes from the previous one; of `total` bytes
 * that go each way `before` have. */
static tuttiResult_t passBlock(tuttiBootstrap *b, const char *out, char *in, size_t size,
                               size_t before, size_t total, tuttiWait wait) {
  size_t sent = 0, got = 0;
  while (sent < size || got < size) {
    ssize_t nin = 0, nout = 0;
    if (got < size) {
      nin = recv(b->prevFd, in + got, size - got, MSG_DONTWAIT);
      nin = nin == 0 ? -ECONNRESET : moved(nin);
      if (nin < 0) return gatherFailed(b->prevName, nin);
    }
    if (sent < size) {
      nout = moved(send(b->nextFd, out + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT));
      if (nout < 0) return gatherFailed(b->nextName, nout);
    }
    got += (size_t)nin;
    sent += (size_t)nout;
    if (nin > 0 || nout > 0) continue;
    /* The next rank cannot be done before it has everything from here, and what else comes from it
     * is for the watch. */
    short toNext = (short)((sent < size ? POLLOUT : 0) | POLLRDHUP);
    struct pollfd fds[] = {
        {.fd = got < size ? b->prevFd : -1, .events = POLLIN},
        {.fd = before + sent < total ? b->nextFd : -1, .events = toNext},
    };
    int ready;
    TUTTI_TRY(tuttiPollSlice(fds, 2, "the bootstrap ring", wait, TUTTI_NO_DEADLINE, &ready));
    if (fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR))
      return gatherFailed(b->nextName, -ECONNRESET);
    if (!ready && tuttiNow() >= wait.deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "all-gather of the bootstrap ring: %zu of %zu bytes came from %s and %zu "
                        "went to %s until the deadline; see what those ranks are doing, or raise "
                        "TUTTI_TIMEOUT",
                        before + got, total, b->prevName, before + sent, b->nextName);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiBootstrapAllGather(tuttiBootstrap *b, void *all, size_t size, tuttiWait wait) {
  if (b->nranks == 1 || size == 0) return tuttiSuccess;
  if (b->prevFd < 0 || b->nextFd < 0)
    return TUTTI_FAIL(tuttiInternalError, "all-gather on a ring that the watch has taken");
  tuttiResult_t result = tuttiSuccess;
  size_t total = (size_t)(b->nranks - 1) * size;
  int rank = b->rank;
  for (size_t done = 0; done < total && result == tuttiSuccess; done += size) {
    char *out = (char *)all + (size_t)rank * size;
    rank = (rank + b->nranks - 1) % b->nranks;
    result = passBlock(b, out, (char *)all + (size_t)rank * size, size, done, total, wait);
  }
  if (result != tuttiSuccess) {
    /* The stream is cut in the middle: nobody can go on, and the neighbours should know at once. */
    shutdown(b->prevFd, SHUT_RDWR);
    shutdown(b->nextFd, SHUT_RDWR);
  }
  return result;
}

/* Exchanges listeners, and makes hash and secret this communicator's own: those of a fixed id are
 * the same for all that were made with it. */
static tuttiResult_t exchange(joining *j) {
  tuttiBootstrap *b = j->b;
  typedef struct {
    tuttiAddressList listeners;
    uint8_t salt[16];
  } record;
  size_t n = (size_t)b->nranks;
  record *all;
  TUTTI_TRY(tuttiAlloc((void **)&all, n, sizeof(*all), "records of the ranks", NULL));
  tuttiResult_t result = tuttiRandom(all[b->rank].salt, sizeof(all[b->rank].salt));
  all[b->rank].listeners = j->self;
  TUTTI_TRY_GOTO(result, result, done);
  TUTTI_TRY_GOTO(tuttiBootstrapAllGather(b, all, sizeof(record), j->wait), result, done);
  for (size_t r = 0; r < n; r++) {
    if (b->nranks > 1 && !tuttiAddressListValid(&all[r].listeners)) {
      result = TUTTI_FAIL(tuttiInternalError, "the record of rank %zu holds no address", r);
      goto done;
    }
    b->listeners[r] = all[r].listeners;
  }
  for (size_t i = 0; i < sizeof(b->secret); i++)
    b->secret[i] = j->ids[0].secret[i] ^ all[0].salt[i];
  struct {
    uint64_t idHash;
    uint8_t salt[16];
  } mix = {.idHash = j->idHash};
  memcpy(mix.salt, all[0].salt, sizeof(mix.salt));
  b->hash = tuttiHash(&mix, sizeof(mix));
done:
  tuttiFree(all);
  return result;
}

/* ---- join ----------------------------------------------------------------------------------- */

/* The same on all ranks, whatever addresses a host's name resolves to on each. */
static uint64_t hashIds(const tuttiId *ids, int n) {
  uint64_t hash = 0;
  for (int i = 0; i < n; i++) {
    struct {
      uint64_t before;
      uint8_t secret[16];
    } link = {.before = hash};
    memcpy(link.secret, ids[i].secret, sizeof(link.secret));
    hash = tuttiHash(&link, sizeof(link));
  }
  return hash;
}

static tuttiResult_t joinRing(joining *j) {
  TUTTI_TRY(rendezvous(j));
  j->metAt = tuttiNow();
  TUTTI_TRY(formRing(j));
  j->ringAt = tuttiNow();
  TUTTI_TRY(exchange(j));
  TUTTI_INFO(BOOTSTRAP,
             "rank %d of %d joined: rendezvous %.1f ms, ring %.1f ms, all-gather %.1f ms; listens "
             "on %s",
             j->b->rank, j->b->nranks, ms(j->startedAt, j->metAt), ms(j->metAt, j->ringAt),
             ms(j->ringAt, tuttiNow()), j->b->interfaces[0].name);
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
  TUTTI_TRY(tuttiListenAny(b->interfaces, b->ninterfaces, &j->self, &b->listenFd));
  tuttiForkCloseAdd(b->listenFd);
  return tuttiRandom(&j->ticket, sizeof(j->ticket));
}

static tuttiResult_t parseIds(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                              tuttiId **out) {
  if (nids < 1 || nranks < 1 || nranks > TUTTI_MAX_RANKS || rank < 0 || rank >= nranks)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "rank %d of nranks %d with %d unique ids: nranks must be 1 to %d, rank 0 to "
                      "nranks - 1, and there must be an id",
                      rank, nranks, nids, TUTTI_MAX_RANKS);
  tuttiId *parsed;
  TUTTI_TRY(tuttiAlloc((void **)&parsed, (size_t)nids, sizeof(*parsed), "unique ids", NULL));
  for (int i = 0; i < nids; i++) {
    tuttiResult_t result = tuttiIdParse(&ids[i], &parsed[i]);
    if (result == tuttiSuccess) continue;
    tuttiFree(parsed);
    return result;
  }
  *out = parsed;
  return tuttiSuccess;
}

static tuttiResult_t allocate(int rank, int nranks, tuttiBootstrap **out) {
  tuttiBootstrap *b;
  TUTTI_TRY(tuttiAlloc((void **)&b, 1, sizeof(*b), "the bootstrap", NULL));
  b->rank = rank;
  b->nranks = nranks;
  b->listenFd = b->prevFd = b->nextFd = -1;
  tuttiResult_t result = tuttiAlloc((void **)&b->listeners, (size_t)nranks, sizeof(*b->listeners),
                                    "addresses of the ranks", NULL);
  if (result == tuttiSuccess)
    *out = b;
  else
    tuttiFree(b);
  return result;
}

tuttiResult_t tuttiBootstrapJoin(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                                 tuttiWait wait, tuttiBootstrap **out) {
  joining j = {.wait = wait, .rootFds = {-1, -1}, .prevFd = -1, .startedAt = tuttiNow()};
  tuttiId *parsed = NULL;
  TUTTI_TRY(parseIds(ids, nids, rank, nranks, &parsed));
  tuttiResult_t result;
  TUTTI_TRY_GOTO(allocate(rank, nranks, &j.b), result, freeIds);
  j.ids = parsed;
  j.fixed = parsed[0].fixed;
  j.nroots = j.fixed ? 1 : nids < nranks ? nids : nranks;
  j.idHash = hashIds(parsed, j.nroots);
  TUTTI_TRY_GOTO(openListener(&j), result, close);
  if (nranks > 1)
    result = joinRing(&j);
  else
    result = exchange(&j);
  /* Roots that nobody will come to: of a rank alone, of ids past the first nranks; and of a fixed
   * address, which the next communicator needs. */
  for (int i = nranks > 1 ? j.nroots : 0; i < nids && !j.fixed; i++)
    tuttiRootCancel(parsed[i].secret);
  if (j.fixed && rank == 0 && result != tuttiSuccess) tuttiRootCancel(parsed[0].secret);
close:
  for (int i = 0; i < 2; i++)
    tuttiFdClose(&j.rootFds[i]);
  if (result == tuttiSuccess)
    *out = j.b;
  else
    tuttiBootstrapClose(j.b);
freeIds:
  tuttiFree(parsed);
  return result;
}

uint64_t tuttiBootstrapHash(const tuttiBootstrap *b) {
  return b->hash;
}

const uint8_t *tuttiBootstrapSecret(const tuttiBootstrap *b) {
  return b->secret;
}

const tuttiInterface *tuttiBootstrapInterface(const tuttiBootstrap *b) {
  return &b->interfaces[0];
}

void tuttiBootstrapClose(tuttiBootstrap *b) {
  if (!b) return;
  tuttiFdClose(&b->prevFd);
  tuttiFdClose(&b->nextFd);
  tuttiFdClose(&b->listenFd);
  tuttiFree(b->listeners);
  tuttiFree(b);
}
