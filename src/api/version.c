#include "base/error.h"
#include "tutti.h"

static const char *const resultTexts[tuttiNumResults] = {
    [tuttiSuccess] = "no error",
    [tuttiUnhandledCudaError] = "a CUDA call failed",
    [tuttiSystemError] = "a system call failed (socket, memory or file)",
    [tuttiInternalError] = "internal error; this is a bug in tutti",
    [tuttiInvalidArgument] = "invalid argument",
    [tuttiInvalidUsage] = "invalid usage; calls do not fit together",
    [tuttiRemoteError] = "a peer died, failed or aborted",
    [tuttiInProgress] = "in progress",
    [tuttiTimeout] = "timed out",
};

tuttiResult_t tuttiGetVersion(int *version) {
  if (version == NULL)
    return TUTTI_FAIL(tuttiInvalidArgument, "tuttiGetVersion: version is NULL; pass an int");
  *version = TUTTI_VERSION_CODE;
  return tuttiSuccess;
}

const char *tuttiGetErrorString(tuttiResult_t result) {
  return (unsigned)result < tuttiNumResults ? resultTexts[result] : "unknown result code";
}
