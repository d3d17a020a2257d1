/* What a container hides, and the checks in their order. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "doctor/view.h"

static void checkGpuFiles(const tuttiView *v, tuttiFindings *f) {
  const char *shown = tuttiMachineAnswer(v->m, "env.NVIDIA_VISIBLE_DEVICES");
  bool hidden = shown && (strcmp(shown, "void") == 0 || strcmp(shown, "none") == 0);
  int driven = 0;
  for (int i = 0; i < v->ngpus; i++)
    driven += v->gpus[i].driven;
  if (driven == 0 || (!hidden && tuttiMachineAccess(v->m, "dev/nvidiactl") == 0)) return;
  if (hidden)
    tuttiFind(
        f, TUTTI_FOUND_WARNING, "container.gpu", "NVIDIA_VISIBLE_DEVICES", "docker run --gpus all",
        "NVIDIA_VISIBLE_DEVICES=%s hides the host's %d GPUs from this container", shown, driven);
  else
    tuttiFind(f, TUTTI_FOUND_WARNING, "container.gpu", "/dev/nvidiactl", "docker run --gpus all",
              "the host has %d GPUs, and this container has no /dev/nvidiactl to use them by",
              driven);
}

/* Devices that can be used, and that sysfs does not show: their places stay unknown. */
static void checkSysfs(const tuttiView *v, tuttiFindings *f) {
  const char *count = tuttiMachineAnswer(v->m, "nvml.count");
  bool gpus = v->ngpus == 0 && count && strcmp(count, "0") != 0;
  bool nics = v->nnics == 0 && tuttiMachineAccess(v->m, "dev/infiniband/uverbs0") == 0;
  if (gpus || nics)
    tuttiFind(
        f, TUTTI_FOUND_WARNING, "container.sysfs", "/sys", "docker run -v /sys:/sys:ro",
        "there are %s%s%s, and /sys does not show them: where they are on PCI is unknown, and "
        "so is which NIC is near which GPU",
        gpus ? "GPUs" : "", gpus && nics ? " and " : "", nics ? "RDMA devices" : "");
}

void tuttiCheckContainer(const tuttiView *v, tuttiFindings *f) {
  if (v->container) {
    checkGpuFiles(v, f);
    tuttiFind(f, TUTTI_FOUND_NOTE, "container", "this container", "",
              "ranks in other containers of the host share memory and GPUs with it only if both "
              "were started with --ipc=host and --pid=host");
  }
  checkSysfs(v, f);
}

void tuttiCheckAll(const tuttiView *v, tuttiFindings *f) {
  tuttiCheckContainer(v, f);
  tuttiCheckGpus(v, f);
  tuttiCheckLinks(v, f);
  tuttiCheckCopies(v, f);
  tuttiCheckRdma(v, f);
  tuttiCheckPorts(v, f);
  tuttiCheckLive(v, f);
  tuttiCheckGdr(v, f);
  tuttiCheckHost(v, f);
  tuttiCheckPrograms(v, f);
  tuttiFindingsSort(f);
}
