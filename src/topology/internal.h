/* What the files of this folder share: those that detect, that read, and that judge. */
#ifndef TUTTI_TOPOLOGY_INTERNAL_H_
#define TUTTI_TOPOLOGY_INTERNAL_H_

#include <sys/cdefs.h>

#include "topology/topology.h"

__BEGIN_DECLS

#define TUTTI_TOPOLOGY_MAX_NODES 65536

/* Appends a copy of *node; its index is then count - 1. */
tuttiResult_t tuttiTopologyAdd(tuttiTopology *t, const tuttiNode *node);

/* Puts a copy at its place, *index (may be NULL), below its parent; nodes before it keep theirs. */
tuttiResult_t tuttiTopologyInsert(tuttiTopology *t, const tuttiNode *n, int *index);

#define TUTTI_PCI_BRIDGE 0x0604 /* class and subclass */

/* Reads a small file of sysfs; false if it cannot be read or does not fit. */
bool tuttiReadText(const char *dir, const char *file, char *buf, size_t size);

/* NVML's calls, by their names; tests hand in their own. They return 0 or an error's code. */
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char busId[32];
} tuttiNvmlPci;
#define TUTTI_NVML_CALLS(X)                                                                        \
  X(int, Init_v2, (void))                                                                          \
  X(int, Shutdown, (void))                                                                         \
  X(const char *, ErrorString, (int code))                                                         \
  X(int, DeviceGetHandleByPciBusId_v2, (const char *busId, void **device))                         \
  X(int, DeviceGetNvLinkState, (void *device, unsigned link, unsigned *up))                        \
  X(int, DeviceGetNvLinkVersion, (void *device, unsigned link, unsigned *version))                 \
  X(int, DeviceGetNvLinkRemoteDeviceType, (void *device, unsigned link, unsigned *type))           \
  X(int, DeviceGetNvLinkRemotePciInfo_v2, (void *device, unsigned link, tuttiNvmlPci *pci))
typedef struct {
#define X(type, name, parameters) type(*name) parameters; // NOLINT(bugprone-macro-parentheses)
  TUTTI_NVML_CALLS(X)
#undef X
} tuttiNvml;

/* Insert the NVLinks of all GPUs. What NVML does not tell is left out; a line of the log says so.
 */
tuttiResult_t tuttiNvlinkRead(tuttiTopology *t, const tuttiNvml *nvml);
tuttiResult_t tuttiNvlinkDetect(tuttiTopology *t, const char *library); /* if there is a GPU */

__END_DECLS

#endif
