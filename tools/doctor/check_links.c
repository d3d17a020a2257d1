/* The links of GPUs and NICs: PCIe against what both of its ends can do, and NVLink. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/view.h"

/* Of a PCI function's configuration. */
#define PCI_BYTES   4096
#define PCI_FIRST   0x34 /* place of the first capability */
#define PCI_EXPRESS 0x10 /* that capability, and device control in it */
#define PCI_CONTROL 8

/* ---- PCIe ----------------------------------------------------------------------------------- */

/* The lanes or the GT/s (a number of "32.0 GT/s PCIe") of a function; 0: it does not say. */
static double functionNumber(const tuttiView *v, const tuttiNode *n, const char *file) {
  char path[PATH_MAX], text[64];
  snprintf(path, sizeof path, "sys/bus/pci/devices/%.31s/%s", n->name, file);
  return tuttiMachineRead(v->m, path, text, sizeof text) ? strtod(text, NULL) : 0;
}

static double lesser(double a, double b) {
  return b > 0 && b < a ? b : a;
}

/* Of the PCI function at `index`: what its link has, and what both ends of it can do. */
static void checkFunction(const tuttiView *v, int index, const char *subject, bool speedToo,
                          tuttiFindings *f) {
  const tuttiNode *n = &v->t->nodes[index];
  const tuttiNode *above = &v->t->nodes[n->parent];
  char command[96];
  double width = functionNumber(v, n, "current_link_width");
  double speed = functionNumber(v, n, "current_link_speed");
  double mostWidth =
      lesser(functionNumber(v, n, "max_link_width"), functionNumber(v, above, "max_link_width"));
  double mostSpeed =
      lesser(functionNumber(v, n, "max_link_speed"), functionNumber(v, above, "max_link_speed"));
  snprintf(command, sizeof command, "sudo lspci -vv -s %.31s | grep Lnk", n->name);
  if (width > 0 && width < mostWidth)
    tuttiFind(f, TUTTI_FOUND_WARNING, "pcie.width", subject, command,
              "its PCIe link has %.0f lanes of the %.0f that it and its slot can do: seat it anew, "
              "or see the riser and the BIOS",
              width, mostWidth);
  if (speedToo && speed > 0 && speed < mostSpeed)
    tuttiFind(f, TUTTI_FOUND_WARNING, "pcie.speed", subject, command,
              "its PCIe link runs at %.1f GT/s of the %.1f that it and its slot can do: see the "
              "BIOS, the riser and the slot",
              speed, mostSpeed);
}

/* Whether a function may write out of order: bit 4 of its device control, which root alone can
 * read. -1: nobody says. */
static int relaxedOrdering(const tuttiView *v, const tuttiNode *n) {
  char path[PATH_MAX], config[PCI_BYTES + 1] = {0};
  snprintf(path, sizeof path, "sys/bus/pci/devices/%.31s/config", n->name);
  tuttiMachineRead(v->m, path, config, sizeof config);
  unsigned at = (unsigned char)config[PCI_FIRST];
  for (int steps = 0; at >= 0x40 && at <= 0xec && steps < 48; steps++) {
    if (config[at] == PCI_EXPRESS) return config[at + PCI_CONTROL] >> 4 & 1;
    at = (unsigned char)config[at + 1];
  }
  return -1;
}

/* An idle GPU lowers the speed of its link, but not the lanes. */
static void checkPcie(const tuttiView *v, tuttiFindings *f) {
  for (int i = 0; i < v->ngpus; i++)
    checkFunction(v, v->gpus[i].node, v->gpus[i].bus, false, f);
  for (int i = 0; i < v->nnics; i++)
    if (v->nics[i].physical) {
      int function = v->t->nodes[v->nics[i].node].parent;
      checkFunction(v, function, v->nics[i].name, true, f);
      if (relaxedOrdering(v, &v->t->nodes[function]) == 0)
        tuttiFind(f, TUTTI_FOUND_NOTE, "pcie.ordering", v->nics[i].name, "",
                  "relaxed ordering is off for it on PCIe, which costs bandwidth on some CPUs (AMD "
                  "above all): see the BIOS");
    }
}

/* ---- NVLink --------------------------------------------------------------------------------- */

/* NVLinks of a GPU that are up, and those that lead to a switch. */
static int countLinks(const tuttiView *v, const tuttiViewGpu *gpu, int *toSwitch) {
  int up = 0;
  const char *at = tuttiMachineAnswer(v->m, "nvml.%s.links", gpu->bus);
  for (; at && *at; at += strcspn(at, " "), at += *at == ' ') {
    up += strncmp(at, "down", 4) != 0;
    *toSwitch += strncmp(at, "switch", 6) == 0;
  }
  return up;
}

/* GPUs of one model are joined alike, or, by bridges, in pairs that others are no part of: so none
 * at all is a fault only beside switches. */
static void checkNvlinks(const tuttiView *v, tuttiFindings *f) {
  int up[TUTTI_VIEW_GPUS], most = 0, toSwitch = 0;
  for (int i = 0; i < v->ngpus; i++) {
    up[i] = countLinks(v, &v->gpus[i], &toSwitch);
    if (up[i] > most) most = up[i];
  }
  for (int i = 0; i < v->ngpus; i++)
    if (v->gpus[i].told && up[i] < most && (up[i] > 0 || toSwitch > 0))
      tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.nvlink", v->gpus[i].bus, "nvidia-smi nvlink -s",
                "%d of its NVLinks are up, where others of this host have %d: reset the GPUs, and "
                "see dmesg for Xid 74",
                up[i], most);
}

/* NVML's word for another GPU, number `other` in its order; -1: it did not say. */
static int peerStatus(const tuttiView *v, const tuttiViewGpu *gpu, int other) {
  const char *at = tuttiMachineAnswer(v->m, "nvml.%s.peers", gpu->bus);
  for (int i = 0; at && *at; i++, at += strcspn(at, " "), at += *at == ' ')
    if (i == other) return *at == '-' ? -1 : atoi(at);
  return -1;
}

static const char *peerText(int status) {
  static const char *const texts[] = {"it works",
                                      "the chipset does not do it",
                                      "the GPU does not do it",
                                      "they are below different CPU sockets",
                                      "the driver's settings forbid it",
                                      "it is not supported"};
  return status >= 0 && status < (int)(sizeof texts / sizeof *texts) ? texts[status]
                                                                     : "the driver does not know";
}

/* Where NVLinks join two GPUs and the driver says that they do not reach each other. */
static void checkPeers(const tuttiView *v, tuttiFindings *f) {
  for (int a = 0; a < v->ngpus; a++) {
    for (int b = 0; b < v->ngpus; b++) {
      char path[64], index[32];
      const tuttiNode *x = &v->t->nodes[v->gpus[a].node], *y = &v->t->nodes[v->gpus[b].node];
      const char *number = tuttiMachineAnswer(v->m, "nvml.%s.index", v->gpus[b].bus);
      if (a == b || number == NULL) continue;
      snprintf(index, sizeof index, "%.31s", number);
      int status = peerStatus(v, &v->gpus[a], atoi(index));
      tuttiTopologyPath(v->t, x->busId, y->busId, path, sizeof path);
      if (status > 0 && strncmp(path, "NV", 2) == 0)
        tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.p2p", v->gpus[a].bus, "nvidia-smi topo -p2p w",
                  "NVLink joins it with other GPUs, and the driver says that they do not reach "
                  "each other: %s",
                  peerText(status));
    }
  }
}

void tuttiCheckLinks(const tuttiView *v, tuttiFindings *f) {
  checkPcie(v, f);
  if (!tuttiMachineSaid(v->m, "nvml.state", "ok") || tuttiFound(f, "gpu.fabric")) return;
  checkNvlinks(v, f);
  checkPeers(v, f);
}
