/* What NVIDIA's management library says of the GPUs. It is loaded when it is there; only its ABI is
 * known here. A call that it lacks or that fails leaves its answer out. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "doctor/machine.h"
#include "topology/internal.h"

/* Enumerators of nvml.h. */
#define UNCORRECTED_ERRORS 1
#define SINCE_LOADED       0
#define P2P_WRITE          1
#define REMOTE_GPU         0
#define REMOTE_SWITCH      2
#define MAX_LINKS          36
#define MAX_GPUS           64
#define NO_PERMISSION      4

typedef void *device;

typedef struct {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
} fabricInfo;

typedef struct {
  unsigned long long total, free, used;
} barInfo;

/* Each may be missing in an older or a newer version. */
#define CALLS(X)                                                                                   \
  X(int, Init_v2, (void))                                                                          \
  X(int, Shutdown, (void))                                                                         \
  X(const char *, ErrorString, (int code))                                                         \
  X(int, SystemGetDriverVersion, (char *text, unsigned size))                                      \
  X(int, SystemGetCudaDriverVersion_v2, (int *version))                                            \
  X(int, DeviceGetCount_v2, (unsigned *n))                                                         \
  X(int, DeviceGetHandleByIndex_v2, (unsigned index, device *out))                                 \
  X(int, DeviceGetPciInfo_v3, (device d, tuttiNvmlPci * pci))                                      \
  X(int, DeviceGetName, (device d, char *text, unsigned size))                                     \
  X(int, DeviceGetTotalEccErrors, (device d, int kind, int since, unsigned long long *n))          \
  X(int, DeviceGetRemappedRows,                                                                    \
    (device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed))   \
  X(int, DeviceGetRetiredPagesPendingStatus, (device d, int *pending))                             \
  X(int, DeviceGetPowerManagementLimit, (device d, unsigned *milliwatts))                          \
  X(int, DeviceGetPowerManagementDefaultLimit, (device d, unsigned *milliwatts))                   \
  X(int, DeviceGetCurrentClocksThrottleReasons, (device d, unsigned long long *bits))              \
  X(int, DeviceGetMigMode, (device d, unsigned *now, unsigned *pending))                           \
  X(int, DeviceGetEccMode, (device d, int *now, int *pending))                                     \
  X(int, DeviceGetPersistenceMode, (device d, int *on))                                            \
  X(int, DeviceGetComputeMode, (device d, int *mode))                                              \
  X(int, DeviceGetBAR1MemoryInfo, (device d, barInfo * bar))                                       \
  X(int, DeviceGetGpuFabricInfo, (device d, fabricInfo * fabric))                                  \
  X(int, DeviceGetP2PStatus, (device a, device b, int what, int *status))                          \
  X(int, DeviceGetNvLinkState, (device d, unsigned link, unsigned *up))                            \
  X(int, DeviceGetNvLinkVersion, (device d, unsigned link, unsigned *version))                     \
  X(int, DeviceGetNvLinkRemoteDeviceType, (device d, unsigned link, unsigned *type))               \
  X(int, DeviceGetNvLinkRemotePciInfo_v2, (device d, unsigned link, tuttiNvmlPci *pci))

typedef struct {
#define X(type, name, parameters) type(*name) parameters; // NOLINT(bugprone-macro-parentheses)
  CALLS(X)
#undef X
} calls;

/* A call's success; a call that is not there has none. */
#define SAYS(call, ...) ((call) && (call)(__VA_ARGS__) == 0)

/* One GPU, with the others for the matrix. */
typedef struct {
  tuttiMachine *m;
  const calls *nvml;
  device gpus[MAX_GPUS];
  char bus[MAX_GPUS][TUTTI_BUS_ID_TEXT];
  unsigned n;
} asking;

static tuttiResult_t tell(const asking *a, unsigned gpu, const char *what, unsigned long long v) {
  char text[32];
  snprintf(text, sizeof text, "%llu", v);
  return tuttiMachineTell(a->m, text, "nvml.%s.%s", a->bus[gpu], what);
}

static tuttiResult_t askHealth(const asking *a, unsigned g) {
  const calls *c = a->nvml;
  device d = a->gpus[g];
  unsigned long long n = 0;
  unsigned corrected, uncorrected, rowsPending, failed;
  int pending = 0;
  if (SAYS(c->DeviceGetTotalEccErrors, d, UNCORRECTED_ERRORS, SINCE_LOADED, &n))
    TUTTI_TRY(tell(a, g, "ecc", n));
  if (SAYS(c->DeviceGetRemappedRows, d, &corrected, &uncorrected, &rowsPending, &failed)) {
    TUTTI_TRY(tell(a, g, "rows.pending", rowsPending));
    TUTTI_TRY(tell(a, g, "rows.failed", failed));
  } else if (SAYS(c->DeviceGetRetiredPagesPendingStatus, d, &pending)) {
    TUTTI_TRY(tell(a, g, "rows.pending", (unsigned)pending));
  }
  if (SAYS(c->DeviceGetCurrentClocksThrottleReasons, d, &n)) TUTTI_TRY(tell(a, g, "slowed", n));
  return tuttiSuccess;
}

static tuttiResult_t askModes(const asking *a, unsigned g) {
  const calls *c = a->nvml;
  device d = a->gpus[g];
  unsigned now, next, limit, usual;
  int mode, pending;
  barInfo bar;
  fabricInfo fabric = {0};
  if (SAYS(c->DeviceGetPowerManagementLimit, d, &limit)) TUTTI_TRY(tell(a, g, "power", limit));
  if (SAYS(c->DeviceGetPowerManagementDefaultLimit, d, &usual))
    TUTTI_TRY(tell(a, g, "power.default", usual));
  if (SAYS(c->DeviceGetMigMode, d, &now, &next)) TUTTI_TRY(tell(a, g, "mig", now));
  if (SAYS(c->DeviceGetEccMode, d, &mode, &pending))
    TUTTI_TRY(tell(a, g, "ecc.on", (unsigned)mode));
  if (SAYS(c->DeviceGetPersistenceMode, d, &mode))
    TUTTI_TRY(tell(a, g, "persistence", (unsigned)mode));
  if (SAYS(c->DeviceGetComputeMode, d, &mode)) TUTTI_TRY(tell(a, g, "compute", (unsigned)mode));
  if (SAYS(c->DeviceGetBAR1MemoryInfo, d, &bar)) TUTTI_TRY(tell(a, g, "bar1", bar.total));
  if (SAYS(c->DeviceGetGpuFabricInfo, d, &fabric)) {
    TUTTI_TRY(tell(a, g, "fabric", fabric.state));
    TUTTI_TRY(tell(a, g, "fabric.status", (unsigned)fabric.status));
  }
  return tuttiSuccess;
}

/* A word for each link that the GPU has; see nvlinks.c. */
static tuttiResult_t askLinks(const asking *a, unsigned g) {
  const calls *c = a->nvml;
  device d = a->gpus[g];
  char words[TUTTI_ANSWER_VALUE] = "";
  for (unsigned link = 0, up; link < MAX_LINKS; link++) {
    unsigned version = 0, type = ~0u;
    uint64_t peer = 0;
    char name[TUTTI_BUS_ID_TEXT] = "unknown";
    tuttiNvmlPci pci = {0};
    if (!SAYS(c->DeviceGetNvLinkState, d, link, &up)) continue;
    (void)SAYS(c->DeviceGetNvLinkVersion, d, link, &version);
    (void)SAYS(c->DeviceGetNvLinkRemoteDeviceType, d, link, &type);
    if (type == REMOTE_SWITCH) snprintf(name, sizeof name, "switch");
    if (type == REMOTE_GPU && SAYS(c->DeviceGetNvLinkRemotePciInfo_v2, d, link, &pci)) {
      pci.busId[sizeof pci.busId - 1] = '\0';
      if (tuttiBusIdParse(pci.busId, &peer)) tuttiBusIdText(peer, name, sizeof name);
    }
    if (up == 1)
      tuttiAppend(words, sizeof words, "%s%s/%u", words[0] ? " " : "", name, version);
    else
      tuttiAppend(words, sizeof words, "%sdown", words[0] ? " " : "");
  }
  return tuttiMachineTell(a->m, words, "nvml.%s.links", a->bus[g]);
}

/* NVML's status of stores to each other GPU, in their order; "-" for itself. */
static tuttiResult_t askPeers(const asking *a, unsigned g) {
  char words[TUTTI_ANSWER_VALUE] = "";
  if (a->n < 2) return tuttiSuccess;
  for (unsigned i = 0; i < a->n; i++) {
    int status = 0;
    bool said =
        i != g && SAYS(a->nvml->DeviceGetP2PStatus, a->gpus[g], a->gpus[i], P2P_WRITE, &status);
    if (said)
      tuttiAppend(words, sizeof words, "%s%d", i ? " " : "", status);
    else
      tuttiAppend(words, sizeof words, "%s-", i ? " " : "");
  }
  return tuttiMachineTell(a->m, words, "nvml.%s.peers", a->bus[g]);
}

static tuttiResult_t askGpu(asking *a, unsigned index) {
  const calls *c = a->nvml;
  char name[96] = "";
  if (SAYS(c->DeviceGetName, a->gpus[index], name, sizeof name))
    TUTTI_TRY(tuttiMachineTell(a->m, name, "nvml.%s.name", a->bus[index]));
  TUTTI_TRY(tell(a, index, "index", index));
  TUTTI_TRY(askHealth(a, index));
  TUTTI_TRY(askModes(a, index));
  TUTTI_TRY(askLinks(a, index));
  return askPeers(a, index);
}

/* The GPUs that NVML counts. One that it counts and cannot open is told of by its index, and apart
 * if it is one that this process may not use. */
static tuttiResult_t askGpus(asking *a) {
  const calls *c = a->nvml;
  unsigned count = 0;
  char number[16];
  if (!SAYS(c->DeviceGetCount_v2, &count)) return tuttiSuccess;
  snprintf(number, sizeof number, "%u", count);
  TUTTI_TRY(tuttiMachineTell(a->m, number, "nvml.count"));
  for (unsigned i = 0; i < count && a->n < MAX_GPUS; i++) {
    tuttiNvmlPci pci = {0};
    uint64_t bus = 0;
    int err = c->DeviceGetHandleByIndex_v2(i, &a->gpus[a->n]);
    if (err == 0) err = c->DeviceGetPciInfo_v3(a->gpus[a->n], &pci);
    pci.busId[sizeof pci.busId - 1] = '\0';
    if (err != 0)
      TUTTI_TRY(tuttiMachineTell(a->m, c->ErrorString(err), "nvml.%s.%u",
                                 err == NO_PERMISSION ? "denied" : "lost", i));
    else if (tuttiBusIdParse(pci.busId, &bus))
      tuttiBusIdText(bus, a->bus[a->n++], sizeof a->bus[0]);
  }
  for (unsigned i = 0; i < a->n; i++)
    TUTTI_TRY(askGpu(a, i));
  return tuttiSuccess;
}

static tuttiResult_t askAll(tuttiMachine *m, const calls *nvml) {
  asking a = {.m = m, .nvml = nvml};
  char text[96] = "";
  int version = 0;
  if (SAYS(nvml->SystemGetDriverVersion, text, sizeof text))
    TUTTI_TRY(tuttiMachineTell(m, text, "nvml.driver"));
  if (SAYS(nvml->SystemGetCudaDriverVersion_v2, &version)) {
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    TUTTI_TRY(tuttiMachineTell(m, text, "nvml.cuda"));
  }
  return askGpus(&a);
}

tuttiResult_t tuttiAskNvml(tuttiMachine *m) {
  calls nvml;
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return tuttiMachineTell(m, "missing", "nvml.state");
#define X(type, name, parameters) *(void **)&nvml.name = dlsym(library, "nvml" #name);
  CALLS(X)
#undef X
  bool whole = nvml.Init_v2 && nvml.Shutdown && nvml.ErrorString &&
               nvml.DeviceGetHandleByIndex_v2 && nvml.DeviceGetPciInfo_v3;
  int err = whole ? nvml.Init_v2() : 0;
  tuttiResult_t result = tuttiMachineTell(m,
                                          !whole ? "too old"
                                          : err  ? nvml.ErrorString(err)
                                                 : "ok",
                                          "nvml.state");
  if (result == tuttiSuccess && whole && err == 0) {
    result = askAll(m, &nvml);
    nvml.Shutdown();
  }
  dlclose(library);
  return result;
}
