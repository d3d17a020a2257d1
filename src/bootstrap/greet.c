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

#define GUEST_MS   5000  /* for a stranger's hello */
#define CONFIRM_MS 60000 /* for the confirm of one that knows the secret */

#define LISTENER       UINT32_MAX /* epoll data of the listening socket */
#define ACCEPTS_A_STEP 64

_Static_assert(TUTTI_HELLO_MAX >= sizeof(tuttiHello), "a guest's buffer holds a hello");

static tuttiResult_t watchListener(tuttiGreeter *g, int op, bool on) {
  struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.u32 = LISTENER};
  if (epoll_ctl(g->epollFd, op, g->listenFd, &event) == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError, "epoll_ctl on a listener failed: %s", tuttiErrnoText(errno));
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

/* Nothing of the hello may be left unread, or a reset overtakes the reply. */
static void refuse(const tuttiGreeter *g, const tuttiGuest *guest) {
  uint8_t rest[TUTTI_HELLO_MAX];
  tuttiReplySend(guest->fd, tuttiReplyFailed, g->refuseCode, g->refuseText,
                 strnlen(g->refuseText, sizeof(g->refuseText) - 1));
  recv(guest->fd, rest, sizeof(rest), MSG_DONTWAIT);
}

/* Takes as long for a wrong secret as for the right one. */
static bool sameSecret(const uint8_t *a, const uint8_t *b, size_t bytes) {
  uint8_t differ = 0;
  for (size_t i = 0; i < bytes; i++)
    differ |= (uint8_t)(a[i] ^ b[i]);
  return differ == 0;
}

/* Judges what has come of a hello as early as possible. False: drop. */
static bool judgeHead(tuttiGreeter *g, tuttiGuest *guest) {
  tuttiHello head;
  memcpy(&head, guest->message, sizeof(head));
  if (guest->got >= sizeof(head.magic) && head.magic != TUTTI_HELLO_MAGIC) return false;
  if (guest->got < offsetof(tuttiHello, hash)) return true;
  bool knowsSecret = sameSecret(head.secret, g->secret, sizeof(head.secret));
  if (head.version == TUTTI_VERSION_CODE) return knowsSecret;
  if (!g->otherVersion || !knowsSecret) return false;
  g->refuseCode = tuttiInvalidUsage;
  snprintf(g->refuseText, sizeof(g->refuseText),
           "versions differ: host %s pid %d runs tutti %d.%d.%d (%s), a process that connected to "
           "it runs %u.%u.%u; start all ranks with one version of the library",
           tuttiHostname(), (int)getpid(), TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH,
           tuttiLibraryPath(), head.version / 10000, head.version / 100 % 100, head.version % 100);
  refuse(g, guest);
  g->otherVersion(g->ctx);
  return false;
}

/* What `guest` had to say has come: its hello, or its confirm. */
static void complete(tuttiGreeter *g, tuttiGuest *guest) {
  uint32_t confirm = 0;
  if (guest->accepted) memcpy(&confirm, guest->message + g->helloBytes, sizeof(confirm));
  tuttiVerdict verdict = confirm == TUTTI_CONFIRM ? TUTTI_GUEST_TAKEN
                         : guest->accepted        ? TUTTI_GUEST_DROP
                                                  : g->check(g->ctx, guest->message, guest->fd);
  if (verdict == TUTTI_GUEST_TAKEN) {
    int fd = guest->fd;
    epoll_ctl(g->epollFd, EPOLL_CTL_DEL, fd, NULL);
    guest->fd = -1;
    if (guest->accepted) g->welcome(g->ctx, guest->message, fd);
    return;
  }
  if (verdict == TUTTI_GUEST_ACCEPT) {
    tuttiReplySend(guest->fd, tuttiReplyAccepted, 0, NULL, 0);
    guest->accepted = true;
    guest->until = tuttiDeadline(CONFIRM_MS);
    return;
  }
  if (verdict == TUTTI_GUEST_REFUSE) refuse(g, guest);
  drop(g, guest);
}

static void serve(tuttiGreeter *g, tuttiGuest *guest) {
  while (guest->fd >= 0) {
    size_t end = g->helloBytes + (guest->accepted ? sizeof(uint32_t) : 0);
    ssize_t n = recv(guest->fd, guest->message + guest->got, end - guest->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) guest->got += (uint32_t)n;
    if (n <= 0 || (!guest->accepted && !judgeHead(g, guest)))
      drop(g, guest);
    else if (guest->got == end)
      complete(g, guest);
    else
      return;
  }
}

/* Lets one connection in, at the cost of the stranger that has waited longest if need be. *more:
 * there may be others. */
static tuttiResult_t letIn(tuttiGreeter *g, bool *more) {
  tuttiGuest *place = NULL, *stranger = NULL;
  *more = false;
  for (int i = 0; i < g->nguests; i++) {
    tuttiGuest *guest = &g->guests[i];
    if (guest->fd < 0)
      place = guest;
    else if (!guest->accepted && (!stranger || guest->until < stranger->until))
      stranger = guest;
  }
  if (!place && !stranger) {
    g->full = true;
    return watchListener(g, EPOLL_CTL_MOD, false);
  }
  int fd = tuttiAcceptNow(g->listenFd);
  if (fd == -EAGAIN) return tuttiSuccess;
  if (fd < 0 && !stranger) return TUTTI_FAIL_SOCKET(tuttiSystemError, -fd, "accept failed");
  if (fd < 0 || !place) {
    drop(g, stranger);
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
  place->accepted = false;
  place->got = 0;
  place->until = tuttiDeadline(GUEST_MS);
  serve(g, place);
  return tuttiSuccess;
}

static tuttiResult_t dropTheSlow(tuttiGreeter *g) {
  uint64_t now = tuttiNow();
  bool room = false;
  for (int i = 0; i < g->nguests; i++) {
    tuttiGuest *guest = &g->guests[i];
    if (guest->fd >= 0 && now >= guest->until) drop(g, guest);
    room |= guest->fd < 0;
  }
  if (!g->full || !room) return tuttiSuccess;
  g->full = false;
  return watchListener(g, EPOLL_CTL_MOD, true);
}

tuttiResult_t tuttiGreeterStep(tuttiGreeter *g) {
  struct epoll_event events[64];
  int n = epoll_wait(g->epollFd, events, 64, 0);
  for (int i = 0; i < n; i++) {
    if (events[i].data.u32 == LISTENER) {
      bool more = true;
      for (int k = 0; k < ACCEPTS_A_STEP && more; k++)
        TUTTI_TRY(letIn(g, &more));
    } else {
      serve(g, &g->guests[events[i].data.u32]);
    }
  }
  return dropTheSlow(g);
}

uint64_t tuttiGreeterNext(const tuttiGreeter *g) {
  uint64_t next = TUTTI_NO_DEADLINE;
  for (int i = 0; i < g->nguests; i++)
    if (g->guests[i].fd >= 0 && g->guests[i].until < next) next = g->guests[i].until;
  return next;
}

void tuttiGreeterClose(tuttiGreeter *g) {
  if (g->epollFd < 0) return;
  for (int i = 0; g->guests && i < g->nguests; i++)
    if (g->guests[i].fd >= 0) drop(g, &g->guests[i]);
  tuttiFree(g->guests);
  g->guests = NULL;
  tuttiFdClose(&g->epollFd);
}
