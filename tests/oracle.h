/* What every collective must give: oracle_sources.h says of which elements each result is made,
 * this what a reduction makes of them. Of plain numbers; element.h has those of all element types.
 */
#ifndef TUTTI_TESTS_ORACLE_H_
#define TUTTI_TESTS_ORACLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "oracle_sources.h"
#include "tutti.h"

namespace oracle {

using Call = oracleCall;
using Source = oracleSource;

inline bool rooted(int coll) {
  return oracleRooted(coll);
}
inline bool reduces(int coll) {
  return oracleReduces(coll);
}
inline size_t sends(const Call &call, int rank) {
  return oracleSends(&call, rank);
}
inline size_t receives(const Call &call, int rank) {
  return oracleReceives(&call, rank);
}
inline Source sourceOf(const Call &call, int rank, size_t i) {
  return oracleSourceOf(&call, rank, i);
}

/* Where the buffers of a rank lie in one piece of memory, in elements: apart, or one in the other.
 */
struct Layout {
  size_t send, recv, all;
};
inline Layout layoutOf(const Call &call, int rank, bool inPlace) {
  size_t in = sends(call, rank), out = receives(call, rank);
  if (!inPlace || in == 0 || out == 0 || call.coll == tuttiCollAlltoAll) return {0, in, in + out};
  ptrdiff_t shift = oracleInPlace(&call, rank);
  size_t send = shift < 0 ? (size_t)-shift : 0, recv = shift > 0 ? (size_t)shift : 0;
  return {send, recv, std::max(send + in, recv + out)};
}

/* Of two operands, before an average is divided. Integers wrap. */
template <typename T> T combined(int op, T a, T b) {
  if (op == tuttiMax) return std::max(a, b);
  if (op == tuttiMin) return std::min(a, b);
  if constexpr (std::is_integral_v<T>)
    return (T)(op == tuttiProd ? (uint64_t)a * (uint64_t)b : (uint64_t)a + (uint64_t)b);
  else
    return op == tuttiProd ? a * b : a + b;
}

/* The reduction of `input(rank, index)` over all ranks, in their order. The average of integers is
 * the wrapped sum divided, towards zero. The input of a PreMulSum is what is multiplied already. */
template <typename Input> auto reduced(int nranks, size_t index, int op, const Input &input) {
  auto all = input(0, index);
  for (int r = 1; r < nranks; r++)
    all = combined(op, all, input(r, index));
  using T = decltype(all);
  return op == tuttiAvg ? (T)(all / (T)nranks) : all;
}

/* What `rank` must hold at element `i` of its receive buffer after a call. */
template <typename Input>
auto expected(const Call &call, int rank, size_t i, int op, const Input &input) {
  Source from = sourceOf(call, rank, i);
  return from.reduced ? reduced(call.nranks, from.index, op, input) : input(from.rank, from.index);
}

} // namespace oracle

#endif
