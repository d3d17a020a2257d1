// Two ranks of NET/IB whose payloads lie in memory of the stand-in's GPU, and messages between
// them.
#pragma once

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>

#include "control.h"
#include "end.h"
#include "gpu_rank.h"

struct Ranks {
  Rank a, b;
  explicit Ranks(bool first = true, bool second = true, size_t slotBytes = kSlot) {
    set("TUTTI_NET_GDR_LEVEL", "SYS"); // the software HCA has no place on PCI
    EXPECT_EQ(a.prepare(0, first, slotBytes), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(b.prepare(1, second, slotBytes), tuttiSuccess) << tuttiErrorText();
    a.meet(b.mine());
    b.meet(a.mine());
  }
  void attach() {
    EXPECT_EQ(tuttiTransportNet.attach(&a.view), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(tuttiTransportNet.attach(&b.view), tuttiSuccess) << tuttiErrorText();
  }
  std::string via() {
    const tuttiPath *path = &a.paths[1];
    char via[TUTTI_VIA], why[TUTTI_SENTENCE];
    return path->transport ? tuttiPathVia(path, &a.peers[0], &a.peers[1], via)
                           : tuttiPathText(path, &a.peers[0], &a.peers[1], why);
  }
};

// Sends so many messages of sizes by turns, and returns how many came with wrong bytes; -1: not all
// came.
inline int exchange(Ranks &r, tuttiConn &from, tuttiConn &to, uint64_t messages,
                    const std::vector<size_t> &sizes) {
  int wrong = 0;
  uint64_t got = 0;
  std::thread sender([&] {
    for (uint64_t i = 0; i < messages && r.a.await(from); i++)
      publish(r.a, from, sizes[i % sizes.size()]);
  });
  for (; got < messages && r.b.await(to); got++)
    wrong += !take(r.b, to, sizes[got % sizes.size()]);
  if (got < messages) tuttiStoreRelease32(&r.a.failed, 1); /* nor need the sender wait */
  sender.join();
  return got == messages ? wrong : -1;
}

inline const std::vector<size_t> kSizes = {1, 80, 81, 200, 4096, 5001, kSlot};

inline void closeBoth(Ranks &r, tuttiConn &from, tuttiConn &to) {
  tuttiTransportNet.close(&r.a.view, &from);
  tuttiTransportNet.close(&r.b.view, &to);
}
