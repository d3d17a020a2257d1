/* Joining: sizes, several roots, fixed addresses, processes; and how it fails. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <set>

#include "asleep.h"
#include "base/host.h"
#include "harness.h"
#include "port.h"

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

namespace {

class Join : public OnLoopback {};

/* Checks that all joined one communicator and that their ring carries data; closes all. */
void expectRing(std::vector<Outcome> &ranks) {
  int n = (int)ranks.size();
  for (int r = 0; r < n; r++)
    ASSERT_EQ(ranks[r].result, tuttiSuccess) << r << ": " << ranks[r].text;
  std::vector<std::vector<uint32_t>> all(n, std::vector<uint32_t>(3 * n));
  auto gathered = onThreads(n, [&](int r) {
    for (int k = 0; k < 3; k++)
      all[r][3 * r + k] = (uint32_t)(1000 * r + k);
    Outcome o;
    o.result = tuttiBootstrapAllGather(ranks[r].b, all[r].data(), 12, within(30000));
    o.text = tuttiErrorText();
    return o;
  });
  for (int r = 0; r < n; r++) {
    const tuttiBootstrap *b = ranks[r].b, *zero = ranks[0].b;
    EXPECT_EQ(gathered[r].result, tuttiSuccess) << gathered[r].text;
    for (int s = 0; s < n; s++)
      for (int k = 0; k < 3; k++)
        EXPECT_EQ(all[r][3 * s + k], (uint32_t)(1000 * s + k));
    EXPECT_EQ(b->hash, zero->hash);
    EXPECT_EQ(memcmp(b->secret, zero->secret, 16), 0);
    EXPECT_EQ(memcmp(b->listeners, zero->listeners, n * sizeof(*b->listeners)), 0);
    for (int s = 0; s < n && n > 1; s++)
      EXPECT_TRUE(tuttiAddressListValid(&b->listeners[s]));
  }
  closeAll(ranks);
}

TEST_F(Join, EverySize) {
  for (int n : {1, 2, 3, 5, 8, 17, 64}) {
    SCOPED_TRACE(n);
    auto ids = makeIds();
    auto ranks = onThreads(n, [&](int r) { return joinAs(ids, r, n); });
    expectRing(ranks);
  }
}

TEST_F(Join, SeveralRoots) {
  for (auto &c : std::vector<std::pair<int, int>>{{2, 2}, {2, 7}, {3, 7}, {5, 12}, {4, 3}}) {
    const int nids = c.first, n = c.second;
    SCOPED_TRACE(std::to_string(nids) + " ids, " + std::to_string(n) + " ranks");
    auto ids = makeIds(nids);
    auto ranks = onThreads(n, [&](int r) { return joinAs(ids, r, n); });
    expectRing(ranks);
  }
}

TEST(RootOfRank, SlicesCoverAllRanks) {
  for (int n = 1; n < 40; n++)
    for (int roots = 1; roots <= n; roots++) {
      EXPECT_EQ(tuttiFirstOfRoot(0, roots, n), 0);
      EXPECT_EQ(tuttiFirstOfRoot(roots, roots, n), n);
      for (int r = 0; r < n; r++) {
        int root = tuttiRootOfRank(r, roots, n);
        EXPECT_GE(r, tuttiFirstOfRoot(root, roots, n));
        EXPECT_LT(r, tuttiFirstOfRoot(root + 1, roots, n));
      }
    }
}

TEST_F(Join, LeaksNoFd) {
  auto cycle = [] {
    auto ids = makeIds(2);
    auto ranks = onThreads(4, [&](int r) { return joinAs(ids, r, 4); });
    expectRing(ranks);
    EXPECT_TRUE(eventually([] { return rootThreads() == 0; }));
  };
  cycle();
  int before = openFds();
  for (int i = 0; i < 30; i++)
    cycle();
  EXPECT_TRUE(eventually([&] { return openFds() == before; })) << before << " " << openFds();
}

TEST_F(Join, LargeBlocksDoNotDeadlock) {
  const int n = 4;
  const size_t size = 3 << 20;
  auto ids = makeIds();
  auto ranks = onThreads(n, [&](int r) {
    Outcome o = joinAs(ids, r, n);
    if (o.result != tuttiSuccess) return o;
    std::vector<char> all(n * size);
    memset(&all[r * size], 'a' + r, size);
    o.result = tuttiBootstrapAllGather(o.b, all.data(), size, within(60000));
    o.text = tuttiErrorText();
    for (int s = 0; s < n; s++)
      for (size_t i = 0; i < size; i += 997)
        EXPECT_EQ(all[s * size + i], 'a' + s);
    return o;
  });
  expectRing(ranks);
}

TEST_F(Join, EmptyAllGatherIsNothing) {
  auto ids = makeIds();
  auto ranks = onThreads(2, [&](int r) {
    Outcome o = joinAs(ids, r, 2);
    EXPECT_EQ(tuttiBootstrapAllGather(o.b, nullptr, 0, within(1000)), tuttiSuccess);
    return o;
  });
  expectRing(ranks);
}

/* As of a death that another communicator has shown. Nobody else knows that it does not come. Rank
 * 2 stays away: where all have come, a rank may be in before it looks at what has failed. */
TEST_F(Join, ARankThatHasFailedBeforeItChecksIn) {
  const tuttiAtomic32 failed = {tuttiRemoteError};
  auto ids = makeIds();
  auto ranks = onThreads(2, [&](int r) {
    return joinAs(ids, r, 3,
                  r == 0 ? within(60000)
                         : tuttiWait{tuttiDeadline(60000), &failed, "rank 7 (host far) died"});
  });
  for (auto &rank : ranks) {
    EXPECT_EQ(rank.result, tuttiRemoteError);
    EXPECT_THAT(rank.text, HasSubstr("rank 7 (host far) died"));
  }
  endRoots(ids);
}

/* Whoever made an id may fail after others have it: these hear of the failure, and take it for no
 * death of his. */
TEST_F(Join, WhoCancelsAnIdTellsWhy) {
  auto ids = makeIds();
  Outcome early, late;
  std::thread joins([&] { early = joinAs(ids, 1, 2); });
  usleep(200000); /* most often it has checked in by then; it hears of it all the same */
  EXPECT_EQ(tuttiErrorAdopt(tuttiRemoteError, "rank 7 died"), tuttiRemoteError);
  tuttiIdCancel(&ids[0], tuttiRemoteError);
  joins.join();
  late = joinAs(ids, 1, 2);
  for (const Outcome *o : {&early, &late}) {
    EXPECT_EQ(o->result, tuttiRemoteError);
    EXPECT_THAT(o->text, HasSubstr("rank 7 died"));
  }
  endRoots(ids);
}

/* A death shows in the communicator that is being made, and explains what happens in others. */
TEST_F(Join, ADeathIsKnownToTheWholeProcess) {
  const uint64_t process = 0x1234567890abcdef;
  auto ids = makeIds();
  tuttiCheckIn in = checkInOf(ids, 0, 1, 3);
  in.process = process;
  in.peer.hello.pid = 1; /* of another process than the root */
  auto dying = checkInAt(ids[0], in);
  std::thread death([&] {
    for (int told = 0; told < 2; told++) /* where the root is; again when rank 0 is there */
      rawRead(dying->fd, sizeof(tuttiReply) + sizeof(tuttiRootName));
    EXPECT_FALSE(tuttiDeadKnown(process));
    close(dying->fd);
  });
  Outcome o = joinAs(ids, 0, 3);
  death.join();
  EXPECT_EQ(o.result, tuttiRemoteError);
  EXPECT_THAT(o.text, HasSubstr("died: its connection to the rendezvous closed without a word"));
  EXPECT_TRUE(tuttiDeadKnown(process));
  endRoots(ids);
}

/* At once where it is known when the id is made, so that nobody is told of a process without one.
 */
TEST_F(Join, ARootSaysWhichRankItIs) {
  for (int rank : {-1, 2}) {
    std::vector<tuttiUniqueId> ids(1);
    ASSERT_EQ(tuttiIdCreate(rank, &ids[0]), tuttiSuccess) << tuttiErrorText();
    tuttiCheckIn in = checkInOf(ids, 0, 1, 3);
    in.peer.hello.pid = 1; /* of another process than the root */
    auto guest = checkInAt(ids[0], in);
    std::string said = rawRead(guest->fd, sizeof(tuttiReply) + sizeof(tuttiRootName));
    tuttiRootName name;
    ASSERT_EQ(said.size(), sizeof(tuttiReply) + sizeof name);
    memcpy(&name, said.data() + sizeof(tuttiReply), sizeof name);
    EXPECT_EQ(name.rank, rank);
    EXPECT_EQ(name.pid, getpid());
    close(guest->fd);
    endRoots(ids);
  }
}

/* ---- processes ------------------------------------------------------------------------------ */

/* Forks a child that runs body and exits with what it returns. */
pid_t spawn(const std::function<int()> &body) {
  pid_t pid = fork();
  if (pid == 0) _exit(body());
  return pid;
}

int exitOf(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A child that reads the id from the pipe and then runs body with it. */
pid_t spawnRank(const int pipe[2], const std::function<int(std::vector<tuttiUniqueId>)> &body) {
  return spawn([&] {
    std::vector<tuttiUniqueId> ids(1);
    if (read(pipe[0], ids.data(), sizeof(ids[0])) != (ssize_t)sizeof(ids[0])) return 90;
    return body(ids);
  });
}

TEST_F(Join, Processes) {
  const int n = 4;
  int pipe[2];
  ASSERT_EQ(pipe2(pipe, O_CLOEXEC), 0);
  std::vector<pid_t> children;
  for (int r = 1; r < n; r++)
    children.push_back(spawnRank(pipe, [r](std::vector<tuttiUniqueId> ids) {
      Outcome o = joinAs(ids, r, n);
      int all[n] = {};
      all[r] = 10 + r;
      if (o.result != tuttiSuccess) return 91;
      if (tuttiBootstrapAllGather(o.b, all, sizeof(int), within(30000)) != tuttiSuccess) return 92;
      for (int s = 0; s < n; s++)
        if (all[s] != 10 + s) return 93;
      tuttiBootstrapClose(o.b);
      return 0;
    }));
  auto ids = makeIds();
  for (int r = 1; r < n; r++)
    ASSERT_EQ(write(pipe[1], &ids[0], sizeof(ids[0])), 128);
  Outcome o = joinAs(ids, 0, n);
  EXPECT_EQ(o.result, tuttiSuccess) << o.text;
  int all[n] = {10};
  EXPECT_EQ(tuttiBootstrapAllGather(o.b, all, sizeof(int), within(30000)), tuttiSuccess);
  EXPECT_THAT(all, testing::ElementsAre(10, 11, 12, 13));
  for (pid_t child : children)
    EXPECT_EQ(exitOf(child), 0);
  tuttiBootstrapClose(o.b);
  close(pipe[0]), close(pipe[1]);
}

/* Rank 1 is played, so that it can say when it has checked in. */
TEST_F(Join, KilledWhileOthersAreAwaited) {
  int pipe[2], here[2];
  ASSERT_EQ(pipe2(pipe, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(here, O_CLOEXEC), 0);
  pid_t child = spawnRank(pipe, [&](std::vector<tuttiUniqueId> ids) {
    auto rank = checkInAt(ids[0], checkInOf(ids, 0, 1, 3));
    if (!arrived(rank->fd)) return 91;
    if (write(here[1], "", 1) != 1) return 92;
    return pause();
  });
  close(here[1]);
  auto ids = makeIds();
  ASSERT_EQ(write(pipe[1], &ids[0], sizeof(ids[0])), 128);
  std::thread killer([&] {
    char byte;
    EXPECT_EQ(read(here[0], &byte, 1), 1);
    kill(child, SIGKILL);
  });
  Outcome o = joinAs(ids, 0, 3);
  killer.join();
  EXPECT_EQ(o.result, tuttiRemoteError);
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("pid " + std::to_string(child)),
                    HasSubstr("died: its connection to the rendezvous"),
                    AnyOf(HasSubstr("while ranks 2 were"), HasSubstr("while ranks 0, 2 were"))));
  Outcome late = joinAs(ids, 2, 3);
  EXPECT_EQ(late.text, o.text);
  EXPECT_EQ(exitOf(child), 128 + SIGKILL);
  close(pipe[0]), close(pipe[1]), close(here[0]);
}

/* ---- TUTTI_COMM_ID -------------------------------------------------------------------------- */

TEST_F(Join, FixedAddressServesOneCommunicatorAfterTheOther) {
  HeldPort held;
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:" + std::to_string(held.number()));
  const int n = 4, rounds = 8;
  std::vector<std::vector<uint64_t>> hashes(n);
  std::atomic<pid_t> threads[n] = {};
  /* No rank waits for the others between rounds. */
  auto ranks = onThreads(n, [&](int r) {
    Outcome o;
    threads[r] = threadId();
    for (int i = 0; i < rounds; i++) {
      tuttiBootstrapClose(o.b);
      for (int other = 1; i == 0 && r == 0 && other < n; other++)
        waitUntilAsleep(threads[other]); /* they have been refused */
      o = joinAs(makeIds(), r, n);
      if (o.result != tuttiSuccess) break;
      hashes[r].push_back(o.b->hash);
    }
    return o;
  });
  for (int r = 1; r < n; r++)
    EXPECT_EQ(hashes[r], hashes[0]);
  EXPECT_EQ(std::set<uint64_t>(hashes[0].begin(), hashes[0].end()).size(), (size_t)rounds);
  expectRing(ranks);
}

/* Free on every address, and none that the kernel gives to others meanwhile. */
int freePortEverywhere() {
  for (int port = 10000 + getpid() % 10000; port < 32768; port++) {
    tuttiAddress any = {};
    any.v6.sin6_family = AF_INET6;
    any.v6.sin6_port = htons((uint16_t)port);
    int fd = -1;
    if (tuttiListenNow(&any, &fd) != 0) continue;
    close(fd);
    return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

/* As on Debian, whose /etc/hosts says 127.0.1.1 of the host itself: others know it by another. */
TEST_F(Join, FixedNameThatMeansLoopbackHere) {
  std::string port = ":" + std::to_string(freePortEverywhere());
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1" + port);
  auto ids = makeIds();
  tuttiAddress other = {};
  ASSERT_EQ(tuttiAddressParse(("127.0.0.2" + port).c_str(), &other), tuttiSuccess);
  for (std::string host : {"127.0.0.1", "localhost", "node1"}) {
    SCOPED_TRACE(host);
    WithSetting name("TUTTI_COMM_ID", host + port); /* as if it meant 127.0.0.1 */
    ASSERT_TRUE(eventually([] { return rootThreads() == 0; }));
    auto ranks = onThreads(2, [&](int r) {
      if (r == 0) return joinAs(ids, 0, 2);
      EXPECT_TRUE(eventually([] { return rootThreads() == 1; }));
      int fd = rawConnect(other);
      EXPECT_EQ(fd >= 0, host == "node1");
      close(fd);
      return joinAs(ids, 1, 2);
    });
    expectRing(ranks);
  }
}

TEST_F(Join, FixedAddressOfAnotherHost) {
  WithSetting fixed("TUTTI_COMM_ID", "198.51.100.1:4711");
  Outcome o = joinAs(makeIds(), 0, 2, within(20000));
  EXPECT_EQ(o.result, tuttiSystemError);
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("198.51.100.1:4711"), HasSubstr("no interface of this host")));
}

TEST_F(Join, FixedAddressInUse) {
  tuttiAddress a = {};
  a.v4.sin_family = AF_INET;
  a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd;
  ASSERT_EQ(tuttiListen(&a, &fd), tuttiSuccess);
  std::string address = "127.0.0.1:" + std::to_string(ntohs(a.v4.sin_port));
  WithSetting fixed("TUTTI_COMM_ID", address);
  Outcome o = joinAs(makeIds(), 0, 2, within(300));
  EXPECT_EQ(o.result, tuttiSystemError);
  EXPECT_THAT(o.text, AllOf(HasSubstr(address), HasSubstr("in use"), HasSubstr("choose another")));
  close(fd);
}

TEST_F(Join, FixedAddressWithoutRankZero) {
  HeldPort held;
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:" + std::to_string(held.number()));
  Outcome o = joinAs(makeIds(), 1, 2, within(500));
  EXPECT_EQ(o.result, tuttiTimeout);
  EXPECT_THAT(o.text, AllOf(HasSubstr("Connection refused"), HasSubstr("from lo (127.0.0.1"),
                            HasSubstr("Is rank 0 running")));
}

/* ---- disagreement and absence --------------------------------------------------------------- */

/* The root speaks when the first deadline of a rank has come, whoever has left by then. */
TEST_F(Join, MissingRanksAreNamed) {
  auto ids = makeIds();
  std::vector<std::unique_ptr<Caller>> ranks;
  for (int r : {0, 1, 3}) {
    ranks.push_back(checkInAt(ids[0], checkInOf(ids, 0, r, 8)));
    ASSERT_TRUE(arrived(ranks.back()->fd));
  }
  tuttiCheckIn last = checkInOf(ids, 0, 4, 8);
  last.remainingMs = 0;
  close(checkInAt(ids[0], last)->fd);
  for (auto &rank : ranks) {
    EXPECT_EQ(rank->hear(), tuttiReplyFailed);
    EXPECT_EQ(rank->reply.code, tuttiTimeout);
    EXPECT_THAT(rank->data,
                AllOf(HasSubstr("missing ranks: 2, 5-7 of 8"), HasSubstr("TUTTI_TIMEOUT")));
    close(rank->fd);
  }
}

tuttiMissing missingOf(const Caller &rank) {
  tuttiMissing missing = {};
  EXPECT_EQ(rank.data.size(), sizeof missing);
  memcpy(&missing, rank.data.data(), std::min(rank.data.size(), sizeof missing));
  return missing;
}

/* Ranks 0 and 1 have kin, and rank 3 has none; all are told that the root asks. The first answer
 * that says something counts, and goes to all. */
TEST_F(Join, WhatKeepsMissingRanksIsAsked) {
  auto ids = makeIds();
  std::vector<std::unique_ptr<Caller>> ranks;
  for (int r : {0, 1, 3}) {
    tuttiCheckIn in = checkInOf(ids, 0, r, 8);
    in.askMs = r < 2 ? 5000 + r : 0;
    ranks.push_back(checkInAt(ids[0], in));
    ASSERT_TRUE(arrived(ranks.back()->fd));
  }
  tuttiCheckIn last = checkInOf(ids, 0, 4, 8);
  last.remainingMs = 0;
  ranks.push_back(checkInAt(ids[0], last));
  for (auto &rank : ranks) {
    ASSERT_EQ(rank->hear(), tuttiReplyMissing);
    tuttiMissing missing = missingOf(*rank);
    EXPECT_EQ(missing.n, 4);
    EXPECT_THAT(missing.ranks, testing::ElementsAre(2, 5, 6, 7));
    EXPECT_EQ(missing.graceMs, 6001u);
  }
  const char text[] = "rank 2 waits\nfor rank 17";
  tuttiReplySend(ranks[2]->fd, &ranks[2]->session, tuttiReplyMissing, 0, "unasked", 7, nullptr);
  tuttiReplySend(ranks[0]->fd, &ranks[0]->session, tuttiReplyMissing, 0, nullptr, 0, nullptr);
  tuttiReplySend(ranks[1]->fd, &ranks[1]->session, tuttiReplyMissing, 0, text, strlen(text),
                 nullptr);
  for (auto &rank : ranks) {
    EXPECT_EQ(rank->hear(), tuttiReplyFailed);
    EXPECT_EQ(rank->reply.code, tuttiTimeout);
    EXPECT_THAT(rank->data, AllOf(HasSubstr("missing ranks: 2, 5-7 of 8 never came"),
                                  HasSubstr("before the deadline: rank 2 waits for rank 17"),
                                  Not(HasSubstr("unasked"))));
    close(rank->fd);
  }
}

/* One knows nothing and the other does not answer; and one that comes meanwhile is too late. */
TEST_F(Join, WhatKeepsMissingRanksIsNotKnown) {
  auto ids = makeIds();
  std::vector<std::unique_ptr<Caller>> ranks;
  for (int r : {0, 1, 2}) {
    tuttiCheckIn in = checkInOf(ids, 0, r, 4);
    in.askMs = 1;
    in.remainingMs = r == 2 ? 0 : UINT64_MAX;
    ranks.push_back(checkInAt(ids[0], in));
    ASSERT_TRUE(arrived(ranks.back()->fd));
  }
  for (auto &rank : ranks)
    ASSERT_EQ(rank->hear(), tuttiReplyMissing);
  tuttiReplySend(ranks[0]->fd, &ranks[0]->session, tuttiReplyMissing, 0, nullptr, 0, nullptr);
  ranks.push_back(checkInAt(ids[0], checkInOf(ids, 0, 3, 4)));
  for (auto &rank : ranks) {
    EXPECT_EQ(rank->hear(), tuttiReplyFailed);
    EXPECT_THAT(rank->data, AllOf(HasSubstr("missing ranks: 3 of 4 never came"),
                                  HasSubstr("before the deadline; see whether they were started")));
    close(rank->fd);
  }
}

/* Rank 0 knows what keeps rank 2; asking takes longer than the two have left. */
TEST_F(Join, KinExplainsTheMissing) {
  auto ids = makeIds();
  struct Kin {
    std::atomic<int> asked{0};
    std::vector<int32_t> ranks;
  } known;
  tuttiKin kin = {&known, 2000,
                  [](void *ctx, const int32_t *missing, int n, char *text, size_t size) {
                    auto *k = (Kin *)ctx;
                    k->asked++;
                    k->ranks.assign(missing, missing + n);
                    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                    snprintf(text, size, "it waits for rank 17");
                  },
                  nullptr, nullptr};
  auto ranks =
      onThreads(2, [&](int r) { return joinAs(ids, r, 3, within(2000), r == 0 ? &kin : nullptr); });
  for (auto &o : ranks) {
    EXPECT_EQ(o.result, tuttiTimeout);
    EXPECT_THAT(o.text, AllOf(HasSubstr("missing ranks: 2 of 3"),
                              HasSubstr("before the deadline: it waits for rank 17")));
  }
  EXPECT_EQ(known.asked, 1);
  EXPECT_THAT(known.ranks, testing::ElementsAre(2));
}

/* Ranks 2 to 7 of 8 are missing: before any deadline whoever asks is told the first four of them,
 * without a grace; nobody else is, and the root goes on. */
TEST_F(Join, WhoDoubtsIsToldWhoIsMissing) {
  auto ids = makeIds();
  std::vector<std::unique_ptr<Caller>> ranks;
  for (int r : {0, 1}) {
    ranks.push_back(checkInAt(ids[0], checkInOf(ids, 0, r, 8)));
    ASSERT_TRUE(arrived(ranks.back()->fd));
  }
  Caller &doubting = *ranks[1];
  tuttiReplySend(doubting.fd, &doubting.session, tuttiReplyWho, 0, nullptr, 0, nullptr);
  ASSERT_EQ(doubting.hear(), tuttiReplyMissing);
  tuttiMissing missing = missingOf(doubting);
  EXPECT_EQ(missing.n, 4);
  EXPECT_THAT(missing.ranks, testing::ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(missing.graceMs, 0u);
  const char text[] = "rank 1 has seen enough";
  tuttiReplySend(doubting.fd, &doubting.session, tuttiReplyFailed, tuttiRemoteError, text,
                 strlen(text), nullptr);
  for (auto &rank : ranks) {
    EXPECT_EQ(rank->hear(), tuttiReplyFailed);
    EXPECT_EQ(rank->data, text);
    close(rank->fd);
  }
  endRoots(ids);
}

/* What a rank's kin knows of others, and what it was asked. */
struct Doubts {
  std::atomic<bool> doubts{false}, holds{false}; /* holds: leaves() does not return yet */
  std::atomic<int> asked{0}, left{-1};           /* asked: leaves() */
  std::vector<int32_t> ranks;                    /* in the last call */
  tuttiKin kin = {this, 2000, [](void *, const int32_t *, int, char *text, size_t) { text[0] = 0; },
                  [](void *ctx) { return ((Doubts *)ctx)->doubts.load(); },
                  [](void *ctx, const int32_t *missing, int n, char *text, size_t size) {
                    auto *d = (Doubts *)ctx;
                    d->ranks.assign(missing, missing + n);
                    d->asked++;
                    while (d->holds)
                      std::this_thread::yield();
                    snprintf(text, size, "rank %d will not come", d->left.load());
                    return d->left.load();
                  }};
};

/* Nobody is asked about while there is no doubt; the others hear of it from the one who has kin. */
TEST_F(Join, WhoWillNotComeIsNotAwaited) {
  auto ids = makeIds();
  Doubts known;
  auto ranks = onThreads(3, [&](int r) {
    if (r < 2) return joinAs(ids, r, 4, within(60000), r == 0 ? &known.kin : nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_EQ(known.asked, 0);
    known.left = 3;
    known.doubts = true;
    return Outcome{};
  });
  for (int r = 0; r < 2; r++) {
    EXPECT_EQ(ranks[r].result, tuttiRemoteError);
    EXPECT_THAT(ranks[r].text, HasSubstr("rank 3 will not come"));
  }
  EXPECT_EQ(known.asked, 2); /* once more after it was known to have left */
  EXPECT_THAT(known.ranks, testing::ElementsAre(2, 3));
  endRoots(ids);
}

/* Rank 1, which is played, has come by the time at which it is found to have left. */
TEST_F(Join, WhoLeavesAfterHeCameIsOneOfThem) {
  auto ids = makeIds();
  Doubts known;
  known.doubts = known.holds = true;
  known.left = 1;
  auto ranks = onThreads(2, [&](int r) {
    if (r == 0) return joinAs(ids, 0, 2, within(60000), &known.kin);
    while (known.asked == 0)
      std::this_thread::yield();
    auto caller = checkInAt(ids[0], checkInOf(ids, 0, 1, 2));
    EXPECT_EQ(caller->hear(), tuttiReplyNext);
    known.holds = false;
    const char text[] = "rank 1 was played";
    tuttiReplySend(caller->fd, &caller->session, tuttiReplyFailed, tuttiRemoteError, text,
                   strlen(text), nullptr);
    close(caller->fd);
    return Outcome{};
  });
  EXPECT_EQ(ranks[0].result, tuttiRemoteError);
  EXPECT_EQ(ranks[0].text, "rank 1 was played");
  EXPECT_EQ(known.asked, 1);
}

/* Ranks 0 and 5 are played. When rank 0 hears who is next, rank 4 has checked in with both roots.
 */
TEST_F(Join, MissingRanksOfASlice) {
  auto ids = makeIds(2); /* slices 0-3 and 4-7 */
  std::unique_ptr<Caller> callers[3];
  auto ranks = onThreads(5, [&](int r) {
    if (r > 0) return joinAs(ids, r, 8);
    Outcome o;
    tuttiCheckIn bridge = checkInOf(ids, 1, 0, 8), last = checkInOf(ids, 1, 5, 8);
    bridge.bridge = 1;
    last.remainingMs = 0;
    callers[0] = checkInAt(ids[0], checkInOf(ids, 0, 0, 8));
    callers[1] = checkInAt(ids[1], bridge);
    EXPECT_TRUE(arrived(callers[1]->fd));
    EXPECT_EQ(callers[0]->hear(), tuttiReplyNext);
    callers[2] = checkInAt(ids[1], last);
    EXPECT_EQ(callers[2]->hear(), tuttiReplyFailed);
    o.text = callers[2]->data;
    return o;
  });
  for (auto &caller : callers)
    close(caller->fd);
  for (int r = 0; r < 5; r++) /* rank 4 has told the other slice */
    EXPECT_THAT(ranks[r].text, HasSubstr("missing ranks: 6-7 of 8"));
  for (int r : {1, 2, 3, 4})
    EXPECT_EQ(ranks[r].result, tuttiTimeout) << ranks[r].text;
}

TEST_F(Join, ARankSaysHowLongItWaits) {
  tuttiAddress root = {};
  root.v4.sin_family = AF_INET;
  root.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int listener;
  ASSERT_EQ(tuttiListen(&root, &listener), tuttiSuccess);
  WithSetting fixed("TUTTI_COMM_ID", "127.0.0.1:" + std::to_string(ntohs(root.v4.sin_port)));
  tuttiAtomic32 failed = {0};
  std::thread rank(
      [&] { EXPECT_EQ(joinAs(makeIds(), 1, 2, within(40000, &failed)).result, tuttiRemoteError); });
  tuttiCheckIn in = {};
  int fd = acceptOne(listener);
  EXPECT_EQ(tuttiRecvAll(fd, &in, sizeof(in), "rank 1", within(20000)), tuttiSuccess);
  EXPECT_GT(in.remainingMs, 0u);
  EXPECT_LE(in.remainingMs, 40000u);
  tuttiStoreRelease32(&failed, 1);
  rank.join();
  close(fd), close(listener);
}

/* TUTTI_TIMEOUT is only the default of what each rank has from its config. */
TEST_F(Join, RanksWaitLongerThanTheRootsTimeout) {
  auto ids = makeIds();
  WithSetting brief("TUTTI_TIMEOUT", "100ms");
  auto ranks = onThreads(2, [&](int r) {
    /* The time is the subject: longer than the default. */
    if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return joinAs(ids, r, 2);
  });
  expectRing(ranks);
}

TEST_F(Join, TwoProcessesWithOneRank) {
  auto ids = makeIds();
  std::atomic<int> told{0};
  auto ranks = onThreads(4, [&](int i) {
    const int come[] = {0, 1, 1, 3};
    while (i == 3 && told < 3) /* comes later, and hears of it too */
      std::this_thread::yield();
    Outcome o = joinAs(ids, come[i], 4);
    told++;
    return o;
  });
  for (auto &o : ranks) {
    EXPECT_EQ(o.result, tuttiInvalidUsage);
    std::string who = "rank 1 (host " + std::string(tuttiHostname()) + ", pid ";
    EXPECT_THAT(o.text, AllOf(HasSubstr("two processes came as one rank: " + who),
                              HasSubstr("and " + who)));
  }
}

TEST_F(Join, DifferentNranks) {
  auto ids = makeIds();
  auto ranks = onThreads(3, [&](int r) { return joinAs(ids, r, r == 2 ? 4 : 3); });
  for (auto &o : ranks) {
    EXPECT_EQ(o.result, tuttiInvalidUsage);
    EXPECT_THAT(o.text, AllOf(HasSubstr("nranks 3"), HasSubstr("nranks 4"), HasSubstr("rank 2 (")));
  }
  endRoots(ids); /* it may have learned of a fourth to tell */
}

/* Rank 1 comes to the root of rank 0 as its bridge, and waits in vain at the third. */
TEST_F(Join, DifferentIds) {
  auto ids = makeIds(3);
  tuttiAtomic32 over = {0};
  auto ranks = onThreads(2, [&](int r) {
    if (r == 1) return joinAs({ids[0], ids[2], ids[1]}, 1, 2, within(60000, &over));
    Outcome o = joinAs(ids, 0, 2);
    tuttiStoreRelease32(&over, 1);
    return o;
  });
  EXPECT_EQ(ranks[0].result, tuttiInvalidUsage);
  EXPECT_THAT(ranks[0].text, HasSubstr("different lists"));
  EXPECT_NE(ranks[1].result, tuttiSuccess);
  endRoots(ids);
}

TEST_F(Join, StaleId) {
  auto ids = makeIds();
  auto ranks = onThreads(2, [&](int r) { return joinAs(ids, r, 2); });
  expectRing(ranks);
  Outcome o = joinAs(ids, 0, 2);
  EXPECT_EQ(o.result, tuttiRemoteError);
  EXPECT_THAT(o.text, AllOf(HasSubstr("the process that made the unique id (pid " +
                                      std::to_string(getpid()) + ", at 127.0.0.1:"),
                            HasSubstr("Connection refused"), HasSubstr("stale")));
}

/* The id of a process that has ended since. */
tuttiUniqueId idOfTheDead(pid_t *pid) {
  tuttiUniqueId id = {};
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  *pid = fork();
  if (*pid == 0) {
    bool made = tuttiIdCreate(-1, &id) == tuttiSuccess;
    _exit(made && write(ends[1], &id, sizeof id) == (ssize_t)sizeof id ? 0 : 1);
  }
  EXPECT_EQ(read(ends[0], &id, sizeof id), (ssize_t)sizeof id);
  close(ends[0]);
  close(ends[1]);
  return id;
}

/* Nobody who refuses is tried again for seconds where it is plain that his process is no more: not
 * even reaped, or that too. */
TEST_F(Join, StaleIdOfADeadProcess) {
  double least[2] = {60, 60};
  for (int reaped = 0; reaped < 2; reaped++)
    for (int i = 0; i < 5 && least[reaped] > 1; i++) {
      pid_t pid;
      tuttiUniqueId id = idOfTheDead(&pid);
      ASSERT_TRUE(eventually([&] { return tuttiProcessGone(pid); }));
      if (reaped) waitpid(pid, nullptr, 0);
      uint64_t from = tuttiNow();
      Outcome o = joinAs({id}, 1, 2);
      least[reaped] = std::min(least[reaped], tuttiMs(from, tuttiNow()) / 1e3);
      EXPECT_EQ(o.result, tuttiRemoteError);
      EXPECT_THAT(o.text, AllOf(HasSubstr("the process that made the unique id (pid " +
                                          std::to_string(pid) + ", at 127.0.0.1:"),
                                HasSubstr("Connection refused"), HasSubstr("stale")));
      if (!reaped) waitpid(pid, nullptr, 0);
    }
  EXPECT_LT(least[0], 1);
  EXPECT_LT(least[1], 1);
}

/* A number says nothing of a process that another kernel or PID namespace counts, or of one that
 * lives. */
TEST_F(Join, WhoseProcessIsGone) {
  pid_t pid;
  tuttiUniqueId made = idOfTheDead(&pid);
  tuttiId id;
  ASSERT_EQ(tuttiIdParse(&made, &id), tuttiSuccess);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(id.pid, pid);
  EXPECT_NE(id.pidSpace, 0);
  EXPECT_TRUE(tuttiIdRootGone(&id));
  tuttiId other = id;
  other.pidSpace = (uint16_t)(id.pidSpace == 1 ? 2 : id.pidSpace - 1);
  EXPECT_FALSE(tuttiIdRootGone(&other));
  other.pidSpace = 0;
  EXPECT_FALSE(tuttiIdRootGone(&other));
  other = id;
  other.pid = 0;
  EXPECT_FALSE(tuttiIdRootGone(&other));
  other.pid = getpid();
  EXPECT_FALSE(tuttiIdRootGone(&other));
  other.pid = 1; /* of another user, perhaps */
  EXPECT_FALSE(tuttiIdRootGone(&other));
}

/* Pauses between attempts grow, but the last one ends when it is time to give up. */
TEST_F(Join, ARefusalEndsInTime) {
  tuttiAddressList closed = {};
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  tuttiListener listener;
  int n;
  ASSERT_EQ(tuttiInterfaces(interfaces, TUTTI_MAX_INTERFACES, &n), tuttiSuccess);
  ASSERT_EQ(tuttiListenAny(interfaces, n, &closed, &listener), tuttiSuccess);
  tuttiListenerClose(&listener);
  tuttiHello hello = {};
  uint8_t secret[16] = {};
  tuttiDial d;
  tuttiDialInit(&d, &closed, &hello, sizeof hello, secret, nullptr, "nobody");
  d.refusedMs = 300;
  uint64_t since = 0;
  while (tuttiDialStep(&d, within(60000)) == tuttiSuccess) {
    pollfd wanted;
    uint64_t until = tuttiDialWaitOn(&d, &wanted);
    if (tuttiConnectorRefused(&d.connector, 0)) {
      for (int i = 0; i < d.connector.n; i++)
        since = std::max(since, d.connector.attempts[i].refusedSince);
      EXPECT_LE(until, since + 300 * TUTTI_MS);
    }
    int ready;
    ASSERT_EQ(tuttiPollSlice(&wanted, 1, "nobody", within(60000), until, &ready), tuttiSuccess);
  }
  EXPECT_GT(since, 0u);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("nobody is not there"));
  tuttiDialClose(&d);
}

/* A connection to a listener of this process; for tuttiFdClose, and tuttiListenerClose. */
int connected(tuttiListener *listener) {
  tuttiAddressList list = {};
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  tuttiConnector connector;
  int n, fd = -1, index = 0;
  EXPECT_EQ(tuttiInterfaces(interfaces, TUTTI_MAX_INTERFACES, &n), tuttiSuccess);
  EXPECT_EQ(tuttiListenAny(interfaces, n, &list, listener), tuttiSuccess);
  tuttiConnectorInit(&connector, &list);
  for (uint64_t end = tuttiDeadline(60000); fd < 0 && tuttiNow() < end; usleep(200))
    EXPECT_EQ(tuttiConnectorStep(&connector, "the listener", &fd, &index), tuttiSuccess);
  return fd;
}

/* Else it would keep an end of the connection alive when this process is gone. */
TEST_F(Join, AForkedChildHasNoSocketThatConnects) {
  tuttiListener listener;
  int fd = connected(&listener), status = -1;
  ASSERT_GE(fd, 0);
  pid_t child = fork();
  if (child == 0) _exit(fcntl(fd, F_GETFD) == -1 ? 0 : 1);
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  tuttiFdClose(&fd);
  tuttiListenerClose(&listener);
}

/* Or a sender that is far ahead of its reader may wait until TCP tries again, 200 ms later. */
TEST_F(Join, ASegmentIsLessThanHalfOfAWindow) {
  tuttiListener listener;
  int fd = connected(&listener), segment = 0, room = 0;
  ASSERT_GE(fd, 0);
  socklen_t size = sizeof segment;
  ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &size), 0);
  ASSERT_EQ(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, &size), 0);
  int window = room / 2;
  EXPECT_LE(segment, window / 2 - window / 16);
  tuttiFdClose(&fd);
  tuttiListenerClose(&listener);
}

TEST_F(Join, BadArguments) {
  auto ids = makeIds();
  tuttiBootstrap *b = nullptr;
  for (auto [nids, rank, n] : std::vector<std::tuple<int, int, int>>{
           {0, 0, 1}, {-1, 0, 1}, {1, 0, 0}, {1, -1, 2}, {1, 2, 2}, {1, 0, TUTTI_MAX_RANKS + 1}})
    EXPECT_EQ(tuttiBootstrapJoin(ids.data(), nids, rank, n, within(1000), nullptr, &b),
              tuttiInvalidArgument);
  EXPECT_EQ(b, nullptr);
  endRoots(ids);
}

/* ---- failures under way --------------------------------------------------------------------- */

/* Rank 1 may be gone before the root has seen it, and nobody hears of it: then it comes anew. */
TEST_F(Join, AbortedWhileOthersAreAwaited) {
  auto ids = makeIds();
  std::atomic<bool> heard{false};
  auto ranks = onThreads(2, [&](int r) {
    Outcome o;
    if (r == 0) {
      o = joinAs(ids, 0, 3);
      heard = true;
      return o;
    }
    for (int ms = 300; !heard; ms *= 2) {
      tuttiAtomic32 failed = {0};
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        tuttiStoreRelease32(&failed, 1);
      });
      Outcome now = joinAs(ids, 1, 3, within(60000, &failed));
      aborter.join();
      if (ms > 300 && now.text.find("aborted") == std::string::npos) break; /* it was seen before */
      o = now;
    }
    return o;
  });
  EXPECT_EQ(ranks[1].result, tuttiRemoteError);
  EXPECT_THAT(ranks[1].text, HasSubstr("aborted"));
  EXPECT_EQ(ranks[0].result, tuttiRemoteError);
  EXPECT_THAT(ranks[0].text, HasSubstr("rank 1 (host"));
  EXPECT_EQ(joinAs(ids, 2, 3).result, tuttiRemoteError); /* lets the root end */
}

/* As of a rank whose thread can't start, or that has no device: the others do not wait for it. */
TEST_F(Join, ARankThatDeclinesIsNamedAtOnce) {
  auto ids = makeIds();
  auto ranks = onThreads(3, [&](int r) {
    if (r < 2) return joinAs(ids, r, 3);
    Outcome o;
    TUTTI_FAIL(tuttiSystemError, "no thread to be had");
    tuttiBootstrapDecline(ids.data(), 1, 2, 3, tuttiSystemError);
    o.text = tuttiErrorText();
    return o;
  });
  EXPECT_EQ(ranks[2].text, "no thread to be had") << "its own error stays";
  for (int r : {0, 1}) {
    EXPECT_EQ(ranks[r].result, tuttiRemoteError);
    EXPECT_THAT(ranks[r].text, AllOf(HasSubstr("rank 2 (host "), HasSubstr("failed in its init"),
                                     HasSubstr("no thread to be had")));
  }
}

/* A rank whose connection breaks since it has given up passes the cause on, and is not blamed. */
TEST_F(Join, WhoGivesUpTellsTheCause) {
  const int n = 5;
  auto ids = makeIds();
  auto ranks = onThreads(n, [&](int r) { return joinAs(ids, r, n); });
  auto gathered = onThreads(n, [&](int r) {
    Outcome o;
    std::vector<char> all(n * 100);
    if (r == 2) {
      tuttiErrorAdopt(tuttiRemoteError, "rank 7 (host far, pid 4242) died");
      tuttiBootstrapGiveUp(ranks[r].b, tuttiRemoteError);
      tuttiBootstrapClose(ranks[r].b);
      ranks[r].b = nullptr;
      return o;
    }
    o.result = tuttiBootstrapAllGather(ranks[r].b, all.data(), 100, within(60000));
    o.text = tuttiErrorText();
    return o;
  });
  for (int r : {0, 1, 3, 4}) {
    EXPECT_EQ(gathered[r].result, tuttiRemoteError);
    EXPECT_EQ(gathered[r].text, "rank 7 (host far, pid 4242) died");
  }
  closeAll(ranks);
}

/* What a rank that leaves in the middle does to the all-gather of the others. */
TEST_F(Join, NeighbourLeavesBeforeAllGather) {
  const int n = 6;
  auto ids = makeIds();
  auto ranks = onThreads(n, [&](int r) { return joinAs(ids, r, n); });
  tuttiBootstrapClose(ranks[2].b);
  ranks[2].b = nullptr;
  auto gathered = onThreads(n, [&](int r) {
    Outcome o;
    std::vector<char> all(n * 100);
    if (r == 2) return o;
    o.result = tuttiBootstrapAllGather(ranks[r].b, all.data(), 100, within(60000));
    o.text = tuttiErrorText();
    return o;
  });
  for (int r = 0; r < n; r++)
    EXPECT_EQ(gathered[r].result, r == 2 ? tuttiInternalError : tuttiRemoteError) << r;
  EXPECT_THAT(gathered[3].text, HasSubstr("rank 2 (host"));
  closeAll(ranks);
}

TEST_F(Join, AllGatherEndsAtTheDeadlineOrTheFlag) {
  auto ids = makeIds();
  auto ranks = onThreads(3, [&](int r) { return joinAs(ids, r, 3); });
  char all[3];
  EXPECT_EQ(tuttiBootstrapAllGather(ranks[0].b, all, 1, within(200)), tuttiTimeout);
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("0 of 2 bytes"), HasSubstr("rank 2 (host")));
  /* and the others see at once that nobody can go on */
  auto late = onThreads(3, [&](int r) {
    Outcome o;
    char mine[3];
    if (r > 0) o.result = tuttiBootstrapAllGather(ranks[r].b, mine, 1, within(60000));
    return o;
  });
  EXPECT_EQ(late[1].result, tuttiTimeout);
  EXPECT_THAT(late[2].result, AnyOf(tuttiTimeout, tuttiSuccess)); /* it has what it needs */
  closeAll(ranks);

  ids = makeIds();
  ranks = onThreads(2, [&](int r) { return joinAs(ids, r, 2); });
  tuttiAtomic32 failed = {0};
  const std::atomic<pid_t> self{threadId()};
  std::thread aborter([&] {
    waitUntilAsleep(self);
    tuttiStoreRelease32(&failed, 1);
  });
  EXPECT_EQ(tuttiBootstrapAllGather(ranks[0].b, all, 1, within(60000, &failed)), tuttiRemoteError);
  aborter.join();
  closeAll(ranks);
}

} // namespace
