#include "numbers.h"

#include <nccl.h>
#include <stddef.h>

#include <type_traits>

#if NCCL_VERSION_CODE < 22800
#error "an nccl.h of 2.28 or later is wanted"
#endif

/* Calls whose types are not those of tutti.h. */
#define SAME(name, ...)                                                                            \
  static_assert(std::is_same<decltype(name), __VA_ARGS__>::value, #name " has another type");
SAME(ncclCommShrink, ncclResult_t(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))
SAME(ncclCommSplit, ncclResult_t(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))
SAME(ncclCommWindowRegister, ncclResult_t(ncclComm_t, void *, size_t, ncclWindow_t *, int))
SAME(ncclGroupSimulateEnd, ncclResult_t(ncclSimInfo_t *))

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
#undef X
#if NCCL_VERSION_CODE >= 23005 && NCCL_VERSION_CODE < 23100
                                {"sizeof config", sizeof(ncclConfig_t)},
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
