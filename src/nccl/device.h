/* Device communicators of NCCL's header nccl_device.h, as of 2.28 to 2.32: what a program hands
 * over and is handed, and how the memory of a device communicator is shared out. The layouts are
 * the header's, as its device code is compiled into the program; tests/nccl compares them with it.
 * A name's number is the version that began with it. */
#ifndef TUTTI_NCCL_DEVICE_H_
#define TUTTI_NCCL_DEVICE_H_

#include <assert.h>
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

/* What 2.28 had, without a word on the version. */
typedef struct {
  tuttiNcclResource *resources;
  tuttiNcclTeamWish *teams;
  bool multimem;
  int barriers, lsaBarriers, railBarriers;
  int lsaA2aBlocks, lsaA2aSlots; /* the header has no place for what they would get */
  bool gin;
  int ginContexts, ginSignals, ginCounters; /* a context alone is a hint */
} tuttiNcclDevWishes;

/* From 2.29 on; each version has added to its end. */
typedef struct {
  size_t size;
  unsigned int magic, version;
  tuttiNcclDevWishes first;
  int ginConnections; /* 0: none */
  bool ginExclusive;
  int ginQueueDepth;
  int ginTrafficClass; /* from here on of 2.30 */
  int worldBarriers;   /* of GIN */
  bool ginStrongSignals, ginVaSignals;
  int ginStride; /* from here on of 2.31 */
  int ginType;
  bool runtimeVersion; /* the device code's version is the one that the library reports */
  int cftCaps, cftBarriers;
} tuttiNcclDevWishes29;
#define TUTTI_NCCL_WISHES_LEAST (offsetof(tuttiNcclDevWishes29, ginConnections))

static_assert(sizeof(tuttiNcclDevWishes) == 56 && sizeof(tuttiNcclDevWishes29) == 120 &&
                  offsetof(tuttiNcclDevWishes29, ginTrafficClass) == 84 &&
                  offsetof(tuttiNcclDevWishes29, ginStride) == 96,
              "as in the headers of 2.28 and 2.32");

/* A rank's place, with which all layouts begin but for a version. */
typedef struct {
  int rank, nRanks;
  uint32_t nRanksReciprocal;
  int lsaRank, lsaSize;
  uint32_t lsaSizeReciprocal;
} tuttiNcclPlaces;

/* Up to 2.29.3. */
typedef struct {
  tuttiNcclPlaces places;
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

/* Of 2.29.7. */
typedef struct {
  tuttiNcclDevComm first;
  uint32_t ginContexts, ginContextBase;
  bool ginIsRailed;
  uint32_t *abortFlag; /* NULL: there is none */
} tuttiNcclDevComm29;

/* Of 2.30. What `made` has beyond the header's window is a barrier of GIN, of zeros. */
typedef struct {
  unsigned int magic, version;
  tuttiNcclPlaces places;
  tuttiDevComm_t made;
  tuttiNcclMultimemHandle multimem;
  tuttiNcclLsaBarrier lsaBarrier;
  tuttiNcclGinBarrier railBarrier;
  uint8_t ginConnections;
  uint8_t ginTypes[4];
  void *ginHandles[4];
  int ginSignals, ginCounters;
  uint64_t *ginShadows;
  uint32_t ginContexts;
  bool ginConnectionsRailed, ginStrongSignals, ginContextsRailed;
  uint32_t *abortFlag;
  tuttiNcclLsaBarrier hybridLsaBarrier; /* of barrierCount */
  tuttiNcclGinBarrier hybridRailBarrier, worldBarrier;
} tuttiNcclDevComm30;

/* Of 2.31 and 2.32. */
typedef struct {
  unsigned int magic, version;
  tuttiNcclPlaces places;
  const void *windows; /* these four are what a tuttiDevComm_t has, in another order */
  tuttiWindow_t window;
  char *lsaBase;
  uint32_t stride4G;
  uint32_t multicast4K;
  tuttiNcclGinBarrier hybridDenseBarrier;
  tuttiNcclMultimemHandle multimem;
  tuttiNcclLsaBarrier lsaBarrier;
  tuttiNcclGinBarrier railBarrier;
  uint8_t ginConnections, ginBackend;
  uint8_t ginTypes[4];
  void *ginHandles[4];
  int ginSignals, ginCounters;
  uint64_t *ginShadows;
  uint32_t ginContexts;
  int ginConnectionStride, ginContextStride; /* device code divides by it */
  bool ginStrongSignals;
  uint32_t *abortFlag;
  tuttiNcclLsaBarrier hybridLsaBarrier;
  tuttiNcclGinBarrier hybridRailBarrier, worldBarrier;
  uint32_t ginConnectionStrideReciprocal;
  int cftRank, cftSize, cftMultimemRank, cftMultimemSize;
  uint32_t cftMultimemSizeReciprocal;
  uint32_t cftId, cftMultimemId; /* UINT32_MAX: none */
  tuttiNcclLsaBarrier cftBarrier, cftMultimemBarrier;
} tuttiNcclDevComm31;

static_assert(sizeof(tuttiNcclDevComm) == 200 && sizeof(tuttiNcclDevComm29) == 224 &&
                  sizeof(tuttiNcclDevComm30) == 240 && sizeof(tuttiNcclDevComm31) == 248,
              "as in the headers of 2.28, 2.29, 2.30 and 2.32");
static_assert(offsetof(tuttiNcclDevComm, lsaBarrier) == 120 &&
                  offsetof(tuttiNcclDevComm30, lsaBarrier) == 128 &&
                  offsetof(tuttiNcclDevComm31, lsaBarrier) == 80,
              "likewise");

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
