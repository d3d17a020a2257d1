#include "numbers.h"

#include <nccl.h>
#include <stddef.h>

#include <type_traits>

#if NCCL_VERSION_CODE >= 23200
#include <nccl_device/host.h>
#elif NCCL_VERSION_CODE < 22900
#include <nccl_device.h>
#endif

#include "calls.h"

#if NCCL_VERSION_CODE < 22800
#error "an nccl.h of 2.28 or later is wanted"
#endif

/* Every call of the list, as far as the header has it. */
#define SAME_PLAIN(name, result, parameters)                                                       \
  static_assert(std::is_same<decltype(nccl##name), result parameters>::value,                      \
                "nccl" #name " has another type");
#define SAME(name, result, parameters)                                                             \
  SAME_PLAIN(name, result, parameters)                                                             \
  static_assert(std::is_same<decltype(pnccl##name), result parameters>::value,                     \
                "pnccl" #name " has another type");
CALLS(SAME)
#if NCCL_VERSION_CODE >= 22900
CALLS_2_29(SAME)
#endif
#if NCCL_VERSION_CODE >= 23000
CALLS_2_30(SAME)
#endif
#if NCCL_VERSION_CODE >= 23200
CALLS_2_32(SAME)
CALLS_DEVICE(SAME_PLAIN)
static const ncclCollConfig_t collConfig = NCCL_COLLCONFIG_INITIALIZER;
#endif

static const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static const ncclSimInfo_t simInfo = NCCL_SIM_INFO_INITIALIZER;

const Number nvidiaNumbers[] = {
#define X(name) {#name, nccl##name},
    ENUMERATORS(X)
#if NCCL_VERSION_CODE >= 22900
        ENUMERATORS_2_29(X)
#endif
#undef X
#define X(name) {#name, NCCL_##name},
            MACROS(X)
#if NCCL_VERSION_CODE >= 22900
                MACROS_2_29(X)
#endif
#undef X
#define X(field) {"config." #field, offsetof(ncclConfig_t, field)},
                    CONFIG_FIELDS(X)
#if NCCL_VERSION_CODE >= 22900
                        CONFIG_FIELDS_2_29(X)
#endif
#if NCCL_VERSION_CODE >= 23005
                            CONFIG_FIELDS_2_30(X)
#endif
#if NCCL_VERSION_CODE >= 23100
                                CONFIG_FIELDS_2_31(X)
#endif
#undef X
#if NCCL_VERSION_CODE >= 23200
                                    {"sizeof config", sizeof(ncclConfig_t)},
#define X(field) {"collConfig." #field, offsetof(ncclCollConfig_t, field)},
    COLL_CONFIG_FIELDS(X)
#undef X
        {"sizeof collConfig", sizeof collConfig},
    {"collConfig magic", collConfig.magic},
    {"force by default", collConfig.forceAlgSelection},
#define X(field) {"properties." #field, offsetof(ncclCommProperties_t, field)},
    PROPERTIES_FIELDS(X)
#undef X
        {"sizeof properties", sizeof(ncclCommProperties_t)},
#define X(field) {"encryption." #field, offsetof(ncclEncryptionConfig_t, field)},
    ENCRYPTION_FIELDS(X)
#undef X
        {"sizeof encryption", sizeof(ncclEncryptionConfig_t)},
    {"WIN_GIN_ONLY", NCCL_WIN_GIN_ONLY},
    {"WIN_CFT_COUNTED", NCCL_WIN_CFT_COUNTED},
#endif
#if NCCL_VERSION_CODE >= 22900
    {"sizeof waitSignalDesc", sizeof(ncclWaitSignalDesc_t)},
    {"waitSignalDesc.sigIdx", offsetof(ncclWaitSignalDesc_t, sigIdx)},
#endif
#define X(field) {"simInfo." #field, offsetof(ncclSimInfo_t, field)},
    SIM_FIELDS(X)
#undef X
        {"sizeof simInfo", sizeof(ncclSimInfo_t)},
    {"sizeof uniqueId", sizeof(ncclUniqueId)},
    {"config magic", config.magic},
    {"simInfo magic", simInfo.magic},
    {"undefined pointer", (long long)NCCL_CONFIG_UNDEF_PTR},
    {nullptr, 0}};
