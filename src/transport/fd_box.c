#include "transport/fd_box.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/os.h"

socklen_t tuttiUnixAddress(uint64_t id, struct sockaddr_un *out) {
  memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "tutti-%016" PRIx64, id);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void tuttiFdAttach(struct msghdr *message, int fd) {
  struct cmsghdr *c = CMSG_FIRSTHDR(message);
  if (!c) return; /* no room, as no caller leaves it */
  *c = (struct cmsghdr){
      .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
}

int tuttiFdDetach(struct msghdr *message) {
  int first = -1;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      if (first < 0)
        first = fd;
      else
        close(fd);
    }
  }
  return first;
}

/* A message, and room for one descriptor. */
typedef struct {
  uint8_t key[TUTTI_MAC_BYTES];
  tuttiFdLabel label;
  struct iovec io;
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
} packet;
#define PACKET_BYTES offsetof(packet, io)

static struct msghdr messageOf(packet *p) {
  p->io = (struct iovec){.iov_base = p, .iov_len = PACKET_BYTES};
  return (struct msghdr){.msg_iov = &p->io,
                         .msg_iovlen = 1,
                         .msg_control = p->control,
                         .msg_controllen = sizeof p->control};
}

int tuttiFdBoxOpen(tuttiFdBox *out) {
  struct sockaddr_un address;
  tuttiFdBox box = {.fd = -1};
  out->fd = -1;
  if (tuttiRandom(&box.address, sizeof box.address) != tuttiSuccess) return EIO;
  box.address.id |= 1;
  socklen_t length = tuttiUnixAddress(box.address.id, &address);
  TUTTI_CLOSED int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0) return errno;
  tuttiForkCloseAdd(fd);
  box.fd = tuttiFdTake(&fd);
  *out = box;
  return 0;
}

void tuttiFdBoxClose(tuttiFdBox *box) {
  tuttiFdBox none = {.fd = -1};
  tuttiFdClose(&box->fd);
  *box = none;
}

int tuttiFdBoxSend(const tuttiFdBox *own, const tuttiFdAddress *to, tuttiFdLabel label, int fd) {
  struct sockaddr_un address;
  packet p = {.label = label};
  struct msghdr message = messageOf(&p);
  memcpy(p.key, to->key, sizeof p.key);
  message.msg_namelen = tuttiUnixAddress(to->id, &address);
  message.msg_name = &address;
  tuttiFdAttach(&message, fd);
  ssize_t n = sendmsg(own->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n == (ssize_t)PACKET_BYTES) return 0;
  /* Too many of this user's are on their way, say: both pass. */
  bool passes = errno == ETOOMANYREFS || errno == ENOBUFS || errno == EINTR || errno == ENOMEM;
  return n >= 0 ? EIO : passes ? EAGAIN : errno;
}

int tuttiFdBoxTake(const tuttiFdBox *box, tuttiFdLabel *label, int *fd) {
  for (;;) {
    packet p;
    struct msghdr message = messageOf(&p);
    ssize_t n = recvmsg(box->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    TUTTI_CLOSED int came = tuttiFdDetach(&message);
    bool whole = n == (ssize_t)PACKET_BYTES && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    if (!whole || came < 0 || !tuttiMacSame(p.key, box->address.key)) continue;
    *label = p.label;
    *fd = tuttiFdTake(&came);
    return 0;
  }
}

/* Whom it cannot be sent to goes without. */
static bool sendParcel(const tuttiFdBox *box, tuttiFdParcel *p) {
  int err = tuttiFdBoxSend(box, p->to, p->label, p->fd);
  if (err == EAGAIN) return false;
  p->error = err;
  p->open = false;
  return true;
}

static bool takeParcel(const tuttiFdBox *box, tuttiFdParcel *parcels, int n) {
  tuttiFdLabel label = {0};
  TUTTI_CLOSED int fd = -1;
  if (tuttiFdBoxTake(box, &label, &fd) != 0) return false;
  for (int i = 0; i < n; i++) {
    tuttiFdParcel *p = &parcels[i];
    if (p->to || !p->open || p->label.rank != label.rank || p->label.round != label.round) continue;
    p->fd = tuttiFdTake(&fd);
    p->open = false;
    break;
  }
  return true;
}

static bool anyOpen(const tuttiFdParcel *parcels, int n) {
  bool open = false;
  for (int i = 0; i < n; i++)
    open |= parcels[i].open;
  return open;
}

void tuttiFdBoxTrade(const tuttiFdBox *box, tuttiFdParcel *parcels, int n, int64_t ms,
                     const tuttiAtomic32 *failed) {
  uint64_t deadline = tuttiDeadline(ms);
  tuttiBackoff pause = {0};
  while (anyOpen(parcels, n) && tuttiNow() < deadline && !tuttiLoadAcquire32(failed)) {
    bool moved = takeParcel(box, parcels, n);
    for (int i = 0; i < n; i++)
      if (parcels[i].open && parcels[i].to) moved |= sendParcel(box, &parcels[i]);
    if (moved)
      tuttiBackoffReset(&pause);
    else
      tuttiBackoffPause(&pause);
  }
}
