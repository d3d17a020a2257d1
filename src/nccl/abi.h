/* The ABI of libnccl.so.2 as far as it is not tutti.h's: types whose values or layouts differ.
 * Names and values of all enums are tutti's, with another prefix; tests/nccl checks that against
 * NVIDIA's header where that is installed. */
#ifndef TUTTI_NCCL_ABI_H_
#define TUTTI_NCCL_ABI_H_

#include <stdbool.h>

#include "tutti.h"

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
  int launchOrderImplicit; /* 2.31 */
  int numRmaSig;           /* 2.31 */
  int rmaEagerInit;        /* 2.31 */
  int hostCftMode;         /* 2.31 */
  int nvlsHostMode;        /* 2.31 */
} tuttiNcclConfig;

/* Of one collective, of 2.32. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  void *ext; /* a list of options of other vendors, all of which are passed over */
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char *algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  uint64_t userProfilerTag;
  void *launchCompletionEvent;
} tuttiNcclCollConfig;

/* Of 2.32. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode; /* one of these: */
#define TUTTI_NCCL_ENCRYPTION_NONE 0
#define TUTTI_NCCL_ENCRYPTION_PSK  1 /* with a key that all ranks know */
  const char *psk;
} tuttiNcclEncryptionConfig;

typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} tuttiNcclSimInfo;

/* Of 2.32; older callers know its beginning. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  int ginType; /* 0: none */
  int nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
  uint64_t commHash;
  int ginMinStride;
  int ginConnectionType; /* 0: none */
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
} tuttiNcclCommProperties;
#define TUTTI_NCCL_PROPERTIES_LEAST offsetof(tuttiNcclCommProperties, railedGinType) /* of 2.29 */

/* What device code knows multicast memory by. */
typedef struct {
  void *base;
} tuttiNcclMultimemHandle;

#define TUTTI_NCCL_WIN_GIN_ONLY    0x04
#define TUTTI_NCCL_WIN_CFT_COUNTED 0x08

/* A set of ranks that device code speaks of. */
typedef struct {
  int nRanks, rank, stride;
} tuttiNcclTeam;

#endif
