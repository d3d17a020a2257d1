/* Windows: memory that all ranks make known to each other. */
#include "harness.h"

using testing::HasSubstr;

namespace {

std::string lastError(tuttiComm_t comm = nullptr) {
  return tuttiGetLastError(comm);
}

TEST(Window, IsAMatterOfAllRanks) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    std::vector<float> buffer(1000, (float)r);
    tuttiWindow_t win = nullptr, other = nullptr;
    size_t bytes = buffer.size() * sizeof(float);
    ASSERT_EQ(tuttiCommWindowRegister(comm, buffer.data(), bytes, &win, TUTTI_WIN_COLL_SYMMETRIC),
              tuttiSuccess)
        << lastError();
    ASSERT_NE(win, nullptr);
    ASSERT_EQ(tuttiCommWindowRegister(comm, buffer.data(), bytes, &other, TUTTI_WIN_DEFAULT),
              tuttiSuccess);
    void *user = nullptr;
    EXPECT_EQ(tuttiWinGetUserPtr(comm, win, &user), tuttiSuccess);
    EXPECT_EQ(user, buffer.data());
    ASSERT_EQ(tuttiAllReduce(buffer.data(), buffer.data(), buffer.size(), tuttiFloat32, tuttiSum,
                             comm, nullptr),
              tuttiSuccess);
    EXPECT_EQ(buffer, std::vector<float>(1000, 3));
    EXPECT_EQ(tuttiCommWindowDeregister(comm, win), tuttiSuccess);
    EXPECT_EQ(tuttiCommWindowDeregister(comm, nullptr), tuttiSuccess);
    EXPECT_EQ(tuttiCommWindowDeregister(comm, win), tuttiInvalidArgument);
    EXPECT_THAT(lastError(), HasSubstr("no live window"));
    EXPECT_EQ(tuttiWinGetUserPtr(comm, win, &user), tuttiInvalidArgument);
    EXPECT_EQ(tuttiWinGetUserPtr(comm, other, nullptr), tuttiInvalidArgument);
    EXPECT_THAT(lastError(), HasSubstr("outUserPtr is NULL"));
  }); /* `other` goes with the communicator */
}

/* One thread at a time uses a communicator; another is told so, and nothing comes of it. */
TEST(Window, OfTwoThreadsAtOnce) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  std::vector<char> buffers[2] = {std::vector<char>(64), std::vector<char>(64)};
  onThreads(2, [&](int t) {
    for (int i = 0; i < 100; i++) {
      tuttiWindow_t win = nullptr;
      tuttiComm_t part = nullptr;
      tuttiResult_t made =
          tuttiCommWindowRegister(ranks.comms[0], buffers[t].data(), 64, &win, TUTTI_WIN_DEFAULT);
      EXPECT_EQ(made, win ? tuttiSuccess : tuttiInvalidUsage) << lastError();
      made = tuttiCommSplit(ranks.comms[0], 0, 0, &part, nullptr);
      EXPECT_EQ(made, part ? tuttiSuccess : tuttiInvalidUsage) << lastError();
      EXPECT_EQ(tuttiCommDestroy(part), part ? tuttiSuccess : tuttiInvalidArgument);
    }
  });
}

/* What one thread looks up, another may be making or taking away. */
TEST(Window, IsFoundByOneThreadAtATime) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t comm = ranks.comms[0];
  char first[64] = {}, buffers[2][64] = {}, word[2] = {};
  tuttiWindow_t stays = nullptr;
  ASSERT_EQ(tuttiCommWindowRegister(comm, first, 64, &stays, TUTTI_WIN_DEFAULT), tuttiSuccess);
  onThreads(2, [&](int t) {
    for (int i = 0; i < 100; i++) {
      tuttiWindow_t win = nullptr;
      tuttiResult_t result = tuttiInvalidUsage;
      void *user = nullptr;
      while (result == tuttiInvalidUsage)
        result = tuttiCommWindowRegister(comm, buffers[t], 64, &win, TUTTI_WIN_DEFAULT);
      ASSERT_EQ(result, tuttiSuccess) << lastError();
      result = tuttiWinGetUserPtr(comm, win, &user);
      EXPECT_EQ(result, user ? tuttiSuccess : tuttiInvalidUsage) << lastError();
      EXPECT_EQ(user, user ? buffers[t] : nullptr);
      EXPECT_EQ(tuttiWinGetPeerPtr(win, 0, 0, &user), tuttiInvalidUsage); /* none for kernels */
      result = tuttiPutSignal(&word[t], 1, tuttiInt8, 0, stays, t, 0, 0, 0, comm, nullptr);
      EXPECT_TRUE(result == tuttiSuccess || result == tuttiInvalidUsage) << lastError();
      do
        result = tuttiCommWindowDeregister(comm, win);
      while (result == tuttiInvalidUsage);
      EXPECT_EQ(result, tuttiSuccess) << lastError();
    }
  });
}

TEST(Window, OfOneThreadInAGroup) {
  tuttiComm_t comms[2];
  tuttiWindow_t wins[2] = {};
  char buffers[2][64];
  ASSERT_EQ(tuttiCommInitAll(comms, 2, nullptr), tuttiSuccess) << lastError();
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r = 0; r < 2; r++)
    ASSERT_EQ(tuttiCommWindowRegister(comms[r], buffers[r], 64, &wins[r], 0), tuttiSuccess);
  ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
  for (int r = 0; r < 2; r++) {
    EXPECT_NE(wins[r], nullptr);
    EXPECT_EQ(tuttiCommWindowDeregister(comms[r], wins[r]), tuttiSuccess);
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess);
  }
}

TEST(Window, RanksDisagree) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    char buffer[64];
    tuttiWindow_t win = nullptr;
    EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, r ? 64 : 32, &win, 0), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("disagree on a window"));
    EXPECT_THAT(lastError(), HasSubstr(r ? "rank 0 with size 32" : "rank 1 with size 64"));
    EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, 64, &win, r), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("winFlags 1"));
    EXPECT_EQ(win, nullptr);
    EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, 64, &win, 0), tuttiSuccess); /* still usable */
  });
}

TEST(Window, BadArguments) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t comm = ranks.comms[0];
  char buffer[8];
  tuttiWindow_t win = nullptr;
  EXPECT_EQ(tuttiCommWindowRegister(comm, nullptr, 8, &win, 0), tuttiInvalidArgument);
  EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, 0, &win, 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("describe no memory"));
  EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, 8, nullptr, 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("win is NULL"));
  EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, 8, &win, 4), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("winFlags is 0x4"));
  EXPECT_EQ(tuttiCommWindowRegister(nullptr, buffer, 8, &win, 0), tuttiInvalidArgument);
}

} // namespace
