/* A random program: collectives and grouped messages that every rank of a communicator runs and
 * checks element by element. */
#ifndef TUTTI_TESTS_COMM_PROGRAM_H_
#define TUTTI_TESTS_COMM_PROGRAM_H_

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "collective_call.h"
#include "oracle.h"
#include "tutti.h"

/* Element i of what rank r puts into step number `step`; small, so that sums are exact. */
inline int32_t value(int step, int r, size_t i) {
  return (int32_t)((step * 131u + (unsigned)r * 7919u + (unsigned)i * 31u) % 1009u);
}

struct Message {
  int from, to;
  size_t count;
};

/* One step, the same on all ranks. */
struct Step {
  int kind; /* 0 to 7: a collective; 8: messages; 9: messages and an all-reduce in one group */
  size_t count;
  int root;
  bool inPlace;
  std::vector<Message> messages;
};

inline size_t randomCount(std::mt19937 &random) {
  static const size_t edges[] = {0, 1, 2, 19, 20, 21, 255, 256, 257, 1023, 1024, 1025, 4099};
  if (random() % 2) return edges[random() % (sizeof edges / sizeof *edges)];
  return random() % (random() % 4 ? 2000 : 40000);
}

inline std::vector<Step> makeProgram(std::mt19937 &random, int n, int length) {
  std::vector<Step> program;
  for (int s = 0; s < length; s++) {
    Step step{
        (int)(random() % 10), randomCount(random), (int)(random() % n), random() % 2 == 0, {}};
    if (step.kind >= 8)
      for (unsigned m = random() % (3 * n); m > 0; m--)
        step.messages.push_back({(int)(random() % n), (int)(random() % n), randomCount(random)});
    program.push_back(step);
  }
  return program;
}

/* The first call that fails ends the program. */
#define RUN_STEP(call)                                                                             \
  if ((result = (call)) != tuttiSuccess) return (void)(error = tuttiGetLastError(comm))

/* One rank's side of a program. */
class Program {
public:
  Program(int n, int r, tuttiComm_t comm, const std::string &name)
      : n(n), r(r), comm(comm), name(name) {}

  void run(const std::vector<Step> &program) {
    EXPECT_EQ(attempt(program), tuttiSuccess) << where << error;
  }
  /* What the first call that failed has returned, which may be expected; data that are wrong never
   * are. */
  tuttiResult_t attempt(const std::vector<Step> &program) {
    for (size_t s = 0; s < program.size() && !testing::Test::HasFatalFailure() && !result; s++) {
      number = (int)s;
      where = name + " rank " + std::to_string(r) + " step " + std::to_string(s) + " kind " +
              std::to_string(program[s].kind) + " count " + std::to_string(program[s].count) +
              " root " + std::to_string(program[s].root) + ": ";
      runStep(program[s]);
    }
    return result;
  }
  /* Of that call. */
  const std::string &errorText() const { return error; }

private:
  /* `count` elements, from the given index of rank `of` on. */
  std::vector<int32_t> fill(int of, size_t count, size_t from = 0) const {
    std::vector<int32_t> v(count);
    for (size_t i = 0; i < count; i++)
      v[i] = value(number, of, from + i);
    return v;
  }
  /* The first `size` elements that this rank must hold after a collective. */
  std::vector<int32_t> want(const Step &k, int coll, size_t size) const {
    oracle::Call call = {.coll = coll, .nranks = n, .root = k.root, .count = k.count};
    std::vector<int32_t> v(size, -1);
    for (size_t i = 0; i < oracle::receives(call, r); i++)
      v[i] = oracle::expected(call, r, i, tuttiSum,
                              [this](int q, size_t at) { return value(number, q, at); });
    return v;
  }
  void expect(const std::vector<int32_t> &got, const std::vector<int32_t> &want) const {
    ASSERT_EQ(got.size(), want.size()) << where;
    for (size_t i = 0; i < got.size(); i++)
      ASSERT_EQ(got[i], want[i]) << where << "element " << i;
  }

  void runStep(const Step &k) {
    static const int colls[] = {tuttiCollAllReduce, tuttiCollBroadcast,     tuttiCollReduce,
                                tuttiCollAllGather, tuttiCollReduceScatter, tuttiCollAlltoAll,
                                tuttiCollGather,    tuttiCollScatter};
    if (k.kind >= 8) return runMessages(k);
    const oracle::Call call = {colls[k.kind], n, k.root, k.count};
    const size_t sends = oracle::sends(call, r), receives = oracle::receives(call, r);
    const oracle::Layout at = oracle::layoutOf(call, r, k.inPlace);
    std::vector<int32_t> memory(at.all, -1), in = fill(r, sends);
    std::copy(in.begin(), in.end(), memory.begin() + (ptrdiff_t)at.send);
    std::vector<int32_t> before = memory; /* but for the result it stays so */
    int32_t *send = memory.data() + at.send, *recv = memory.data() + at.recv;
    RUN_STEP(callCollective(call, sends ? send : nullptr, receives ? recv : nullptr, tuttiInt32,
                            tuttiSum, comm, nullptr));
    std::vector<int32_t> result = want(k, call.coll, receives);
    std::copy(result.begin(), result.end(), before.begin() + (ptrdiff_t)at.recv);
    expect(memory, before);
  }

  struct Messages { /* what a step's messages send and receive */
    std::vector<std::vector<int32_t>> sent, received;
    std::vector<int32_t> in, out; /* of its all-reduce */
  };

  void callMessages(const Step &k, Messages &data) {
    for (size_t i = 0; i < k.messages.size(); i++) {
      const Message &m = k.messages[i];
      if (m.from == r) {
        data.sent[i] = fill(r, m.count, i * 97);
        RUN_STEP(tuttiSend(data.sent[i].data(), m.count, tuttiInt32, m.to, comm, nullptr));
      }
      if (k.kind == 9 && i == k.messages.size() / 2) {
        RUN_STEP(tuttiAllReduce(data.in.data(), data.out.data(), k.count, tuttiInt32, tuttiSum,
                                comm, nullptr));
      }
      if (m.to == r) {
        data.received[i].assign(m.count, -1);
        RUN_STEP(tuttiRecv(data.received[i].data(), m.count, tuttiInt32, m.from, comm, nullptr));
      }
    }
  }

  void runMessages(const Step &k) {
    Messages data{std::vector<std::vector<int32_t>>(k.messages.size()),
                  std::vector<std::vector<int32_t>>(k.messages.size()), fill(r, k.count),
                  std::vector<int32_t>(k.count, -1)};
    RUN_STEP(tuttiGroupStart());
    callMessages(k, data);
    if (result != tuttiSuccess) { /* a group left open would hold back what ends `comm` */
      tuttiGroupEnd();
      return;
    }
    RUN_STEP(tuttiGroupEnd());
    for (size_t i = 0; i < k.messages.size(); i++)
      if (k.messages[i].to == r)
        expect(data.received[i], fill(k.messages[i].from, k.messages[i].count, i * 97));
    if (k.kind == 9 && !k.messages.empty())
      expect(data.out, want(k, tuttiCollAllReduce, data.out.size()));
  }

  int n, r, number = 0;
  tuttiComm_t comm;
  tuttiResult_t result = tuttiSuccess;
  std::string name, where, error;
};

#endif
