/* libtutti_work.so: works of ranks that are threads. */
#include "work.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

class Ranks {
public:
  explicit Ranks(int n, int timeoutMs = 60000) : n_(n), lanes_(static_cast<size_t>(n * n)) {
    tuttiUniqueId id;
    EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
    for (auto &lane : lanes_)
      EXPECT_EQ(tuttiGetUniqueId(&lane), tuttiSuccess);
    for (int rank = 0; rank < n; rank++)
      groups_.push_back(tuttiWorkGroupMake(n, rank, timeoutMs, "work"));
    each([&](int rank, tuttiWorkGroup *group) {
      EXPECT_EQ(tuttiWorkGroupOpen(group, &id), tuttiSuccess) << tuttiWorkGroupText(group) << rank;
    });
  }
  ~Ranks() {
    each([](int, tuttiWorkGroup *group) { tuttiWorkGroupFree(group); });
  }
  void each(const std::function<void(int, tuttiWorkGroup *)> &body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n_; rank++)
      threads.emplace_back([&, rank] { body(rank, groups_[static_cast<size_t>(rank)]); });
    for (auto &thread : threads)
      thread.join();
  }
  /* Joins the lane of a message on both sides. */
  void open(int from, int to) {
    const tuttiUniqueId *id = &lanes_[static_cast<size_t>(from * n_ + to)];
    each([&](int rank, tuttiWorkGroup *group) {
      if (rank == from) {
        EXPECT_EQ(tuttiWorkLaneOpen(group, 1, to, id), tuttiSuccess);
      } else if (rank == to) {
        EXPECT_EQ(tuttiWorkLaneOpen(group, 0, from, id), tuttiSuccess);
      }
    });
  }
  tuttiWorkGroup *operator[](int rank) { return groups_[static_cast<size_t>(rank)]; }

private:
  int n_;
  std::vector<tuttiUniqueId> lanes_;
  std::vector<tuttiWorkGroup *> groups_;
};

tuttiWorkStep sum(std::vector<float> &data) {
  return {tuttiWorkAllReduce, tuttiFloat32, tuttiSum, 0, data.data(), data.data(), data.size()};
}

/* Ends the work, whose text has this in it; or it succeeds, for "". */
void ends(tuttiWork *work, const std::string &text) {
  ASSERT_NE(work, nullptr);
  EXPECT_EQ(tuttiWorkWait(work, 0) == tuttiSuccess, text.empty()) << tuttiWorkText(work);
  EXPECT_TRUE(tuttiWorkDone(work));
  EXPECT_NE(std::string(tuttiWorkText(work)).find(text), std::string::npos) << tuttiWorkText(work);
  tuttiWorkFree(work);
}

TEST(Work, RunsInOrderBesideAndInTheCaller) {
  Ranks ranks(3);
  ranks.each([](int, tuttiWorkGroup *group) {
    std::vector<float> data(1000, 1), copy(1000);
    tuttiWorkStep steps[] = {sum(data),
                             {tuttiWorkCopy, 0, 0, 0, data.data(), copy.data(), 4000},
                             {tuttiWorkBarrier, 0, 0, 0, nullptr, nullptr, 0},
                             sum(data)};
    std::vector<tuttiWork *> works;
    for (int i = 0; i < 3; i++)
      works.push_back(tuttiWorkSubmit(group, steps, 1, 0));
    EXPECT_EQ(tuttiWorkRun(group, steps, 4), tuttiSuccess) << tuttiWorkGroupText(group);
    EXPECT_EQ(copy[7], 81);
    EXPECT_EQ(data[999], 243);
    for (auto *work : works)
      ends(work, "");
    EXPECT_EQ(tuttiWorkRunOne(group, tuttiWorkAllReduce, data.data(), data.data(), 1, 99, 0, 0),
              tuttiInvalidArgument);
    EXPECT_NE(std::string(tuttiWorkGroupText(group)).find("99"), std::string::npos);
    EXPECT_EQ(tuttiWorkRun(group, steps, 1), tuttiSuccess); /* a refused argument ends nothing */
    ends(tuttiWorkSubmit(group, steps, 0, 0), "");          /* nothing to do is done */
  });
}

TEST(Work, MessagesAreMatchedByTagAndSender) {
  Ranks ranks(3);
  std::vector<char> large(300000, 'l'), box(300000), some(2), other(2);
  char from1[] = "1", from2[] = "2";
  auto *late = tuttiWorkPost(ranks[0], 0, box.data(), box.size(), 1, 5);
  auto *any = tuttiWorkPost(ranks[0], 0, some.data(), 2, TUTTI_WORK_ANY, 7);
  auto *more = tuttiWorkPost(ranks[0], 0, other.data(), 2, TUTTI_WORK_ANY, 7);
  auto *first = tuttiWorkPost(ranks[1], 1, from1, 2, 0, 7); /* before its lane is open */
  auto *second = tuttiWorkPost(ranks[1], 1, large.data(), large.size(), 0, 5);
  ranks.open(1, 0);
  ends(first, "");
  ends(second, "");
  EXPECT_EQ(tuttiWorkWait(any, 0), tuttiSuccess);
  EXPECT_EQ(tuttiWorkPeer(any), 1);
  tuttiWorkFree(any);
  ends(late, "");
  EXPECT_EQ(box, large);
  EXPECT_FALSE(tuttiWorkDone(more));
  auto *third = tuttiWorkPost(ranks[2], 1, from2, 2, 0, 7);
  ranks.open(2, 0);
  ends(third, "");
  ends(more, "");
  EXPECT_EQ(some[0], '1');
  EXPECT_EQ(other[0], '2');
  EXPECT_EQ(tuttiWorkPost(ranks[1], 1, from1, 2, TUTTI_WORK_ANY, 0), nullptr);
  EXPECT_EQ(tuttiWorkPost(ranks[1], 0, from1, 2, 3, 0), nullptr);
  /* Another size is this message's failure alone. */
  ends(tuttiWorkPost(ranks[1], 1, large.data(), 100, 0, 1), "");
  ends(tuttiWorkPost(ranks[1], 1, large.data(), 2, 0, 2), "");
  ends(tuttiWorkPost(ranks[0], 0, some.data(), 2, 1, 2), "");
  ends(tuttiWorkPost(ranks[0], 0, some.data(), 2, 1, 1), "rank 1 sent 100 bytes with tag 1");
}

TEST(Work, WhatIsLateEnds) {
  Ranks ranks(2);
  std::vector<float> data(4);
  tuttiWorkStep step = sum(data);
  auto *receive = tuttiWorkPost(ranks[0], 0, data.data(), 16, 1, 0);
  EXPECT_EQ(tuttiWorkWait(receive, 100), tuttiTimeout);
  tuttiWorkFree(receive);
  auto *work = tuttiWorkSubmit(ranks[0], &step, 1, 100);
  ASSERT_NE(work, nullptr);
  EXPECT_EQ(tuttiWorkWait(work, 0), tuttiTimeout) << tuttiWorkText(work);
  tuttiWorkFree(work);
  ends(tuttiWorkSubmit(ranks[0], &step, 1, 0), "revoke");
}

TEST(Work, AnAbortEndsAllAndWaitsForNobody) {
  Ranks ranks(2);
  std::vector<float> data(4);
  tuttiWorkStep step = sum(data);
  auto *work = tuttiWorkSubmit(ranks[0], &step, 1, 0);
  auto *receive = tuttiWorkPost(ranks[0], 0, data.data(), 16, 1, 0);
  auto *send = tuttiWorkPost(ranks[0], 1, data.data(), 16, 1, 0);
  tuttiWorkGroupAbort(ranks[0], "enough");
  ends(receive, "enough");
  /* What was under way by then may have reached rank 1, and this rank needs no more for the send.
   */
  ends(send, tuttiWorkWait(send, 0) == tuttiSuccess ? "" : "enough");
  EXPECT_NE(tuttiWorkWait(work, 0), tuttiSuccess);
  tuttiWorkFree(work);
  ends(tuttiWorkSubmit(ranks[0], &step, 1, 0), "enough");
  auto *first = tuttiWorkSubmit(ranks[1], &step, 1, 0);
  ends(first, tuttiWorkWait(first, 0) == tuttiSuccess ? "" : "rank 0");
  ends(tuttiWorkSubmit(ranks[1], &step, 1, 0), "rank 0");
}

/* What has come to an eventfd since the last look. */
uint64_t told(int fd) {
  eventfd_t value = 0;
  return eventfd_read(fd, &value) == 0 ? value : 0;
}

TEST(Work, ItsEndIsToldToADescriptor) {
  Ranks ranks(2);
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), later = eventfd(0, EFD_CLOEXEC);
  std::vector<float> mine(4), others(4);
  tuttiWorkStep step = sum(mine), other = sum(others);
  auto *work = tuttiWorkSubmit(ranks[0], &step, 1, 0);
  tuttiWorkNotify(work, fd);
  EXPECT_EQ(told(fd), 0u);
  tuttiWorkNotify(work, later); /* then the first is told nothing */
  ends(tuttiWorkSubmit(ranks[1], &other, 1, 0), "");
  EXPECT_EQ(told(later), 1u); /* waits for it */
  EXPECT_EQ(told(fd), 0u);
  EXPECT_TRUE(tuttiWorkDone(work));
  tuttiWorkNotify(work, fd); /* it has ended already */
  EXPECT_EQ(told(fd), 1u);
  tuttiWorkNotify(work, -1);
  tuttiWorkFree(work);
  close(fd);
  close(later);
}

/* The group's thread leaves works to who waits for them at once, and still takes each that nobody
 * waits for: soon after others were, and when it has had nothing to do for long, in a crowd too. */
TEST(Work, NeedsNobodyWhoWaits) {
  int cores = (int)std::thread::hardware_concurrency();
  for (int n : {2, cores + 1}) {
    Ranks ranks(n);
    ranks.each([](int, tuttiWorkGroup *group) {
      std::vector<float> data(8, 1);
      tuttiWorkStep step = sum(data);
      int fd = eventfd(0, EFD_CLOEXEC);
      for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++)
          ends(tuttiWorkSubmit(group, &step, 1, 0), "");
        if (round == 2) usleep(200000); /* its thread sleeps by then */
        tuttiWork *work = tuttiWorkSubmit(group, &step, 1, 0);
        eventfd_t told = 0;
        tuttiWorkNotify(work, fd);
        EXPECT_EQ(eventfd_read(fd, &told), 0);
        ends(work, "");
      }
      close(fd);
    });
  }
}

TEST(Work, AGroupTakesACommunicatorThatThereIs) {
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  auto rank = [&id](int r) {
    tuttiComm_t comm;
    ASSERT_EQ(tuttiCommInitRank(&comm, 2, id, r), tuttiSuccess) << tuttiGetLastError(nullptr);
    auto *group = tuttiWorkGroupMake(2, r, 0, "");
    EXPECT_EQ(tuttiWorkGroupAdopt(group, comm), tuttiSuccess);
    EXPECT_EQ(tuttiWorkGroupAdopt(group, comm), tuttiInvalidUsage);
    EXPECT_NE(std::string(tuttiWorkGroupText(group)).find("already"), std::string::npos);
    std::vector<float> data(4, 1);
    tuttiWorkStep step = sum(data);
    ends(tuttiWorkSubmit(group, &step, 1, 0), "");
    /* Nothing is under way: the caller's own calls may be in between. */
    EXPECT_EQ(tuttiAllReduce(data.data(), data.data(), 4, tuttiFloat32, tuttiSum, comm, nullptr),
              tuttiSuccess);
    ends(tuttiWorkSubmit(group, &step, 1, 0), "");
    EXPECT_EQ(data[3], 8);
    tuttiWorkGroupFree(group);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiInvalidArgument); /* it was the group's */
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

/* One thread hears of the ends of many works, of those of two queues in the order of their ends. */
TEST(Work, EndsAreListed) {
  Ranks ranks(2);
  auto *list = tuttiWorkEndsMake();
  ASSERT_NE(list, nullptr);
  float x = 0, y = 1;
  auto *late = tuttiWorkPost(ranks[0], 0, &x, sizeof x, 1, 0);
  tuttiWorkEndsAdd(list, late);
  std::thread all([&] {
    std::vector<tuttiWork *> works;
    std::vector<float> data(10, 1);
    tuttiWorkStep step = sum(data);
    for (int i = 0; i < 50; i++) {
      works.push_back(tuttiWorkSubmit(ranks[0], &step, 1, 0));
      if (i % 2) tuttiWorkWait(works.back(), 0); /* it has ended already */
      tuttiWorkEndsAdd(list, works.back());
    }
    for (auto *work : works)
      EXPECT_EQ(tuttiWorkEndsNext(list), work);
    for (auto *work : works)
      ends(work, "");
  });
  std::vector<float> data(10, 1);
  tuttiWorkStep step = sum(data);
  for (int i = 0; i < 50; i++)
    EXPECT_EQ(tuttiWorkRun(ranks[1], &step, 1), tuttiSuccess);
  all.join();
  ranks.open(1, 0);
  ends(tuttiWorkPost(ranks[1], 1, &y, sizeof y, 0, 0), "");
  EXPECT_EQ(tuttiWorkEndsNext(list), late);
  ends(late, "");
  auto *never = tuttiWorkPost(ranks[0], 0, &x, sizeof x, 1, 0);
  tuttiWorkEndsAdd(list, never);
  tuttiWorkGroupAbort(ranks[0], "enough");
  EXPECT_EQ(tuttiWorkEndsNext(list), never);
  ends(never, "enough");
  tuttiWorkEndsFree(list);
}

TEST(Work, AWorkOutlivesItsGroup) {
  tuttiWork *receive;
  float x = 0;
  {
    Ranks ranks(2);
    receive = tuttiWorkPost(ranks[1], 0, &x, sizeof x, 0, 0);
  }
  ends(receive, "shut down");
}

} // namespace
