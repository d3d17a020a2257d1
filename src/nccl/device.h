/* Device communicators of NCCL's header nccl_device.h, as of 2.28: what a program hands over and is
 * handed, and how the memory of a device communicator is shared out. The layouts are the header's,
 * as its device code is compiled into the program; tests/nccl compares them with it. */
#ifndef TUTTI_NCCL_DEVICE_H_
#define TUTTI_NCCL_DEVICE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl/abi.h"
#include "tutti.h"

/* Device code names a buffer by its place, in these units. */
#define TUTTI_NCCL_BUFFER_UNIT  128
#define TUTTI_NCCL_BUFFER_ALIGN ((size_t)2 << 20) /* at most */

typedef struct {
  uint32_t buffer; /* its place */
  int barriers;
} tuttiNcclLsaBarrier;

typedef struct {
  uint32_t buffer;
  uint32_t slots;
} tuttiNcclLlA2a;

typedef struct {
  uint32_t signal;
  uint32_t buffer;
} tuttiNcclGinBarrier;

typedef struct tuttiNcclResource {
  struct tuttiNcclResource *next;
  size_t bytes, align;
  uint32_t *outBuffer; /* NULL: nobody wants to know */
  int ginSignals, ginCounters;
  uint32_t *outGinSignals, *outGinCounters;
} tuttiNcclResource;

typedef struct tuttiNcclTeamWish {
  struct tuttiNcclTeamWish *next;
  tuttiNcclTeam team;
  bool multimem;
  tuttiNcclMultimemHandle *outMultimem;
} tuttiNcclTeamWish;

/* From 2.29 on it begins with a size and a magic number instead. */
typedef struct {
  tuttiNcclResource *resources;
  tuttiNcclTeamWish *teams;
  bool multimem;
  int barriers, lsaBarriers, railBarriers;
  int lsaA2aBlocks, lsaA2aSlots; /* the header has no place for what they would get */
  bool gin;
  int ginContexts, ginSignals, ginCounters; /* a context alone is a hint */
} tuttiNcclDevWishes;

typedef struct {
  int rank, nRanks;
  uint32_t nRanksReciprocal;
  int lsaRank, lsaSize;
  uint32_t lsaSizeReciprocal;
  tuttiDevComm_t made; /* written when it is there, in a group at its end */
  tuttiNcclMultimemHandle multimem;
  tuttiNcclLsaBarrier lsaBarrier;
  tuttiNcclGinBarrier railBarrier;
  uint8_t ginContexts;
  uint8_t ginTypes[4];
  void *ginHandles[4];
  uint32_t ginSignalBase;
  int ginSignals;
  uint32_t ginCounterBase;
  int ginCounters;
  uint64_t *ginShadows;
} tuttiNcclDevComm;

/* Device code divides by x with this: it multiplies, and takes the upper half. */
static inline uint32_t tuttiNcclReciprocal(uint32_t x) {
  bool power = (x & (x - 1)) == 0;
  return UINT32_MAX / x + power; /* 0 for 1 */
}

/* Each barrier counts its own rounds, with and without multicast, and has a mailbox of multicast
 * and one for each rank. */
static inline size_t tuttiNcclLsaBarrierBytes(int ranks, int barriers) {
  return (size_t)barriers * (3 + (size_t)ranks) * sizeof(uint32_t);
}

/* Each block counts its rounds in a slot of its own, in front of two rounds of slots. */
#define TUTTI_NCCL_A2A_SLOT 16 /* bytes: 8 of data, each 4 with a number behind them */
static inline size_t tuttiNcclLlA2aBytes(int blocks, int slots) {
  return (size_t)blocks * (1 + 2 * (size_t)slots) * TUTTI_NCCL_A2A_SLOT;
}
static inline int tuttiNcclLlA2aSlots(int elements, int elementBytes) {
  return elements * ((elementBytes + 7) / 8);
}

/* Memory that is being shared out. */
typedef struct {
  size_t bytes;
  uint64_t tag; /* of all that was asked for: ranks compare it */
} tuttiNcclLayout;

/* The place of a buffer; UINT64_MAX: it cannot be had, for its alignment or size. */
static inline uint64_t tuttiNcclPlace(tuttiNcclLayout *l, size_t bytes, size_t align) {
  size_t unit = align < TUTTI_NCCL_BUFFER_UNIT ? TUTTI_NCCL_BUFFER_UNIT : align;
  l->tag = (l->tag ^ bytes) * UINT64_C(0x100000001b3); /* FNV-1a, of words */
  l->tag = (l->tag ^ align) * UINT64_C(0x100000001b3);
  if (unit & (unit - 1) || unit > TUTTI_NCCL_BUFFER_ALIGN || bytes > (size_t)1 << 38)
    return UINT64_MAX;
  size_t at = (l->bytes + unit - 1) & ~(unit - 1);
  if (at >= (size_t)1 << 38) return UINT64_MAX;
  l->bytes = at + bytes;
  return at / TUTTI_NCCL_BUFFER_UNIT;
}

#endif
