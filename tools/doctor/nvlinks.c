/* The topology of a machine. Its NVLinks are read by the library's own reader, from calls that give
 * what NVML was asked before. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "doctor/machine.h"
#include "topology/internal.h"

#define NVML_NOT_FOUND     6
#define NVML_NOT_SUPPORTED 3
#define NVML_REMOTE_GPU    0
#define NVML_REMOTE_SWITCH 2
#define LINK_TOKEN         40

/* NVML's calls have no argument for it; one thread reads one machine at a time. */
static const tuttiMachine *asked;
static char gpus[64][TUTTI_BUS_ID_TEXT]; /* a device is the address of one of these */
static int ngpus;

static int init(void) {
  ngpus = 0;
  return tuttiMachineSaid(asked, "nvml.state", "ok") ? 0 : NVML_NOT_FOUND;
}

static int shutDown(void) {
  return 0;
}

static const char *errorText(int code) {
  return code == NVML_NOT_FOUND ? "it does not know this GPU" : "it has not been asked";
}

static int byBusId(const char *bus, void **device) {
  if (ngpus == (int)(sizeof gpus / sizeof *gpus) ||
      tuttiMachineAnswer(asked, "nvml.%s.links", bus) == NULL)
    return NVML_NOT_FOUND;
  snprintf(gpus[ngpus], sizeof gpus[ngpus], "%.31s", bus);
  *device = gpus[ngpus++];
  return 0;
}

/* "switch/6", "0000:3a:00.0/6" (the version as NVML numbers it), "down": word `link` of the answer;
 * false beyond the last. */
static bool token(void *device, unsigned link, char word[LINK_TOKEN]) {
  const char *at = tuttiMachineAnswer(asked, "nvml.%s.links", (const char *)device);
  for (unsigned i = 0; at != NULL && *at != '\0'; i++) {
    size_t length = strcspn(at, " ");
    if (i == link) return snprintf(word, LINK_TOKEN, "%.*s", (int)length, at) < LINK_TOKEN;
    at += length + (at[length] == ' ');
  }
  return false;
}

static int linkState(void *device, unsigned link, unsigned *up) {
  char word[LINK_TOKEN];
  if (!token(device, link, word)) return NVML_NOT_SUPPORTED;
  *up = strcmp(word, "down") != 0;
  return 0;
}

static int linkVersion(void *device, unsigned link, unsigned *version) {
  char word[LINK_TOKEN];
  const char *slash = token(device, link, word) ? strrchr(word, '/') : NULL;
  *version = slash ? (unsigned)strtoul(slash + 1, NULL, 10) : 0;
  return slash ? 0 : NVML_NOT_SUPPORTED;
}

static int linkType(void *device, unsigned link, unsigned *type) {
  char word[LINK_TOKEN];
  if (!token(device, link, word)) return NVML_NOT_SUPPORTED;
  *type = strncmp(word, "switch", 6) == 0 ? NVML_REMOTE_SWITCH : NVML_REMOTE_GPU;
  return 0;
}

static int linkPeer(void *device, unsigned link, tuttiNvmlPci *pci) {
  char word[LINK_TOKEN];
  if (!token(device, link, word)) return NVML_NOT_SUPPORTED;
  snprintf(pci->busId, sizeof pci->busId, "%.*s", (int)strcspn(word, "/"), word);
  return 0;
}

tuttiResult_t tuttiMachineTopology(const tuttiMachine *m, tuttiTopology **out) {
  static const tuttiNvml nvml = {.Init_v2 = init,
                                 .Shutdown = shutDown,
                                 .ErrorString = errorText,
                                 .DeviceGetHandleByPciBusId_v2 = byBusId,
                                 .DeviceGetNvLinkState = linkState,
                                 .DeviceGetNvLinkVersion = linkVersion,
                                 .DeviceGetNvLinkRemoteDeviceType = linkType,
                                 .DeviceGetNvLinkRemotePciInfo_v2 = linkPeer};
  char sysfs[PATH_MAX];
  tuttiTopology *t;
  TUTTI_TRY(tuttiTopologyDetect(tuttiMachinePath(m, "sys", sysfs), &t));
  asked = m;
  tuttiResult_t result = tuttiNvlinkRead(t, &nvml);
  if (result == tuttiSuccess)
    *out = t;
  else
    tuttiTopologyFree(t);
  return result;
}
