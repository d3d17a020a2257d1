/* What every collective must move, by its definition in tutti.h and by nothing of the library's
 * own: how long the buffers are, where they coincide in place, and where each element that a rank
 * receives comes from. In C, for all oracles and simulators; oracle.h has what reductions give. */
#ifndef TUTTI_TESTS_ORACLE_SOURCES_H_
#define TUTTI_TESTS_ORACLE_SOURCES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/signature.h"

/* One collective as its caller names it. `root` is not looked at where there is none. */
typedef struct {
  int coll; /* tuttiColl; messages between two ranks are none */
  int nranks, root;
  size_t count; /* as in the call: of a block, where there are blocks */
} oracleCall;

/* The element at `index` of the send buffer of `rank`, or of those of all ranks, reduced. */
typedef struct {
  bool reduced;
  int rank; /* -1 if reduced */
  size_t index;
} oracleSource;

static inline bool oracleRooted(int coll) {
  return coll == tuttiCollBroadcast || coll == tuttiCollReduce || coll == tuttiCollGather ||
         coll == tuttiCollScatter;
}

static inline bool oracleReduces(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollReduce || coll == tuttiCollReduceScatter;
}

/* Elements that `rank` sends; its send buffer is not looked at where that is none. */
static inline size_t oracleSends(const oracleCall *call, int rank) {
  bool onlyRoot = call->coll == tuttiCollBroadcast || call->coll == tuttiCollScatter;
  bool blocks = call->coll == tuttiCollReduceScatter || call->coll == tuttiCollScatter ||
                call->coll == tuttiCollAlltoAll;
  if (onlyRoot && rank != call->root) return 0;
  return blocks ? call->count * (size_t)call->nranks : call->count;
}

/* Elements that `rank` receives; its receive buffer is left alone where that is none. */
static inline size_t oracleReceives(const oracleCall *call, int rank) {
  bool onlyRoot = call->coll == tuttiCollReduce || call->coll == tuttiCollGather;
  bool blocks = call->coll == tuttiCollAllGather || call->coll == tuttiCollGather ||
                call->coll == tuttiCollAlltoAll;
  if (onlyRoot && rank != call->root) return 0;
  return blocks ? call->count * (size_t)call->nranks : call->count;
}

/* In place: elements from the start of the send buffer of `rank` to that of its receive buffer;
 * negative where the send buffer lies within the other. There is none for AlltoAll, and of use only
 * where the rank has both. */
static inline ptrdiff_t oracleInPlace(const oracleCall *call, int rank) {
  ptrdiff_t block = (ptrdiff_t)call->count * rank;
  switch (call->coll) {
  case tuttiCollAllGather:
  case tuttiCollGather:
    return -block;
  case tuttiCollReduceScatter:
  case tuttiCollScatter:
    return block;
  default:
    return 0;
  }
}

/* Of what element `i` < oracleReceives(call, rank) is made. */
static inline oracleSource oracleSourceOf(const oracleCall *call, int rank, size_t i) {
  const oracleSource reduced = {true, -1, i};
  const size_t own = (size_t)rank * call->count;
  oracleSource from = {false, call->root, i};
  switch (call->coll) {
  case tuttiCollBroadcast:
    return from;
  case tuttiCollScatter:
    from.index = own + i;
    return from;
  case tuttiCollAllGather:
  case tuttiCollGather:
    from.rank = (int)(i / call->count);
    from.index = i % call->count;
    return from;
  case tuttiCollAlltoAll:
    from.rank = (int)(i / call->count);
    from.index = own + i % call->count;
    return from;
  case tuttiCollReduceScatter:
    from = reduced;
    from.index = own + i;
    return from;
  default:
    return reduced;
  }
}

#endif
