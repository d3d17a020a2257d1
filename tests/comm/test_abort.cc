/* Abort while an init makes the watch that is to tell the others. */
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "asleep.h"
#include "harness.h"

using testing::MatchesRegex;

namespace {

std::atomic<tuttiCommunicator *> halting{nullptr}; /* whose init stops once it knows rank 0 */
std::atomic<bool> halted{false}, goesOn{false};

} // namespace

/* In place of libc's. What a rank keeps alive after the exchange of peers is for its watch. */
extern "C" int setsockopt(int fd, int level, int name, const void *value,
                          socklen_t length) noexcept {
  tuttiCommunicator *c = halting;
  char thread[16] = "";
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  if (c && !halted && name == SO_KEEPALIVE && strcmp(thread, "tutti-worker") == 0 &&
      c->wireup.peers && c->wireup.peers[0].process) {
    halted = true;
    while (!goesOn)
      std::this_thread::yield();
  }
  return (int)syscall(SYS_setsockopt, fd, level, name, value, length);
}

namespace {

TEST(Abort, IsToldByAnInitUnderWay) {
  tuttiUniqueId id;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  tuttiComm_t comms[2] = {};
  halted = goesOn = false; /* also when the test is repeated */
  config.timeoutMs = 30000;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  config.blocking = 0;
  ASSERT_EQ(tuttiCommInitRankConfig(&comms[1], 2, id, 1, &config), tuttiInProgress);
  tuttiCommunicator *c = nullptr;
  ASSERT_EQ(tuttiHandleEnter(comms[1], "test", &c), tuttiSuccess);
  tuttiHandleLeave(c);
  halting = c;
  config.blocking = 1;
  std::thread other([&] {
    float x = 1;
    tuttiResult_t result = tuttiCommInitRankConfig(&comms[0], 2, id, 0, &config);
    if (result == tuttiSuccess)
      result = tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, comms[0], nullptr);
    EXPECT_EQ(result, tuttiRemoteError);
    EXPECT_THAT(tuttiGetLastError(nullptr),
                MatchesRegex(".*rank 1 \\(host .*, pid .*\\) aborted the communicator.*"));
    if (comms[0]) {
      EXPECT_EQ(tuttiCommDestroy(comms[0]), tuttiSuccess);
    }
  });
  while (!halted)
    std::this_thread::yield();
  halting = nullptr;
  std::atomic<pid_t> aborts{0};
  std::thread aborter([&] {
    aborts = threadId();
    EXPECT_EQ(tuttiCommAbort(comms[1]), tuttiSuccess);
  });
  waitUntilAsleep(aborts); /* it has looked for the watch and waits for the init */
  goesOn = true;
  aborter.join();
  other.join();
}

} // namespace
