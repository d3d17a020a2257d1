/* The GPUs: their driver, its libraries, and how each of them is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/view.h"

/* Bits of NVML's reasons for lower clocks. Those of idleness, of settings and of the power limit
 * are no fault. */
#define SLOWED_HARDWARE 0x08
#define SLOWED_HEAT     0x60
#define SLOWED_BRAKE    0x80

#define PROHIBITED 2 /* compute mode */
#define EXCLUSIVE  3

#define FABRIC_COMPLETED 3

static unsigned long long numberOf(const tuttiView *v, const char *bus, const char *what,
                                   unsigned long long missing) {
  const char *said = tuttiMachineAnswer(v->m, "nvml.%s.%s", bus, what);
  return said ? strtoull(said, NULL, 0) : missing;
}

/* ---- driver --------------------------------------------------------------------------------- */

/* Returns how many GPUs have the NVIDIA driver. */
static int checkDriver(const tuttiView *v, tuttiFindings *f) {
  int driven = 0;
  for (int i = 0; i < v->ngpus; i++) {
    const tuttiViewGpu *gpu = &v->gpus[i];
    const char *driver = v->t->nodes[gpu->node].driver;
    driven += gpu->driven;
    if (gpu->driven) continue;
    if (strcmp(driver, "vfio-pci") == 0)
      tuttiFind(f, TUTTI_FOUND_NOTE, "gpu.driver", gpu->bus, "",
                "it is handed to a virtual machine (vfio-pci), so nothing here can use it");
    else if (driver[0])
      tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.driver", gpu->bus,
                "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/nouveau.conf && sudo "
                "update-initramfs -u && sudo reboot",
                "it is driven by %s and not by NVIDIA's driver, so CUDA can't use it", driver);
    else
      tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.driver", gpu->bus, "sudo modprobe nvidia",
                "it has no driver: the kernel module nvidia is not loaded or did not take it "
                "(dmesg says why)");
  }
  return driven;
}

/* The management library, which has to be that of the loaded module. True: it answers. */
static bool checkNvml(const tuttiView *v, tuttiFindings *f) {
  const char *state = tuttiMachineAnswer(v->m, "nvml.state");
  if (state == NULL || strcmp(state, "ok") == 0) return state != NULL;
  if (strcmp(state, "missing") == 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.library", "NVML", "nvidia-smi",
              "libnvidia-ml.so.1 of the NVIDIA driver cannot be loaded: its libraries are not "
              "installed, or a container was started without the capability \"utility\"");
  else
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.library", "NVML",
              strstr(state, "mismatch") ? "sudo reboot" : "nvidia-smi",
              "the NVIDIA driver's library does not work: %s%s", state,
              strstr(state, "mismatch") ? "; the driver was updated and its old modules are loaded"
                                        : "");
  return false;
}

static void checkCuda(const tuttiView *v, tuttiFindings *f) {
  const char *state = tuttiMachineAnswer(v->m, "cuda.state");
  if (state == NULL || strcmp(state, "ok") == 0) return;
  if (tuttiFound(f, "gpu.fabric") || tuttiFound(f, "gpu.lost")) return; /* which explain it */
  if (strcmp(state, "missing") == 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.cuda", "CUDA",
              v->container ? "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                           : "ldconfig -p | grep libcuda.so.1",
              "libcuda.so.1 of the NVIDIA driver cannot be loaded, so no program can use the GPUs");
  else if (tuttiMachineSaid(v->m, "env.CUDA_VISIBLE_DEVICES", "") ||
           tuttiMachineSaid(v->m, "env.CUDA_VISIBLE_DEVICES", "none"))
    tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.cuda", "CUDA", "unset CUDA_VISIBLE_DEVICES",
              "CUDA_VISIBLE_DEVICES hides all GPUs from this process");
  else
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.cuda", "CUDA", "nvidia-smi",
              "the CUDA driver does not start: error %s", state);
}

/* ---- one GPU -------------------------------------------------------------------------------- */

/* Its device cannot be opened; where that was not tried, NVML said so of some GPU. */
static bool isDenied(const tuttiView *v, const tuttiViewGpu *gpu) {
  const char *device = tuttiMachineAnswer(v->m, "device.%s", gpu->bus);
  if (device) return strcmp(device, "denied") == 0;
  for (int i = 0; i < TUTTI_VIEW_GPUS; i++)
    if (tuttiMachineAnswer(v->m, "nvml.denied.%d", i)) return true;
  return false;
}

static void checkLost(const tuttiView *v, const tuttiViewGpu *gpu, tuttiFindings *f) {
  const char *shown = tuttiMachineAnswer(v->m, "env.NVIDIA_VISIBLE_DEVICES");
  bool inContainer = v->container || (shown && strcmp(shown, "all") != 0);
  if (inContainer || isDenied(v, gpu))
    tuttiFind(f, TUTTI_FOUND_NOTE, "gpu.hidden", gpu->bus, "",
              "it is on this host, and this %s may not use it",
              inContainer ? "container" : "process");
  else
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.lost", gpu->bus,
              "sudo nvidia-smi -r || sudo dmesg | grep -i xid",
              "the driver does not list it any more: it has fallen off the bus or did not start");
}

static void checkMemory(const tuttiView *v, const tuttiViewGpu *gpu, tuttiFindings *f) {
  char reset[96];
  unsigned long long errors = numberOf(v, gpu->bus, "ecc", 0);
  snprintf(reset, sizeof reset, "sudo nvidia-smi -r -i %s", gpu->bus);
  if (numberOf(v, gpu->bus, "rows.failed", 0))
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.memory", gpu->bus, "nvidia-smi -q -d ROW_REMAPPER",
              "rows of its memory are broken and there are no more spare ones: the GPU must be "
              "exchanged");
  else if (numberOf(v, gpu->bus, "rows.pending", 0))
    tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.memory", gpu->bus, reset,
              "broken rows of its memory will be replaced by spare ones when it is reset");
  else if (errors > 0)
    tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.memory", gpu->bus, reset,
              "%llu errors of its memory could not be corrected since the driver was loaded",
              errors);
  if (numberOf(v, gpu->bus, "ecc.on", 1) == 0)
    tuttiFind(f, TUTTI_FOUND_NOTE, "gpu.ecc", gpu->bus, "sudo nvidia-smi -e 1",
              "ECC is off: errors of its memory are not noticed");
}

static void checkClocks(const tuttiView *v, const tuttiViewGpu *gpu, tuttiFindings *f) {
  unsigned long long slowed = numberOf(v, gpu->bus, "slowed", 0);
  unsigned long long limit = numberOf(v, gpu->bus, "power", 0);
  unsigned long long usual = numberOf(v, gpu->bus, "power.default", 0);
  if (slowed & (SLOWED_HARDWARE | SLOWED_HEAT | SLOWED_BRAKE))
    tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.slowed", gpu->bus, "nvidia-smi -q -d PERFORMANCE",
              "its clocks are held down by %s",
              slowed & SLOWED_HEAT    ? "heat: see to its cooling"
              : slowed & SLOWED_BRAKE ? "the power brake: see to the power supplies"
                                      : "its hardware: heat or power");
  if (limit > 0 && limit < usual) {
    char command[96];
    snprintf(command, sizeof command, "sudo nvidia-smi -i %s -pl %llu", gpu->bus, usual / 1000);
    tuttiFind(f, TUTTI_FOUND_NOTE, "gpu.power", gpu->bus, command,
              "its power limit is %llu W, below its default of %llu W", limit / 1000, usual / 1000);
  }
}

static void checkModes(const tuttiView *v, const tuttiViewGpu *gpu, tuttiFindings *f) {
  unsigned long long mode = numberOf(v, gpu->bus, "compute", 0);
  unsigned long long fabric = numberOf(v, gpu->bus, "fabric", 0);
  if (mode == PROHIBITED)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.compute", gpu->bus, "sudo nvidia-smi -c DEFAULT",
              "its compute mode forbids all programs");
  if (mode == EXCLUSIVE)
    tuttiFind(f, TUTTI_FOUND_NOTE, "gpu.compute", gpu->bus, "sudo nvidia-smi -c DEFAULT",
              "its compute mode lets one process at a time use it");
  if (numberOf(v, gpu->bus, "mig", 0))
    tuttiFind(f, TUTTI_FOUND_NOTE, "gpu.mig", gpu->bus, "",
              "it is divided (MIG): its parts reach each other and other GPUs by host memory only");
  if (fabric != 0 && (fabric != FABRIC_COMPLETED || numberOf(v, gpu->bus, "fabric.status", 0) != 0))
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.fabric", gpu->bus,
              "sudo systemctl restart nvidia-fabricmanager",
              "it is not part of the NVSwitch fabric (state %llu, status %llu): the fabric manager "
              "has to run, in the driver's version",
              fabric, numberOf(v, gpu->bus, "fabric.status", 0));
}

/* ---- the kernel's log ----------------------------------------------------------------------- */

/* Xids that an application's own fault leaves; the GPU is well after them. */
static bool isOfProgram(int xid) {
  static const int of[] = {13, 31, 32, 43, 45, 68, 69};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++)
    if (xid == of[i]) return true;
  return false;
}

static void checkXids(const tuttiView *v, tuttiFindings *f) {
  char bus[32];
  int xid;
  for (int i = 0; i < 64; i++) {
    const char *said = tuttiMachineAnswer(v->m, "xid.%02d", i);
    if (said == NULL) return;
    if (sscanf(said, "%31s %d", bus, &xid) != 2) continue;
    if (isOfProgram(xid))
      tuttiFind(f, TUTTI_FOUND_NOTE, "gpu.xid.program", bus, "sudo dmesg | grep -i xid",
                "the kernel's log has Xid %d of it, which a program's own fault leaves", xid);
    else if (!tuttiFound(f, "gpu.lost"))
      tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.xid", bus, "sudo dmesg | grep -i xid",
                "the kernel's log has Xid %d of it, an error of the GPU, its links or the driver",
                xid);
  }
}

void tuttiCheckGpus(const tuttiView *v, tuttiFindings *f) {
  const char *said;
  if (v->ngpus == 0 || checkDriver(v, f) == 0 || tuttiFound(f, "container.gpu")) return;
  if (!checkNvml(v, f)) return;
  for (int i = 0; i < v->ngpus; i++) {
    const tuttiViewGpu *gpu = &v->gpus[i];
    if (gpu->driven && !gpu->told) checkLost(v, gpu, f);
    if (!gpu->told) continue;
    checkMemory(v, gpu, f);
    checkClocks(v, gpu, f);
    checkModes(v, gpu, f);
  }
  for (int i = 0; i < TUTTI_VIEW_GPUS; i++) /* counted by NVML, and not to be opened */
    if ((said = tuttiMachineAnswer(v->m, "nvml.lost.%d", i)) != NULL && !tuttiFound(f, "gpu.lost"))
      tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.lost", "a GPU", "sudo dmesg | grep -i xid",
                "the driver cannot open GPU number %d: %s", i, said);
  checkXids(v, f);
  checkCuda(v, f);
}
