/* The listener of a running communicator. Ranks come here to ask; so may anybody else on the
 * network. Whoever does not say the right hello in time is dropped without a word, and a flood
 * costs no more than WATCH_VISITORS connections: the oldest makes room, and a rank that asks says
 * its hello in the first packet. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "bootstrap/watch_internal.h"

void tuttiReportSelf(const tuttiWatch *w, tuttiStateReport *out) {
  *out = (tuttiStateReport){.rank = w->rank, .known = 1};
  size_t bytes = w->calls.state(w->calls.ctx, out->state);
  out->bytes = (uint32_t)(bytes < sizeof(out->state) ? bytes : sizeof(out->state));
}

/* Takes as long for a wrong secret as for the right one. */
static bool sameSecret(const uint8_t *a, const uint8_t *b, size_t bytes) {
  uint8_t differ = 0;
  for (size_t i = 0; i < bytes; i++)
    differ |= (uint8_t)(a[i] ^ b[i]);
  return differ == 0;
}

static bool helloAsks(const tuttiWatch *w, const tuttiHello *hello) {
  return hello->magic == TUTTI_HELLO_MAGIC && hello->version == TUTTI_VERSION_CODE &&
         sameSecret(hello->secret, w->secret, sizeof(w->secret)) && hello->hash == w->hash &&
         hello->kind == tuttiHelloAsk && hello->nranks == w->nranks && hello->from >= 0 &&
         hello->from < w->nranks;
}

static void answer(const tuttiVisitor *visitor) {
  const tuttiWatch *w = visitor->source.watch;
  tuttiAnswerFrame frame = {.hash = w->hash};
  tuttiReportSelf(w, &frame.self);
  tuttiReportLink(&w->links[0], &frame.previous);
  tuttiReportLink(&w->links[1], &frame.next);
  uint8_t out[sizeof(tuttiFrameHead) + sizeof(frame)];
  size_t bytes = tuttiFrameWrite(out, sizeof(out), tuttiFrameAnswer, &frame, sizeof(frame));
  /* Fits the empty buffer of a fresh socket; if it does not, the asker has gone. */
  ssize_t sent = send(visitor->source.fd, out, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  TUTTI_TRACE(BOOTSTRAP, "watch: rank %d answers rank %d: %zd of %zu bytes", w->rank,
              visitor->hello.from, sent, bytes);
}

void tuttiVisitorReady(tuttiVisitor *visitor) {
  if (visitor->source.fd < 0) return;
  uint8_t *hello = (uint8_t *)&visitor->hello;
  ssize_t got = recv(visitor->source.fd, hello + visitor->have,
                     sizeof(visitor->hello) - visitor->have, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) {
    visitor->have += (size_t)got;
    if (visitor->have < sizeof(visitor->hello)) return;
    if (helloAsks(visitor->source.watch, &visitor->hello)) answer(visitor);
  }
  tuttiSourceClose(&visitor->source);
}

/* A free place, or that of whoever has been here longest. */
static tuttiVisitor *place(tuttiWatch *w) {
  tuttiVisitor *oldest = &w->visitors[0];
  for (int i = 0; i < WATCH_VISITORS; i++) {
    tuttiVisitor *visitor = &w->visitors[i];
    if (visitor->source.fd < 0) return visitor;
    if (visitor->deadline < oldest->deadline) oldest = visitor;
  }
  tuttiSourceClose(&oldest->source);
  return oldest;
}

static void receive(tuttiWatch *w, int fd) {
  tuttiVisitor *visitor = place(w);
  visitor->source.fd = fd;
  visitor->have = 0;
  visitor->deadline = tuttiNow() + WATCH_HELLO_NS;
  if (tuttiSourceWatch(&visitor->source, EPOLLIN))
    tuttiVisitorReady(visitor);
  else
    tuttiSourceClose(&visitor->source);
}

void tuttiListenerReady(tuttiWatch *w) {
  for (int accepts = 0; accepts < WATCH_ACCEPTS; accepts++) {
    int fd = accept4(w->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      receive(w, fd);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      /* Most likely out of descriptors: the connection stays in the backlog and would wake the
       * thread at once again. */
      TUTTI_INFO(BOOTSTRAP, "watch: rank %d cannot accept: %s", w->rank, tuttiErrnoText(errno));
      w->listenerPaused = tuttiSourceWatch(&w->listener, 0);
      return;
    }
  }
}

uint64_t tuttiVisitorsExpire(tuttiWatch *w, uint64_t now) {
  uint64_t first = WATCH_NEVER;
  for (int i = 0; i < WATCH_VISITORS; i++) {
    tuttiVisitor *visitor = &w->visitors[i];
    if (visitor->source.fd < 0) continue;
    if (visitor->deadline <= now)
      tuttiSourceClose(&visitor->source);
    else if (visitor->deadline < first)
      first = visitor->deadline;
  }
  return first;
}
