/* Whether this process may use the GPUs that NVML does not tell of: the control group of a job or a
 * pod hides those of others, which sysfs shows all the same. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "doctor/machine.h"

#define GPUS "proc/driver/nvidia/gpus"

/* The number of /dev/nvidiaN; -1: the driver does not say. */
static int minorOf(const tuttiMachine *m, const char *gpu) {
  char path[PATH_MAX], text[2048];
  static const char key[] = "Device Minor:";
  snprintf(path, sizeof path, GPUS "/%s/information", gpu);
  if (!tuttiMachineRead(m, path, text, sizeof text)) return -1;
  const char *at = strstr(text, key);
  return at ? atoi(at + sizeof key - 1) : -1;
}

/* Opens it, as access() does not look at the control group of devices. */
static tuttiResult_t tryGpu(tuttiMachine *m, const char *gpu, const char *bus) {
  char path[PATH_MAX], full[PATH_MAX];
  int number = minorOf(m, gpu);
  if (number < 0) return tuttiSuccess;
  snprintf(path, sizeof path, "dev/nvidia%d", number);
  /* With O_NONBLOCK nobody waits for a GPU to start. */
  TUTTI_CLOSED int fd = open(tuttiMachinePath(m, path, full), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  bool denied = fd < 0 && (errno == EPERM || errno == EACCES);
  const char *said = fd >= 0 ? "ok" : denied ? "denied" : tuttiErrnoText(errno);
  return tuttiMachineTell(m, said, "device.%s", bus);
}

tuttiResult_t tuttiAskGpus(tuttiMachine *m) {
  TUTTI_FREED tuttiName *gpus = NULL;
  int n = 0;
  if (!tuttiMachineSaid(m, "nvml.state", "ok")) return tuttiSuccess;
  TUTTI_TRY(tuttiMachineList(m, GPUS, &gpus, &n));
  for (int i = 0; i < n; i++) {
    char bus[TUTTI_BUS_ID_TEXT];
    uint64_t id = 0;
    if (!tuttiBusIdParse(gpus[i], &id)) continue;
    tuttiBusIdText(id, bus, sizeof bus);
    if (tuttiMachineAnswer(m, "nvml.%s.index", bus) == NULL) TUTTI_TRY(tryGpu(m, gpus[i], bus));
  }
  return tuttiSuccess;
}
