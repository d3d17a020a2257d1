#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <random>

#include "harness.h"
#include "port.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

class Id : public OnLoopback {
protected:
  void SetUp() override {
    ASSERT_EQ(tuttiIdCreate(-1, &id_), tuttiSuccess) << tuttiErrorText();
    ASSERT_EQ(tuttiIdParse(&id_, &parsed_), tuttiSuccess) << tuttiErrorText();
  }
  void TearDown() override {
    tuttiRootCancel(parsed_.secret, tuttiSuccess);
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
  EXPECT_EQ(parsed_.pid, getpid());
  ASSERT_TRUE(tuttiAddressListValid(&parsed_.roots));
  EXPECT_EQ(rootThreads(), 1);
  int fd = rawConnect(parsed_.roots.a[0]);
  EXPECT_GE(fd, 0);
  close(fd);
  tuttiUniqueId other;
  tuttiId parsed;
  ASSERT_EQ(tuttiIdCreate(-1, &other), tuttiSuccess);
  ASSERT_EQ(tuttiIdParse(&other, &parsed), tuttiSuccess);
  EXPECT_NE(memcmp(parsed.secret, parsed_.secret, sizeof(parsed.secret)), 0);
  tuttiRootCancel(parsed.secret, tuttiSuccess);
}

/* It has a copy of the list of roots, but the numbers in it may be files of its own by now. */
TEST_F(Id, CancelInAForkedChildWritesNowhere) {
  pid_t child = fork();
  if (child == 0) {
    int wrong = 0, files[8];
    for (int &fd : files)
      fd = memfd_create("a file", 0);
    tuttiRootCancel(parsed_.secret, tuttiSuccess);
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
  EXPECT_THAT(parseText(forge([](tuttiId *id) { id->fixed = 1; })), HasSubstr("no usable"));
  EXPECT_THAT(parseText(forge([](tuttiId *id) { id->pid = -1; })), HasSubstr("no usable"));
  EXPECT_THAT(parseText(forge([](tuttiId *id) { id->roots.a[0].sa.sa_family = AF_UNIX; })),
              HasSubstr("no usable"));
  EXPECT_THAT(parseText(forge([](tuttiId *id) { id->roots.a[0].v4.sin_port = 0; })),
              HasSubstr("no usable"));
}

TEST_F(Id, FixedIsTheSameEverywhere) {
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:4711");
  tuttiUniqueId a, b;
  ASSERT_EQ(tuttiIdCreate(-1, &a), tuttiSuccess) << tuttiErrorText();
  ASSERT_EQ(tuttiIdCreate(-1, &b), tuttiSuccess);
  EXPECT_EQ(memcmp(&a, &b, sizeof(a)), 0);
  EXPECT_EQ(rootThreads(), 1); /* only that of SetUp: rank 0 starts a fixed one */
  tuttiId parsed;
  ASSERT_EQ(tuttiIdParse(&a, &parsed), tuttiSuccess);
  EXPECT_EQ(parsed.fixed, 1);
  WithSetting other("TUTTI_COMM_ID", "127.0.0.1:4712");
  tuttiId parsedOther;
  ASSERT_EQ(tuttiIdCreate(-1, &b), tuttiSuccess);
  ASSERT_EQ(tuttiIdParse(&b, &parsedOther), tuttiSuccess);
  EXPECT_NE(memcmp(parsed.secret, parsedOther.secret, 16), 0);
}

/* A file with a key, for its owner alone. */
struct KeyFile {
  explicit KeyFile(const std::string &key, mode_t mode = 0600)
      : path(testing::TempDir() + "tutti-key-" + std::to_string(getpid())) {
    unlink(path.c_str());
    std::ofstream(path, std::ios::binary) << key;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
  }
  ~KeyFile() { unlink(path.c_str()); }
  std::string path;
};

const std::string kKey = "0123456789abcdef0123456789abcdef";

tuttiId fixedId(const std::string &key) {
  KeyFile file(key);
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:4711"), psk("TUTTI_PSK_FILE", file.path);
  tuttiUniqueId id;
  tuttiId parsed = {};
  EXPECT_EQ(tuttiIdCreate(-1, &id), tuttiSuccess) << tuttiErrorText();
  EXPECT_EQ(tuttiIdParse(&id, &parsed), tuttiSuccess) << tuttiErrorText();
  EXPECT_EQ(std::string(id.internal, sizeof(id)).find(key.substr(0, 8)), std::string::npos);
  return parsed;
}

TEST_F(Id, AKeyMakesTheSecretOfAFixedOne) {
  tuttiId a = fixedId(kKey), same = fixedId(kKey + "\r\n"), b = fixedId(kKey + "0"), open;
  EXPECT_EQ(memcmp(a.secret, same.secret, 16), 0) << "whatever the editor put at its end";
  EXPECT_NE(memcmp(a.secret, b.secret, 16), 0);
  EXPECT_EQ(a.keyed, 1);
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:4711");
  tuttiUniqueId id;
  ASSERT_EQ(tuttiIdCreate(-1, &id), tuttiSuccess);
  ASSERT_EQ(tuttiIdParse(&id, &open), tuttiSuccess);
  EXPECT_EQ(open.keyed, 0);
  EXPECT_NE(memcmp(a.secret, open.secret, 16), 0);
}

TEST_F(Id, WhatIsNoKeyIsRefused) {
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:4711");
  auto refusal = [](const std::string &path) {
    WithSetting psk("TUTTI_PSK_FILE", path);
    tuttiUniqueId id;
    EXPECT_EQ(tuttiIdCreate(-1, &id), tuttiInvalidArgument);
    return std::string(tuttiErrorText());
  };
  EXPECT_THAT(refusal("/nowhere"), HasSubstr("TUTTI_PSK_FILE=/nowhere: No such file"));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("not a regular file"));
  KeyFile brief("secret\n\n\n\n\n\n\n\n\n\n\n");
  EXPECT_THAT(refusal(brief.path), AllOf(HasSubstr("holds 6 bytes"), HasSubstr("/dev/urandom")));
  KeyFile large(std::string(4097, 'k'));
  EXPECT_THAT(refusal(large.path), HasSubstr("has 4097 bytes; at most 4096"));
  KeyFile shown(kKey, 0644);
  EXPECT_THAT(refusal(shown.path), AllOf(HasSubstr("mode 0644"), HasSubstr("chmod 600")));
}

/* Ids of one TUTTI_COMM_ID: with a key, with another, and without. */
class Keyed : public Id {
protected:
  void SetUp() override {
    open_ = makeIds();
    KeyFile file(kKey);
    WithSetting psk("TUTTI_PSK_FILE", file.path);
    right_ = makeIds();
    std::ofstream(file.path) << kKey << "x";
    wrong_ = makeIds();
  }
  /* Rank 0 has its key from one list, rank 1 from another. */
  static std::vector<Outcome> meet(const std::vector<tuttiUniqueId> &ofRoot,
                                   const std::vector<tuttiUniqueId> &ofOther, int rootMs = 60000) {
    return onThreads(
        2, [&](int r) { return joinAs(r ? ofOther : ofRoot, r, 2, within(r ? 60000 : rootMs)); });
  }

  HeldPort held_;
  WithSetting fixed_{"TUTTI_COMM_ID", "127.0.0.1:" + std::to_string(held_.number())};
  std::vector<tuttiUniqueId> right_, wrong_, open_;
};

TEST_F(Keyed, RanksWithOneKeyMeet) {
  auto met = meet(right_, right_);
  for (auto &o : met)
    EXPECT_EQ(o.result, tuttiSuccess) << o.text;
  closeAll(met);
}

/* Rank 1 is told at once. The root, whose key is there to keep strangers from ending an init, waits
 * on, and names who came when it gives up. */
TEST_F(Keyed, ARootWithAKeyRefusesWhoHasAnotherOrNone) {
  for (auto [other, what] : {std::make_pair(&wrong_, ") has another key than rank 0 (host "),
                             std::make_pair(&open_, ") has no key, but rank 0 (host ")}) {
    WithSetting debug("TUTTI_DEBUG", "WARN");
    testing::internal::CaptureStderr();
    auto apart = meet(right_, *other, 2500);
    std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(apart[1].result, tuttiInvalidUsage);
    auto named = AllOf(HasSubstr("rank 1 (host "), HasSubstr(what), HasSubstr("TUTTI_PSK_FILE"));
    EXPECT_THAT(apart[1].text, named);
    EXPECT_EQ(apart[0].result, tuttiTimeout);
    EXPECT_THAT(apart[0].text, AllOf(HasSubstr("missing ranks: 1 of 2"), named));
    EXPECT_THAT(log, AllOf(HasSubstr("refused at 127.0.0.1:"), named,
                           testing::Not(HasSubstr("without TUTTI_PSK_FILE"))));
  }
}

/* Nothing keeps anybody from that root, so it takes the word of a rank that has a key. */
TEST_F(Keyed, ARootWithoutAKeyFailsAllIfARankHasOne) {
  for (auto &o : meet(open_, right_)) {
    EXPECT_EQ(o.result, tuttiInvalidUsage);
    EXPECT_THAT(o.text,
                AllOf(HasSubstr("rank 1 (host "), HasSubstr(") has a key, but rank 0 (host "),
                      HasSubstr(") has none"), HasSubstr("TUTTI_PSK_FILE")));
  }
}

/* He learns nothing and changes nothing who knows neither the key nor TUTTI_COMM_ID. */
TEST_F(Keyed, AStrangerHearsNothing) {
  std::vector<tuttiUniqueId> elsewhere;
  {
    WithSetting other("TUTTI_COMM_ID", "127.0.0.1:1");
    elsewhere = makeIds();
  }
  tuttiId id, parsed;
  ASSERT_EQ(tuttiIdParse(&elsewhere[0], &id), tuttiSuccess);
  ASSERT_EQ(tuttiIdParse(&right_[0], &parsed), tuttiSuccess);
  std::thread root([&] { EXPECT_EQ(joinAs(right_, 0, 2, within(2000)).result, tuttiTimeout); });
  tuttiCheckIn in = checkInOf(elsewhere, 0, 1, 2);
  in.peer.listeners = parsed.roots;
  std::unique_ptr<Caller> caller;
  EXPECT_TRUE(eventually([&] {
    caller = std::make_unique<Caller>(parsed.roots.a[0], id.secret);
    return caller->fd >= 0;
  }));
  caller->say(&in);
  EXPECT_EQ(rawRead(caller->fd, 1), "");
  close(caller->fd);
  root.join();
}

TEST_F(Id, ARootForAnybodySaysSoOnce) {
  HeldPort held;
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:" + std::to_string(held.number()));
  WithSetting debug("TUTTI_DEBUG", "WARN");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; i++) {
    auto met = onThreads(2, [&](int r) { return joinAs(makeIds(), r, 2); });
    for (auto &o : met)
      EXPECT_EQ(o.result, tuttiSuccess) << o.text;
    closeAll(met);
  }
  std::string log = testing::internal::GetCapturedStderr(),
              line = "without TUTTI_PSK_FILE: whoever";
  EXPECT_THAT(log, HasSubstr(line));
  EXPECT_EQ(log.find(line), log.rfind(line)) << log;
}

TEST_F(Id, FixedAddressIsChecked) {
  for (const char *bad : {"nowhere", "127.0.0.1", "127.0.0.1:99999", "[::1:80", "127.0.0.1:0"}) {
    WithSetting fixed("TUTTI_COMM_ID", bad);
    tuttiUniqueId id;
    EXPECT_EQ(tuttiIdCreate(-1, &id), tuttiInvalidArgument);
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
