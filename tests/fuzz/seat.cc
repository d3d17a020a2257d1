/* What a root says to a rank that has checked in: messages that are signed by the right secret,
 * whatever is in them, and bytes that are none. What is taken up can be shown and logged. */
#include "fuzz/fuzz.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/os.h"
#include "bootstrap/seat.h"

static void checkPrintable(const char *text) {
  for (const char *c = text; *c; c++)
    CHECK((unsigned char)*c >= ' ');
}

/* One message: how it is signed and what it is, by the first byte, and its bytes. */
static void say(int fd, const tuttiSession &session, uint8_t what, const uint8_t *data,
                size_t size) {
  tuttiNeighbour next;
  tuttiRootName name;
  char text[TUTTI_ERROR_TEXT];
  memset(&next, 0, sizeof next);
  memset(&name, 0, sizeof name);
  tuttiHelloFill(&next.hello, 42, tuttiHelloCheckIn, 1, -1, 3);
  next.listeners.n = 1;
  next.listeners.a[0].v4.sin_family = AF_INET;
  snprintf(name.host, sizeof name.host, "host");
  change(&next, data, size);
  change(&name, data, size);
  size = std::min(size, sizeof text);
  memcpy(text, data, size);
  switch (what % 5) {
  case 0:
    send(fd, text, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    break;
  case 1:
    tuttiReplySend(fd, &session, tuttiReplyNext, 0, &next, sizeof next, nullptr);
    break;
  case 2:
    tuttiReplySend(fd, &session, tuttiReplyRoot, 0, &name, sizeof name, nullptr);
    break;
  case 3:
    tuttiReplySend(fd, &session, tuttiReplyFailed, what / 5, text, size, nullptr);
    break;
  default:
    tuttiReplySend(fd, &session, (tuttiReplyKind)(what / 5), 0, text, size, nullptr);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
  tuttiSeat seat = {};
  seat.fd = fds[0];
  memset(seat.secret, 5, sizeof seat.secret);
  seat.session.secret = seat.secret;
  bool met = false;
  tuttiNeighbour next;
  tuttiResult_t result = tuttiSuccess;
  for (size_t at = 0; at + 2 <= size && result == tuttiSuccess && !met;) {
    size_t n = std::min((size_t)data[at + 1], size - at - 2);
    say(fds[1], seat.session, data[at], data + at + 2, n);
    at += 2 + n;
    result = tuttiSeatHear(&seat, &next, &met);
  }
  close(fds[1]);
  if (result == tuttiSuccess && !met) result = tuttiSeatHear(&seat, &next, &met);
  CHECK(met || result != tuttiSuccess); /* nobody waits for a root that is gone */
  CHECK(strnlen(seat.root, sizeof seat.root) < sizeof seat.root);
  checkPrintable(seat.root);
  if (result != tuttiSuccess) {
    CHECK(result > tuttiSuccess && result < tuttiNumResults && seat.ended);
    checkPrintable(tuttiErrorText());
  }
  tuttiFdClose(&seat.fd);
  return 0;
}
