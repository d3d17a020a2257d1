// Partition keys and addresses under the library: what they must be, and that they may change.
#include <fstream>

#include "summing.h"

namespace {

void overRdma() {
  for (auto [name, value] : {std::pair{"TUTTI_NET", "IB"},
                             {"TUTTI_P2P_DISABLE", "1"},
                             {"TUTTI_SHM_DISABLE", "1"},
                             {"TUTTI_IB_TIMEOUT", "8"},
                             {"TUTTI_TIMEOUT", "4"},
                             {"TUTTI_DEBUG", "NONE"}})
    setenv(name, value, 1);
}

// Of a process for each rank, with partition key number index[rank] of its port.
std::string sumWithKeys(const int (&index)[2]) {
  int down[2], up[2];
  EXPECT_EQ(pipe(down) | pipe(up), 0);
  tuttiUniqueId id;
  char text[2][2000] = {};
  overRdma();
  pid_t child = fork();
  setenv("TUTTI_IB_PKEY", std::to_string(index[child == 0]).c_str(), 1);
  if (child == 0) {
    bool told = read(down[0], &id, sizeof id) == (ssize_t)sizeof id;
    snprintf(text[1], sizeof text[1], "%s", told ? sumOnce(1, id).c_str() : "nothing was told");
    _exit(write(up[1], text[1], sizeof text[1]) != (ssize_t)sizeof text[1]);
  }
  EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
  EXPECT_EQ(write(down[1], &id, sizeof id), (ssize_t)sizeof id);
  std::string mine = sumOnce(0, id);
  EXPECT_EQ(read(up[0], text[1], sizeof text[1]), (ssize_t)sizeof text[1]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (int fd : {down[0], down[1], up[0], up[1]})
    close(fd);
  return mine + text[1];
}

// Two limited members do not meet, so the first row would not do.
TEST(Partitions, TheKeyIsThatOfTheSetting) {
  if (!configured("device hca0 pkeys=1,8001")) return;
  EXPECT_EQ(sumWithKeys({1, 1}), "");
}

TEST(Partitions, RanksOfTwoDoNotMeetAndTheErrorNamesTheSetting) {
  if (!configured("device hca0 pkeys=ffff,8001")) return;
  std::string error = sumWithKeys({0, 1});
  EXPECT_NE(error.find("TUTTI_IB_PKEY names the same partition"), std::string::npos) << error;
  EXPECT_NE(error.find("hca0"), std::string::npos) << error;
}

TEST(Partitions, ARowThatIsNotThereIsRefusedAndTheErrorNamesTheSetting) {
  if (!configured("device hca0 pkeys=ffff,8001")) return;
  std::string error = sumWithKeys({2, 2});
  EXPECT_NE(error.find("check TUTTI_IB_PKEY"), std::string::npos) << error;
}

// What the log says of it, once it does.
bool awaitLog(const std::string &path, const std::string &what) {
  return await([&] {
    usleep(20000); // the ranks have more to do
    std::ifstream file(path);
    std::string all(std::istreambuf_iterator<char>(file), {});
    return all.find(what) != std::string::npos;
  });
}

// The ranks sum over the new address, as nothing reaches the old one.
void changeUnder(void (*change)(unsigned), const char *text) {
  std::string log = testing::TempDir() + "address." + std::to_string(getpid());
  setenv("TUTTI_DEBUG_FILE", log.c_str(), 1);
  {
    Summing ranks("INFO");
    EXPECT_TRUE(goOn(3));
    for (unsigned round = 1; round <= 5 && !failed; round++) {
      change(round);
      EXPECT_TRUE(goOn(3)) << round;
    }
    EXPECT_TRUE(awaitLog(log, "NET/IB: hca0 port 1 has other addresses"));
    EXPECT_TRUE(awaitLog(log, text));
  }
  unlink(log.c_str());
}

TEST(Addresses, AnotherLidIsUsed) {
  if (!configured("device hca0")) return;
  changeUnder([](unsigned round) { softHcaLid(0, 1, 70 + round); },
              "to its hca0 port 1, LID 75, 1 queue pairs");
}

TEST(Addresses, AnotherGidIsUsed) {
  if (!configured("device hca0 link=roce")) return;
  changeUnder([](unsigned round) { softHcaGid(0, 1, 70 + round); }, "10.100.1.75");
}

// Nothing of these is in what a connection is made of, and no connection is made anew for it.
TEST(Addresses, OtherEventsDoNoHarm) {
  if (!configured("device hca0 pkeys=ffff,8001")) return;
  Summing ranks;
  EXPECT_TRUE(goOn(3));
  for (unsigned round = 0; round < 5 && !failed; round++) {
    softHcaManager(0, 1);
    softHcaPkey(0, 1, 1, 0x8002 + round);
    EXPECT_TRUE(goOn(3)) << round;
  }
}

// The table's row has another key, the same for both.
TEST(Addresses, AnotherPartitionKeyIsUsed) {
  if (!configured("device hca0 pkeys=8001")) return;
  Summing ranks;
  for (unsigned round = 0; round < 5 && !failed; round++) {
    EXPECT_TRUE(goOn(3)) << round;
    softHcaPkey(0, 1, 0, 0x8002 + round);
  }
  EXPECT_TRUE(goOn(3));
}

} // namespace
