/* What every collective must give, by its definition in tutti.h and by nothing of the library's
 * own: where each element that a rank receives comes from, and the reductions of integers. */
#ifndef TUTTI_TESTS_ORACLE_H_
#define TUTTI_TESTS_ORACLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "collectives/signature.h"
#include "tutti.h"

namespace oracle {

/* One collective as its caller names it. `root` is not looked at where there is none. */
struct Call {
  int coll; /* tuttiColl; messages between two ranks are none */
  int nranks, root;
  size_t count; /* as in the call: of a block, where there are blocks */
};

/* The element at `index` of the send buffer of `rank`, or of those of all ranks, reduced. */
struct Source {
  bool reduced;
  int rank; /* -1 if reduced */
  size_t index;
};

inline bool rooted(int coll) {
  return coll == tuttiCollBroadcast || coll == tuttiCollReduce || coll == tuttiCollGather ||
         coll == tuttiCollScatter;
}

inline bool reduces(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollReduce || coll == tuttiCollReduceScatter;
}

/* Elements of a send buffer; where only the root sends, of the root's. */
inline size_t sends(const Call &call) {
  bool blocks = call.coll == tuttiCollReduceScatter || call.coll == tuttiCollScatter ||
                call.coll == tuttiCollAlltoAll;
  return call.count * (blocks ? call.nranks : 1);
}

/* Elements that `rank` receives; its buffer is left alone where that is none. */
inline size_t receives(const Call &call, int rank) {
  bool onlyRoot = call.coll == tuttiCollReduce || call.coll == tuttiCollGather;
  if (onlyRoot && rank != call.root) return 0;
  bool blocks = call.coll == tuttiCollAllGather || call.coll == tuttiCollGather ||
                call.coll == tuttiCollAlltoAll;
  return call.count * (blocks ? call.nranks : 1);
}

/* Of what element `i` < receives(call, rank) is made. */
inline Source sourceOf(const Call &call, int rank, size_t i) {
  constexpr int all = -1;
  switch (call.coll) {
  case tuttiCollBroadcast:
    return {.reduced = false, .rank = call.root, .index = i};
  case tuttiCollScatter:
    return {.reduced = false, .rank = call.root, .index = rank * call.count + i};
  case tuttiCollAllGather:
  case tuttiCollGather:
    return {.reduced = false, .rank = (int)(i / call.count), .index = i % call.count};
  case tuttiCollAlltoAll:
    return {.reduced = false,
            .rank = (int)(i / call.count),
            .index = rank * call.count + i % call.count};
  case tuttiCollReduceScatter:
    return {.reduced = true, .rank = all, .index = rank * call.count + i};
  default:
    return {.reduced = true, .rank = all, .index = i};
  }
}

/* The reduction of `input(rank, index)` over all ranks, of 32-bit integers: sums and products wrap,
 * and an average is the wrapped sum divided, towards zero. */
template <typename Input>
int32_t reduced(int nranks, size_t index, tuttiRedOp_t op, const Input &input) {
  auto first = (int32_t)input(0, index);
  for (int r = 1; r < nranks; r++) {
    auto next = (int32_t)input(r, index);
    if (op == tuttiMax)
      first = std::max(first, next);
    else if (op == tuttiMin)
      first = std::min(first, next);
    else if (op == tuttiProd)
      first = (int32_t)((uint32_t)first * (uint32_t)next);
    else
      first = (int32_t)((uint32_t)first + (uint32_t)next);
  }
  return op == tuttiAvg ? first / nranks : first;
}

/* What `rank` must hold at element `i` of its receive buffer after a call on 32-bit integers. */
template <typename Input>
int32_t expected(const Call &call, int rank, size_t i, tuttiRedOp_t op, const Input &input) {
  Source from = sourceOf(call, rank, i);
  return from.reduced ? reduced(call.nranks, from.index, op, input)
                      : (int32_t)input(from.rank, from.index);
}

} // namespace oracle

#endif
