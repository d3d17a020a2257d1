/* Tries the RDMA ports, through the library's own check of them. */
#include "doctor/machine.h"

#ifdef TUTTI_HAVE_VERBS

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/settings.h"
#include "transport/ib/endpoint.h"

/* A node as a communicator has it, without one. */
typedef struct {
  tuttiMemAccount memory;
  tuttiCommView view;
  tuttiIbNode node;
} trial;

static tuttiResult_t tryHost(tuttiMachine *m, trial *t) {
  char why[TUTTI_GDR_SENTENCE];
  bool works;
  for (int i = 0; i < t->node.nrails; i++) {
    tuttiIbRail *rail = &t->node.rails[i];
    if (!rail->port.up || (rail->port.ethernet && rail->port.ngids == 0)) continue;
    TUTTI_TRY(tuttiIbHostTry(&t->node, rail, &works, why));
    TUTTI_TRY(
        tuttiMachineTell(m, works ? "ok" : why, "live.%s.%d", rail->port.device, rail->port.port));
  }
  return tuttiSuccess;
}

/* The ports that the library would use for the GPU are tried with its memory. */
static tuttiResult_t tryGpu(tuttiMachine *m, trial *t, const tuttiTopology *topology, int device,
                            const char *bus) {
  char why[TUTTI_GDR_SENTENCE];
  const char *able = tuttiMachineAnswer(m, "cuda.%s.gdr", bus);
  const char *dmabuf = tuttiMachineAnswer(m, "cuda.%s.dmabuf", bus);
  tuttiGdrQuestion q = {.level = tuttiSettingString(TUTTI_SETTING_NET_GDR_LEVEL),
                        .read = tuttiSettingString(TUTTI_SETTING_NET_GDR_READ),
                        .able = able && able[0] == '1'};
  bool works;
  if (!tuttiBusIdParse(bus, &q.gpu)) return tuttiSuccess;
  for (int i = 0; i < t->node.nrails; i++) {
    tuttiIbRail *rail = &t->node.rails[i];
    rail->dmabuf = dmabuf && dmabuf[0] == '1' && tuttiSettingInt(TUTTI_SETTING_DMABUF_ENABLE) &&
                   tuttiIbDmabuf(rail);
    q.nic = rail->port.device;
    q.dmabuf = rail->dmabuf;
    if (!rail->port.up || tuttiGdrDecide(topology, "/sys", &q, why).write != TUTTI_GDR_YES)
      continue;
    if (tuttiIbGpuTry(&t->node, rail, device, &works, why) != tuttiSuccess) {
      works = false; /* the GPU has no memory left, or is broken */
      snprintf(why, sizeof why, "%s", tuttiErrorText());
      tuttiErrorClear();
    }
    TUTTI_TRY(tuttiMachineTell(m, works ? "ok" : why, "live.%s.%d.%s", rail->port.device,
                               rail->port.port, bus));
  }
  tuttiIbGdrClose(&t->node);
  return tuttiSuccess;
}

/* GPUs in CUDA's order, where this program has CUDA and the driver starts. */
static tuttiResult_t tryGpus(tuttiMachine *m, trial *t) {
#ifdef TUTTI_HAVE_CUDA
  const tuttiTopology *topology;
  TUTTI_TRY(tuttiTopologyHost(true, &topology));
  for (int device = 0; device < 64; device++) {
    const char *bus = tuttiMachineAnswer(m, "cuda.device.%d", device);
    if (bus == NULL) break;
    char copy[TUTTI_BUS_ID_TEXT];
    snprintf(copy, sizeof copy, "%.31s", bus); /* answers move when there are more */
    TUTTI_TRY(tryGpu(m, t, topology, device, copy));
  }
#else
  (void)m, (void)t, (void)tryGpu;
#endif
  return tuttiSuccess;
}

tuttiResult_t tuttiTryPorts(tuttiMachine *m) {
  char why[TUTTI_SENTENCE] = "";
  if (!tuttiMachineSaid(m, "verbs.state", "ok")) return tuttiSuccess;
  TUTTI_FRESH(trial, t, 1, "a trial of the RDMA devices", NULL);
  t->view = (tuttiCommView){.nranks = 1, .memory = &t->memory};
  t->node.view = &t->view;
  t->node.pkey = (uint16_t)tuttiSettingInt(TUTTI_SETTING_IB_PKEY);
  tuttiResult_t result = tuttiIbNodeOpen(&t->node, why);
  if (result != tuttiSuccess) { /* too little locked memory, say: an answer as any other */
    result = tuttiMachineTell(m, tuttiErrorText(), "live.error");
    tuttiErrorClear();
  } else {
    result = tryHost(m, t);
    if (result == tuttiSuccess) result = tryGpus(m, t);
  }
  tuttiIbNodeClose(&t->node);
  return result;
}

#else

tuttiResult_t tuttiTryPorts(tuttiMachine *m) {
  (void)m;
  return tuttiSuccess;
}

#endif
