/* Which link is slow: verdicts over rates that are made here, and rates that a live job tells. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ras/job.h"
#include "ras/report.h"

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

namespace {

class Links : public testing::Test {
protected:
  void make(int nranks, int perHost = 1) {
    ASSERT_EQ(tuttiSnapshotAdd(&s, 42, 7, nranks, &c), tuttiSuccess);
    snprintf(c->name, sizeof c->name, "train");
    for (int r = 0; r < nranks; r++) {
      tuttiRankView &v = c->ranks[r];
      v.who.pid = 100 + r;
      snprintf(v.who.host, sizeof v.who.host, "node%d", r / perHost);
      v.answer.answered = TUTTI_ANSWER_OWN;
      v.told = 1;
      v.facts.version = TUTTI_VERSION_CODE;
      v.facts.rank = r;
      v.facts.nranks = nranks;
      v.facts.device = -1;
      v.facts.phase = tuttiPhaseUsable;
    }
  }
  void TearDown() override { tuttiSnapshotFree(&s); }

  /* As the receiver tells it. */
  tuttiLinkFacts &link(int from, int to, uint32_t rate, const char *via = "NET/Socket") {
    tuttiFacts &f = c->ranks[to].facts;
    tuttiLinkFacts &l = f.links[f.nlinks++];
    l.peer = from;
    l.channel = 1;
    l.rate = l.allRate = rate;
    snprintf(l.via, sizeof l.via, "%s", via);
    for (auto &nic : l.nic)
      snprintf(nic, sizeof nic, "eth0");
    return l;
  }
  /* As the sender tells what it is at least. */
  tuttiLinkFacts &reached(int from, int to, uint32_t rate) {
    tuttiLinkFacts &l = link(to, from, rate);
    l.sends = l.atLeast = 1;
    return l;
  }
  /* A link from each rank to the next. */
  void ring(uint32_t rate) {
    for (int r = 0; r < c->nranks; r++)
      link(r, (r + 1) % c->nranks, rate);
  }
  tuttiLinkFacts &into(int rank, uint32_t i = 0) { return c->ranks[rank].facts.links[i]; }

  std::vector<std::string> slow() {
    std::vector<tuttiFinding> found(TUTTI_FINDINGS);
    found.resize((size_t)tuttiSlowLinks(c, found.data(), TUTTI_FINDINGS));
    std::vector<std::string> texts;
    for (const tuttiFinding &f : found) {
      EXPECT_EQ(f.kind, tuttiVerdictSlowLink);
      EXPECT_FALSE(tuttiFindingIsBad(&f)) << "it is no fault";
      texts.emplace_back(f.text);
    }
    return texts;
  }
  std::string write(void (*writer)(const tuttiSnapshot *, FILE *)) {
    char *text = tuttiReportMake(&s, writer);
    std::string all = text;
    free(text);
    return all;
  }

  tuttiSnapshot s = {};
  tuttiCommSnapshot *c = nullptr;
};

TEST_F(Links, TheSlowOneIsNamedAndNoOther) {
  make(5);
  ring(1250000);
  into(3).allRate = 400000;
  const char *says = "the link from rank 2 (host node2, pid 102, eth0) to rank 3 (host node3, pid "
                     "103, eth0) via NET/Socket, channel 1, carries 0.4 GB/s; the median of its 4 "
                     "siblings is 1.25 GB/s";
  EXPECT_THAT(slow(), ElementsAre(says));
  EXPECT_THAT(write(tuttiReportText),
              HasSubstr("communicator train: slow, not dead: " + std::string(says)));
  EXPECT_THAT(write(tuttiReportText), HasSubstr("    links: from rank 2 0.4 GB/s\n"));
  std::string json = write(tuttiReportJson);
  EXPECT_THAT(json, HasSubstr("{\"kind\": \"slow_link\", \"text\": \"the link from rank 2 "));
  EXPECT_THAT(json,
              HasSubstr("\"links\": [{\"peer\": 2, \"channel\": 1, \"direction\": \"receive\", "
                        "\"gb_per_sec\": 1.250000, \"all_gb_per_sec\": 0.400000, "
                        "\"at_least\": false, \"via\": \"NET/Socket\", \"sender_nic\": "
                        "\"eth0\", \"receiver_nic\": \"eth0\"}]"));
}

TEST_F(Links, AllAlike) {
  make(6);
  ring(1250000);
  into(2).allRate = 900000;
  into(4).allRate = 1400000;
  EXPECT_THAT(slow(), IsEmpty());
}

TEST_F(Links, HalfIsNotLess) {
  make(4);
  ring(1000000);
  into(1).allRate = 500000;
  EXPECT_THAT(slow(), IsEmpty());
  into(1).allRate--;
  EXPECT_THAT(slow(), ElementsAre(HasSubstr("from rank 0 ")));
}

TEST_F(Links, TooFewSiblings) {
  make(4);
  ring(1000000);
  into(1).allRate = 1000;
  c->ranks[3].facts.nlinks = 0;
  EXPECT_THAT(slow(), IsEmpty()) << "two are none to compare with";
  c->ranks[3].facts.nlinks = 1;
  EXPECT_THAT(slow(), ElementsAre(HasSubstr("from rank 0 ")));
  c->ranks[2].told = 0;
  EXPECT_THAT(slow(), IsEmpty()) << "one has not told";
}

TEST_F(Links, OfAnotherTransportAreNoSiblings) {
  make(8);
  for (int r = 0; r < 4; r++)
    link(r, r + 4, 20000000, "NET/IB").sends = 0;
  for (int r = 4; r < 7; r++)
    link(r, r - 4, 1000000);
  EXPECT_THAT(slow(), IsEmpty());
}

TEST_F(Links, WithinAHostAreNoSiblings) {
  make(8, 2);
  for (int r = 0; r < 8; r += 2)
    link(r, r + 1, 5000000);
  for (int r = 1; r < 7; r += 2)
    link(r, r + 1, 1000000);
  EXPECT_THAT(slow(), IsEmpty());
}

TEST_F(Links, TheSlowestComeFirst) {
  make(8);
  ring(1000000);
  into(2).allRate = 300000;
  into(5).allRate = 200000;
  EXPECT_THAT(slow(), ElementsAre(HasSubstr("from rank 4 "), HasSubstr("from rank 1 ")));
}

/* The root sends to all at once, and each gets its share of the root's NIC. */
TEST_F(Links, AShareOfANicIsNotSlow) {
  make(8);
  ring(1000000);
  for (int r = 2; r < 8; r++)
    link(0, r, 150000);
  EXPECT_THAT(slow(), IsEmpty());
  for (int r = 2; r < 4; r++)
    into(r, 1).allRate = 15000; /* less than a seventh of the half */
  EXPECT_EQ(slow().size(), 2U);
}

/* As of ranks that wait for cores: a rate at the end of many is none that tells. */
TEST_F(Links, SiblingsThatDifferShowNothing) {
  const uint32_t rates[] = {200000, 900000, 500000, 3000000, 600000, 2500000, 2000000, 3500000};
  make(8);
  for (int r = 0; r < 8; r++)
    link(r, (r + 1) % 8, rates[r]);
  EXPECT_THAT(slow(), IsEmpty());
  for (int r = 1; r < 8; r++)
    into((r + 1) % 8).allRate = 2000000 + 100000 * r;
  EXPECT_THAT(slow(), ElementsAre(HasSubstr("from rank 0 ")));
}

/* What a rank gets of several at once is known to it. */
TEST_F(Links, AShareThatIsKnownIsNotSlow) {
  make(4);
  ring(1000000);
  into(1).rate = 250000;
  EXPECT_THAT(slow(), IsEmpty());
}

/* All to all: all are shares alike. */
TEST_F(Links, OneNicIsSlowWhereAllSendToAll) {
  make(4);
  for (int from = 0; from < 4; from++)
    for (int to = 0; to < 4; to++)
      if (from != to) link(from, to, from == 2 ? 300000 : 1000000);
  EXPECT_THAT(slow(), ElementsAre(HasSubstr("from rank 2 "), HasSubstr("from rank 2 "),
                                  HasSubstr("from rank 2 ")));
}

/* Links that are faster than their ranks are never measured, but seen. */
TEST_F(Links, SiblingsMayBeFasterThanTheySay) {
  make(4);
  link(0, 1, 100000);
  for (int r = 1; r < 4; r++)
    reached(r, (r + 1) % 4, 900000);
  EXPECT_THAT(slow(),
              ElementsAre(AllOf(HasSubstr("from rank 0 "), HasSubstr("3 siblings is at least "
                                                                     "0.9 GB/s"))));
  into(1).allRate = 900000;
  reached(0, 1, 100000);
  EXPECT_THAT(slow(), IsEmpty()) << "what is only seen is not held against it";
}

TEST_F(Links, WhatHasBeenReachedIsNotSlow) {
  make(4);
  ring(1000000);
  into(1).allRate = 100000;
  reached(0, 1, 50000);
  EXPECT_EQ(slow().size(), 1U);
  c->ranks[0].facts.nlinks--;
  reached(0, 1, 600000);
  EXPECT_THAT(slow(), IsEmpty());
}

TEST_F(Links, NoSiblingCountsTwice) {
  make(4);
  ring(1000000);
  into(1).allRate = 1000;
  c->ranks[3].facts.nlinks = 0; /* two are left */
  reached(1, 2, 900000);
  EXPECT_THAT(slow(), IsEmpty());
}

TEST_F(Links, FactsThatDoNotHoldTogetherAreNotBelieved) {
  make(2);
  link(0, 1, 1000);
  tuttiFacts good = c->ranks[1].facts, out;
  EXPECT_TRUE(tuttiFactsParse(&good, sizeof good, &out));
  auto spoiled = [&](auto change) {
    tuttiFacts bad = good;
    change(bad);
    return !tuttiFactsParse(&bad, sizeof bad, &out);
  };
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.nlinks = TUTTI_FACTS_LINKS + 1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.links[0].peer = 2; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.links[0].peer = -1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.links[0].peer = 1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.links[0].rate = 0; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.links[0].atLeast = 2; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.links[0].sends = 2; }));
  memset(good.links[0].nic[1], '\033', sizeof good.links[0].nic[1]);
  ASSERT_TRUE(tuttiFactsParse(&good, sizeof good, &out));
  EXPECT_EQ(std::string(out.links[0].nic[1]), std::string(sizeof out.links[0].nic[1] - 1, '?'));
}

/* ---- a live job ------------------------------------------------------------------------------ */

class LiveLinks : public testing::TestWithParam<const char *> {
protected:
  RankProcesses job;
};

/* Large all-reduces until a rank knows a rate. When one does is a matter of chance: where ranks
 * share cores, the link is seldom what they wait for. */
TEST_P(LiveLinks, AreTold) {
#ifndef SOFTHCA_LIBRARY
  if (std::string(GetParam()) == "IB") GTEST_SKIP() << "needs the software HCA";
#endif
  std::string name = rastest::jobName();
  rastest::useTransport(GetParam());
  job.start(rastest::kRanks, [this](int r) {
    tuttiComm_t comm;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    std::string job_name = rastest::jobName();
    config.commName = job_name.c_str();
    tuttiUniqueId id = job.id();
    if (job.keep(tuttiCommInitRankConfig(&comm, rastest::kRanks, id, r, &config)) != tuttiSuccess)
      return;
    std::vector<float> in(1 << 21), out(1 << 21);
    do
      job.setStage(r, 1);
    while (job.keep(tuttiAllReduce(in.data(), out.data(), in.size(), tuttiFloat32, tuttiSum, comm,
                                   nullptr)) == tuttiSuccess);
  });
  for (int r = 0; r < rastest::kRanks; r++)
    ASSERT_TRUE(job.waitForStage(r, 1)) << job.report(r).text;
  std::string via = "NET/" + std::string(GetParam());
  bool told = false;
  for (int i = 0; i < 1200 && !told; i++) {
    rastest::Asked asked(name);
    for (int r = 0; asked.comm && r < rastest::kRanks; r++) {
      const tuttiFacts &f = asked.comm->ranks[r].facts;
      told |= f.nlinks > 0;
      for (uint32_t l = 0; l < f.nlinks; l++) {
        EXPECT_EQ(f.links[l].via, via);
        EXPECT_GT(f.links[l].rate, 0U);
        EXPECT_GE(f.links[l].allRate, f.links[l].rate / 2);
        EXPECT_STRNE(f.links[l].nic[0], "");
        EXPECT_STRNE(f.links[l].nic[1], "");
        EXPECT_TRUE(via != "NET/IB" || f.links[l].sends) << "its receivers do not measure";
      }
    }
    usleep(100000);
  }
  EXPECT_TRUE(told) << "no rank knows a rate";
  unsetenv("TUTTITEST_JOB");
}

INSTANTIATE_TEST_SUITE_P(By, LiveLinks, testing::Values("Socket", "IB"),
                         [](const auto &info) { return std::string(info.param); });

} // namespace
