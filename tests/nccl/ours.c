#include "numbers.h"

#include "nccl/abi.h"

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
