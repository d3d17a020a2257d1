#include <sys/mman.h>
#include <sys/wait.h>

#include <random>

#include "harness.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

class Id : public OnLoopback {
protected:
  void SetUp() override {
    ASSERT_EQ(tuttiIdCreate(&id_), tuttiSuccess) << tuttiErrorText();
    ASSERT_EQ(tuttiIdParse(&id_, &parsed_), tuttiSuccess) << tuttiErrorText();
  }
  void TearDown() override {
    tuttiRootCancel(parsed_.secret);
    OnLoopback::TearDown();
  }
  /* The error for an id whose bytes were changed. */
  std::string parseText(const tuttiUniqueId &id) {
    tuttiId out, same;
    memset(&out, 0x5a, sizeof(out));
    memcpy(&same, &out, sizeof(out));
    EXPECT_EQ(tuttiIdParse(&id, &out), tuttiInvalidArgument);
    EXPECT_EQ(memcmp(&out, &same, sizeof(out)), 0);
    return tuttiErrorText();
  }
  tuttiUniqueId id_;
  tuttiId parsed_;
};

TEST_F(Id, SaysWhereItsRootIs) {
  EXPECT_EQ(parsed_.fixed, 0);
  ASSERT_TRUE(tuttiAddressListValid(&parsed_.roots));
  EXPECT_EQ(rootThreads(), 1);
  int fd = rawConnect(parsed_.roots.a[0]);
  EXPECT_GE(fd, 0);
  close(fd);
  tuttiUniqueId other;
  tuttiId parsed;
  ASSERT_EQ(tuttiIdCreate(&other), tuttiSuccess);
  ASSERT_EQ(tuttiIdParse(&other, &parsed), tuttiSuccess);
  EXPECT_NE(memcmp(parsed.secret, parsed_.secret, sizeof(parsed.secret)), 0);
  tuttiRootCancel(parsed.secret);
}

/* It has a copy of the list of roots, but the numbers in it may be files of its own by now. */
TEST_F(Id, CancelInAForkedChildWritesNowhere) {
  pid_t child = fork();
  if (child == 0) {
    int wrong = 0, files[8];
    for (int &fd : files)
      fd = memfd_create("a file", 0);
    tuttiRootCancel(parsed_.secret);
    for (int fd : files)
      wrong += fd < 0 || lseek(fd, 0, SEEK_END) != 0;
    _exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(rootThreads(), 1);
}

TEST_F(Id, WhatIsWrong) {
  tuttiUniqueId bad = {};
  EXPECT_THAT(parseText(bad), HasSubstr("all zero"));
  memset(&bad, 'x', sizeof(bad));
  EXPECT_THAT(parseText(bad), HasSubstr("not made by tuttiGetUniqueId"));
  bad = id_;
  memset(bad.internal + 64, 0, 64);
  EXPECT_THAT(parseText(bad), HasSubstr("damaged or cut short"));
  bad = id_;
  bad.internal[4]++;
  EXPECT_THAT(parseText(bad), AllOf(HasSubstr("made by tutti 0.1.1"), HasSubstr("runs 0.1.0")));
}

TEST_F(Id, EveryChangedByteIsSeen) {
  for (size_t i = 0; i < sizeof(tuttiUniqueId); i++)
    for (int bit = 0; bit < 8; bit++) {
      tuttiUniqueId bad = id_;
      bad.internal[i] ^= (char)(1 << bit);
      EXPECT_NE(parseText(bad), "") << i;
    }
}

/* With a checksum that fits, too. */
TEST_F(Id, ForgedFields) {
  auto forge = [&](const std::function<void(tuttiId *)> &change) {
    tuttiId forged;
    memcpy(&forged, &id_, sizeof(forged));
    change(&forged);
    forged.check = 0;
    forged.check = tuttiHash(&forged, sizeof(forged));
    tuttiUniqueId out = {};
    memcpy(&out, &forged, sizeof(forged));
    return out;
  };
  tuttiId parsed;
  tuttiUniqueId same = forge([](tuttiId *) {});
  EXPECT_EQ(tuttiIdParse(&same, &parsed), tuttiSuccess) << tuttiErrorText();
  for (int n : {-1, 0, 4, 1000000, INT32_MIN}) {
    tuttiUniqueId bad = forge([&](tuttiId *id) { id->roots.n = n; });
    EXPECT_THAT(parseText(bad), HasSubstr("no usable address"));
  }
  EXPECT_THAT(parseText(forge([](tuttiId *id) { id->fixed = 2; })), HasSubstr("no usable"));
  EXPECT_THAT(parseText(forge([](tuttiId *id) { id->roots.a[0].sa.sa_family = AF_UNIX; })),
              HasSubstr("no usable"));
  EXPECT_THAT(parseText(forge([](tuttiId *id) { id->roots.a[0].v4.sin_port = 0; })),
              HasSubstr("no usable"));
}

TEST_F(Id, FixedIsTheSameEverywhere) {
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:4711");
  tuttiUniqueId a, b;
  ASSERT_EQ(tuttiIdCreate(&a), tuttiSuccess) << tuttiErrorText();
  ASSERT_EQ(tuttiIdCreate(&b), tuttiSuccess);
  EXPECT_EQ(memcmp(&a, &b, sizeof(a)), 0);
  EXPECT_EQ(rootThreads(), 1); /* only that of SetUp: rank 0 starts a fixed one */
  tuttiId parsed;
  ASSERT_EQ(tuttiIdParse(&a, &parsed), tuttiSuccess);
  EXPECT_EQ(parsed.fixed, 1);
  WithSetting other("TUTTI_COMM_ID", "127.0.0.1:4712");
  tuttiId parsedOther;
  ASSERT_EQ(tuttiIdCreate(&b), tuttiSuccess);
  ASSERT_EQ(tuttiIdParse(&b, &parsedOther), tuttiSuccess);
  EXPECT_NE(memcmp(parsed.secret, parsedOther.secret, 16), 0);
}

TEST_F(Id, FixedAddressIsChecked) {
  for (const char *bad : {"nowhere", "127.0.0.1", "127.0.0.1:99999", "[::1:80", "127.0.0.1:0"}) {
    WithSetting fixed("TUTTI_COMM_ID", bad);
    tuttiUniqueId id;
    EXPECT_EQ(tuttiIdCreate(&id), tuttiInvalidArgument);
    EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("TUTTI_COMM_ID"), HasSubstr(bad)));
  }
}

/* Random and mutated bytes, half a second. */
TEST_F(Id, Fuzz) {
  std::mt19937 random(4711);
  uint64_t end = tuttiDeadline(500);
  while (tuttiNow() < end) {
    tuttiUniqueId bad = id_;
    if (random() % 2)
      for (auto &c : bad.internal)
        c = (char)random();
    else
      for (unsigned i = 0, n = 1 + random() % 8; i < n; i++)
        bad.internal[random() % sizeof(bad)] = (char)random();
    tuttiId out;
    bool same = memcmp(&bad, &id_, sizeof(bad)) == 0;
    EXPECT_EQ(tuttiIdParse(&bad, &out) == tuttiSuccess, same);
  }
}

} // namespace
