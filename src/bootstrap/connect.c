#include "bootstrap/connect.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/os.h"

#define MS          1000000ull
#define LONE_MS     10000u /* after this a silent attempt is begun anew */
#define ATTEMPT_MS  250u   /* the same for one of several addresses in the first round; doubles */
#define BACKOFF_MS  20u    /* after the first round; doubles up to: */
#define MAX_BACKOFF 1000u

static bool isLinkLocal6(const tuttiAddress *a) {
  return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr);
}

static void addTarget(tuttiConnector *c, const tuttiAddress *target) {
  if (c->n == TUTTI_MAX_TARGETS) return;
  for (int i = 0; i < c->n; i++)
    if (memcmp(&c->attempts[i].target, target, tuttiAddressLength(target)) == 0) return;
  c->attempts[c->n++].target = *target;
}

void tuttiConnectorInit(tuttiConnector *c, const tuttiAddressList *targets) {
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int n;
  *c = (tuttiConnector){.fd = -1, .backoffMs = BACKOFF_MS};
  for (int i = 0; i < targets->n; i++)
    addTarget(c, &targets->a[i]);
  for (int i = 0; i < targets->n; i++) {
    tuttiAddress scoped = targets->a[i];
    if (!isLinkLocal6(&scoped)) continue;
    if (tuttiInterfaces(interfaces, TUTTI_MAX_INTERFACES, &n) != tuttiSuccess) break;
    for (int k = 0; k < n; k++) {
      if (!isLinkLocal6(&interfaces[k].address)) continue;
      scoped.v6.sin6_scope_id = interfaces[k].address.v6.sin6_scope_id;
      addTarget(c, &scoped);
    }
  }
  c->attemptMs = c->n > 1 ? ATTEMPT_MS : LONE_MS;
}

void tuttiConnectorStop(tuttiConnector *c) {
  if (c->n > 0 && c->fd >= 0) close(c->fd);
  c->fd = -1;
}

void tuttiConnectorReject(tuttiConnector *c, int error) {
  uint64_t now = tuttiNow();
  tuttiAttempt *a = &c->attempts[c->current];
  tuttiConnectorStop(c);
  a->error = error;
  if (error != ECONNREFUSED)
    a->refusedSince = 0;
  else if (a->refusedSince == 0)
    a->refusedSince = now;
  c->due = now;
  c->current = (c->current + 1) % c->n;
  if (c->current != 0) return;
  c->due += c->backoffMs * MS;
  c->backoffMs = c->backoffMs * 2 > MAX_BACKOFF ? MAX_BACKOFF : c->backoffMs * 2;
  c->attemptMs = c->attemptMs * 2 > LONE_MS ? LONE_MS : c->attemptMs * 2;
}

/* Starts an attempt at the current address; *state is its errno if that fails at once. */
static tuttiResult_t begin(tuttiConnector *c, const char *who, int *state) {
  tuttiAttempt *a = &c->attempts[c->current];
  a->local = (tuttiAddress){.sa.sa_family = AF_UNSPEC};
  int fd = socket(a->target.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  *state = fd < 0 ? errno : EINPROGRESS;
  if (*state == EAFNOSUPPORT) return tuttiSuccess;
  if (fd < 0) return TUTTI_FAIL_SOCKET(tuttiSystemError, errno, "no socket to connect to %s", who);
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  c->fd = fd;
  c->due = tuttiNow() + c->attemptMs * MS;
  if (connect(fd, &a->target.sa, tuttiAddressLength(&a->target)) != 0 && errno != EINTR)
    *state = errno;
  socklen_t length = sizeof(a->local);
  if (*state != EINPROGRESS || getsockname(fd, &a->local.sa, &length) != 0)
    a->local.sa.sa_family = AF_UNSPEC;
  return tuttiSuccess;
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

/* 0: connected; EINPROGRESS: not yet; else why not. */
static int attemptState(const tuttiConnector *c) {
  struct pollfd p = {.fd = c->fd, .events = POLLOUT};
  if (poll(&p, 1, 0) <= 0) return tuttiNow() >= c->due ? ETIMEDOUT : EINPROGRESS;
  int err = 0;
  socklen_t length = sizeof(err);
  if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &length) != 0) return errno;
  return err == 0 && metItself(c->fd) ? ECONNREFUSED : err;
}

tuttiResult_t tuttiConnectorStep(tuttiConnector *c, const char *who, int *fd, int *index) {
  *fd = -1;
  while (c->n > 0 && (c->fd >= 0 || tuttiNow() >= c->due)) {
    int state = EINPROGRESS;
    if (c->fd < 0) TUTTI_TRY(begin(c, who, &state));
    if (state == EINPROGRESS) state = attemptState(c);
    if (state == EINPROGRESS) return tuttiSuccess;
    if (state == 0) {
      *fd = c->fd;
      *index = c->current;
      c->fd = -1;
      return tuttiSuccess;
    }
    tuttiConnectorReject(c, state);
  }
  return tuttiSuccess;
}

uint64_t tuttiConnectorWaitOn(const tuttiConnector *c, struct pollfd *fd) {
  *fd = (struct pollfd){.fd = c->fd, .events = POLLOUT};
  return c->due;
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
  int worst = 0;
  buf[0] = '\0';
  for (int i = 0; i < c->n; i++) {
    const tuttiAttempt *a = &c->attempts[i];
    int error = a->error;
    if (error == 0 && c->fd >= 0 && i == c->current) error = ETIMEDOUT;
    /* Of several causes, the one that a route or a setting can cure is worth the remedy. */
    if (worst == 0 || worst == ECONNREFUSED) worst = error ? error : worst;
    bool none = a->local.sa.sa_family == AF_UNSPEC;
    tuttiAppend(buf, size, "%s%s from %s: %s", i ? ", " : "",
                tuttiAddressText(&a->target, target, sizeof(target)),
                none ? "no interface" : tuttiInterfaceOf(&a->local, from, sizeof(from)),
                error == 0           ? "not tried yet"
                : error == ETIMEDOUT ? "no answer"
                                     : tuttiErrnoText(error));
  }
  if (worst) tuttiAppend(buf, size, "; %s", tuttiSocketRemedy(worst, remedy, sizeof(remedy)));
  return buf;
}
