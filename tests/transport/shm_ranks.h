/* Ranks of several processes that meet by SHM, and messages between them. */
#ifndef TUTTI_TESTS_TRANSPORT_SHM_RANKS_H_
#define TUTTI_TESTS_TRANSPORT_SHM_RANKS_H_

#include <sys/resource.h>

#include <vector>

#include "local_world.h"

namespace local {

// Each rank is its own process to the library, so that SHM connects the threads of this one.
inline Ranks makeProcesses(const Shape &s) {
  Ranks ranks;
  for (int r = 0; r < s.nranks; r++)
    ranks.push_back(std::make_unique<Rank>(s, r, 100 + (uint64_t)r));
  return ranks;
}

// From now on what a rank sees of another's descriptors is nothing, so it has to ask.
inline void hide(Rank &from, int peer) {
  from.peers[(size_t)peer].segment.fd = -1;
}

inline void hideAll(Ranks &ranks) {
  for (auto &r : ranks)
    for (int p = 0; p < r->w.nranks; p++)
      hide(*r, p);
}

// A message of rank `from` to a rank that has not opened its end.
inline void sendOne(Rank &from, int to, uint32_t bytes) {
  tuttiConn send = from.open(to, 0, TUTTI_SEND);
  tuttiConnDescriptor(&send)->bytes = bytes;
  tuttiConnAdvance(&send);
}

inline void expectOne(Rank &at, int from, uint32_t bytes) {
  tuttiConn recv = at.open(from, 0, TUTTI_RECV);
  ASSERT_NE(nullptr, recv.descriptors);
  ASSERT_TRUE(tuttiConnReady(&recv));
  EXPECT_EQ(bytes, tuttiConnDescriptor(&recv)->bytes);
}

// Leaves this process `spare` descriptors more than it has, until the end of the scope.
struct FewFiles {
  rlimit old{};
  explicit FewFiles(int spare) {
    std::vector<int> taken;
    for (int i = 0; i <= spare; i++)
      taken.push_back(dup(0));
    EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &old));
    rlimit tight = old;
    tight.rlim_cur = (rlim_t)taken.back();
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &tight));
    for (int fd : taken)
      close(fd);
  }
  ~FewFiles() { EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &old)); }
};

} // namespace local

#endif
