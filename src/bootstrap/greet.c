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

typedef enum {
  GUEST_HELLO,   /* reading its hello */
  GUEST_CONFIRM, /* accepted: reading its confirm */
  GUEST_LEAVING  /* refused: reading until it closes, so that no reset overtakes the reply */
} guestPhase;

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

static void enter(tuttiGuest *guest, guestPhase phase) {
  guest->phase = phase;
  guest->got = 0;
  guest->until = tuttiDeadline(phase == GUEST_CONFIRM ? TUTTI_CONFIRM_MS : TUTTI_GUEST_MS);
}

static void refuse(tuttiGreeter *g, tuttiGuest *guest) {
  tuttiReplySend(guest->fd, tuttiReplyFailed, g->refuseCode, g->refuseText,
                 strnlen(g->refuseText, sizeof(g->refuseText) - 1));
  shutdown(guest->fd, SHUT_WR);
  enter(guest, GUEST_LEAVING);
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
  uint32_t got = guest->got;
  if (got >= sizeof(head.magic) && head.magic != TUTTI_HELLO_MAGIC) return false;
  if (got < offsetof(tuttiHello, hash)) return true;
  bool knowsSecret = sameSecret(head.secret, g->secret, sizeof(head.secret));
  if (head.version == TUTTI_VERSION_CODE) return knowsSecret;
  if (!g->otherVersion) return false;
  g->refuseCode = tuttiInvalidUsage;
  snprintf(g->refuseText, sizeof(g->refuseText),
           "versions differ: host %s pid %d runs tutti %d.%d.%d (%s), a process that connected to "
           "it runs %u.%u.%u; start all ranks with one version of the library",
           tuttiHostname(), (int)getpid(), TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH,
           tuttiLibraryPath(), head.version / 10000, head.version / 100 % 100, head.version % 100);
  refuse(g, guest);
  if (knowsSecret) g->otherVersion(g->ctx);
  return true;
}

/* A message of `guest` is complete. */
static void complete(tuttiGreeter *g, tuttiGuest *guest) {
  if (guest->phase == GUEST_CONFIRM) {
    uint32_t confirm;
    memcpy(&confirm, guest->message + g->helloBytes, sizeof(confirm));
    if (confirm != TUTTI_CONFIRM) {
      drop(g, guest);
      return;
    }
    int fd = guest->fd;
    epoll_ctl(g->epollFd, EPOLL_CTL_DEL, fd, NULL);
    guest->fd = -1;
    g->welcome(g->ctx, guest->message, fd);
    return;
  }
  switch (g->check(g->ctx, guest->message, guest->fd)) {
  case TUTTI_GUEST_DROP:
    drop(g, guest);
    break;
  case TUTTI_GUEST_REFUSE:
    refuse(g, guest);
    break;
  case TUTTI_GUEST_ACCEPT:
    tuttiReplySend(guest->fd, tuttiReplyAccepted, 0, NULL, 0);
    enter(guest, GUEST_CONFIRM);
    break;
  }
}

/* Reads once. False: there is nothing more to do for this guest now. */
static bool readOnce(tuttiGreeter *g, tuttiGuest *guest) {
  uint8_t rubbish[512];
  uint8_t *at = rubbish;
  size_t want = sizeof(rubbish);
  if (guest->phase == GUEST_HELLO) {
    at = guest->message + guest->got;
    want = g->helloBytes - guest->got;
  } else if (guest->phase == GUEST_CONFIRM) {
    at = guest->message + g->helloBytes + guest->got;
    want = sizeof(uint32_t) - guest->got;
  }
  ssize_t n = recv(guest->fd, at, want, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    drop(g, guest);
    return false;
  }
  if (guest->phase == GUEST_LEAVING) return false; /* one read a step: a flood must not hold us */
  guest->got += (uint32_t)n;
  if (guest->phase == GUEST_HELLO && !judgeHead(g, guest)) {
    drop(g, guest);
    return false;
  }
  if (guest->phase == GUEST_LEAVING) return false;
  if ((size_t)n == want) complete(g, guest);
  return guest->fd >= 0 && (size_t)n == want;
}

static void serve(tuttiGreeter *g, tuttiGuest *guest) {
  while (guest->fd >= 0 && readOnce(g, guest))
    ;
}

/* The guest that has waited longest without showing that it knows the secret, or NULL. */
static tuttiGuest *oldestStranger(tuttiGreeter *g) {
  tuttiGuest *oldest = NULL;
  for (int i = 0; i < g->nguests; i++) {
    tuttiGuest *guest = &g->guests[i];
    if (guest->fd < 0 || guest->phase == GUEST_CONFIRM) continue;
    if (!oldest || guest->until < oldest->until) oldest = guest;
  }
  return oldest;
}

static tuttiGuest *freePlace(tuttiGreeter *g) {
  for (int i = 0; i < g->nguests; i++)
    if (g->guests[i].fd < 0) return &g->guests[i];
  return NULL;
}

/* Lets one connection in, at the cost of the oldest stranger if need be. *more: there may be
 * others. */
static tuttiResult_t letIn(tuttiGreeter *g, bool *more) {
  *more = false;
  tuttiGuest *place = freePlace(g), *stranger = oldestStranger(g);
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
  enter(place, GUEST_HELLO);
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
