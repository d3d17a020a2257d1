#include "bootstrap/connect.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/os.h"

#define MS          1000000ull
#define STAGGER_MS  250u   /* between first attempts at different addresses */
#define ATTEMPT_MS  10000u /* after this a silent attempt is begun anew */
#define BACKOFF_MS  20u    /* after the first failure; doubles up to: */
#define MAX_BACKOFF 1000u

static bool isLinkLocal6(const tuttiAddress *a) {
  return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr);
}

static void addTarget(tuttiConnector *c, const tuttiAddress *target) {
  if (c->n == TUTTI_MAX_TARGETS) return;
  for (int i = 0; i < c->n; i++)
    if (memcmp(&c->attempts[i].target, target, tuttiAddressLength(target)) == 0) return;
  tuttiAttempt *a = &c->attempts[c->n];
  *a = (tuttiAttempt){.target = *target, .fd = -1, .backoffMs = BACKOFF_MS};
  a->startAt = tuttiNow() + (uint64_t)c->n * STAGGER_MS * MS;
  c->n++;
}

void tuttiConnectorInit(tuttiConnector *c, const tuttiAddress *targets, int n,
                        const tuttiInterface *interfaces, int ninterfaces) {
  memset(c, 0, sizeof(*c));
  for (int i = 0; i < n; i++)
    addTarget(c, &targets[i]);
  for (int i = 0; i < n; i++) {
    if (!isLinkLocal6(&targets[i])) continue;
    for (int k = 0; k < ninterfaces; k++) {
      if (!isLinkLocal6(&interfaces[k].address)) continue;
      tuttiAddress scoped = targets[i];
      scoped.v6.sin6_scope_id = interfaces[k].address.v6.sin6_scope_id;
      addTarget(c, &scoped);
    }
  }
}

static void endAttempt(tuttiAttempt *a, int error) {
  uint64_t now = tuttiNow();
  if (a->fd >= 0) close(a->fd);
  a->fd = -1;
  a->error = error;
  if (error != ECONNREFUSED)
    a->refusedSince = 0;
  else if (a->refusedSince == 0)
    a->refusedSince = now;
  a->startAt = now + a->backoffMs * MS;
  a->backoffMs = a->backoffMs * 2 > MAX_BACKOFF ? MAX_BACKOFF : a->backoffMs * 2;
}

/* An address that failed at once gives its turn to the next that has not been tried. */
static void hurryNext(tuttiConnector *c) {
  for (int i = 0; i < c->n; i++) {
    tuttiAttempt *a = &c->attempts[i];
    if (a->fd >= 0 || a->error != 0) continue;
    uint64_t now = tuttiNow();
    if (a->startAt > now) a->startAt = now;
    return;
  }
}

static tuttiResult_t beginAttempt(tuttiAttempt *a, const char *who) {
  int fd = socket(a->target.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 && errno == EAFNOSUPPORT) {
    endAttempt(a, EAFNOSUPPORT);
    return tuttiSuccess;
  }
  if (fd < 0) return TUTTI_FAIL_SOCKET(tuttiSystemError, errno, "no socket to connect to %s", who);
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  a->fd = fd;
  a->giveUpAt = tuttiNow() + ATTEMPT_MS * MS;
  bool failed = connect(fd, &a->target.sa, tuttiAddressLength(&a->target)) != 0 &&
                errno != EINPROGRESS && errno != EINTR;
  int err = errno;
  socklen_t length = sizeof(a->local);
  memset(&a->local, 0, sizeof(a->local));
  if (failed || getsockname(fd, &a->local.sa, &length) != 0) a->local.sa.sa_family = AF_UNSPEC;
  if (failed) endAttempt(a, err);
  return tuttiSuccess;
}

/* 0: connected; EINPROGRESS: not yet; else why not. */
static int attemptState(const tuttiAttempt *a) {
  struct pollfd p = {.fd = a->fd, .events = POLLOUT};
  if (poll(&p, 1, 0) <= 0) return tuttiNow() >= a->giveUpAt ? ETIMEDOUT : EINPROGRESS;
  int err = 0;
  socklen_t length = sizeof(err);
  if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &err, &length) != 0) return errno;
  return err;
}

/* With both ports in the ephemeral range, a connection to a free local port may meet itself. */
static bool metItself(int fd) {
  tuttiAddress local, peer;
  socklen_t n = sizeof(local), m = sizeof(peer);
  memset(&local, 0, sizeof(local));
  memset(&peer, 0, sizeof(peer));
  return getsockname(fd, &local.sa, &n) == 0 && getpeername(fd, &peer.sa, &m) == 0 && n == m &&
         memcmp(&local, &peer, n) == 0;
}

tuttiResult_t tuttiConnectorStep(tuttiConnector *c, const char *who, int *fd, int *index) {
  *fd = -1;
  for (int i = 0; i < c->n; i++) {
    tuttiAttempt *a = &c->attempts[i];
    if (a->fd < 0 && tuttiNow() >= a->startAt) {
      TUTTI_TRY(beginAttempt(a, who));
      if (a->fd < 0) hurryNext(c);
    }
    if (a->fd < 0) continue;
    int state = attemptState(a);
    if (state == 0 && metItself(a->fd)) state = ECONNREFUSED;
    if (state == 0) {
      *fd = a->fd;
      *index = i;
      a->fd = -1;
      return tuttiSuccess;
    }
    if (state != EINPROGRESS) {
      endAttempt(a, state);
      hurryNext(c);
    }
  }
  return tuttiSuccess;
}

uint64_t tuttiConnectorWaitOn(const tuttiConnector *c, struct pollfd *fds) {
  uint64_t until = TUTTI_NO_DEADLINE;
  for (int i = 0; i < TUTTI_MAX_TARGETS; i++) {
    fds[i] = (struct pollfd){.fd = -1};
    if (i >= c->n) continue;
    const tuttiAttempt *a = &c->attempts[i];
    if (a->fd >= 0) fds[i] = (struct pollfd){.fd = a->fd, .events = POLLOUT};
    uint64_t next = a->fd >= 0 ? a->giveUpAt : a->startAt;
    if (next < until) until = next;
  }
  return until;
}

void tuttiConnectorStop(tuttiConnector *c) {
  for (int i = 0; i < c->n; i++) {
    if (c->attempts[i].fd >= 0) close(c->attempts[i].fd);
    c->attempts[i].fd = -1;
  }
}

void tuttiConnectorReject(tuttiConnector *c, int index, int error) {
  endAttempt(&c->attempts[index], error);
  uint64_t now = tuttiNow();
  for (int i = 0; i < c->n; i++)
    if (i != index && c->attempts[i].startAt > now) c->attempts[i].startAt = now;
}

bool tuttiConnectorRefused(const tuttiConnector *c, uint32_t ms) {
  uint64_t now = tuttiNow();
  for (int i = 0; i < c->n; i++) {
    uint64_t since = c->attempts[i].refusedSince;
    if (since == 0 || now - since < ms * MS) return false;
  }
  return c->n > 0;
}

const char *tuttiConnectorText(const tuttiConnector *c, char *buf, size_t size) {
  char target[80], from[96], remedy[128];
  size_t used = 0;
  int worst = 0;
  buf[0] = '\0';
  for (int i = 0; i < c->n && used < size; i++) {
    const tuttiAttempt *a = &c->attempts[i];
    int error = a->error;
    if (error == 0) error = a->fd >= 0 ? ETIMEDOUT : 0;
    /* Of several causes, the one that a route or a setting can cure is worth the remedy. */
    if (worst == 0 || worst == ECONNREFUSED) worst = error ? error : worst;
    bool none = a->local.sa.sa_family == AF_UNSPEC;
    used +=
        (size_t)snprintf(buf + used, size - used, "%s%s from %s: %s", i ? ", " : "",
                         tuttiAddressText(&a->target, target, sizeof(target)),
                         none ? "no interface" : tuttiInterfaceOf(&a->local, from, sizeof(from)),
                         error == 0           ? "not tried yet"
                         : error == ETIMEDOUT ? "no answer"
                                              : tuttiErrnoText(error));
  }
  if (worst && used < size)
    snprintf(buf + used, size - used, "; %s", tuttiSocketRemedy(worst, remedy, sizeof(remedy)));
  return buf;
}
