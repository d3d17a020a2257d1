/* A libnvidia-ml.so.1 that counts three GPUs: the first is lost, the second another job's, and of
 * the third it tells the place. */
#include <stdint.h>
#include <stdio.h>

#include "topology/internal.h"

#define EXPORTED __attribute__((visibility("default")))

enum { SUCCESS = 0, NO_PERMISSION = 4, GPU_IS_LOST = 15 };

EXPORTED int nvmlInit_v2(void) {
  return SUCCESS;
}
EXPORTED int nvmlShutdown(void) {
  return SUCCESS;
}
EXPORTED const char *nvmlErrorString(int code) {
  return code == NO_PERMISSION ? "Insufficient Permissions" : "GPU is lost";
}
EXPORTED int nvmlDeviceGetCount_v2(unsigned *n) {
  *n = 3;
  return SUCCESS;
}
EXPORTED int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
  static const int codes[] = {GPU_IS_LOST, NO_PERMISSION, SUCCESS};
  *gpu = (void *)(uintptr_t)(index + 1);
  return codes[index];
}
EXPORTED int nvmlDeviceGetPciInfo_v3(void *gpu, tuttiNvmlPci *pci) {
  (void)gpu;
  *pci = (tuttiNvmlPci){0};
  snprintf(pci->busId, sizeof pci->busId, "00000000:18:00.0");
  return SUCCESS;
}
