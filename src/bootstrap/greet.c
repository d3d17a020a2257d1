/* The listening end of the handshake: many connections at once, of which any may be garbage, silent
 * or hostile. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/os.h"
#include "bootstrap/handshake.h"

/* For a stranger's hello; for the confirm of one whose hello was good, and if all places are taken.
 * In TLS the first is for what must show the key, and the second for what must prove it: ranks that
 * share a core may need long for their part of it, and one that was dropped would begin anew. */
#define GUEST_MS   5000
#define CONFIRM_MS 60000
#define CROWDED_MS 5000

/* epoll data of the listening sockets: LISTENER plus their index; guests have theirs alone */
#define LISTENER       (1u << 31)
#define ACCEPTS_A_STEP 64
#define EVENTS         64 /* of a step */

_Static_assert(TUTTI_HELLO_MAX >= sizeof(tuttiHello), "a guest's buffer holds a hello");

#define HEARD "it repeated what another had said"

/* Of the hello of a stranger as much as tells how long it is. */
#define HEAD_BYTES (offsetof(tuttiHello, bytes) + sizeof(uint32_t))

static tuttiResult_t watchListener(tuttiGreeter *g, int op, bool on) {
  for (int i = 0; i < g->listener->n; i++) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.u32 = LISTENER + (uint32_t)i};
    if (epoll_ctl(g->epollFd, op, g->listener->fds[i], &event) != 0)
      return TUTTI_FAIL(tuttiSystemError, "epoll_ctl on a listener failed: %s",
                        tuttiErrnoText(errno));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiGreeterOpen(tuttiGreeter *g, tuttiMemAccount *memory) {
  g->epollFd = epoll_create1(EPOLL_CLOEXEC);
  if (g->epollFd < 0) return TUTTI_FAIL_SOCKET(tuttiSystemError, errno, "epoll_create1 failed");
  tuttiForkCloseAdd(g->epollFd);
  tuttiResult_t result = tuttiAlloc((void **)&g->guests, (size_t)g->nguests, sizeof(tuttiGuest),
                                    "connections to a listener", memory);
  for (int i = 0; result == tuttiSuccess && i < g->nguests; i++)
    g->guests[i].fd = -1;
  if (result == tuttiSuccess) result = watchListener(g, EPOLL_CTL_ADD, true);
  if (result != tuttiSuccess) tuttiGreeterClose(g);
  return result;
}

static void drop(tuttiGreeter *g, tuttiGuest *guest) {
  epoll_ctl(g->epollFd, EPOLL_CTL_DEL, guest->fd, NULL);
  tuttiFdClose(&guest->fd);
}

/* Drops one who has not shown to know the secret. */
static void dropStranger(tuttiGreeter *g, tuttiGuest *guest, const char *why) {
  char from[80];
  uint32_t n = tuttiLogCount(&g->strangers);
  if (n > 0)
    TUTTI_WARN(BOOTSTRAP,
               "%s dropped %u connection%s of strangers, the last from %s: %s; for a minute there "
               "will be no more lines about this",
               g->what, n, n > 1 ? "s" : "", tuttiAddressText(&guest->from, from, sizeof(from)),
               why);
  drop(g, guest);
}

/* Nothing of the hello may be left unread, or a reset overtakes the reply. */
static void refuse(const tuttiGuest *guest, const tuttiSession *session, tuttiResult_t code,
                   const char *text) {
  uint8_t rest[TUTTI_HELLO_MAX];
  tuttiReplySend(guest->fd, session, tuttiReplyFailed, code, text,
                 strnlen(text, TUTTI_ERROR_TEXT - 1), NULL);
  tuttiSecureRecv(guest->fd, rest, sizeof(rest));
}

/* What has come of a hello, as far as it has. */
static tuttiHello headOf(const tuttiGuest *guest) {
  tuttiHello head = {0};
  memcpy(&head, guest->message, guest->got < sizeof(head) ? guest->got : sizeof(head));
  return head;
}

/* Judges what has come of a hello as early as possible. */
static bool mayBeOurs(const tuttiGreeter *g, const tuttiGuest *guest) {
  tuttiHello head = headOf(guest);
  if (guest->got >= sizeof(head.magic) && head.magic != TUTTI_HELLO_MAGIC) return false;
  if (guest->got < HEAD_BYTES) return true;
  if (head.version == TUTTI_VERSION_CODE) return head.bytes == g->helloBytes;
  return g->otherVersion && head.bytes >= offsetof(tuttiHello, mac) + sizeof(head.mac) &&
         head.bytes <= TUTTI_HELLO_MAX;
}

/* Bytes that are awaited of a guest in all, as far as is known: of the hello's head, the hello, or
 * the confirm. */
static size_t awaited(const tuttiGreeter *g, const tuttiGuest *guest) {
  if (guest->accepted) return g->helloBytes + TUTTI_MAC_BYTES;
  return guest->got < HEAD_BYTES ? HEAD_BYTES : headOf(guest).bytes;
}

static void tellVersion(tuttiGreeter *g, const tuttiGuest *guest, const tuttiSession *session) {
  uint32_t version = headOf(guest).version;
  g->refuseCode = tuttiInvalidUsage;
  snprintf(g->refuseText, sizeof(g->refuseText),
           "versions differ: host %s pid %d runs tutti %d.%d.%d (%s), a process that connected to "
           "it runs %u.%u.%u; start all ranks with one version of the library",
           tuttiHostname(), (int)getpid(), TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH,
           tuttiLibraryPath(), version / 10000, version / 100 % 100, version % 100);
  refuse(guest, session, g->refuseCode, g->refuseText);
  g->otherVersion(g->ctx);
}

/* Another guest has said the same, which was new when it was said first. */
static bool isRepeated(const tuttiGreeter *g, const tuttiGuest *guest) {
  const size_t at = offsetof(tuttiHello, mac);
  for (int i = 0; i < g->nguests; i++) {
    const tuttiGuest *other = &g->guests[i];
    if (other != guest && other->fd >= 0 && other->accepted &&
        memcmp(other->message + at, guest->message + at, TUTTI_MAC_BYTES) == 0)
      return true;
  }
  return false;
}

/* The hello of `guest`, who does not know the secret, has come. */
static void sendAway(tuttiGreeter *g, tuttiGuest *guest) {
  char text[TUTTI_ERROR_TEXT];
  tuttiSession session = {.secret = g->openSecret};
  if (g->openSecret && headOf(guest).version == TUTTI_VERSION_CODE &&
      tuttiHelloGenuine(guest->message, guest->got, &session)) {
    if (g->stray(g->ctx, guest->message, &guest->from, text))
      refuse(guest, &session, tuttiInvalidUsage, text);
    drop(g, guest);
    return;
  }
  dropStranger(g, guest, "it does not know the secret");
}

/* The hello of `guest` has come. */
static void greet(tuttiGreeter *g, tuttiGuest *guest) {
  tuttiSession session = {.secret = g->secret};
  if (!tuttiHelloGenuine(guest->message, guest->got, &session)) {
    sendAway(g, guest);
    return;
  }
  if (isRepeated(g, guest)) {
    dropStranger(g, guest, HEARD);
    return;
  }
  tuttiVerdict verdict = TUTTI_GUEST_DROP;
  if (headOf(guest).version != TUTTI_VERSION_CODE)
    tellVersion(g, guest, &session);
  else
    verdict = g->check(g->ctx, guest->message);
  if (verdict == TUTTI_GUEST_ACCEPT) {
    tuttiReplySend(guest->fd, &session, tuttiReplyAccepted, 0, NULL, 0, guest->confirm);
    guest->accepted = true;
    guest->until = tuttiDeadline(CONFIRM_MS);
    return;
  }
  if (verdict == TUTTI_GUEST_REFUSE) refuse(guest, &session, g->refuseCode, g->refuseText);
  drop(g, guest);
}

/* The confirm of `guest` has come. */
static void letPass(tuttiGreeter *g, tuttiGuest *guest) {
  int fd = guest->fd;
  if (!tuttiMacSame(guest->message + g->helloBytes, guest->confirm)) {
    dropStranger(g, guest, HEARD);
    return;
  }
  epoll_ctl(g->epollFd, EPOLL_CTL_DEL, fd, NULL);
  guest->fd = -1;
  g->welcome(g->ctx, guest->message, fd);
}

/* Whether the guest of an encrypting listener speaks TLS, as its first byte tells. */
static tuttiGuestCover findCover(const tuttiGreeter *g, const tuttiGuest *guest) {
  uint8_t first;
  if (!g->clearToo) return TUTTI_GUEST_SECURING;
  ssize_t n = recv(guest->fd, &first, sizeof(first), MSG_PEEK | MSG_DONTWAIT);
  if (n < 0) return TUTTI_GUEST_UNKNOWN;
  return n == 0 || first == TUTTI_TLS_FIRST ? TUTTI_GUEST_SECURING : TUTTI_GUEST_CLEAR;
}

/* Its caller has given up meanwhile: an answer would be work for nothing. */
static bool hasHungUp(const tuttiGuest *guest) {
  struct pollfd p = {.fd = guest->fd, .events = POLLRDHUP};
  return poll(&p, 1, 0) > 0;
}

/* Of a guest that waits for the answer of TLS. */
static bool isUnanswered(const tuttiGuest *guest) {
  return guest->cover == TUTTI_GUEST_UNKNOWN || guest->cover == TUTTI_GUEST_SECURING;
}

static void noteAnswer(tuttiGuest *guest) {
  if (!isUnanswered(guest) || !tuttiSecureAnswered(guest->fd)) return;
  guest->cover = TUTTI_GUEST_ANSWERED;
  guest->until = tuttiDeadline(CONFIRM_MS);
}

/* Goes on with the handshake of TLS, of a stranger still. False: there is nothing to read yet, or
 * the guest has gone. */
static bool isCovered(tuttiGreeter *g, tuttiGuest *guest) {
  short events;
  if (guest->cover == TUTTI_GUEST_UNKNOWN) {
    guest->cover = findCover(g, guest);
    if (guest->cover == TUTTI_GUEST_SECURING &&
        tuttiSecureStart(guest->fd, true, g->tls) != tuttiSuccess) {
      drop(g, guest);
      return false;
    }
  }
  if (guest->cover == TUTTI_GUEST_CLEAR || guest->cover == TUTTI_GUEST_SECURE) return true;
  if (guest->cover == TUTTI_GUEST_UNKNOWN) return false;
  if (guest->cover == TUTTI_GUEST_SECURING && hasHungUp(guest)) {
    drop(g, guest);
    return false;
  }
  /* All that this side says fits the empty buffer of a fresh socket: it waits for the guest alone.
   */
  int done = tuttiSecureHandshake(guest->fd, &events);
  if (done == -ECONNRESET)
    drop(g, guest);
  else if (done < 0)
    dropStranger(g, guest,
                 done == -EKEYREJECTED ? "it does not have the key" : "it does not speak TLS");
  if (done == 1) guest->cover = TUTTI_GUEST_SECURE;
  if (done == 0) noteAnswer(guest);
  return done == 1;
}

static void serve(tuttiGreeter *g, tuttiGuest *guest) {
  if (!isCovered(g, guest)) return;
  while (guest->fd >= 0) {
    size_t end = awaited(g, guest);
    ssize_t n = tuttiSecureRecv(guest->fd, guest->message + guest->got, end - guest->got);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) guest->got += (uint32_t)n;
    if (n <= 0)
      drop(g, guest);
    else if (!guest->accepted && !mayBeOurs(g, guest))
      dropStranger(g, guest, "it does not speak this protocol");
    else if (guest->got < awaited(g, guest))
      continue;
    else if (guest->accepted)
      letPass(g, guest);
    else
      greet(g, guest);
  }
}

/* One of few numbers, the same for all addresses of a host, or of one network of IPv6, of which
 * anybody has 2^64 addresses. */
#define ORIGINS 256
static unsigned originOf(const tuttiAddress *a) {
  uint8_t bytes[8] = {0};
  const uint8_t *v6 = a->v6.sin6_addr.s6_addr;
  if (a->sa.sa_family != AF_INET6)
    memcpy(bytes, &a->v4.sin_addr, sizeof(a->v4.sin_addr));
  else if (IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr))
    memcpy(bytes, v6 + 12, 4);
  else
    memcpy(bytes, v6, sizeof(bytes));
  return (unsigned)(tuttiHash(bytes, sizeof(bytes)) % ORIGINS);
}

static bool isStranger(const tuttiGuest *guest) {
  return guest->fd >= 0 && !guest->accepted;
}

/* Who makes room: of the origin that has most strangers, the one that has waited longest. NULL: all
 * know the secret, or seem to. */
static tuttiGuest *findStranger(const tuttiGreeter *g) {
  tuttiGuest *found = NULL;
  uint16_t count[ORIGINS] = {0};
  int most = 0;
  for (int i = 0; i < g->nguests; i++)
    if (isStranger(&g->guests[i])) count[originOf(&g->guests[i].from)]++;
  for (int i = 0; i < g->nguests; i++) {
    tuttiGuest *guest = &g->guests[i];
    int same = isStranger(guest) ? count[originOf(&guest->from)] : 0;
    if (same == 0 || same < most || (same == most && guest->until >= found->until)) continue;
    found = guest;
    most = same;
  }
  return found;
}

static tuttiGuest *findPlace(const tuttiGreeter *g) {
  for (int i = 0; i < g->nguests; i++)
    if (g->guests[i].fd < 0) return &g->guests[i];
  return NULL;
}

/* As serve; true if the guest was answered in the handshake of TLS, which is the costly part. */
static bool answers(tuttiGreeter *g, tuttiGuest *guest) {
  bool before = isUnanswered(guest);
  serve(g, guest);
  return before && guest->fd >= 0 && guest->cover == TUTTI_GUEST_ANSWERED;
}

/* Lets one connection in, at the cost of a stranger if need be. *more: there may be others; what it
 * has said already may have been answered. */
static tuttiResult_t letIn(tuttiGreeter *g, int listenFd, bool *more, bool *answered) {
  tuttiGuest *place = findPlace(g), *stranger = place ? NULL : findStranger(g);
  *more = false;
  if (!place && !stranger) {
    g->full = true;
    return watchListener(g, EPOLL_CTL_MOD, false);
  }
  tuttiAddress from;
  int fd = tuttiAcceptNow(listenFd, &from);
  if (fd == -EAGAIN) return tuttiSuccess;
  if (fd < 0 && !stranger) stranger = findStranger(g);
  if (fd < 0 && !stranger)
    return TUTTI_FAIL_SOCKET(tuttiSystemError, -fd,
                             "%s (host %s, pid %d) cannot accept a connection", g->what,
                             tuttiHostname(), (int)getpid());
  if (fd < 0 || !place) {
    dropStranger(g, stranger, "it made room for another");
    place = stranger;
  }
  *more = true;
  if (fd < 0) return tuttiSuccess; /* out of fds: the next try has that of the stranger */
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(place - g->guests)};
  if (epoll_ctl(g->epollFd, EPOLL_CTL_ADD, fd, &event) != 0) {
    close(fd); /* out of kernel memory: as if the caller had been dropped; it tries again */
    return tuttiSuccess;
  }
  tuttiForkCloseAdd(fd);
  place->fd = fd;
  place->from = from;
  place->cover = g->tls && g->tls->on ? TUTTI_GUEST_UNKNOWN : TUTTI_GUEST_CLEAR;
  place->accepted = false;
  place->got = 0;
  place->until = tuttiDeadline(GUEST_MS);
  *answered = answers(g, place);
  return tuttiSuccess;
}

/* When a guest is too slow. A good hello is no proof, so it keeps nobody out for long. */
static uint64_t patienceFor(const tuttiGreeter *g, const tuttiGuest *guest) {
  bool crowded = g->full && guest->accepted;
  return crowded ? guest->until - (CONFIRM_MS - CROWDED_MS) * TUTTI_MS : guest->until;
}

/* It has said something that this end has not come to: that is no silence. */
static bool isHeard(const tuttiGuest *guest) {
  struct pollfd p = {.fd = guest->fd, .events = POLLIN};
  return isUnanswered(guest) && poll(&p, 1, 0) > 0;
}

static tuttiResult_t dropTheSlow(tuttiGreeter *g) {
  uint64_t now = tuttiNow();
  bool room = false;
  for (int i = 0; i < g->nguests; i++) {
    tuttiGuest *guest = &g->guests[i];
    if (guest->fd >= 0 && now >= patienceFor(g, guest) && !isHeard(guest))
      dropStranger(g, guest, "it was silent");
    room |= guest->fd < 0;
  }
  if (!g->full || !room) return tuttiSuccess;
  g->full = false;
  return watchListener(g, EPOLL_CTL_MOD, true);
}

/* Puts one more of n guests where it belongs: who has waited longest comes first. */
static void enqueue(tuttiGuest **queue, int n, tuttiGuest *guest) {
  for (; n > 0 && queue[n - 1]->until > guest->until; n--)
    queue[n] = queue[n - 1];
  queue[n] = guest;
}

static tuttiResult_t letAllIn(tuttiGreeter *g, int listenFd, bool *answered) {
  bool more = true;
  for (int k = 0; k < ACCEPTS_A_STEP && more && !*answered; k++)
    TUTTI_TRY(letIn(g, listenFd, &more, answered));
  return tuttiSuccess;
}

/* Whose handshake is nearly over comes first, and while there is one to answer, those who have not
 * been let in wait in the kernel's queue, where nobody drops them. */
tuttiResult_t tuttiGreeterStep(tuttiGreeter *g) {
  struct epoll_event events[EVENTS];
  tuttiGuest *queue[EVENTS];
  int waiting = 0, n = epoll_wait(g->epollFd, events, EVENTS, 0);
  bool answered = false;
  for (int i = 0; i < n; i++) {
    if (events[i].data.u32 >= LISTENER) continue;
    tuttiGuest *guest = &g->guests[events[i].data.u32];
    if (isUnanswered(guest))
      enqueue(queue, waiting++, guest);
    else
      serve(g, guest);
  }
  for (int i = 0; i < waiting && !answered; i++)
    answered = answers(g, queue[i]);
  for (int i = 0; i < n && !answered; i++)
    if (events[i].data.u32 >= LISTENER)
      TUTTI_TRY(letAllIn(g, g->listener->fds[events[i].data.u32 - LISTENER], &answered));
  return dropTheSlow(g);
}

uint64_t tuttiGreeterNext(const tuttiGreeter *g) {
  uint64_t next = TUTTI_NO_DEADLINE;
  for (int i = 0; i < g->nguests; i++) {
    const tuttiGuest *guest = &g->guests[i];
    if (guest->fd >= 0 && patienceFor(g, guest) < next) next = patienceFor(g, guest);
  }
  return next;
}

void tuttiGreeterClose(tuttiGreeter *g) {
  if (g->epollFd < 0) return;
  for (int i = 0; g->guests && i < g->nguests; i++)
    if (g->guests[i].fd >= 0) drop(g, &g->guests[i]);
  uint32_t untold = tuttiLogRest(&g->strangers);
  if (untold > 0)
    TUTTI_WARN(BOOTSTRAP, "%s dropped %u more connections of strangers", g->what, untold);
  tuttiFree(g->guests);
  g->guests = NULL;
  tuttiFdClose(&g->epollFd);
}
