/* The calling end of the handshake, and what both ends share. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "bootstrap/handshake.h"

#define PATIENCE_MS     5000u
#define MAX_PATIENCE_MS 60000u
#define TEXT_MS         5000 /* for the text that follows a Failed reply */

/* ---- shared --------------------------------------------------------------------------------- */

bool tuttiReplyValid(const tuttiReply *reply) {
  return reply->magic == TUTTI_HELLO_MAGIC && reply->bytes <= TUTTI_ERROR_TEXT &&
         reply->kind >= tuttiReplyAccepted && reply->kind <= tuttiReplyNext;
}

void tuttiReplySend(int fd, tuttiReplyKind kind, int code, const void *data, size_t bytes) {
  uint8_t message[sizeof(tuttiReply) + TUTTI_ERROR_TEXT];
  tuttiReply reply = {.magic = TUTTI_HELLO_MAGIC,
                      .version = TUTTI_VERSION_CODE,
                      .kind = kind,
                      .code = code,
                      .bytes = (uint32_t)bytes};
  memcpy(message, &reply, sizeof(reply));
  if (bytes) memcpy(message + sizeof(reply), data, bytes);
  while (send(fd, message, sizeof(reply) + bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
         errno == EINTR)
    ;
}

tuttiResult_t tuttiReplyAdopt(int fd, const tuttiReply *reply, const char *who, tuttiWait wait) {
  char text[TUTTI_ERROR_TEXT + 1];
  uint64_t soon = tuttiDeadline(TEXT_MS);
  if (wait.deadline > soon) wait.deadline = soon;
  TUTTI_TRY(tuttiRecvAll(fd, text, reply->bytes, who, wait));
  text[reply->bytes] = '\0';
  for (char *p = text; *p; p++)
    if ((unsigned char)*p < ' ') *p = ' '; /* it goes to logs */
  bool known = reply->code > tuttiSuccess && reply->code < tuttiNumResults;
  return tuttiErrorAdopt(known ? (tuttiResult_t)reply->code : tuttiRemoteError, text);
}

void tuttiHelloFill(tuttiHello *h, const uint8_t secret[16], uint64_t hash, tuttiHelloKind kind,
                    int rank, int nranks) {
  memset(h, 0, sizeof(*h));
  h->magic = TUTTI_HELLO_MAGIC;
  h->version = TUTTI_VERSION_CODE;
  memcpy(h->secret, secret, sizeof(h->secret));
  h->hash = hash;
  h->kind = kind;
  h->from = rank;
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

/* ---- dialing -------------------------------------------------------------------------------- */

void tuttiDialInit(tuttiDial *d, const tuttiAddressList *targets, const void *hello,
                   size_t helloBytes, const char *who) {
  *d = (tuttiDial){.fd = -1, .hello = hello, .helloBytes = helloBytes, .who = who, .remedy = ""};
  d->patienceMs = PATIENCE_MS;
  tuttiConnectorInit(&d->connector, targets);
}

tuttiResult_t tuttiDialReject(tuttiDial *d, int error) {
  tuttiFdClose(&d->fd);
  d->state = TUTTI_DIAL_CONNECTING;
  tuttiConnectorReject(&d->connector, error);
  return tuttiSuccess;
}

static tuttiResult_t tryConnect(tuttiDial *d) {
  TUTTI_TRY(tuttiConnectorStep(&d->connector, d->who, &d->fd, &d->index));
  if (d->fd < 0) return tuttiSuccess;
  tuttiForkCloseAdd(d->fd);
  d->state = TUTTI_DIAL_ASKING;
  d->sent = d->got = 0;
  /* A lone address is waited for as long as it takes: its listener may be busy. */
  d->askUntil = d->connector.n > 1 ? tuttiDeadline(d->patienceMs) : TUTTI_NO_DEADLINE;
  return tuttiSuccess;
}

static tuttiResult_t judgeReply(tuttiDial *d, tuttiWait wait) {
  if (!tuttiReplyValid(&d->reply)) return tuttiDialReject(d, EPROTO);
  if (d->reply.kind == tuttiReplyFailed) return tuttiReplyAdopt(d->fd, &d->reply, d->who, wait);
  uint32_t confirm = TUTTI_CONFIRM;
  if (d->reply.kind != tuttiReplyAccepted || d->reply.version != TUTTI_VERSION_CODE ||
      send(d->fd, &confirm, sizeof(confirm), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(confirm))
    return tuttiDialReject(d, EPROTO);
  d->state = TUTTI_DIAL_DONE;
  return tuttiSuccess;
}

static tuttiResult_t ask(tuttiDial *d, tuttiWait wait) {
  ssize_t n = 0;
  if (d->sent < d->helloBytes) {
    n = send(d->fd, (const char *)d->hello + d->sent, d->helloBytes - d->sent,
             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) d->sent += (size_t)n;
  }
  if (n >= 0 && d->sent == d->helloBytes) {
    char *in = d->answer ? d->answer : (char *)&d->reply;
    size_t bytes = d->answer ? d->answerBytes : sizeof(d->reply);
    n = recv(d->fd, in + d->got, bytes - d->got, MSG_DONTWAIT);
    if (n == 0) return tuttiDialReject(d, ECONNRESET);
    if (n > 0) d->got += (size_t)n;
    if (d->got == bytes && !d->answer) return judgeReply(d, wait);
    if (d->got == bytes) d->state = TUTTI_DIAL_DONE;
  }
  if (n < 0 && errno != EAGAIN && errno != EINTR) return tuttiDialReject(d, errno);
  if (tuttiNow() < d->askUntil) return tuttiSuccess;
  d->patienceMs = d->patienceMs * 2 > MAX_PATIENCE_MS ? MAX_PATIENCE_MS : d->patienceMs * 2;
  return tuttiDialReject(d, ETIMEDOUT);
}

tuttiResult_t tuttiDialStep(tuttiDial *d, tuttiWait wait) {
  char text[600];
  if (d->state == TUTTI_DIAL_CONNECTING) TUTTI_TRY(tryConnect(d));
  if (d->state == TUTTI_DIAL_ASKING) TUTTI_TRY(ask(d, wait));
  if (d->state == TUTTI_DIAL_DONE) return tuttiSuccess;
  if (d->refusedMs && d->state == TUTTI_DIAL_CONNECTING &&
      tuttiConnectorRefused(&d->connector, d->refusedMs))
    return TUTTI_FAIL(tuttiRemoteError, "%s is not there: tried %s. %s", d->who,
                      tuttiConnectorText(&d->connector, text, sizeof(text)), d->remedy);
  if (tuttiNow() < wait.deadline) return tuttiSuccess;
  if (d->state == TUTTI_DIAL_ASKING)
    return TUTTI_FAIL(tuttiTimeout, "%s did not answer on %s until the deadline. %s", d->who,
                      tuttiAddressText(&d->connector.attempts[d->index].target, text, sizeof(text)),
                      d->remedy);
  return TUTTI_FAIL(tuttiTimeout, "cannot reach %s until the deadline: tried %s%s%s", d->who,
                    tuttiConnectorText(&d->connector, text, sizeof(text)),
                    tuttiConnectorRefused(&d->connector, 0) ? ". " : "",
                    tuttiConnectorRefused(&d->connector, 0) ? d->remedy : "");
}

uint64_t tuttiDialWaitOn(const tuttiDial *d, struct pollfd *fd) {
  if (d->state == TUTTI_DIAL_CONNECTING) return tuttiConnectorWaitOn(&d->connector, fd);
  *fd = (struct pollfd){.fd = -1};
  if (d->state == TUTTI_DIAL_DONE) return TUTTI_NO_DEADLINE;
  *fd = (struct pollfd){.fd = d->fd, .events = POLLIN};
  if (d->sent < d->helloBytes) fd->events |= POLLOUT;
  return d->askUntil;
}

void tuttiDialClose(tuttiDial *d) {
  tuttiConnectorStop(&d->connector);
  if (d->state == TUTTI_DIAL_ASKING) tuttiFdClose(&d->fd);
}
