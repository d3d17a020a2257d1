/* The calls of the list, declared with NCCL's types as ours stand for them, and then defined as the
 * library defines them: what does not fit does not compile. */
#include "calls.h"

#include "nccl/abi.h"
#include "nccl/device.h"

#define TYPE(name) typedef tutti##name nccl##name;
TYPE(Result_t)
TYPE(Comm_t)
TYPE(UniqueId)
TYPE(CommMemStat_t)
TYPE(Window_t)
TYPE(RedOp_t)
TYPE(DataType_t)
TYPE(ScalarResidence_t)
TYPE(ParamHandle_t)
TYPE(WaitSignalDesc_t)
typedef tuttiStream_t cudaStream_t;
typedef tuttiNcclConfig ncclConfig_t;
typedef tuttiNcclCollConfig ncclCollConfig_t;
typedef tuttiNcclSimInfo ncclSimInfo_t;
typedef tuttiNcclEncryptionConfig ncclEncryptionConfig_t;
typedef tuttiNcclTeam ncclTeam_t;
typedef tuttiNcclCommProperties ncclCommProperties_t;
typedef int ncclCftTeamMode_t; /* an enum */
typedef uint32_t ncclCftLeId;
typedef tuttiNcclDevComm ncclDevComm_t;
typedef tuttiNcclDevWishes ncclDevCommRequirements_t;
typedef tuttiNcclResource ncclDevResourceRequirements_t;
typedef tuttiNcclLsaBarrier ncclLsaBarrierHandle_t;
typedef tuttiNcclLlA2a ncclLLA2AHandle_t;
/* What the library does not look into. */
typedef void ncclGinBarrierHandle_t, ncclCftBarrierHandle_t;
typedef tuttiNcclMultimemHandle ncclMultimemHandle_t;

#define DECLARE(name, result, parameters)                                                          \
  result nccl##name parameters;                                                                    \
  result pnccl##name parameters;
CALLS(DECLARE)
CALLS_2_29(DECLARE)
CALLS_2_30(DECLARE)
CALLS_2_32(DECLARE)
CALLS_DEVICE(DECLARE)
CALLS_HIDDEN(DECLARE)

#include "nccl/nccl.c"
