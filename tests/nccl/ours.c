#include "numbers.h"

#include "nccl/abi.h"
#include "nccl/device.h"

const Number ourNumbers[] = {
#define X(name) {#name, tutti##name},
    ENUMERATORS(X) ENUMERATORS_2_29(X)
#undef X
#define X(name) {#name, TUTTI_##name},
        MACROS(X) MACROS_2_29(X)
#undef X
#define X(field) {"config." #field, offsetof(tuttiNcclConfig, field)},
            CONFIG_FIELDS(X) CONFIG_FIELDS_2_29(X) CONFIG_FIELDS_2_30(X) CONFIG_FIELDS_2_31(X)
#undef X
#define X(field) {"simInfo." #field, offsetof(tuttiNcclSimInfo, field)},
                SIM_FIELDS(X)
#undef X
                    {"sizeof config", sizeof(tuttiNcclConfig)},
    {"sizeof simInfo", sizeof(tuttiNcclSimInfo)},
#define X(field) {"collConfig." #field, offsetof(tuttiNcclCollConfig, field)},
    COLL_CONFIG_FIELDS(X)
#undef X
        {"sizeof collConfig", sizeof(tuttiNcclCollConfig)},
    {"collConfig magic", TUTTI_NCCL_CONFIG_MAGIC},
    {"force by default", 1},
#define X(field) {"properties." #field, offsetof(tuttiNcclCommProperties, field)},
    PROPERTIES_FIELDS(X)
#undef X
        {"sizeof properties", sizeof(tuttiNcclCommProperties)},
#define X(field) {"encryption." #field, offsetof(tuttiNcclEncryptionConfig, field)},
    ENCRYPTION_FIELDS(X)
#undef X
        {"sizeof encryption", sizeof(tuttiNcclEncryptionConfig)},
    {"WIN_GIN_ONLY", TUTTI_NCCL_WIN_GIN_ONLY},
    {"WIN_CFT_COUNTED", TUTTI_NCCL_WIN_CFT_COUNTED},
    {"sizeof waitSignalDesc", sizeof(tuttiWaitSignalDesc_t)},
    {"waitSignalDesc.sigIdx", offsetof(tuttiWaitSignalDesc_t, sigIdx)},
    {"sizeof uniqueId", sizeof(tuttiUniqueId)},
    {"config magic", TUTTI_NCCL_CONFIG_MAGIC},
    {"simInfo magic", TUTTI_NCCL_SIM_MAGIC},
    {"undefined pointer", (long long)TUTTI_CONFIG_UNDEF_PTR},
    {NULL, 0}};

#define IN(type, field)                                                                            \
  {#type "." #field, offsetof(type, field)}, {                                                     \
#type, sizeof(type)                                                                            \
  }
const Number ourDeviceNumbers[] = {IN(tuttiNcclLsaBarrier, buffer),
                                   IN(tuttiNcclLsaBarrier, barriers),
                                   IN(tuttiNcclLlA2a, buffer),
                                   IN(tuttiNcclLlA2a, slots),
                                   IN(tuttiNcclGinBarrier, signal),
                                   IN(tuttiNcclGinBarrier, buffer),
                                   IN(tuttiNcclResource, next),
                                   IN(tuttiNcclResource, bytes),
                                   IN(tuttiNcclResource, align),
                                   IN(tuttiNcclResource, outBuffer),
                                   IN(tuttiNcclResource, ginSignals),
                                   IN(tuttiNcclResource, ginCounters),
                                   IN(tuttiNcclTeamWish, next),
                                   IN(tuttiNcclTeamWish, team),
                                   IN(tuttiNcclTeamWish, multimem),
                                   IN(tuttiNcclTeamWish, outMultimem),
                                   IN(tuttiNcclDevWishes, resources),
                                   IN(tuttiNcclDevWishes, teams),
                                   IN(tuttiNcclDevWishes, multimem),
                                   IN(tuttiNcclDevWishes, barriers),
                                   IN(tuttiNcclDevWishes, lsaBarriers),
                                   IN(tuttiNcclDevWishes, railBarriers),
                                   IN(tuttiNcclDevWishes, lsaA2aBlocks),
                                   IN(tuttiNcclDevWishes, lsaA2aSlots),
                                   IN(tuttiNcclDevWishes, gin),
                                   IN(tuttiNcclDevWishes, ginContexts),
                                   IN(tuttiNcclDevWishes, ginSignals),
                                   IN(tuttiNcclDevWishes, ginCounters),
                                   IN(tuttiNcclDevComm, rank),
                                   IN(tuttiNcclDevComm, nRanks),
                                   IN(tuttiNcclDevComm, nRanksReciprocal),
                                   IN(tuttiNcclDevComm, lsaRank),
                                   IN(tuttiNcclDevComm, lsaSize),
                                   IN(tuttiNcclDevComm, lsaSizeReciprocal),
                                   IN(tuttiNcclDevComm, made.windows),
                                   IN(tuttiNcclDevComm, made.window),
                                   IN(tuttiNcclDevComm, made.seen),
                                   IN(tuttiNcclDevComm, multimem),
                                   IN(tuttiNcclDevComm, lsaBarrier),
                                   IN(tuttiNcclDevComm, railBarrier),
                                   IN(tuttiNcclDevComm, ginContexts),
                                   IN(tuttiNcclDevComm, ginHandles),
                                   IN(tuttiNcclDevComm, ginSignals),
                                   IN(tuttiNcclDevComm, ginShadows),
                                   IN(struct tuttiWindow, host),
                                   IN(struct tuttiWindow, lsaBase),
                                   IN(struct tuttiWindow, lsaRank),
                                   IN(struct tuttiWindow, worldRank),
                                   IN(struct tuttiWindow, stride4G),
                                   IN(struct tuttiWindow, unused),
                                   IN(struct tuttiWindow, unusedToo),
                                   {NULL, 0}};
