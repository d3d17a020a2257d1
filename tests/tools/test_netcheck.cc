/* tutti netcheck: its rounds, its judgement, and jobs of several hosts as a user runs them. */
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "base/mem.h"
#include "command.h"
#include "netcheck/netcheck.h"
#include "port.h"
#include "tool.h"

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/* ---- rounds ------------------------------------------------------------------------------------
 */

TEST(NetcheckRounds, EveryTwoMeetOnceAndNobodyIsInTwoPairs) {
  for (int n = 2; n <= 33; n++) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < netRounds(n); round++) {
      for (int host = 0; host < n; host++) {
        int partner = netPartner(n, round, host);
        if (partner < 0) {
          EXPECT_EQ(n % 2, 1) << n;
          continue;
        }
        ASSERT_LT(partner, n);
        ASSERT_NE(partner, host);
        EXPECT_EQ(netPartner(n, round, partner), host) << n << " hosts, round " << round;
        if (host < partner) {
          EXPECT_TRUE(met.insert({host, partner}).second) << n << ": " << host << ", " << partner;
        }
      }
    }
    EXPECT_EQ(met.size(), (size_t)n * (size_t)(n - 1) / 2) << n;
    EXPECT_LE(netRounds(n), n);
  }
}

TEST(NetcheckHosts, FirstRankOfEachHostAndNamesThatDiffer) {
  std::vector<tuttiPeer> peers(6);
  const char *names[] = {"a", "a", "b", "b", "a", "a"};
  const uint64_t ids[] = {1, 1, 2, 2, 1, 3};
  for (size_t r = 0; r < 6; r++) {
    peers[r].hostId = ids[r];
    snprintf(peers[r].host, sizeof peers[r].host, "%s", names[r]);
  }
  netHost hosts[6];
  ASSERT_EQ(netHostsOf(peers.data(), 6, hosts), 3);
  EXPECT_EQ(hosts[0].rank, 0);
  EXPECT_EQ(hosts[1].rank, 2);
  EXPECT_EQ(hosts[2].rank, 5);
  EXPECT_STREQ(hosts[0].name, "a/0");
  EXPECT_STREQ(hosts[1].name, "b");
  EXPECT_STREQ(hosts[2].name, "a/5");
}

/* ---- judgement ---------------------------------------------------------------------------------
 */

/* What is found of rows between hosts a, b and c, whose rails have 50 GB/s. */
class NetcheckJudge : public testing::Test {
protected:
  NetcheckJudge() {
    for (int h = 0; h < 3; h++)
      snprintf(hosts_[h].name, sizeof hosts_[h].name, "%c", 'a' + h);
  }
  ~NetcheckJudge() override {
    tuttiFree(j_.ports);
    for (auto &row : rows_)
      netRowFree(&row);
  }
  netRow &add(int from, int to, double alone, bool gpu = true) {
    netRow row = {};
    row.host[0] = from;
    row.host[1] = to;
    row.gpu[0] = row.gpu[1] = gpu ? 0 : -1;
    row.line = 50;
    row.alone = row.together = alone;
    for (auto &nic : row.nic)
      snprintf(nic, sizeof nic, "mlx5_0:1");
    snprintf(row.via, sizeof row.via, "NET/IB/0/GDRDMA");
    rows_.push_back(row);
    return rows_.back();
  }
  int judge() {
    j_ = {&options_, hosts_, 3, (int)rows_.size(), rows_.data(), nullptr};
    EXPECT_EQ(netJudge(&j_), tuttiSuccess);
    return netExit(&j_);
  }
  std::string reason(size_t row) {
    char reason[2 * NETCHECK_TEXT], remedy[NETCHECK_TEXT];
    netExplain(&j_, &rows_[row], reason, remedy);
    return std::string(reason) + "; " + remedy;
  }
  netOptions options_ = {.device = 0,
                         .bytes = 1 << 20,
                         .seconds = 60,
                         .least = 80,
                         .json = nullptr,
                         .port = 0,
                         .all = false};
  netHost hosts_[3] = {};
  std::vector<netRow> rows_;
  netJudgement j_ = {};
};

TEST_F(NetcheckJudge, WhatIsFastIsWell) {
  add(0, 1, 49);
  add(1, 0, 41);
  EXPECT_EQ(judge(), 0);
  EXPECT_EQ(reason(0), "; ");
}

TEST_F(NetcheckJudge, ThePortThatLagsWithAllIsToBlame) {
  for (int from = 0; from < 3; from++)
    for (int to = 0; to < 3; to++)
      if (from != to) add(from, to, from == 1 ? 20 : 48);
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  int slow = 0;
  for (size_t i = 0; i < rows_.size(); i++) {
    slow += rows_[i].found == netFoundSlow;
    EXPECT_EQ(rows_[i].found == netFoundSlow, rows_[i].host[0] == 1);
    if (rows_[i].host[0] == 1) {
      EXPECT_THAT(reason(i), AllOf(HasSubstr("40% of the line rate"),
                                   HasSubstr("mlx5_0:1 of host b sends slowly with all others"),
                                   HasSubstr("`tutti doctor` on host b")));
    }
  }
  EXPECT_EQ(slow, 2);
}

TEST_F(NetcheckJudge, ReceiverToBlame) {
  for (int from = 0; from < 3; from++)
    for (int to = 0; to < 3; to++)
      if (from != to) add(from, to, to == 2 ? 20 : 48);
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  EXPECT_THAT(reason(1), HasSubstr("mlx5_0:1 of host c receives slowly with all others"));
}

TEST_F(NetcheckJudge, OneLameWayOfFastPorts) {
  for (int from = 0; from < 3; from++)
    for (int to = 0; to < 3; to++)
      if (from != to) add(from, to, from == 0 && to == 2 ? 20 : 48);
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  EXPECT_THAT(reason(1), AllOf(HasSubstr("it is the way between them"),
                               HasSubstr("the switches between hosts a and c")));
}

TEST_F(NetcheckJudge, TwoHostsCannotTellWhose) {
  add(0, 1, 20);
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  EXPECT_THAT(reason(0), HasSubstr("a third host would tell"));
}

TEST_F(NetcheckJudge, NarrowPcieIsNamed) {
  netRow &row = add(0, 1, 20);
  row.pcie[1] = 24;
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  EXPECT_THAT(reason(0), HasSubstr("the PCIe link of mlx5_0:1 on host b carries 24 GB/s only"));
}

TEST_F(NetcheckJudge, SharedLinkShowsWhenAllRailsCarry) {
  add(0, 1, 48).together = 24;
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  EXPECT_EQ(rows_[0].found, netFoundTogether);
  EXPECT_THAT(reason(0), HasSubstr("48% of the line rate while all rails carry"));
}

TEST_F(NetcheckJudge, InHostMemoryACoreIsNoFindingOfTheNetwork) {
  for (double alone : {4.0, 1.0}) {
    netRow &row = add(0, 1, alone, false);
    row.copy[0] = row.copy[1] = 10;
  }
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  EXPECT_EQ(rows_[0].found, netFoundFine);
  EXPECT_THAT(reason(0), HasSubstr("which a core copies at 10 GB/s here: the line may carry more"));
  EXPECT_EQ(rows_[1].found, netFoundSlow);
}

TEST_F(NetcheckJudge, StagedPayloadsAreNoGpuDirect) {
  netRow &row = add(0, 1, 49);
  row.worse = true;
  row.text = strdup("RoCE from mlx5_0 to mlx5_0 of host b; not GDRDMA: IOMMU or ACS is in the way");
  EXPECT_EQ(judge(), TUTTI_EXIT_BAD);
  EXPECT_EQ(rows_[0].found, netFoundPath);
  EXPECT_THAT(reason(0), HasSubstr("not GDRDMA: IOMMU or ACS is in the way"));
}

TEST_F(NetcheckJudge, WrongBytesAreWorstOfAll) {
  netRow &row = add(0, 1, 49);
  row.found = netFoundWrong;
  row.wrong = 3;
  add(1, 2, 1);
  EXPECT_EQ(judge(), NETCHECK_EXIT_WRONG);
  EXPECT_THAT(reason(0), HasSubstr("3 wrong elements"));
}

TEST_F(NetcheckJudge, UnknownLineRatesAreNoFinding) {
  add(0, 1, 0.001).line = 0;
  EXPECT_EQ(judge(), 0);
}

/* ---- what hosts tell ---------------------------------------------------------------------------
 */

TEST(NetcheckRows, BothSidesOfAPairMakeARow) {
  auto a = std::make_unique<netPairReport>(), b = std::make_unique<netPairReport>();
  netRow rows[2 * NETCHECK_RAILS];
  a->nrails = b->nrails = 1;
  a->rails[0].alone = 10;
  b->rails[0].alone = 20;
  b->rails[0].wrong = 5;
  snprintf(b->rails[0].fault, sizeof b->rails[0].fault, "byte 7");
  for (auto *r : {&a->rails[0], &b->rails[0]})
    r->gpu = -1;
  snprintf(a->rails[0].nic[0], NETCHECK_NIC, "of a");
  snprintf(b->rails[0].nic[0], NETCHECK_NIC, "of b");
  snprintf(a->rails[0].nic[1], NETCHECK_NIC, "of b");
  snprintf(b->rails[0].nic[1], NETCHECK_NIC, "of a");
  ASSERT_EQ(netRowsOf(4, 7, a.get(), b.get(), "", rows), 2);
  EXPECT_EQ(rows[0].host[0], 4);
  EXPECT_EQ(rows[0].alone, 10);
  EXPECT_EQ(rows[0].found, netFoundWrong); // b got it
  EXPECT_STREQ(rows[0].text, "byte 7");
  EXPECT_EQ(rows[1].host[0], 7);
  EXPECT_EQ(rows[1].alone, 20);
  EXPECT_EQ(rows[1].found, netFoundFine);
  EXPECT_STREQ(rows[1].nic[0], "of b");
  EXPECT_STREQ(rows[1].nic[1], "of a");
  netRowFree(&rows[0]);
}

TEST(NetcheckRows, AHostThatSaysNothingHasFailed) {
  auto a = std::make_unique<netPairReport>();
  netRow rows[2 * NETCHECK_RAILS];
  ASSERT_EQ(netRowsOf(0, 1, nullptr, nullptr, "host b is gone", rows), 1);
  EXPECT_EQ(rows[0].found, netFoundFailed);
  EXPECT_STREQ(rows[0].text, "host b is gone");
  netRowFree(&rows[0]);
  a->nrails = 2;
  ASSERT_EQ(netRowsOf(0, 1, a.get(), nullptr, "host b is gone", rows), 4);
  for (int i = 0; i < 4; i++) {
    EXPECT_EQ(rows[i].found, netFoundFailed) << i;
    netRowFree(&rows[i]);
  }
}

TEST(NetcheckRows, ReportsAreNotBelieved) {
  auto r = std::make_unique<netPairReport>();
  memset(r.get(), 0xff, sizeof *r);
  netPairReportClean(r.get());
  EXPECT_EQ(r->nrails, 0);
  memset(r.get(), 'x', sizeof *r);
  r->nrails = 1;
  r->rails[0].port[0] = -5;
  r->rails[0].port[1] = 1 << 20;
  r->rails[0].alone = -1;
  r->rails[0].why[3] = '\033';
  netPairReportClean(r.get());
  EXPECT_EQ(strlen(r->rails[0].failure), sizeof r->rails[0].failure - 1);
  EXPECT_EQ(r->rails[0].why[3], ' ');
  EXPECT_EQ(r->rails[0].port[0] + r->rails[0].port[1], 0);
  EXPECT_EQ(r->rails[0].alone, 0);
}

/* ---- jobs --------------------------------------------------------------------------------------
 */

using Words = std::vector<std::string>;

/* One process on each of several hosts, and what they say. */
class Job {
public:
  /* `more` of a host is its environment besides. */
  Job(int hosts, Words args, std::map<int, Words> more = {}, int perHost = 1) {
    args.insert(args.begin(), {TUTTI_COMMAND, "netcheck"});
    int n = hosts * perHost;
    for (int r = 0; r < n; r++) {
      int host = r / perHost;
      Words env = {"RANK=" + std::to_string(r),
                   "WORLD_SIZE=" + std::to_string(n),
                   "LOCAL_RANK=" + std::to_string(r % perHost),
                   "LOCAL_WORLD_SIZE=" + std::to_string(perHost),
                   "TUTTI_HOSTID=host" + std::to_string(host),
                   "TUTTI_COMM_ID=127.0.0.1:" + std::to_string(ntohs(port_.address.v4.sin_port))};
      for (int of : {-1, host})
        env.insert(env.end(), more[of].begin(), more[of].end());
      commands_.push_back(std::make_unique<Command>(args, env));
    }
  }
  Result lead(int seconds = 120) { return finished(*commands_[0], seconds); }
  Command &operator[](int rank) { return *commands_[(size_t)rank]; }
  /* The rounds begin: all have met. */
  bool begun() {
    for (int i = 0; i < 6000; i++, usleep(10000))
      if (commands_[0]->out().find("#   host") != std::string::npos) return true;
    return false;
  }

private:
  HeldPort port_;
  std::vector<std::unique_ptr<Command>> commands_;
};

struct Row {
  std::string from, to, via, found, all;
};

/* The lines of --json. */
std::vector<Row> rowsOf(const std::string &json) {
  std::vector<Row> rows;
  std::istringstream in(json);
  static const std::regex form(
      R"re(\{"from":\{"host":"[^"]*","rank":(\d+),"nic":(?:null|"([^"]*)"),"gpu":(?:null|\d+)\},)re"
      R"re("to":\{"host":"[^"]*","rank":(\d+),"nic":(?:null|"([^"]*)"),"gpu":(?:null|\d+)\},)re"
      R"re("via":(?:null|"([^"]*)"),"line":[^,]*,"alone":[^,]*,"all":[^,]*,"latency":[^,]*,)re"
      R"re("wrong":\d+,"found":"([a-z]+)","reason":.*,"remedy":.*\})re");
  for (std::string line; std::getline(in, line);) {
    std::smatch m;
    if (!std::regex_match(line, m, form)) {
      ADD_FAILURE() << line;
      continue;
    }
    rows.push_back(
        {m[1].str() + " " + m[2].str(), m[3].str() + " " + m[4].str(), m[5], m[6], line});
  }
  return rows;
}

const Words kSockets = {"TUTTI_NET=Socket"};

TEST(Netcheck, HostsBySockets) {
  Job job(3, {"--size", "64K", "--least", "0", "--json", "-"}, {{-1, kSockets}}, 2);
  Result r = job.lead();
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_EQ(r.err, "");
  auto rows = rowsOf(r.out);
  std::set<std::string> pairs;
  for (auto &row : rows) {
    pairs.insert(row.from.substr(0, 1) + row.to.substr(0, 1));
    EXPECT_EQ(row.found, "ok") << row.all;
    EXPECT_THAT(row.via, HasSubstr("NET/Socket"));
    EXPECT_THAT(row.all, Not(ContainsRegex("\"(alone|all|latency)\":null")));
  }
  EXPECT_EQ(rows.size(), 6u);
  EXPECT_EQ(pairs, (std::set<std::string>{"02", "04", "20", "24", "40", "42"}));
  for (int rank = 1; rank < 6; rank++)
    EXPECT_EQ(job[rank].wait(), 0) << job[rank].err();
}

TEST(Netcheck, OneHostIsNoNetwork) {
  Job job(1, {}, {{-1, kSockets}}, 2);
  Result r = job.lead();
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("all 2 ranks are on one host"));
  EXPECT_EQ(job[1].wait(), 1);
}

TEST(Netcheck, BadArguments) {
  Result r = tutti({"netcheck"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("start it by mpirun, srun or torchrun"));
  r = tutti({"netcheck", "--size", "12"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("--size takes 1K to 1G"));
  EXPECT_EQ(tutti({"netcheck", "--least", "101"}).code, 2);
  EXPECT_EQ(tutti({"netcheck", "all_reduce"}).code, 2);
}

TEST(Netcheck, JsonThatCannotBeWritten) {
  Job job(2, {"--size", "64K", "--least", "0", "--json", "/nonexistent/rows"}, {{-1, kSockets}});
  Result r = job.lead();
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("cannot write --json /nonexistent/rows"));
}

TEST(Netcheck, AHostThatDiesHasRows) {
  Job job(3, {"--size", "1M", "--least", "0", "--seconds", "16"}, {{-1, kSockets}});
  ASSERT_TRUE(job.begun());
  kill(job[2].pid(), SIGKILL);
  Result r = job.lead();
  EXPECT_EQ(r.code, TUTTI_EXIT_BAD) << r.out << r.err;
  EXPECT_THAT(r.out, HasSubstr("Verdict: findings"));
  EXPECT_THAT(r.out, ContainsRegex("/0:[a-z0-9]* +[^ ]*/1:[a-z0-9]* .* ok"));
  EXPECT_THAT(r.out, ContainsRegex("died: its connection|is gone"));
  EXPECT_EQ(job[1].wait(), 0) << job[1].err();
}

TEST(Netcheck, AHostThatHangsHasRows) {
  Job job(3, {"--size", "1M", "--least", "0", "--seconds", "4"}, {{-1, kSockets}});
  ASSERT_TRUE(job.begun());
  kill(job[1].pid(), SIGSTOP);
  Result r = job.lead();
  EXPECT_EQ(r.code, TUTTI_EXIT_BAD) << r.out << r.err;
  EXPECT_THAT(r.out, HasSubstr("Verdict: findings"));
  EXPECT_THAT(r.out, ContainsRegex("does not answer"));
  EXPECT_EQ(job[2].wait(), 0) << job[2].err();
}

#ifdef SOFTHCA_LIBRARY

/* Ports of one host differ from those of the others in what is said of it alone. */
class NetcheckRdma : public testing::Test {
protected:
  std::string fabric_ = "SOFTHCA_MORE=fabric netcheck" + std::to_string(getpid()) +
                        ";device hca0 ports=2 speed=sdr width=1 gbps=0.03";
  Words args_ = {"--size", "128K", "--least", "0", "--seconds", "40", "--json", "-"};
  std::vector<Row> run(int hosts, const std::map<int, std::string> &more, int code) {
    std::map<int, Words> env;
    for (int h = 0; h < hosts; h++)
      env[h] = {"LD_LIBRARY_PATH=" SOFTHCA_LIBRARY,
                fabric_ + (more.count(h) ? ";" + more.at(h) : "")};
    Job job(hosts, args_, env);
    Result r = job.lead();
    EXPECT_EQ(r.code, code) << r.out << r.err;
    return rowsOf(r.out);
  }
};

TEST_F(NetcheckRdma, EachRailOfEachPair) {
  auto rows = run(2, {}, 0);
  std::set<std::string> seen;
  for (auto &row : rows) {
    EXPECT_EQ(row.found, "ok") << row.all;
    seen.insert(row.from + " " + row.to + " " + row.via);
    EXPECT_THAT(row.all, AllOf(HasSubstr("\"line\":0.3125"),
                               Not(ContainsRegex("\"(alone|all|latency)\":null"))));
  }
  EXPECT_EQ(seen,
            (std::set<std::string>{"0 hca0:1 1 hca0:1 NET/IB/0", "1 hca0:1 0 hca0:1 NET/IB/0",
                                   "0 hca0:2 1 hca0:2 NET/IB/1", "1 hca0:2 0 hca0:2 NET/IB/1"}));
}

/* Those that are well carry some five times as much as is asked for, this one half of it. */
TEST_F(NetcheckRdma, ASlowPortIsNamed) {
  args_[3] = "2";
  auto rows = run(3, {{1, "port hca0/2 gbps=0.003"}}, TUTTI_EXIT_BAD);
  EXPECT_EQ(rows.size(), 12u);
  for (auto &row : rows) {
    EXPECT_EQ(row.found, row.from == "1 hca0:2" ? "slow" : "ok") << row.all;
    if (row.found == "slow") {
      EXPECT_THAT(row.all, ContainsRegex("hca0:2 of host [^ ]*/1 sends slowly with all others"));
    }
  }
}

TEST_F(NetcheckRdma, APortThatIsDownIsNamed) {
  auto rows = run(2, {{1, "port hca0/2 down_ms=0.001"}}, TUTTI_EXIT_BAD);
  EXPECT_EQ(rows.size(), 4u);
  for (auto &row : rows) {
    bool second = row.from.find(":2") != std::string::npos;
    EXPECT_EQ(row.found, second ? "down" : "ok") << row.all;
    if (second) {
      EXPECT_THAT(row.all, ContainsRegex("hca0:2 of host [^ ]*/1 is down"));
    }
  }
}

TEST_F(NetcheckRdma, WrongBytesAreFoundAndNamed) {
  auto rows = run(2, {{1, "fault flip p=0.05 bytes=2048"}}, NETCHECK_EXIT_WRONG);
  EXPECT_EQ(rows.size(), 4u);
  for (auto &row : rows) {
    EXPECT_EQ(row.found, row.from[0] == '1' ? "wrong" : "ok") << row.all;
    if (row.found == "wrong") {
      EXPECT_THAT(row.all, ContainsRegex("the one at byte [0-9]+ is 0x[0-9a-f]+ and should be"));
    }
  }
}

/* A host whose devices are left out: there is no RDMA between it and the others. */
TEST_F(NetcheckRdma, SocketsInsteadOfRdmaAreAFinding) {
  std::map<int, Words> env;
  for (int h = 0; h < 2; h++)
    env[h] = {"LD_LIBRARY_PATH=" SOFTHCA_LIBRARY, fabric_};
  env[1].push_back("TUTTI_IB_DISABLE=1");
  Job job(2, args_, env);
  Result r = job.lead();
  EXPECT_EQ(r.code, TUTTI_EXIT_BAD) << r.err;
  auto rows = rowsOf(r.out);
  EXPECT_EQ(rows.size(), 2u);
  for (auto &row : rows) {
    EXPECT_EQ(row.found, "path") << row.all;
    EXPECT_THAT(row.via, HasSubstr("NET/Socket"));
    EXPECT_THAT(row.all, HasSubstr("has only Socket"));
  }
}

/* Its port is up, and nothing passes it. */
TEST_F(NetcheckRdma, AnEndOfTheWayThatLosesAllIsAFinding) {
  args_[5] = "8";
  auto rows = run(2, {{1, "fault lost p=1"}}, TUTTI_EXIT_BAD);
  EXPECT_EQ(rows.size(), 4u);
  for (auto &row : rows)
    EXPECT_EQ(row.found, "failed") << row.all;
}

#endif

} // namespace
