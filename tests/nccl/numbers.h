/* The numbers of NCCL's ABI, twice: ours.c takes them from tutti.h and src/nccl/abi.h, nvidia.c
 * from NVIDIA's header. The lists say which there are. */
#ifndef TUTTI_TESTS_NCCL_NUMBERS_H_
#define TUTTI_TESTS_NCCL_NUMBERS_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char *name;
  long long value;
} Number;

extern const Number ourNumbers[], nvidiaNumbers[]; /* end with a NULL name */

#ifdef __cplusplus
}
#endif

// clang-format off
/* Enumerators, with the prefix nccl or tutti. */
#define ENUMERATORS(X)                                                                             \
  X(Success) X(UnhandledCudaError) X(SystemError) X(InternalError) X(InvalidArgument)              \
  X(InvalidUsage) X(RemoteError) X(InProgress)                                                     \
  X(Sum) X(Prod) X(Max) X(Min) X(Avg) X(NumOps) X(MaxRedOp)                                        \
  X(Int8) X(Char) X(Uint8) X(Int32) X(Int) X(Uint32) X(Int64) X(Uint64) X(Float16) X(Half)         \
  X(Float32) X(Float) X(Float64) X(Double) X(Bfloat16) X(Float8e4m3) X(Float8e5m2) X(NumTypes)     \
  X(ScalarDevice) X(ScalarHostImmediate)
#define ENUMERATORS_2_29(X)                                                                        \
  X(Timeout) X(NumResults) X(StatGpuMemSuspend) X(StatGpuMemSuspended) X(StatGpuMemPersist)        \
  X(StatGpuMemTotal)

/* Macros, with the prefix NCCL_ or TUTTI_. */
#define MACROS(X)                                                                                  \
  X(UNIQUE_ID_BYTES) X(CONFIG_UNDEF_INT) X(SPLIT_NOCOLOR) X(WIN_DEFAULT) X(WIN_COLL_SYMMETRIC)     \
  X(SHRINK_DEFAULT) X(SHRINK_ABORT)
#define MACROS_2_29(X) X(WIN_STRICT_ORDERING) X(REVOKE_DEFAULT) X(SUSPEND_MEM)

/* Fields, of which the offsets are taken. */
#define CONFIG_FIELDS(X)                                                                           \
  X(size) X(magic) X(version) X(blocking) X(cgaClusterSize) X(minCTAs) X(maxCTAs) X(netName)       \
  X(splitShare) X(trafficClass) X(commName) X(collnetEnable) X(CTAPolicy) X(shrinkShare)           \
  X(nvlsCTAs) X(nChannelsPerNetPeer) X(nvlinkCentricSched)
#define CONFIG_FIELDS_2_29(X) X(graphUsageMode) X(numRmaCtx)
#define CONFIG_FIELDS_2_30(X) X(maxP2pPeers) X(graphStreamOrdering)
#define CONFIG_FIELDS_2_31(X)                                                                      \
  X(launchOrderImplicit) X(numRmaSig) X(rmaEagerInit) X(hostCftMode) X(nvlsHostMode)
#define COLL_CONFIG_FIELDS(X)                                                                      \
  X(size) X(magic) X(version) X(ext) X(minCTAs) X(maxCTAs) X(nvlsCTAs) X(cgaClusterSize)           \
  X(algSelection) X(forceAlgSelection) X(CTAPolicy) X(userProfilerTag) X(launchCompletionEvent)
#define PROPERTIES_FIELDS(X)                                                                       \
  X(size) X(magic) X(version) X(rank) X(nRanks) X(cudaDev) X(nvmlDev) X(deviceApiSupport)          \
  X(multimemSupport) X(ginType) X(nLsaTeams) X(hostRmaSupport) X(railedGinType) X(commHash)        \
  X(ginMinStride) X(ginConnectionType) X(ginSupport) X(devCommRuntimeVersionSize) X(cftSupport)    \
  X(cftMulticastSupport) X(cftCountedSupport)
#define ENCRYPTION_FIELDS(X) X(size) X(magic) X(version) X(mode) X(psk)
#define SIM_FIELDS(X) X(size) X(magic) X(version) X(estimatedTime)
// clang-format on

#endif
