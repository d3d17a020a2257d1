/* Check-ins at a real root, by callers who know the secret of its id: each input is a few of them,
 * cut at fixed lengths. Whatever they say, the root answers or hangs up, and ends. */
#include "fuzz/fuzz.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/os.h"
#include "bootstrap/rendezvous.h"

static const uint8_t secret[16] = {1, 2, 3};

/* Reads exactly `bytes`; false: the root has hung up. */
static bool hear(int fd, void *to, size_t bytes) {
  tuttiWait wait = {tuttiDeadline(10000), nullptr, nullptr};
  tuttiResult_t result = tuttiRecvAll(fd, to, bytes, "the root", wait);
  CHECK(result != tuttiTimeout);
  return result == tuttiSuccess;
}

static int callRoot(const tuttiAddress &root) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct linger reset = {1, 0}; /* no port is held for a minute */
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  if (connect(fd, &root.sa, sizeof root.v4) == 0) return fd;
  close(fd);
  return -1;
}

/* Says one check-in; the fd, or -1. */
static int checkIn(const tuttiAddress &root, const uint8_t *data, size_t size) {
  tuttiCheckIn in;
  tuttiSession session = {secret, {}};
  tuttiReply reply;
  uint8_t confirm[TUTTI_MAC_BYTES];
  int fd = callRoot(root);
  if (fd < 0) return -1;
  memset(&in, 0, sizeof in);
  tuttiHelloFill(&in.peer.hello, 42, tuttiHelloCheckIn, 0, -1, 2);
  in.peer.listeners.n = 1;
  in.peer.listeners.a[0] = root;
  in.nroots = 1;
  in.remainingMs = UINT64_MAX;
  size_t fixed = offsetof(tuttiHello, mac); /* what comes before is for the greeter */
  change((uint8_t(*)[sizeof in - offsetof(tuttiHello, mac)])((uint8_t *)&in + fixed), data, size);
  in.remainingMs |= 1u << 30; /* the root's own deadline is not the subject */
  CHECK(tuttiHelloSeal(&in, sizeof in, &session) == tuttiSuccess);
  send(fd, &in, sizeof in, MSG_NOSIGNAL);
  if (!hear(fd, &reply, sizeof reply)) {
    close(fd);
    return -1;
  }
  CHECK(tuttiReplyValid(&reply));
  if (reply.kind == tuttiReplyAccepted) {
    CHECK(tuttiReplyGenuine(&session, &reply, nullptr));
    tuttiConfirmOf(&session, &reply, confirm);
    send(fd, confirm, sizeof confirm, MSG_NOSIGNAL);
  }
  return fd;
}

/* Reads on until the root has let go. libFuzzer's clock interrupts any wait. */
static void awaitEnd(int fd) {
  uint64_t deadline = tuttiDeadline(10000);
  char rest[4096];
  ssize_t n;
  do {
    struct pollfd p = {fd, POLLIN, 0};
    int ready;
    while ((ready = poll(&p, 1, 1000)) <= 0)
      CHECK(tuttiNow() < deadline && (ready == 0 || errno == EINTR));
    n = recv(fd, rest, sizeof rest, MSG_DONTWAIT);
  } while (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { kPiece = 64, kRanks = 3 };
  tuttiAddress root = {};
  int listener, fds[kRanks], n = 0;
  root.v4.sin_family = AF_INET;
  root.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(tuttiListen(&root, &listener) == tuttiSuccess);
  CHECK(tuttiRootStart(tuttiListenerOf(listener), &root, secret, false, -1) == tuttiSuccess);
  for (size_t at = 0; n < kRanks && (at < size || at == 0); at += kPiece)
    if ((fds[n] = checkIn(root, data + at, std::min(size - at, (size_t)kPiece))) >= 0) n++;
  tuttiRootCancel(secret, tuttiSuccess);
  for (int i = 0; i < n; i++) { /* until it has let go of all of them */
    awaitEnd(fds[i]);
    close(fds[i]);
  }
  return 0;
}
