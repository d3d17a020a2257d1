/* A library with the names of NCCL, for tests of --lib: tutti's calls, on host memory. */
#include "perf.h"

#define EXPORT __attribute__((visibility("default")))

/* dlsym runs the resolvers, when all else in the library is in its place. */
#define X(name)                                                                                    \
  __attribute__((used)) static __typeof__(&tutti##name) resolve##name(void) {                      \
    return tutti##name;                                                                            \
  }                                                                                                \
  EXPORT __typeof__(tutti##name) nccl##name __attribute__((ifunc("resolve" #name)));
#define ncclGetVersion ncclUnused /* this one is different, so that a test sees who answers */
PERF_CALLS(X)
#undef X
#undef ncclGetVersion

EXPORT tuttiResult_t ncclGetVersion(int *version);
EXPORT tuttiResult_t ncclGetVersion(int *version) {
  *version = 98765;
  return tuttiSuccess;
}

EXPORT tuttiResult_t ncclCommWindowRegister(tuttiComm_t comm, void *buff, size_t size,
                                            void **window, int flags);
EXPORT tuttiResult_t ncclCommWindowRegister(tuttiComm_t comm, void *buff, size_t size,
                                            void **window, int flags) {
  return flags == 1 ? tuttiCommRegister(comm, buff, size, window) : tuttiInvalidArgument;
}

EXPORT tuttiResult_t ncclCommWindowDeregister(tuttiComm_t comm, void *window);
EXPORT tuttiResult_t ncclCommWindowDeregister(tuttiComm_t comm, void *window) {
  return tuttiCommDeregister(comm, window);
}
