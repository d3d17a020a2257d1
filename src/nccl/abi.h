/* The ABI of libnccl.so.2 as far as it is not tutti.h's: types whose values or layouts differ.
 * Names and values of all enums are tutti's, with another prefix; tests/nccl checks that against
 * NVIDIA's header where that is installed. */
#ifndef TUTTI_NCCL_ABI_H_
#define TUTTI_NCCL_ABI_H_

#include "tutti.h"

/* What the library says it is: the version that PyTorch 2.11 is made for. */
#define TUTTI_NCCL_VERSION 22809

#define TUTTI_NCCL_CONFIG_MAGIC 0xcafebeefu
#define TUTTI_NCCL_CONFIG_LEAST 24 /* bytes, of 2.14 */
#define TUTTI_NCCL_SIM_MAGIC    0x74685283u

/* Fields only ever come at the end, so an older one is the beginning of this: first known to the
 * version at their right. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;            /* 2.14 */
  int cgaClusterSize;      /* 2.17 */
  int minCTAs;             /* 2.17 */
  int maxCTAs;             /* 2.17 */
  const char *netName;     /* 2.17 */
  int splitShare;          /* 2.18 */
  int trafficClass;        /* 2.26 */
  const char *commName;    /* 2.27 */
  int collnetEnable;       /* 2.27 */
  int CTAPolicy;           /* 2.27 */
  int shrinkShare;         /* 2.27 */
  int nvlsCTAs;            /* 2.27 */
  int nChannelsPerNetPeer; /* 2.28 */
  int nvlinkCentricSched;  /* 2.28 */
  int graphUsageMode;      /* 2.29 */
  int numRmaCtx;           /* 2.29 */
  int maxP2pPeers;         /* 2.30.3 */
  int graphStreamOrdering; /* 2.30.5 */
} tuttiNcclConfig;

typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} tuttiNcclSimInfo;

/* A set of ranks that device code speaks of. */
typedef struct {
  int nRanks, rank, stride;
} tuttiNcclTeam;

#endif
