/* Descriptors by Unix sockets. */
#include "transport/fd_box.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

struct Box {
  Box() { EXPECT_EQ(tuttiFdBoxOpen(&box), 0); }
  ~Box() { tuttiFdBoxClose(&box); }
  tuttiFdBox box;
};

int openFds() {
  int n = 0;
  for (int fd = 0; fd < 1024; fd++)
    n += fcntl(fd, F_GETFD) >= 0;
  return n;
}

ino_t inodeOf(int fd) {
  struct stat st = {};
  EXPECT_EQ(fstat(fd, &st), 0);
  return st.st_ino;
}

TEST(TransportFdBox, DescriptorsComeWithTheirLabels) {
  Box a, b;
  int before = openFds();
  int fds[] = {memfd_create("one", 0), memfd_create("two", 0)};
  tuttiFdLabel label = {-1, 0};
  int fd = -1;
  EXPECT_EQ(tuttiFdBoxTake(&b.box, &label, &fd), EAGAIN);
  for (int i = 0; i < 2; i++)
    EXPECT_EQ(tuttiFdBoxSend(&a.box, &b.box.address, {i + 3, 7}, fds[i]), 0);
  for (int i = 0; i < 2; i++) {
    ASSERT_EQ(tuttiFdBoxTake(&b.box, &label, &fd), 0);
    EXPECT_EQ(label.rank, i + 3);
    EXPECT_EQ(label.round, 7u);
    EXPECT_NE(fd, fds[i]);
    EXPECT_EQ(inodeOf(fd), inodeOf(fds[i]));
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    close(fds[i]);
  }
  EXPECT_EQ(tuttiFdBoxTake(&b.box, &label, &fd), EAGAIN);
  EXPECT_EQ(openFds(), before);
}

TEST(TransportFdBox, WhatHasNotTheKeyIsDropped) {
  Box a, b;
  int fd = memfd_create("one", 0), taken = -1, before = openFds();
  tuttiFdAddress wrong = b.box.address;
  tuttiFdLabel label;
  wrong.key[31] ^= 1;
  EXPECT_EQ(tuttiFdBoxSend(&a.box, &wrong, {1, 1}, fd), 0);
  EXPECT_EQ(tuttiFdBoxSend(&a.box, &b.box.address, {2, 1}, fd), 0);
  ASSERT_EQ(tuttiFdBoxTake(&b.box, &label, &taken), 0);
  EXPECT_EQ(label.rank, 2);
  close(taken);
  EXPECT_EQ(openFds(), before);
  close(fd);
}

/* Too short, and without a descriptor. */
TEST(TransportFdBox, OtherMessagesAreDropped) {
  Box a, b;
  struct sockaddr_un address;
  socklen_t length = tuttiUnixAddress(b.box.address.id, &address);
  char text[200] = "hello";
  for (size_t bytes : {(size_t)1, sizeof b.box.address.key + 8, sizeof text})
    EXPECT_EQ(sendto(a.box.fd, text, bytes, 0, (struct sockaddr *)&address, length),
              (ssize_t)bytes);
  tuttiFdLabel label;
  int fd = -1;
  EXPECT_EQ(tuttiFdBoxTake(&b.box, &label, &fd), EAGAIN);
}

TEST(TransportFdBox, AFullBoxAndOneThatIsGone) {
  Box a;
  int fd = memfd_create("one", 0), sent = 0, before = openFds();
  {
    Box b;
    int err = 0;
    while (sent < 100000 && (err = tuttiFdBoxSend(&a.box, &b.box.address, {0, 0}, fd)) == 0)
      sent++;
    EXPECT_EQ(err, EAGAIN) << "after " << sent;
    EXPECT_GT(sent, 0);
    tuttiFdLabel label;
    int taken;
    ASSERT_EQ(tuttiFdBoxTake(&b.box, &label, &taken), 0);
    close(taken);
    EXPECT_EQ(tuttiFdBoxSend(&a.box, &b.box.address, {0, 0}, fd), 0) << "there is room again";
    tuttiFdAddress gone = b.box.address;
    tuttiFdBoxClose(&b.box);
    tuttiFdBoxClose(&b.box);
    EXPECT_EQ(tuttiFdBoxSend(&a.box, &gone, {0, 0}, fd), ECONNREFUSED);
  }
  EXPECT_EQ(openFds(), before);
  close(fd);
}

/* Each has more for the others than a box holds, so that who only sent would wait for ever. */
TEST(TransportFdBox, ManyTradeAtOnce) {
  constexpr int kBoxes = 4, kEach = 64;
  Box boxes[kBoxes];
  int fd = memfd_create("one", 0), before = openFds();
  std::atomic<int> came{0};
  tuttiAtomic32 failed{};
  std::vector<std::thread> threads;
  for (int me = 0; me < kBoxes; me++)
    threads.emplace_back([&, me] {
      std::vector<tuttiFdParcel> parcels;
      for (int other = 0; other < kBoxes; other++)
        for (uint32_t i = 0; i < kEach && other != me; i++) {
          parcels.push_back({&boxes[other].box.address, {me, i}, fd, true, 0});
          parcels.push_back({nullptr, {other, i}, -1, true, 0});
        }
      tuttiFdBoxTrade(&boxes[me].box, parcels.data(), (int)parcels.size(), 60000, &failed);
      for (tuttiFdParcel &p : parcels) {
        EXPECT_FALSE(p.open);
        EXPECT_EQ(p.error, 0);
        if (p.to || p.fd < 0) continue;
        came += inodeOf(p.fd) == inodeOf(fd);
        close(p.fd);
      }
    });
  for (std::thread &t : threads)
    t.join();
  EXPECT_EQ(came, kBoxes * (kBoxes - 1) * kEach);
  EXPECT_EQ(openFds(), before);
  close(fd);
}

TEST(TransportFdBox, ATradeEndsWithoutThoseThatAreGoneOrLate) {
  Box a;
  tuttiFdAddress gone;
  {
    Box b;
    gone = b.box.address;
  }
  int fd = memfd_create("one", 0), before = openFds();
  tuttiAtomic32 failed{};
  tuttiFdParcel parcels[] = {{&gone, {0, 0}, fd, true, 0},
                             {nullptr, {1, 0}, -1, true, 0},
                             {nullptr, {2, 0}, -1, false, 0}};
  ASSERT_EQ(tuttiFdBoxSend(&a.box, &a.box.address, {2, 0}, fd), 0); // which nobody awaits
  ASSERT_EQ(tuttiFdBoxSend(&a.box, &a.box.address, {1, 1}, fd), 0); // of another round
  tuttiFdBoxTrade(&a.box, parcels, 3, 50, &failed);
  EXPECT_FALSE(parcels[0].open);
  EXPECT_EQ(parcels[0].error, ECONNREFUSED);
  EXPECT_TRUE(parcels[1].open) << "it has not come";
  EXPECT_EQ(parcels[1].fd, -1);
  EXPECT_EQ(parcels[2].fd, -1);
  tuttiStoreRelease32(&failed, 1);
  tuttiFdBoxTrade(&a.box, parcels, 3, 3600000, &failed); // and returns
  EXPECT_EQ(openFds(), before);
  close(fd);
}

} // namespace
