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
            CONFIG_FIELDS(X) CONFIG_FIELDS_2_29(X) CONFIG_FIELDS_2_30(X)
#undef X
#define X(field) {"simInfo." #field, offsetof(tuttiNcclSimInfo, field)},
                SIM_FIELDS(X)
#undef X
                    {"sizeof config", sizeof(tuttiNcclConfig)},
    {"sizeof simInfo", sizeof(tuttiNcclSimInfo)},
    {"sizeof uniqueId", sizeof(tuttiUniqueId)},
    {"config magic", TUTTI_NCCL_CONFIG_MAGIC},
    {"simInfo magic", TUTTI_NCCL_SIM_MAGIC},
    {"undefined pointer", (long long)TUTTI_CONFIG_UNDEF_PTR},
    {NULL, 0}};
