// Ports under the library: they share the load, and where they fail again and again the data stay
// right and what comes back is used again. By events, never by time: frames that pass a port,
// operations that end, and what the log says.
#include <fstream>

#include "summing.h"

namespace {

constexpr int kRounds = 20, kPorts = 2;
constexpr uint64_t kPayload = 20; // frames of two operations' payloads at least, by either port

// Payload passes both ports.
bool bothCarry() {
  uint64_t before[kPorts];
  for (int p = 0; p < kPorts; p++)
    before[p] = softHcaFrames(0, p + 1);
  return await([&] {
    for (int p = 0; p < kPorts; p++)
      if (softHcaFrames(0, p + 1) < before[p] + kPayload) return false;
    return true;
  });
}

TEST(Outage, APortThatFailsTwentyTimesIsUsedAgainEachTime) {
  if (!configured("device hca0 ports=2")) return;
  Summing ranks;
  for (int round = 0; round < kRounds && !failed; round++) {
    int victim = 1 + round % kPorts;
    EXPECT_TRUE(bothCarry()) << round;
    softHcaPort(0, victim, 0);
    EXPECT_TRUE(goOn(3)) << "no way was found, " << round;
    uint64_t frames = softHcaFrames(0, victim);
    EXPECT_TRUE(goOn(3)) << round;
    EXPECT_EQ(frames, softHcaFrames(0, victim)) << "it is down";
    softHcaPort(0, victim, 1);
  }
  EXPECT_TRUE(bothCarry());
}

// The ports stay up, so no event tells when the way between them is good again: the log tells that
// it was tried.
TEST(Outage, AWayThatFailsBehindItsPortsIsUsedAgain) {
  if (!configured("device hca0 ports=2\nfault cut nth=50")) return;
  std::string log = testing::TempDir() + "outage." + std::to_string(getpid());
  setenv("TUTTI_DEBUG_FILE", log.c_str(), 1);
  {
    Summing ranks("WARN");
    const auto says = [&log](const char *text) {
      usleep(20000); // the ranks have more to do
      std::ifstream file(log);
      std::string all(std::istreambuf_iterator<char>(file), {});
      return all.find(text) != std::string::npos;
    };
    EXPECT_TRUE(await([&] { return says("transport retry counter exceeded; it works again"); }));
    EXPECT_TRUE(await([&] { return says("was moved, as other ports are better now"); }));
    EXPECT_TRUE(goOn(10));
  }
  unlink(log.c_str());
}

// So many that whole FIFOs wait for one, and now and then all that ask again are lost, too.
TEST(Outage, CompletionsThatAreLostAreMadeGood) {
  if (!configured("fault completion_lost p=0.7")) return;
  setenv("TUTTI_TIMEOUT", "12", 1);
  Summing ranks;
  EXPECT_TRUE(goOn(50));
}

// One queue pair carries a small message, that of another port for another peer.
TEST(Ports, SmallMessagesToSeveralPeersTakeTurns) {
  if (!configured("device hca0 ports=2")) return;
  for (auto [name, value] : {std::pair{"TUTTI_NET", "IB"},
                             {"TUTTI_P2P_DISABLE", "1"},
                             {"TUTTI_SHM_DISABLE", "1"},
                             {"TUTTI_ALGO", "Direct"},
                             {"TUTTI_DEBUG", "NONE"}})
    setenv(name, value, 1);
  constexpr int kRanks = 4;
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; r++)
    ranks.emplace_back([r, id] {
      tuttiComm_t comm = nullptr;
      std::vector<uint8_t> in(4096, (uint8_t)(r + 1)), out(kRanks * in.size());
      bool good = tuttiCommInitRank(&comm, kRanks, id, r) == tuttiSuccess;
      for (int i = 0; i < 50 && good; i++)
        good = tuttiAllGather(in.data(), out.data(), in.size(), tuttiUint8, comm, nullptr) ==
               tuttiSuccess;
      for (size_t i = 0; i < out.size(); i++)
        wrong += out[i] != i / in.size() + 1;
      if (!good || tuttiCommDestroy(comm) != tuttiSuccess) failed++;
    });
  for (auto &t : ranks)
    t.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(failed, 0u);
  uint64_t first = softHcaFrames(0, 1), second = softHcaFrames(0, 2);
  EXPECT_GE(first, 50u * kRanks);
  EXPECT_GE(second, first / 3) << "a third of the peers, and two thirds";
  EXPECT_GE(first, second / 3);
}

// A device whose completions cannot be read is left, and the other goes on.
TEST(Outage, ADeviceWhoseCompletionsCannotBeReadIsLeft) {
  if (!configured("device hca0\ndevice hca1\nfault poll nth=200")) return;
  std::string log = testing::TempDir() + "outage." + std::to_string(getpid());
  setenv("TUTTI_DEBUG_FILE", log.c_str(), 1);
  {
    Summing ranks("WARN");
    EXPECT_TRUE(await([&] {
      usleep(20000); // the ranks have more to do
      std::ifstream file(log);
      std::string all(std::istreambuf_iterator<char>(file), {});
      return all.find("has failed: its completions cannot be read") != std::string::npos;
    }));
    EXPECT_TRUE(goOn(10));
  }
  unlink(log.c_str());
}

// ---- registrations ------------------------------------------------------------------------------

constexpr size_t kBytes = 1 << 20;
constexpr int kMessages = 6;

bool sendAndAwait(const void *buffer, tuttiComm_t comm) {
  char taken = 0;
  return tuttiSend(buffer, kBytes, tuttiUint8, 1, comm, nullptr) == tuttiSuccess &&
         tuttiRecv(&taken, 1, tuttiUint8, 1, comm, nullptr) == tuttiSuccess;
}

void receiveAll(tuttiUniqueId id) {
  tuttiComm_t comm = nullptr;
  std::vector<uint8_t> buffer(kBytes);
  bool good = tuttiCommInitRank(&comm, 2, id, 1) == tuttiSuccess;
  for (int i = 0; i < 1 + kMessages && good; i++)
    good = tuttiRecv(buffer.data(), kBytes, tuttiUint8, 0, comm, nullptr) == tuttiSuccess &&
           tuttiSend(buffer.data(), 1, tuttiUint8, 0, comm, nullptr) == tuttiSuccess;
  while (!stop && good) // its registrations are counted, too
    usleep(1000);
  if (!good || tuttiCommDestroy(comm) != tuttiSuccess) failed++;
}

// Memory that the user has given up is deregistered at once, though the proxy is idle and would
// look after half a second by itself. The fastest of some times, as others may have the cores.
TEST(Registrations, EndWithTheMemoryTheyAreOf) {
  if (!configured("device hca0 ports=2")) return;
  for (auto [name, value] : {std::pair{"TUTTI_NET", "IB"},
                             {"TUTTI_P2P_DISABLE", "1"},
                             {"TUTTI_SHM_DISABLE", "1"},
                             {"TUTTI_DEBUG", "NONE"}})
    setenv(name, value, 1);
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
  std::thread other(receiveAll, id);
  tuttiComm_t comm = nullptr;
  ASSERT_EQ(tuttiCommInitRank(&comm, 2, id, 0), tuttiSuccess) << tuttiGetLastError(nullptr);
  std::vector<uint8_t> own(kBytes);
  EXPECT_TRUE(sendAndAwait(own.data(), comm)); // the connections are made
  const int before = softHcaRegistrations();
  std::chrono::duration<double> fastest[2] = {std::chrono::hours(1), std::chrono::hours(1)};
  for (int i = 0; i < kMessages && !failed; i++) {
    void *handle = nullptr, *given = nullptr;
    bool allocated = i % 2;
    if (allocated)
      EXPECT_EQ(tuttiMemAlloc(&given, kBytes), tuttiSuccess);
    else
      EXPECT_EQ(tuttiCommRegister(comm, own.data(), kBytes, &handle), tuttiSuccess);
    EXPECT_TRUE(sendAndAwait(allocated ? given : own.data(), comm));
    EXPECT_EQ(softHcaRegistrations(), before + kPorts) << "it was sent from there";
    usleep(100000); // all has come to rest
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(allocated ? tuttiMemFree(given) : tuttiCommDeregister(comm, handle), tuttiSuccess);
    EXPECT_TRUE(await([&] { return softHcaRegistrations() == before; })) << i;
    fastest[allocated] = std::min<std::chrono::duration<double>>(
        fastest[allocated], std::chrono::steady_clock::now() - start);
  }
  for (auto took : fastest)
    EXPECT_LT(took.count(), 0.25);
  stop = true;
  other.join();
  EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  EXPECT_EQ(failed, 0u);
}

} // namespace
