/* The layouts of src/nccl/device.h beside those of NVIDIA's nccl_device.h, of whichever version is
 * installed. Never linked: that it compiles is the test. */
#include <nccl.h>
#include <nccl_device.h>
#include <stddef.h>

#include "nccl/device.h"

#define SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #ours " has another size")
#define AT(ours, field, theirs, its)                                                               \
  static_assert(offsetof(ours, field) == offsetof(theirs, its) &&                                  \
                    sizeof(((ours *)nullptr)->field) == sizeof(((theirs *)nullptr)->its),          \
                #ours "." #field " is elsewhere")

#define RESOURCE(field, its)  AT(tuttiNcclResource, field, ncclDevResourceRequirements, its)
#define TEAM_WISH(field, its) AT(tuttiNcclTeamWish, field, ncclTeamRequirements, its)
SIZE(tuttiNcclTeam, ncclTeam);
SIZE(tuttiNcclLsaBarrier, ncclLsaBarrierHandle);
AT(tuttiNcclLsaBarrier, buffer, ncclLsaBarrierHandle, bufHandle);
AT(tuttiNcclLsaBarrier, barriers, ncclLsaBarrierHandle, nBarriers);
SIZE(tuttiNcclLlA2a, ncclLLA2AHandle);
AT(tuttiNcclLlA2a, buffer, ncclLLA2AHandle, bufHandle);
AT(tuttiNcclLlA2a, slots, ncclLLA2AHandle, nSlots);
SIZE(tuttiNcclGinBarrier, ncclGinBarrierHandle);
SIZE(tuttiNcclMultimemHandle, ncclMultimemHandle);
SIZE(tuttiNcclResource, ncclDevResourceRequirements);
RESOURCE(next, next);
RESOURCE(bytes, bufferSize);
RESOURCE(align, bufferAlign);
RESOURCE(outBuffer, outBufferHandle);
RESOURCE(ginSignals, ginSignalCount);
RESOURCE(ginCounters, ginCounterCount);
SIZE(tuttiNcclTeamWish, ncclTeamRequirements);
TEAM_WISH(next, next);
TEAM_WISH(team, team);
TEAM_WISH(multimem, multimem);
TEAM_WISH(outMultimem, outMultimemHandle);

/* Requirements: those of 2.28, and from 2.29 on behind a head. */
#if NCCL_VERSION_CODE < 22900
#define WISH(field, its) AT(tuttiNcclDevWishes, field, ncclDevCommRequirements, its)
SIZE(tuttiNcclDevWishes, ncclDevCommRequirements);
#else
#define WISH(field, its)  AT(tuttiNcclDevWishes29, first.field, ncclDevCommRequirements, its)
#define LATER(field, its) AT(tuttiNcclDevWishes29, field, ncclDevCommRequirements, its)
static_assert(sizeof(ncclDevCommRequirements) >= TUTTI_NCCL_WISHES_LEAST, "the least is of 2.29");
LATER(size, size);
LATER(magic, magic);
LATER(version, version);
#endif
WISH(resources, resourceRequirementsList);
WISH(teams, teamRequirementsList);
WISH(multimem, lsaMultimem);
WISH(barriers, barrierCount);
WISH(lsaBarriers, lsaBarrierCount);
WISH(railBarriers, railGinBarrierCount);
WISH(lsaA2aBlocks, lsaLLA2ABlockCount);
WISH(lsaA2aSlots, lsaLLA2ASlotCount);
WISH(gin, ginForceEnable);
WISH(ginContexts, ginContextCount);
WISH(ginSignals, ginSignalCount);
WISH(ginCounters, ginCounterCount);
#if NCCL_VERSION_CODE >= 22907
LATER(ginConnections, ginConnectionType);
LATER(ginExclusive, ginExclusiveContexts);
LATER(ginQueueDepth, ginQueueDepth);
#endif
#if NCCL_VERSION_CODE >= 23000
LATER(ginTrafficClass, ginTrafficClass);
LATER(worldBarriers, worldGinBarrierCount);
#endif
#if NCCL_VERSION_CODE >= 23005
LATER(ginStrongSignals, ginStrongSignalsRequired);
LATER(ginVaSignals, ginVaSignalsRequired);
#endif
#if NCCL_VERSION_CODE >= 23100
SIZE(tuttiNcclDevWishes29, ncclDevCommRequirements);
LATER(ginStride, ginCustomStride);
LATER(ginType, ginType);
LATER(runtimeVersion, useRuntimeVersion);
LATER(cftCaps, cftCaps);
LATER(cftBarriers, cftBarrierCount);
#endif

/* Device communicators. */
#if NCCL_VERSION_CODE >= 23100
#define TYPE  tuttiNcclDevComm31
#define FIRST TYPE
#elif NCCL_VERSION_CODE >= 23000
#define TYPE  tuttiNcclDevComm30
#define FIRST TYPE
#elif NCCL_VERSION_CODE >= 22907
#define TYPE  tuttiNcclDevComm29
#define FIRST tuttiNcclDevComm /* at its beginning */
#else
#define TYPE  tuttiNcclDevComm
#define FIRST TYPE
#endif
#define COMM(field, its)   AT(FIRST, field, ncclDevComm, its)
#define BEHIND(field, its) AT(TYPE, field, ncclDevComm, its)
SIZE(TYPE, ncclDevComm);
COMM(places.rank, rank);
COMM(places.nRanks, nRanks);
COMM(places.nRanksReciprocal, nRanks_rcp32);
COMM(places.lsaRank, lsaRank);
COMM(places.lsaSize, lsaSize);
COMM(places.lsaSizeReciprocal, lsaSize_rcp32);
COMM(multimem, lsaMultimem);
COMM(lsaBarrier, lsaBarrier);
COMM(railBarrier, railGinBarrier);
COMM(ginHandles, ginHandles);
COMM(ginSignals, ginSignalCount);
COMM(ginCounters, ginCounterCount);
COMM(ginShadows, ginSignalShadows);
#if NCCL_VERSION_CODE >= 22907
BEHIND(ginContexts, ginContextCount);
BEHIND(abortFlag, abortFlag);
#else
COMM(ginContexts, ginContextCount);
#endif
#if NCCL_VERSION_CODE < 23100
COMM(made.windows, windowTable);
COMM(made.window, resourceWindow);
COMM(made.seen.lsaBase, resourceWindow_inlined.lsaFlatBase);
COMM(made.seen.stride4G, resourceWindow_inlined.stride4G);
#else
COMM(windows, windowTable);
COMM(window, resourceWindow);
COMM(lsaBase, resourceWindow_inlined.lsaFlatBase);
COMM(stride4G, resourceWindow_inlined.stride4G);
COMM(multicast4K, resourceWindow_inlined.mcOffset4K);
COMM(hybridDenseBarrier, hybridDenseGinBarrier);
COMM(ginConnectionStride, ginConnectionStride);
COMM(ginContextStride, ginContextStride);
COMM(ginConnectionStrideReciprocal, ginConnectionStride_rcp32);
COMM(cftRank, cftRank);
COMM(cftSize, cftSize);
COMM(cftMultimemSize, cftMultimemSize);
COMM(cftMultimemSizeReciprocal, cftMultimemSize_rcp32);
COMM(cftId, ucLeId);
COMM(cftMultimemId, mcLeId);
COMM(cftBarrier, cftBarrier);
COMM(cftMultimemBarrier, cftMultimemBarrier);
#endif
#if NCCL_VERSION_CODE >= 23000
COMM(magic, magic);
COMM(version, version);
COMM(hybridLsaBarrier, hybridLsaBarrier);
COMM(hybridRailBarrier, hybridRailGinBarrier);
COMM(worldBarrier, worldGinBarrier);
#endif

/* Windows, whose beginning alone is read where kernels reach no network, and the list of them. */
#define WINDOW(field, its) AT(struct tuttiWindow, field, ncclWindow_vidmem, its)
WINDOW(host, winHost);
WINDOW(lsaBase, lsaFlatBase);
WINDOW(lsaRank, lsaRank);
WINDOW(worldRank, worldRank);
WINDOW(stride4G, stride4G);
static_assert(sizeof(ncclDevCommWindowTable) == 776 && sizeof(ncclDevCommWindowTable::Entry) == 24,
              "src/device/cuda/window_table.c has it so");
