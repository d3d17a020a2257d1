// Ports that are down at init: what is used instead, what waits for them, and that they are used as
// they come up.
#include <fstream>

#include "summing.h"

namespace {

// What is logged from here on.
class Log {
public:
  Log() { setenv("TUTTI_DEBUG_FILE", path_.c_str(), 1); }
  ~Log() { unlink(path_.c_str()); }
  Log(const Log &) = delete;
  Log &operator=(const Log &) = delete;
  std::string all() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool says(const std::string &what) const {
    usleep(10000); // the ranks have more to do
    return all().find(what) != std::string::npos;
  }

private:
  std::string path_ = testing::TempDir() + "late." + std::to_string(getpid());
};

const char kTwoPorts[] = "device hca0 ports=2";
constexpr int kPorts = 2;
const std::string kNone = "no port of hca0 is active (ibv_devinfo)";

void allPorts(int up) {
  for (int port = 1; port <= kPorts; port++)
    softHcaPort(0, port, up);
}

void apart(const char *net) {
  for (auto [name, value] :
       {std::pair{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_DEBUG", "INFO"}})
    setenv(name, value, 1);
  setenv("TUTTI_NET", net, 1);
}

TEST(LatePorts, AreWaitedForWhereNoOtherNetworkIsAllowed) {
  if (!configured(kTwoPorts)) return;
  allPorts(0);
  Log log;
  Summing ranks("WARN");
  EXPECT_TRUE(await([&] { return log.says(kNone + "; connections wait for one"); })) << log.all();
  EXPECT_EQ(operations, 0u);
  softHcaPort(0, 2, 1);
  EXPECT_TRUE(goOn(5));
  EXPECT_EQ(softHcaFrames(0, 1), 0u) << "it is down";
  softHcaPort(0, 1, 1);
  EXPECT_TRUE(await([&] { return softHcaFrames(0, 1) > 50; })) << "the other one joins";
}

// Of one of two processes, which then receives nothing and sends nothing yet.
TEST(LatePorts, AreWaitedForByPeersToo) {
  if (!configured("device hca0")) return;
  Log log;
  apart("IB");
  int pipes[2];
  tuttiUniqueId id;
  ASSERT_EQ(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0) {
    softHcaPort(0, 1, 0);
    std::thread later([&] {
      bool waits = await([&] { return log.says("connections wait for one"); });
      usleep(300000); // the other has asked in vain meanwhile
      softHcaPort(0, 1, waits);
    });
    bool told = read(pipes[0], &id, sizeof id) == (ssize_t)sizeof id;
    std::string error = told ? sumOnce(1, id) : "nothing was told";
    later.join();
    fputs(error.c_str(), stderr);
    _exit(!error.empty());
  }
  EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
  EXPECT_EQ(write(pipes[1], &id, sizeof id), (ssize_t)sizeof id);
  EXPECT_EQ(sumOnce(0, id), "");
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(log.says("the peer's ports are down; it works again")) << log.all();
  for (int fd : pipes)
    close(fd);
}

// What every rank's sum ends with.
std::string sumOfBoth() {
  tuttiUniqueId id;
  EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
  std::string text[2];
  std::thread other([&] { text[1] = sumOnce(1, id); });
  text[0] = sumOnce(0, id);
  other.join();
  return text[0] + text[1];
}

// For as long as an operation may wait, and then the error names them.
TEST(LatePorts, AreNotWaitedForForEver) {
  if (!configured(kTwoPorts)) return;
  allPorts(0);
  Log log;
  apart("IB");
  setenv("TUTTI_TIMEOUT", "2", 1);
  std::string error = sumOfBoth();
  EXPECT_NE(error.find("could not be made within 1500 ms; ports here: hca0:1 down"),
            std::string::npos)
      << error << log.all();
  EXPECT_NE(error.find("check link and cable of these ports"), std::string::npos) << error;
}

TEST(LatePorts, LeaveItToSocketsWhereTheseAreAllowed) {
  if (!configured(kTwoPorts)) return;
  allPorts(0);
  Log log;
  apart("");
  EXPECT_EQ(sumOfBoth(), "");
  EXPECT_TRUE(log.says("NET/IB is not used: " + kNone)) << log.all();
  EXPECT_TRUE(log.says("via NET/Socket")) << log.all();
}

// Where such a port has no address either, no way is known by which to wait for it.
TEST(LatePorts, WithoutAnAddressAreAnErrorOfInit) {
  if (!configured("device hca0 link=roce")) return;
  softHcaPort(0, 1, 0);
  Log log;
  apart("IB");
  setenv("TUTTI_IB_GID_INDEX", "7", 1); // a row that is not there
  std::string error = sumOfBoth();
  EXPECT_NE(error.find("no GIDs fit, rank 0: hca0:1 down, no GID"), std::string::npos) << error;
}

} // namespace
