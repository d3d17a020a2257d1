/* The calling end of the handshake, and what both ends share. */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "bootstrap/handshake.h"

#define LONE_MS         10000u /* after this a silent attempt is begun anew */
#define ATTEMPT_MS      250u /* the same for one of several addresses in the first round; doubles */
#define BACKOFF_MS      20u  /* after the first round; doubles up to: */
#define MAX_BACKOFF     1000u
#define PATIENCE_MS     5000u
#define MAX_PATIENCE_MS 60000u
#define SECURING_MS     20000u /* at least, for the answer of TLS: callers get it by turns */
#define TEXT_MS         5000   /* for the text that follows a Failed reply */

/* ---- shared --------------------------------------------------------------------------------- */

/* A message's MAC is told apart from those of others by its first piece. */
static const tuttiMacPart ofHello = {"tutti hello", 11}, ofReply = {"tutti reply", 11},
                          ofConfirm = {"tutti confirm", 13};

static void helloMac(const void *hello, size_t bytes, const uint8_t secret[16],
                     uint8_t mac[TUTTI_MAC_BYTES]) {
  const uint8_t *from = hello, zero[TUTTI_MAC_BYTES] = {0};
  size_t at = offsetof(tuttiHello, mac), after = at + sizeof(zero);
  const tuttiMacPart pieces[] = {
      ofHello, {from, at}, {zero, sizeof(zero)}, {from + after, bytes - after}};
  tuttiMac(secret, 16, pieces, 4, mac);
}

tuttiResult_t tuttiHelloSeal(void *hello, size_t bytes, tuttiSession *session) {
  tuttiHello *h = hello;
  h->bytes = (uint32_t)bytes;
  TUTTI_TRY(tuttiRandom(h->nonce, sizeof(h->nonce)));
  helloMac(hello, bytes, session->secret, h->mac);
  memcpy(session->hello, h->mac, sizeof(session->hello));
  return tuttiSuccess;
}

bool tuttiHelloGenuine(const void *hello, size_t bytes, tuttiSession *session) {
  uint8_t mac[TUTTI_MAC_BYTES];
  const uint8_t *said = (const uint8_t *)hello + offsetof(tuttiHello, mac);
  if (bytes < offsetof(tuttiHello, mac) + sizeof(mac)) return false;
  helloMac(hello, bytes, session->secret, mac);
  memcpy(session->hello, said, sizeof(session->hello));
  return tuttiMacSame(mac, said);
}

bool tuttiReplyValid(const tuttiReply *reply) {
  return reply->magic == TUTTI_HELLO_MAGIC && reply->bytes <= TUTTI_ERROR_TEXT &&
         reply->kind >= tuttiReplyAccepted && reply->kind <= tuttiReplyWho;
}

static void replyMac(const tuttiSession *session, const tuttiReply *reply, const void *data,
                     uint8_t mac[TUTTI_MAC_BYTES]) {
  tuttiReply plain = *reply;
  memset(plain.mac, 0, sizeof(plain.mac));
  const tuttiMacPart pieces[] = {ofReply,
                                 {session->hello, sizeof(session->hello)},
                                 {&plain, sizeof(plain)},
                                 {data, reply->bytes}};
  tuttiMac(session->secret, 16, pieces, 4, mac);
}

bool tuttiReplyGenuine(const tuttiSession *session, const tuttiReply *reply, const void *data) {
  uint8_t mac[TUTTI_MAC_BYTES];
  replyMac(session, reply, data, mac);
  return tuttiMacSame(mac, reply->mac);
}

void tuttiConfirmOf(const tuttiSession *session, const tuttiReply *reply,
                    uint8_t confirm[TUTTI_MAC_BYTES]) {
  const tuttiMacPart pieces[] = {
      ofConfirm, {session->hello, sizeof(session->hello)}, {reply->mac, sizeof(reply->mac)}};
  tuttiMac(session->secret, 16, pieces, 3, confirm);
}

void tuttiReplySend(int fd, const tuttiSession *session, tuttiReplyKind kind, int code,
                    const void *data, size_t bytes, uint8_t confirm[TUTTI_MAC_BYTES]) {
  uint8_t message[sizeof(tuttiReply) + TUTTI_ERROR_TEXT];
  tuttiReply reply = {.magic = TUTTI_HELLO_MAGIC,
                      .version = TUTTI_VERSION_CODE,
                      .kind = kind,
                      .code = code,
                      .bytes = (uint32_t)bytes};
  /* Without a nonce of its own the reply would be none: the caller sees a closed connection. */
  if (tuttiRandom(reply.nonce, sizeof(reply.nonce)) != tuttiSuccess) return;
  replyMac(session, &reply, data, reply.mac);
  if (confirm) tuttiConfirmOf(session, &reply, confirm);
  memcpy(message, &reply, sizeof(reply));
  if (bytes) memcpy(message + sizeof(reply), data, bytes);
  while (tuttiSecureSend(fd, message, sizeof(reply) + bytes) < 0 && errno == EINTR)
    ;
}

tuttiResult_t tuttiReplyAdopt(int fd, const tuttiSession *session, const tuttiReply *reply,
                              const char *who, tuttiWait wait) {
  char text[TUTTI_ERROR_TEXT + 1];
  uint64_t soon = tuttiDeadline(TEXT_MS);
  if (wait.deadline > soon) wait.deadline = soon;
  TUTTI_TRY(tuttiRecvAll(fd, text, reply->bytes, who, wait));
  if (!tuttiReplyGenuine(session, reply, text))
    return TUTTI_FAIL(tuttiRemoteError,
                      "%s sent a failure that is not its own; see what listens "
                      "there, or changes what it says",
                      who);
  text[reply->bytes] = '\0';
  for (char *p = text; *p; p++)
    if ((unsigned char)*p < ' ') *p = ' '; /* it goes to logs */
  bool known = reply->code > tuttiSuccess && reply->code < tuttiNumResults;
  return tuttiErrorAdopt(known ? (tuttiResult_t)reply->code : tuttiRemoteError, text);
}

void tuttiHelloFill(tuttiHello *h, uint64_t hash, tuttiHelloKind kind, int from, int to,
                    int nranks) {
  memset(h, 0, sizeof(*h));
  h->magic = TUTTI_HELLO_MAGIC;
  h->version = TUTTI_VERSION_CODE;
  h->hash = hash;
  h->kind = kind;
  h->from = from;
  h->to = to;
  h->nranks = nranks;
  h->pid = (int32_t)getpid();
  snprintf(h->host, sizeof(h->host), "%s", tuttiHostname());
}

const char *tuttiHelloName(const tuttiHello *h, char *buf, size_t size) {
  char host[sizeof(h->host) + 1];
  memcpy(host, h->host, sizeof(h->host));
  host[sizeof(h->host)] = '\0';
  for (char *p = host; *p; p++)
    if (*p <= ' ' || *p > '~') *p = '?';
  snprintf(buf, size, "rank %d (host %s, pid %d)", h->from, host, h->pid);
  return buf;
}

const char *tuttiLibraryPath(void) {
  Dl_info info;
  if (dladdr((const void *)(uintptr_t)&tuttiLibraryPath, &info) != 0 && info.dli_fname)
    return info.dli_fname;
  return "library of unknown path";
}

/* ---- connecting ----------------------------------------------------------------------------- */

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
  if (c->n > 0) tuttiFdClose(&c->fd);
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
  c->due += c->backoffMs * TUTTI_MS;
  c->backoffMs = c->backoffMs * 2 > MAX_BACKOFF ? MAX_BACKOFF : c->backoffMs * 2;
  c->attemptMs = c->attemptMs * 2 > LONE_MS ? LONE_MS : c->attemptMs * 2;
}

/* Inside a host a segment has 32 KiB, half of a new socket's window. Of a sender that is far ahead
 * of its reader there may be one for which the window, told in units of 1 KiB or so, is too small,
 * while the reader has too little room to tell of; the sender then tries again after 200 ms. So it
 * has an eighth less. (Half as many bytes cost large messages up to a third.) No network has larger
 * ones. */
#define MOST_SEGMENT 28672

/* Starts an attempt at the current address; *state is its errno if that fails at once. */
static tuttiResult_t begin(tuttiConnector *c, const char *who, int *state) {
  tuttiAttempt *a = &c->attempts[c->current];
  a->local = (tuttiAddress){.sa.sa_family = AF_UNSPEC};
  int fd = socket(a->target.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  *state = fd < 0 ? errno : EINPROGRESS;
  if (*state == EAFNOSUPPORT) return tuttiSuccess;
  if (fd < 0) return TUTTI_FAIL_SOCKET(tuttiSystemError, errno, "no socket to connect to %s", who);
  int on = 1, segment = MOST_SEGMENT;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
  c->fd = fd;
  tuttiForkCloseAdd(fd); /* a child forked while it connects would keep its end alive, too */
  c->due = tuttiNow() + c->attemptMs * TUTTI_MS;
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
    if (since == 0 || now - since < ms * TUTTI_MS) return false;
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

/* ---- dialing -------------------------------------------------------------------------------- */

void tuttiDialInit(tuttiDial *d, const tuttiAddressList *targets, void *hello, size_t helloBytes,
                   const uint8_t secret[16], const tuttiTlsKey *tls, const char *who) {
  *d = (tuttiDial){.fd = -1,
                   .hello = hello,
                   .helloBytes = helloBytes,
                   .session.secret = secret,
                   .tls = tls,
                   .who = who,
                   .remedy = ""};
  d->patienceMs = PATIENCE_MS;
  tuttiConnectorInit(&d->connector, targets);
}

tuttiResult_t tuttiDialReject(tuttiDial *d, int error) {
  tuttiFdClose(&d->fd);
  d->state = TUTTI_DIAL_CONNECTING;
  tuttiConnectorReject(&d->connector, error);
  return tuttiSuccess;
}

/* Until when the next word of the listener is waited for. A lone address is waited for as long as
 * it takes: its listener may be busy. */
static uint64_t patience(const tuttiDial *d, uint32_t least) {
  uint32_t ms = d->patienceMs < least ? least : d->patienceMs;
  return d->connector.n > 1 ? tuttiDeadline(ms) : TUTTI_NO_DEADLINE;
}

static tuttiResult_t tryConnect(tuttiDial *d) {
  TUTTI_TRY(tuttiConnectorStep(&d->connector, d->who, &d->fd, &d->index));
  if (d->fd < 0) return tuttiSuccess;
  bool encrypts = d->tls && d->tls->on;
  d->state = encrypts ? TUTTI_DIAL_SECURING : TUTTI_DIAL_ASKING;
  TUTTI_TRY(tuttiHelloSeal(d->hello, d->helloBytes, &d->session));
  d->sent = d->got = 0;
  d->askUntil = patience(d, encrypts ? SECURING_MS : 0);
  d->secureEvents = POLLIN;
  d->securedAt = tuttiNow();
  return encrypts ? tuttiSecureStart(d->fd, false, d->tls) : tuttiSuccess;
}

/* The listener has not answered in time; next time it has longer for it. */
static tuttiResult_t losePatience(tuttiDial *d) {
  d->patienceMs = d->patienceMs * 2 > MAX_PATIENCE_MS ? MAX_PATIENCE_MS : d->patienceMs * 2;
  return tuttiDialReject(d, ETIMEDOUT);
}

/* Goes on with the handshake of TLS. Whoever hangs up in it is not there either. */
static tuttiResult_t secure(tuttiDial *d) {
  int done = tuttiSecureHandshake(d->fd, &d->secureEvents);
  if (done == 1) {
    d->securedMs = (uint32_t)tuttiMs(d->securedAt, tuttiNow());
    d->state = TUTTI_DIAL_ASKING;
    d->askUntil = patience(d, 0); /* it is no wrong address, however long that has taken */
  }
  if (done == 0 && tuttiNow() >= d->askUntil) return losePatience(d);
  if (done >= 0) return tuttiSuccess;
  d->unsecured = -done;
  d->hungUp = done == -ECONNRESET || done == -EPIPE;
  return tuttiDialReject(d, -done);
}

static tuttiResult_t judgeReply(tuttiDial *d, tuttiWait wait) {
  uint8_t confirm[TUTTI_MAC_BYTES];
  if (!tuttiReplyValid(&d->reply)) return tuttiDialReject(d, EPROTO);
  if (d->reply.kind == tuttiReplyFailed && !d->neverFails)
    return tuttiReplyAdopt(d->fd, &d->session, &d->reply, d->who, wait);
  if (d->reply.kind != tuttiReplyAccepted || d->reply.version != TUTTI_VERSION_CODE ||
      d->reply.bytes != 0 || !tuttiReplyGenuine(&d->session, &d->reply, NULL))
    return tuttiDialReject(d, EPROTO);
  tuttiConfirmOf(&d->session, &d->reply, confirm);
  if (tuttiSecureSend(d->fd, confirm, sizeof(confirm)) != sizeof(confirm))
    return tuttiDialReject(d, EPROTO);
  d->state = d->answer ? TUTTI_DIAL_LISTENING : TUTTI_DIAL_DONE;
  d->got = 0;
  return tuttiSuccess;
}

/* Of a call that moved n bytes or failed: 0, or the errno that ends the attempt. */
static int lastingError(ssize_t n) {
  return n >= 0 || errno == EAGAIN || errno == EINTR ? 0 : errno;
}

/* What is left of it. */
static int sendHello(tuttiDial *d) {
  if (d->sent == d->helloBytes) return 0;
  ssize_t n = tuttiSecureSend(d->fd, (const char *)d->hello + d->sent, d->helloBytes - d->sent);
  if (n > 0) d->sent += (size_t)n;
  return lastingError(n);
}

/* As sendHello: 0, or the errno that ends the attempt. *whole: what is awaited is complete. */
static int receive(tuttiDial *d, bool *whole) {
  bool answer = d->state == TUTTI_DIAL_LISTENING;
  char *in = answer ? d->answer : (char *)&d->reply;
  size_t bytes = answer ? d->answerBytes : sizeof(d->reply);
  ssize_t n = tuttiSecureRecv(d->fd, in + d->got, bytes - d->got);
  if (n == 0) return ECONNRESET;
  if (n > 0) d->got += (size_t)n;
  *whole = d->got == bytes;
  return lastingError(n);
}

static tuttiResult_t ask(tuttiDial *d, tuttiWait wait) {
  bool whole = false;
  int error = sendHello(d);
  if (error == 0 && d->sent == d->helloBytes) error = receive(d, &whole);
  d->hungUp = error == ECONNRESET || error == EPIPE;
  if (error != 0) return tuttiDialReject(d, error);
  if (whole && d->state == TUTTI_DIAL_ASKING) return judgeReply(d, wait);
  if (whole) {
    d->state = TUTTI_DIAL_DONE;
    return tuttiSuccess;
  }
  return tuttiNow() < d->askUntil ? tuttiSuccess : losePatience(d);
}

tuttiResult_t tuttiDialStep(tuttiDial *d, tuttiWait wait) {
  char text[600];
  if (d->state == TUTTI_DIAL_CONNECTING) TUTTI_TRY(tryConnect(d));
  if (d->state == TUTTI_DIAL_SECURING) TUTTI_TRY(secure(d));
  if (d->state == TUTTI_DIAL_ASKING) TUTTI_TRY(ask(d, wait));
  if (d->state == TUTTI_DIAL_LISTENING) TUTTI_TRY(ask(d, wait));
  if (d->state == TUTTI_DIAL_DONE) return tuttiSuccess;
  if (d->refusedMs && d->state == TUTTI_DIAL_CONNECTING &&
      tuttiConnectorRefused(&d->connector, d->refusedMs))
    return TUTTI_FAIL(tuttiRemoteError, "%s is not there: tried %s. %s", d->who,
                      tuttiConnectorText(&d->connector, text, sizeof(text)), d->remedy);
  if (tuttiNow() < wait.deadline) return tuttiSuccess;
  if (d->state != TUTTI_DIAL_CONNECTING)
    return TUTTI_FAIL(tuttiTimeout, "%s did not answer on %s until the deadline. %s", d->who,
                      tuttiAddressText(&d->connector.attempts[d->index].target, text, sizeof(text)),
                      d->remedy);
  bool remedy = d->hungUp || tuttiConnectorRefused(&d->connector, 0);
  return TUTTI_FAIL(tuttiTimeout, "cannot reach %s until the deadline: tried %s%s%s%s", d->who,
                    tuttiConnectorText(&d->connector, text, sizeof(text)),
                    d->hungUp ? ". It hung up on this rank" : "", remedy ? ". " : "",
                    remedy ? d->remedy : "");
}

/* When every address has refused for so long that the dial gives up, if none does anything else. */
static uint64_t refusedUntil(const tuttiDial *d) {
  uint64_t last = 0;
  if (d->refusedMs == 0 || !tuttiConnectorRefused(&d->connector, 0)) return TUTTI_NO_DEADLINE;
  for (int i = 0; i < d->connector.n; i++)
    if (d->connector.attempts[i].refusedSince > last) last = d->connector.attempts[i].refusedSince;
  return last + d->refusedMs * TUTTI_MS;
}

uint64_t tuttiDialWaitOn(const tuttiDial *d, struct pollfd *fd) {
  if (d->state == TUTTI_DIAL_CONNECTING) {
    uint64_t due = tuttiConnectorWaitOn(&d->connector, fd), end = refusedUntil(d);
    return due < end ? due : end;
  }
  *fd = (struct pollfd){.fd = -1};
  if (d->state == TUTTI_DIAL_DONE) return TUTTI_NO_DEADLINE;
  *fd = (struct pollfd){.fd = d->fd, .events = POLLIN};
  if (d->state == TUTTI_DIAL_SECURING)
    fd->events = d->secureEvents;
  else if (d->sent < d->helloBytes)
    fd->events |= POLLOUT;
  return d->askUntil;
}

void tuttiDialClose(tuttiDial *d) {
  tuttiConnectorStop(&d->connector);
  if (d->state != TUTTI_DIAL_CONNECTING && d->state != TUTTI_DIAL_DONE) tuttiFdClose(&d->fd);
}
