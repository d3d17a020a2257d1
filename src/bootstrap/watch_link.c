/* The ring: two sockets, on which neighbours tell each other their state, their leaving, and every
 * failure. A neighbour that only falls silent is not dead: it may be stopped or busy, and its
 * kernel still acknowledges. What is taken for a death is a connection that ends without a goodbye,
 * or a kernel that no longer acknowledges.
 *
 * Once a rank has left, the ring is a chain, and failures travel it from both ends: any one rank
 * may have left and all others still hear of each other's failures. With two ranks gone, one part
 * may not hear of a failure in the other, and ends at its deadline. */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "bootstrap/watch_internal.h"

/* Frames of any sensible size are here within a few reads; level-triggered epoll comes back. */
#define LINK_READS 16

static void setOption(int fd, int level, int name, int value, const char *what) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) != 0)
    TUTTI_INFO(BOOTSTRAP, "watch: no %s on a ring socket: %s", what, tuttiErrnoText(errno));
}

void tuttiLinkPrepare(tuttiLink *link) {
  /* Heartbeats give the kernel something to be acknowledged; keep-alive probes take over when a
   * stopped neighbour has had all its heartbeats. */
  int fd = link->source.fd;
  setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  setOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, WATCH_CONTACT_MS, "TCP_USER_TIMEOUT");
  setOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1, "TCP_KEEPIDLE");
  setOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1, "TCP_KEEPINTVL");
  setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
}

/* A send that fails does not end the link: what the neighbour said before (a goodbye, a failure)
 * may still be unread, and tuttiLinkReady finds out why it went. */
static void linkFlush(tuttiLink *link) {
  bool full = false;
  while (link->outBytes > 0 && !full) {
    ssize_t sent = send(link->source.fd, link->out, link->outBytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      link->outBytes -= (size_t)sent;
      memmove(link->out, link->out + sent, link->outBytes);
    } else if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) {
      full = true;
    } else if (errno != EINTR) {
      link->sendError = errno;
      link->outBytes = 0;
    }
  }
  if (!tuttiSourceWatch(&link->source, EPOLLIN | (full ? EPOLLOUT : 0)))
    TUTTI_INFO(BOOTSTRAP, "watch: epoll_ctl on the connection to rank %d: %s", link->rank,
               tuttiErrnoText(errno));
}

static void linkSend(tuttiLink *link, tuttiFrameType type, const void *payload, size_t bytes) {
  if (link->source.fd < 0 || link->sendError != 0) return;
  size_t size = tuttiFrameWrite(link->out + link->outBytes, sizeof(link->out) - link->outBytes,
                                type, payload, bytes);
  link->outBytes += size; /* 0 when there is no room */
  if (size > 0) linkFlush(link);
}

void tuttiWatchSpread(tuttiWatch *w, const tuttiFailureFrame *failure, const tuttiLink *from,
                      bool tell) {
  if (w->failed) return;
  w->failed = true;
  TUTTI_INFO(BOOTSTRAP, "watch: rank %d passes on a failure noticed by rank %d: %s", w->rank,
             failure->origin, failure->text);
  size_t bytes = offsetof(tuttiFailureFrame, text) + strlen(failure->text) + 1;
  for (int i = 0; i < 2; i++)
    if (&w->links[i] != from) linkSend(&w->links[i], tuttiFrameFailure, failure, bytes);
  if (tell && w->leaveBy == 0)
    w->calls.failed(w->calls.ctx, (tuttiResult_t)failure->code, failure->text);
}

/* The text is born and logged here; all other ranks adopt it. */
static void spreadLastError(tuttiLink *link, tuttiResult_t code) {
  tuttiFailureFrame failure;
  tuttiFailureFill(&failure, code, link->source.watch->rank, tuttiErrorText());
  tuttiWatchSpread(link->source.watch, &failure, NULL, true);
}

static bool lostContact(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
         error == EHOSTDOWN;
}

/* The connection has ended; error 0: the neighbour closed it. */
static void linkLost(tuttiLink *link, int error) {
  const tuttiWatch *w = link->source.watch;
  const tuttiWho *who = &w->who[link->rank];
  tuttiAddress local = {0};
  socklen_t length = sizeof(local);
  bool known = getsockname(link->source.fd, &local.sa, &length) == 0;
  tuttiSourceClose(&link->source);
  if (link->left || link->released || w->failed) {
    TUTTI_INFO(BOOTSTRAP, "watch: rank %d: the connection to rank %d has ended", w->rank,
               link->rank);
    return;
  }
  tuttiResult_t code;
  if (lostContact(error)) {
    char interface[128] = "an unknown interface";
    if (known) tuttiInterfaceOf(&local, interface, sizeof(interface));
    code = TUTTI_FAIL(tuttiRemoteError,
                      "lost contact with rank %d (host %s, pid %d): no answer to rank %d (host %s) "
                      "for %d s over %s: %s. Remedy: check that host %s is up, and the network "
                      "between the two hosts",
                      link->rank, who->host, who->pid, w->rank, w->who[w->rank].host,
                      WATCH_CONTACT_MS / 1000, interface, tuttiErrnoText(error), who->host);
  } else {
    code = TUTTI_FAIL(tuttiRemoteError,
                      "rank %d (host %s, pid %d) died: its connection to rank %d closed without "
                      "goodbye%s%s (killed, crashed, or exited without tuttiCommDestroy?). Remedy: "
                      "see the log of that process, and the kernel log of host %s for its "
                      "out-of-memory killer",
                      link->rank, who->host, who->pid, w->rank, error != 0 ? ": " : "",
                      error != 0 ? tuttiErrnoText(error) : "", who->host);
  }
  spreadLastError(link, code);
}

/* What came is no frame: nothing after it can be believed either. */
static void linkBroken(tuttiLink *link) {
  const tuttiWatch *w = link->source.watch;
  const tuttiWho *who = &w->who[link->rank];
  if (!w->failed)
    spreadLastError(link,
                    TUTTI_FAIL(tuttiRemoteError,
                               "rank %d (host %s, pid %d) sent rank %d bytes over their ring "
                               "connection that are no frame of this protocol. Remedy: look for "
                               "corrupted memory or a different build of tutti in that process",
                               link->rank, who->host, who->pid, w->rank));
  tuttiSourceClose(&link->source);
}

static void takeHeartbeat(tuttiLink *link, const tuttiFrame *frame) {
  tuttiWatchLock();
  link->heardAt = tuttiNow();
  link->heardBytes = (uint32_t)frame->bytes;
  memcpy(link->heard, frame->payload, frame->bytes);
  tuttiWatchUnlock();
  link->unanswered = 0;
}

/* False: the frame's type or content has no place on the ring. */
static bool takeFrame(tuttiLink *link, const tuttiFrame *frame) {
  tuttiWatch *w = link->source.watch;
  tuttiFailureFrame failure;
  switch (frame->type) {
  case tuttiFrameHeartbeat:
    takeHeartbeat(link, frame);
    return true;
  case tuttiFrameFailure:
    if (!tuttiFailureRead(frame, w->nranks, &failure)) return false;
    tuttiWatchSpread(w, &failure, link, true);
    return true;
  case tuttiFrameGoodbye:
    if (link->left) return false;
    link->left = true;
    TUTTI_TRACE(BOOTSTRAP, "watch: rank %d says goodbye to rank %d", link->rank, w->rank);
    linkSend(link, tuttiFrameGoodbyeSeen, NULL, 0);
    return true;
  case tuttiFrameGoodbyeSeen:
    link->released = w->leaveBy != 0;
    return link->released;
  case tuttiFrameAnswer:
    return false;
  }
  return false;
}

/* False: the link is closed. */
static bool takeFrames(tuttiLink *link) {
  size_t at = 0;
  tuttiFrame frame;
  int size;
  while ((size = tuttiFrameParse(link->in + at, link->inBytes - at, &frame)) > 0) {
    if (!takeFrame(link, &frame)) size = -1;
    if (size < 0) break;
    at += (size_t)size;
  }
  if (size < 0) {
    linkBroken(link);
    return false;
  }
  link->inBytes -= at;
  memmove(link->in, link->in + at, link->inBytes);
  return true;
}

void tuttiLinkReady(tuttiLink *link) {
  for (int reads = 0; reads < LINK_READS && link->source.fd >= 0; reads++) {
    ssize_t got = recv(link->source.fd, link->in + link->inBytes, sizeof(link->in) - link->inBytes,
                       MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (link->sendError != 0) linkLost(link, link->sendError);
      break;
    }
    if (got <= 0) {
      /* A failed send has taken the reason away from the socket. */
      linkLost(link, got < 0 ? errno : link->sendError);
      break;
    }
    link->inBytes += (size_t)got;
    if (!takeFrames(link)) break;
  }
  if (link->source.fd >= 0 && link->sendError == 0) linkFlush(link);
}

void tuttiLinkHeartbeat(tuttiLink *link, const void *state, size_t bytes) {
  if (link->source.fd < 0) return;
  if (link->sendError != 0) {
    tuttiLinkReady(link);
  } else if (link->outBytes > 0) {
    linkFlush(link);
  } else if (!link->left && link->unanswered < TUTTI_HEARTBEAT_LIMIT) {
    link->unanswered++;
    linkSend(link, tuttiFrameHeartbeat, state, bytes);
  }
}

void tuttiLinkGoodbye(tuttiLink *link) {
  /* A neighbour that is leaving itself waits for no goodbye of ours. */
  if (link->left)
    link->released = true;
  else
    linkSend(link, tuttiFrameGoodbye, NULL, 0);
}

bool tuttiLinkFinished(const tuttiLink *link) {
  return link->source.fd < 0 || link->sendError != 0 || (link->released && link->outBytes == 0);
}

void tuttiLinkClose(tuttiLink *link) {
  for (int reads = 0; reads < LINK_READS && link->source.fd >= 0; reads++)
    if (recv(link->source.fd, link->in, sizeof(link->in), MSG_DONTWAIT) <= 0) break;
  tuttiSourceClose(&link->source);
}

void tuttiReportLink(const tuttiLink *link, tuttiStateReport *out) {
  *out = (tuttiStateReport){.rank = link->rank};
  tuttiWatchLock();
  if (link->heardAt != 0) {
    out->known = 1;
    out->ageMs = (uint32_t)((tuttiNow() - link->heardAt) / 1000000);
    out->bytes = link->heardBytes;
    memcpy(out->state, link->heard, link->heardBytes);
  }
  tuttiWatchUnlock();
}
