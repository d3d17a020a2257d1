/* NVLinks of the GPUs, from NVIDIA's management library (NVML). It is loaded where there is a GPU,
 * and only its ABI is known here: no build needs its header. */
#include <dlfcn.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"
#include "topology/internal.h"

/* Enumerators of nvml.h. */
#define NVML_INVALID_ARGUMENT 2
#define NVML_NOT_SUPPORTED    3
#define NVML_REMOTE_GPU       0
#define NVML_REMOTE_SWITCH    2

#define MAX_LINKS 36 /* of one GPU */

typedef struct {
  const tuttiNvml *nvml;
  tuttiTopology *t;
  char why[192]; /* the first thing that NVML could not say; "" */
} reading;

static bool said(reading *r, int code, const char *call, int node) {
  if (code != 0 && r->why[0] == '\0')
    snprintf(r->why, sizeof r->why, "nvml%s of %s: %.80s", call, r->t->nodes[node].name,
             r->nvml->ErrorString(code));
  return code == 0;
}

/* Its index, or -1; busId 0: any. */
static int findGpu(const tuttiTopology *t, uint64_t busId) {
  for (int i = 0; i < t->count; i++)
    if (t->nodes[i].kind == tuttiNodeGpu && (busId == 0 || t->nodes[i].busId == busId)) return i;
  return -1;
}

/* What is at the far end of a link that is up: the bus id of a GPU, or 0 for an NVSwitch. False:
 * unknown, and so left out. */
static bool readPeer(reading *r, void *device, unsigned link, int gpu, uint64_t *peer) {
  unsigned type = 0;
  tuttiNvmlPci pci = {0};
  *peer = 0;
  int code = r->nvml->DeviceGetNvLinkRemoteDeviceType(device, link, &type);
  if (!said(r, code, "DeviceGetNvLinkRemoteDeviceType", gpu)) return false;
  if (type == NVML_REMOTE_SWITCH) return true;
  if (type == NVML_REMOTE_GPU) code = r->nvml->DeviceGetNvLinkRemotePciInfo_v2(device, link, &pci);
  if (!said(r, code, "DeviceGetNvLinkRemotePciInfo_v2", gpu)) return false;
  pci.busId[sizeof pci.busId - 1] = '\0';
  if (tuttiBusIdParse(pci.busId, peer) && findGpu(r->t, *peer) >= 0) return true;
  if (r->why[0] == '\0')
    snprintf(r->why, sizeof r->why, "a link of %s leads to a device of type %u at '%s'",
             r->t->nodes[gpu].name, type, pci.busId);
  return false;
}

/* The node of the links from `gpu` to `peer`; -1: there are none. */
static int linksTo(const tuttiTopology *t, int gpu, uint64_t peer) {
  for (int i = gpu + 1; i < t->count && t->nodes[i].parent >= gpu; i++)
    if (t->nodes[i].kind == tuttiNodeNvlink && t->nodes[i].busId == peer) return i;
  return -1;
}

static tuttiResult_t readLink(reading *r, void *device, unsigned link, int gpu) {
  static const int tenths[] = {0, 10, 20, 22, 30, 31, 40, 50}; /* by NVML's number of a version */
  unsigned up = 0, version = 0;
  uint64_t peer;
  char bus[TUTTI_BUS_ID_TEXT] = "NVSwitch";
  int code = r->nvml->DeviceGetNvLinkState(device, link, &up), index = 0;
  if (code == NVML_NOT_SUPPORTED || code == NVML_INVALID_ARGUMENT) return tuttiSuccess; /* none */
  if (!said(r, code, "DeviceGetNvLinkState", gpu) || up != 1) return tuttiSuccess;
  if (!readPeer(r, device, link, gpu, &peer)) return tuttiSuccess;
  if (r->nvml->DeviceGetNvLinkVersion(device, link, &version) != 0 || version > 7) version = 0;
  tuttiNode n = {.kind = tuttiNodeNvlink, .parent = gpu, .busId = peer, .version = tenths[version]};
  if (peer != 0) tuttiBusIdText(peer, bus, sizeof bus);
  snprintf(n.name, sizeof n.name, "NVLink-%s", bus);
  n.numa = r->t->nodes[gpu].numa;
  index = linksTo(r->t, gpu, peer);
  if (index < 0) TUTTI_TRY(tuttiTopologyInsert(r->t, &n, &index));
  r->t->nodes[index].links++;
  return tuttiSuccess;
}

tuttiResult_t tuttiNvlinkRead(tuttiTopology *t, const tuttiNvml *nvml) {
  reading r = {.nvml = nvml, .t = t};
  tuttiResult_t result = tuttiSuccess;
  bool begun = said(&r, nvml->Init_v2(), "Init_v2", 0);
  for (int i = 0; i < t->count && begun; i++) {
    void *device;
    if (t->nodes[i].kind != tuttiNodeGpu) continue;
    int code = nvml->DeviceGetHandleByPciBusId_v2(t->nodes[i].name, &device);
    bool found = said(&r, code, "DeviceGetHandleByPciBusId_v2", i);
    for (unsigned link = 0; link < MAX_LINKS && found && result == tuttiSuccess; link++)
      result = readLink(&r, device, link, i);
  }
  if (begun) nvml->Shutdown();
  if (r.why[0]) TUTTI_INFO(GRAPH, "NVML does not tell all of the NVLinks: %s", r.why);
  return result;
}

tuttiResult_t tuttiNvlinkDetect(tuttiTopology *t, const char *library) {
  tuttiNvml nvml;
  tuttiResult_t result = tuttiSuccess;
  if (findGpu(t, 0) < 0) return tuttiSuccess;
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  bool whole = handle != NULL;
#define X(type, name, parameters)                                                                  \
  *(void **)&nvml.name = whole ? dlsym(handle, "nvml" #name) : NULL;                               \
  whole = whole && nvml.name;
  TUTTI_NVML_CALLS(X)
#undef X
  if (whole)
    result = tuttiNvlinkRead(t, &nvml);
  else
    TUTTI_INFO(GRAPH, "NVLinks stay unknown, without NVML: %s", dlerror());
  if (handle) dlclose(handle);
  return result;
}

const char *tuttiTopologyPath(const tuttiTopology *t, uint64_t a, uint64_t b, char *buf, size_t n) {
  int x = findGpu(t, a), y = findGpu(t, b), links = 0;
  bool two = x >= 0 && y >= 0 && x != y;
  int direct = two ? linksTo(t, x, b) : -1;
  int there = two ? linksTo(t, x, 0) : -1, back = two ? linksTo(t, y, 0) : -1;
  bool through = there >= 0 && back >= 0;
  if (direct >= 0) links = t->nodes[direct].links;
  if (through) links += t->nodes[t->nodes[there].links < t->nodes[back].links ? there : back].links;
  snprintf(buf, n, "%s", tuttiDistanceTexts[tuttiTopologyDistance(t, x, y)]);
  if (links > 0) snprintf(buf, n, "NV%d (NVLink%s)", links, through ? ", NVSwitch" : "");
  return buf;
}

bool tuttiTopologyLinked(const tuttiTopology *t, uint64_t gpu) {
  int x = findGpu(t, gpu), others = 0;
  if (x < 0 || linksTo(t, x, 0) >= 0) return x >= 0;
  for (int i = 0; i < t->count; i++) {
    if (t->nodes[i].kind != tuttiNodeGpu || i == x) continue;
    if (linksTo(t, x, t->nodes[i].busId) < 0) return false;
    others++;
  }
  return others > 0;
}
