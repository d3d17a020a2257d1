/* GPUDirect RDMA: what the library would decide for each GPU and its nearest NIC, and why. */
#include <stdio.h>
#include <string.h>

#include "doctor/view.h"

/* Why dma-buf does not serve the pair; "" where nobody says. */
static const char *withoutDmabuf(const tuttiView *v, int gpu, int nic) {
  const char *cuda = tuttiMachineAnswer(v->m, "cuda.%s.dmabuf", v->gpus[gpu].bus);
  const char *verbs = tuttiMachineAnswer(v->m, "verbs.%s.dmabuf", v->nics[nic].name);
  bool exports = cuda && cuda[0] == '1';
  if (strcmp(tuttiViewSetting(v, "DMABUF_ENABLE"), "0") == 0) return "TUTTI_DMABUF_ENABLE=0";
  if (!exports && tuttiViewModules(v) == TUTTI_MODULES_CLOSED)
    return "the closed kernel modules of the NVIDIA driver are loaded";
  if (!exports && !tuttiViewKernelSince(v, 5, 12)) return "the kernel is older than Linux 5.12";
  if (verbs && verbs[0] == '0') return "libibverbs or the NIC's driver does not import dma-bufs";
  return cuda && !exports ? "the CUDA driver does not export dma-bufs" : "";
}

static void findNoDriver(const tuttiView *v, int gpu, int nic, tuttiFindings *f) {
  const tuttiViewPair *pair = tuttiViewPairOf(v, gpu, nic);
  const char *dmabuf = withoutDmabuf(v, gpu, nic);
  tuttiFind(f, TUTTI_FOUND_WARNING, "gdr.driver", v->gpus[gpu].bus, "sudo modprobe nvidia-peermem",
            "no GPUDirect RDMA, payloads are staged in host memory: %s%s%s",
            tuttiGdrReason(pair->why), dmabuf[0] ? "; no dma-buf because " : "", dmabuf);
}

/* An IOMMU or ACS: the library's sentence ends in the command where there is one. */
static void findDetour(const tuttiView *v, int gpu, int nic, tuttiFindings *f) {
  const tuttiViewPair *pair = tuttiViewPairOf(v, gpu, nic);
  const char *reason = tuttiGdrReason(pair->why), *setpci = strstr(reason, "setpci ");
  char command[128] =
      "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo "
      "update-grub && sudo reboot";
  if (setpci) snprintf(command, sizeof command, "sudo %.*s", (int)strcspn(setpci, ","), setpci);
  tuttiFind(f, TUTTI_FOUND_WARNING, setpci ? "gdr.acs" : "gdr.iommu", v->gpus[gpu].bus, command,
            "%s: %s",
            pair->answer == TUTTI_GDR_YES ? "GPUDirect RDMA is slow"
                                          : "no GPUDirect RDMA, payloads are staged in host memory",
            reason);
}

static void checkGpu(const tuttiView *v, int gpu, tuttiFindings *f) {
  int nic = tuttiViewNearest(v, gpu, true);
  if (nic < 0) return;
  const tuttiViewPair *pair = tuttiViewPairOf(v, gpu, nic);
  const char *bus = v->gpus[gpu].bus, *reason = tuttiGdrReason(pair->why);
  const char *able = tuttiMachineAnswer(v->m, "cuda.%s.gdr", bus);
  if (pair->answer == TUTTI_GDR_DETOUR || strstr(reason, "but slowly: "))
    findDetour(v, gpu, nic, f);
  else if (pair->answer == TUTTI_GDR_NO_DRIVER && able && able[0] == '0')
    tuttiFind(f, TUTTI_FOUND_NOTE, "gdr.model", bus, "", "no GPUDirect RDMA: %s", reason);
  else if (pair->answer == TUTTI_GDR_NO_DRIVER)
    findNoDriver(v, gpu, nic, f);
  else if (pair->read == TUTTI_GDR_NO_READ)
    tuttiFind(f, TUTTI_FOUND_NOTE, "gdr.read", bus,
              "export TUTTI_NET_GDR_READ=1 # and measure which is faster",
              "GPUDirect RDMA of what comes alone: %s", reason);
  else if (pair->answer == TUTTI_GDR_YES)
    tuttiFind(f, TUTTI_FOUND_OK, "gdr", bus, "", "GPUDirect RDMA: %s", reason);
  else if (tuttiFound(f, "nic.down") && pair->answer == TUTTI_GDR_FAR)
    return; /* its own NIC is down, which has been said */
  else
    tuttiFind(f, TUTTI_FOUND_NOTE, "gdr.far", bus,
              pair->apart == TUTTI_DISTANCE_SYS
                  ? "export TUTTI_NET_GDR_LEVEL=SYS # and measure which is faster"
                  : "export TUTTI_NET_GDR_LEVEL=PHB # and measure which is faster",
              "no GPUDirect RDMA, payloads are staged in host memory: its nearest NIC that is up, "
              "%s, is at distance %s; %s",
              v->nics[nic].name, tuttiDistanceTexts[pair->apart], reason);
}

void tuttiCheckGdr(const tuttiView *v, tuttiFindings *f) {
  static const char *const causes[] = {"setting.rdma",  "setting.hca",   "container.rdma",
                                       "container.gpu", "module.uverbs", "rdma.library",
                                       "rdma.rights",   "rdma.provider"};
  for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
    if (tuttiFound(f, causes[i])) return; /* no pair can work, and why has been said */
  if (strcmp(tuttiViewSetting(v, "NET_GDR"), "off") == 0 && v->ngpus > 0 && v->nphysical > 0) {
    tuttiFind(f, TUTTI_FOUND_NOTE, "setting.gdr", "TUTTI_NET_GDR", "unset TUTTI_NET_GDR",
              "no GPUDirect RDMA: %s", tuttiGdrClauses[TUTTI_GDR_OFF]);
    return;
  }
  for (int g = 0; g < v->ngpus; g++)
    if (v->gpus[g].driven) checkGpu(v, g, f);
}
