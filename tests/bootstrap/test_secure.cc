/* Ranks that meet under TLS, and those whose ways of encrypting do not fit: each rank a process
 * with an environment of its own, the root in the test's. */
#include <sys/wait.h>

#include "bootstrap/harness.h"
#include "socket/secure.h"
#include "socket/tls.h"

namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Side {
  bool encrypts;
  std::string keyFile;
};

/* What each of these ranks gets from a join, the root of which encrypts as `root` does. */
std::vector<Outcome> join(const Side &root, const std::vector<Side> &ranks) {
  const int n = (int)ranks.size();
  std::vector<tuttiUniqueId> ids;
  {
    WithSetting encrypt("TUTTI_ENCRYPT", root.encrypts ? "1" : "0"),
        psk("TUTTI_PSK_FILE", root.keyFile);
    ids = makeIds();
  }
  std::vector<std::pair<pid_t, int>> children;
  for (int r = 0; r < n; r++) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
      WithSetting encrypt("TUTTI_ENCRYPT", ranks[r].encrypts ? "1" : "0"),
          psk("TUTTI_PSK_FILE", ranks[r].keyFile);
      Outcome o = joinAs(ids, r, n);
      bool covered = o.b && n > 1 && tuttiSecureIsOn(o.b->nextFd) && tuttiSecureIsOn(o.b->prevFd);
      std::vector<uint64_t> all(n);
      for (int turn = 0; o.b && turn < 3; turn++) {
        all[r] = (uint64_t)(turn * 100 + r);
        if (tuttiBootstrapAllGather(o.b, all.data(), 8, within(60000)) != tuttiSuccess) _exit(99);
        for (int i = 0; i < n; i++)
          if (all[i] != (uint64_t)(turn * 100 + i)) _exit(98);
      }
      std::string line = (covered ? "covered " : "") + o.text;
      if (write(ends[1], line.data(), line.size()) < 0) _exit(97);
      tuttiBootstrapClose(o.b);
      _exit(o.result);
    }
    close(ends[1]);
    children.emplace_back(child, ends[0]);
  }
  std::vector<Outcome> outcomes(n);
  for (int r = 0; r < n; r++) {
    char text[2048];
    ssize_t got;
    while ((got = read(children[r].second, text, sizeof text)) > 0)
      outcomes[r].text.append(text, (size_t)got);
    close(children[r].second);
    int status = -1;
    EXPECT_EQ(waitpid(children[r].first, &status, 0), children[r].first);
    EXPECT_TRUE(WIFEXITED(status));
    outcomes[r].result = (tuttiResult_t)WEXITSTATUS(status);
  }
  endRoots(ids);
  return outcomes;
}

class SecureJoin : public OnLoopback {
protected:
  void SetUp() override { NEEDS_TLS(); }

  KeyFile file_, other_{"the key of somebody else, or of yesterday"};
  const Side with_{true, file_.path()}, without_{false, file_.path()},
      otherwise_{true, other_.path()};
};

TEST_F(SecureJoin, WorksWhereAllEncrypt) {
  for (int n : {2, 5})
    for (auto &o : join(with_, std::vector<Side>(n, with_))) {
      EXPECT_EQ(o.result, tuttiSuccess) << o.text;
      EXPECT_EQ(o.text, "covered ");
    }
}

TEST_F(SecureJoin, OneRankThatDoesNotEncryptFailsAll) {
  for (auto &o : join(with_, {with_, without_, with_})) {
    EXPECT_EQ(o.result, tuttiInvalidUsage) << o.text;
    EXPECT_THAT(o.text, AllOf(HasSubstr(") encrypts its connections, but rank 1 (host "),
                              HasSubstr("does not: TUTTI_ENCRYPT=1 with TUTTI_PSK_FILE")));
  }
}

TEST_F(SecureJoin, OneRankThatEncryptsFailsAll) {
  for (auto &o : join(without_, {without_, without_, with_})) {
    EXPECT_EQ(o.result, tuttiInvalidUsage) << o.text;
    EXPECT_THAT(o.text, AllOf(HasSubstr("rank 2 (host 127.0.0.1"),
                              HasSubstr(") encrypts its connections, but "),
                              HasSubstr(") does not: TUTTI_ENCRYPT=1 with TUTTI_PSK_FILE")));
  }
}

TEST_F(SecureJoin, AnotherKeyFailsAll) {
  for (auto &o : join(with_, {with_, otherwise_})) {
    EXPECT_EQ(o.result, tuttiInvalidUsage) << o.text;
    EXPECT_THAT(o.text,
                AllOf(HasSubstr("rank 1 (host 127.0.0.1"),
                      HasSubstr(") encrypts with another key than "), HasSubstr("TUTTI_PSK_FILE")));
  }
}

TEST_F(SecureJoin, OneRankWithoutItsKeyFailsAll) {
  auto outcomes = join(with_, {with_, {true, "/nowhere"}});
  EXPECT_EQ(outcomes[0].result, tuttiInvalidUsage);
  EXPECT_THAT(outcomes[0].text, AllOf(HasSubstr(") encrypts its connections, but rank 1 (host "),
                                      HasSubstr(") does not")));
  EXPECT_EQ(outcomes[1].result, tuttiInvalidArgument);
  EXPECT_THAT(outcomes[1].text, HasSubstr("TUTTI_PSK_FILE=/nowhere: No such file"));
}

TEST_F(SecureJoin, WithoutAKeyThereIsNoId) {
  WithSetting encrypt("TUTTI_ENCRYPT", "1");
  tuttiUniqueId id;
  EXPECT_EQ(tuttiIdCreate(&id), tuttiInvalidUsage);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("TUTTI_ENCRYPT=1 needs a key"));
}

/* Who has heard the id, and no more, gets nothing from a root that encrypts, but can say that he
 * does not. Who drops out of a handshake is nobody to fail for. */
TEST_F(SecureJoin, ADroppedHandshakeIsNoDisagreement) {
  WithSetting encrypt("TUTTI_ENCRYPT", "1"), psk("TUTTI_PSK_FILE", file_.path());
  auto ids = makeIds();
  tuttiId id;
  ASSERT_EQ(tuttiIdParse(&ids[0], &id), tuttiSuccess);
  tuttiCheckIn in = {};
  tuttiHelloFill(&in.peer.hello, tuttiIdHash(0, id.secret), tuttiHelloCheckIn, 1, -1, 2);
  in.peer.listeners = id.roots;
  in.nroots = 1;
  in.remainingMs = 60000;
  in.encrypts = tuttiEncryptsYes;
  tuttiDial dial;
  tuttiDialInit(&dial, &id.roots, &in, sizeof in, id.secret, nullptr, "the root");
  while (dial.state != TUTTI_DIAL_DONE) {
    pollfd wanted;
    int ready;
    ASSERT_EQ(tuttiDialStep(&dial, within(60000)), tuttiSuccess) << tuttiErrorText();
    if (dial.state == TUTTI_DIAL_DONE) break;
    uint64_t until = tuttiDialWaitOn(&dial, &wanted);
    ASSERT_EQ(tuttiPollSlice(&wanted, 1, "the root", within(60000), until, &ready), tuttiSuccess);
  }
  char none;
  EXPECT_EQ(tuttiRecvAll(dial.fd, &none, 1, "the root", within(60000)), tuttiRemoteError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("closed the connection"));
  tuttiFdClose(&dial.fd);
  auto met = onThreads(2, [&](int r) { return joinAs(ids, r, 2); });
  for (auto &o : met)
    EXPECT_EQ(o.result, tuttiSuccess) << o.text;
  closeAll(met);
}

} // namespace
