/* Connections in memory between the ranks of a test, and a communicator that only writes down what
 * an executor asks of it. */
#ifndef TESTS_KERNELS_FABRIC_H_
#define TESTS_KERNELS_FABRIC_H_

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "device/cpu/executor.h"
#include "device/cpu/reduce.h"
#include "sanitized.h"

/* 128-aligned arrays of the FIFO's structs, zeroed. */
template <class T> class Lines {
public:
  explicit Lines(size_t n)
      : items_(static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(TUTTI_LINE)))) {
    for (size_t i = 0; i < n; i++)
      items_[i] = T{};
  }
  ~Lines() { ::operator delete(items_, std::align_val_t(TUTTI_LINE)); }
  Lines(const Lines &) = delete;
  Lines &operator=(const Lines &) = delete;
  T *get() { return items_; }

private:
  T *items_;
};

/* One FIFO: memory, its send endpoint, and one receive endpoint for each reader. */
struct Fifo {
  Fifo(int readers, size_t slotBytes)
      : descriptors(TUTTI_FIFO_DESCRIPTORS), readers((size_t)readers),
        data(TUTTI_FIFO_DEPTH * slotBytes), recv((size_t)readers) {}
  Lines<tuttiSlotDescriptor> descriptors;
  Lines<tuttiReader> readers;
  std::vector<uint8_t> data;
  tuttiConn send{};
  std::vector<tuttiConn> recv;
};

class Fabric {
public:
  explicit Fabric(int nranks, size_t slotBytes = 1024, bool direct = false, bool fetches = false)
      : nranks_(nranks), slotBytes_(slotBytes), direct_(direct), fetches_(fetches) {}

  /* The FIFO of a pair; to == -1: the shared FIFO of `from`. */
  Fifo &fifo(int from, int to, int channel) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto &f = fifos_[{from, to, channel}];
    if (!f) {
      int readers = to < 0 ? nranks_ - 1 : 1;
      f = std::make_unique<Fifo>(readers, slotBytes_);
      f->send = end(*f, to, channel, TUTTI_SEND);
      f->send.readers = f->readers.get();
      f->send.nreaders = readers;
      for (int r = 0; r < readers; r++) {
        f->recv[r] = end(*f, from, channel, TUTTI_RECV);
        f->recv[r].readers = f->readers.get() + r;
        f->recv[r].nreaders = 1;
        if (!fetches_) continue;
        /* A process may read its own memory. */
        f->recv[r].writer = {getpid(), 0, (uint64_t)(uintptr_t)&word_, word_};
        f->readers.get()[r].fetches.v = 1;
      }
    }
    return *f;
  }

  tuttiConn *conn(int rank, int peer, int channel, tuttiDirection direction, bool shared) {
    if (direction == TUTTI_SEND) return &fifo(rank, shared ? -1 : peer, channel).send;
    if (!shared) return &fifo(peer, rank, channel).recv[0];
    return &fifo(peer, -1, channel).recv[rank < peer ? rank : rank - 1];
  }

  int nranks() const { return nranks_; }

private:
  tuttiConn end(Fifo &f, int peer, int channel, tuttiDirection direction) {
    tuttiConn c{};
    c.descriptors = f.descriptors.get();
    c.data = f.data.data();
    c.slotBytes = slotBytes_;
    c.ndescriptors = TUTTI_FIFO_DESCRIPTORS;
    c.peer = peer;
    c.channel = channel;
    c.direction = (uint8_t)direction;
    c.direct = direct_;
    return c;
  }

  int nranks_;
  size_t slotBytes_;
  bool direct_, fetches_;
  uint64_t word_ = 0x7475747469;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::unique_ptr<Fifo>> fifos_;
};

/* One rank's communicator. */
struct Rank {
  Rank(Fabric &f, int r) : fabric(f), rank(r) {
    context.comm = this;
    context.failed = &failed;
    context.conns = conns;
    context.conn = connect;
    context.mismatch = mismatch;
    context.waits = waits;
    context.stalled = stalled;
    context.failure = failure;
  }
  Rank(const Rank &) = delete;

  static tuttiResult_t connect(void *comm, int peer, int channel, tuttiDirection direction,
                               bool shared, tuttiConn **conn) {
    Rank *self = static_cast<Rank *>(comm);
    self->connects++;
    if (self->refuse) return TUTTI_FAIL(tuttiSystemError, "refused");
    *conn = self->fabric.conn(self->rank, peer, channel, direction, shared);
    int n = self->fabric.nranks();
    tuttiConn ***row = &self->conns[direction][shared][channel];
    if (!*row) *row = self->rows.emplace_back(n + 1).data();
    (*row)[peer >= 0 ? peer : n] = *conn;
    return tuttiSuccess;
  }
  static tuttiResult_t mismatch(void *comm, int peer, const tuttiSignature *mine,
                                const tuttiSignature *theirs) {
    Rank *self = static_cast<Rank *>(comm);
    self->mismatchPeer = peer;
    self->mine = *mine;
    self->theirs = *theirs;
    return TUTTI_FAIL(tuttiInvalidUsage, "mismatch");
  }
  static void waits(void *comm, const tuttiAwaited *list, int n) {
    static_cast<Rank *>(comm)->awaited.assign(list, list + n);
  }
  static tuttiResult_t stalled(void *comm, const tuttiSignature *mine, int peer,
                               uint64_t waitedMs) {
    Rank *self = static_cast<Rank *>(comm);
    self->mine = *mine;
    self->stalls.push_back({peer, waitedMs});
    bool enough = self->enough && self->enough();
    if (enough || waitedMs >= self->patienceMs) return TUTTI_FAIL(tuttiTimeout, "too late");
    return tuttiSuccess;
  }
  static tuttiResult_t failure(void *comm) {
    (void)comm;
    return TUTTI_FAIL(tuttiRemoteError, "announced");
  }

  Fabric &fabric;
  int rank;
  std::vector<tuttiAwaited> awaited; /* as told last */
  tuttiAtomic32 failed{};
  tuttiTaskContext context{};
  tuttiConn **conns[2][2][TUTTI_CHANNELS]{};
  std::deque<std::vector<tuttiConn *>> rows; /* of conns */
  bool refuse = false;
  uint64_t patienceMs = 60000;  /* a test that hangs ends */
  std::function<bool()> enough; /* once true, ends the patience */
  int connects = 0;
  int mismatchPeer = -2;
  tuttiSignature mine{}, theirs{};
  std::vector<std::pair<int, uint64_t>> stalls;
};

#endif
