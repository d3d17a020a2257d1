/* What a listener answers to a caller: replies that are signed by the right secret, whatever is in
 * them, and others. One that is no acceptance is refused or ends the call with a text. */
#include "fuzz/fuzz.h"

#include <poll.h>
#include <unistd.h>

#include "base/os.h"
#include "bootstrap/handshake.h"

static const uint8_t secret[16] = {1, 2, 3};

/* The connection of one call, whose hello has been read; *session is of it. */
static int answerCall(int listener, tuttiDial *dial, tuttiSession *session) {
  tuttiHello hello;
  tuttiAddress from;
  int fd = -1;
  for (int i = 0; i < 1000 && fd < 0; i++) {
    CHECK(tuttiDialStep(dial, tuttiWait{tuttiDeadline(10000), nullptr, nullptr}) == tuttiSuccess);
    struct pollfd p = {listener, POLLIN, 0};
    if (poll(&p, 1, 10) > 0) fd = tuttiAcceptNow(listener, &from);
  }
  CHECK(fd >= 0);
  while (dial->state != TUTTI_DIAL_ASKING || dial->sent < dial->helloBytes)
    CHECK(tuttiDialStep(dial, tuttiWait{tuttiDeadline(10000), nullptr, nullptr}) == tuttiSuccess);
  CHECK(tuttiRecvAll(fd, &hello, sizeof hello, "the caller",
                     tuttiWait{tuttiDeadline(10000), nullptr, nullptr}) == tuttiSuccess);
  session->secret = secret;
  CHECK(tuttiHelloGenuine(&hello, sizeof hello, session));
  return fd;
}

/* Says a reply of any kind, code and text, or one that is changed after it was signed. */
static void reply(int fd, const tuttiSession &session, const uint8_t *data, size_t size) {
  int kind = size > 1 ? data[1] % 8 : tuttiReplyAccepted, code = size > 2 ? data[2] : 0;
  size_t skipped = std::min(size, (size_t)3), rest = size - skipped;
  if (size == 0 || data[0] % 2) {
    rest = kind == tuttiReplyAccepted ? 0 : std::min(rest, (size_t)TUTTI_ERROR_TEXT);
    tuttiReplySend(fd, &session, (tuttiReplyKind)kind, code, data + skipped, rest, nullptr);
    return;
  }
  tuttiReply plain;
  memset(&plain, 0, sizeof plain);
  plain.magic = TUTTI_HELLO_MAGIC;
  plain.version = TUTTI_VERSION_CODE;
  plain.kind = tuttiReplyAccepted;
  change(&plain, data + skipped, rest);
  send(fd, &plain, sizeof plain, MSG_NOSIGNAL);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int listener = -1;
  static tuttiAddressList list;
  if (listener < 0) {
    list.n = 1;
    list.a[0].v4.sin_family = AF_INET;
    list.a[0].v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(tuttiListen(&list.a[0], &listener) == tuttiSuccess);
  }
  tuttiHello hello;
  tuttiSession session = {};
  tuttiDial dial;
  char answer[64];
  tuttiHelloFill(&hello, 42, tuttiHelloAsk, 0, 1, 2);
  tuttiDialInit(&dial, &list, &hello, sizeof hello, secret, nullptr, "rank 1");
  if (size > 0 && data[0] & 2) {
    dial.answer = answer;
    dial.answerBytes = sizeof answer;
  }
  dial.neverFails = size > 0 && data[0] & 4;
  int fd = answerCall(listener, &dial, &session);
  reply(fd, session, data, size);
  if (size > 0 && data[0] & 8) send(fd, data, size, MSG_NOSIGNAL); /* part of an answer, or all */
  shutdown(fd, SHUT_WR);
  tuttiResult_t result = tuttiSuccess;
  for (int i = 0; i < 1000 && dial.fd >= 0 && result == tuttiSuccess; i++) {
    if (dial.state == TUTTI_DIAL_DONE) break;
    struct pollfd p;
    tuttiDialWaitOn(&dial, &p);
    poll(&p, 1, 10);
    result = tuttiDialStep(&dial, tuttiWait{tuttiDeadline(10000), nullptr, nullptr});
  }
  CHECK(result != tuttiSuccess || dial.state == TUTTI_DIAL_DONE ||
        dial.state == TUTTI_DIAL_CONNECTING);
  if (dial.state == TUTTI_DIAL_DONE) CHECK(tuttiReplyGenuine(&session, &dial.reply, nullptr));
  if (result != tuttiSuccess)
    for (const char *c = tuttiErrorText(); *c; c++)
      CHECK((unsigned char)*c >= ' ');
  if (dial.state == TUTTI_DIAL_DONE) tuttiFdClose(&dial.fd);
  tuttiDialClose(&dial);
  struct linger reset = {1, 0}; /* no port is held for a minute */
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  close(fd);
  return 0;
}
