/* What stands between a program and the RDMA devices: kernel modules, device files, libibverbs and
 * its providers, settings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "doctor/view.h"

/* ---- modules -------------------------------------------------------------------------------- */

static void checkModules(const tuttiView *v, tuttiFindings *f) {
  char driver[64], peer[64], old[64];
  bool hasDriver = tuttiMachineRead(v->m, "sys/module/nvidia/version", driver, sizeof driver);
  bool hasPeer = tuttiMachineRead(v->m, "sys/module/nvidia_peermem/version", peer, sizeof peer);
  bool hasOld = tuttiMachineRead(v->m, "sys/module/nv_peer_mem/version", old, sizeof old);
  if (hasDriver && hasPeer && strcmp(driver, peer) != 0)
    tuttiFind(f, TUTTI_FOUND_WARNING, "module.version", "nvidia_peermem",
              "sudo rmmod nvidia_peermem && sudo modprobe nvidia-peermem",
              "it is of version %s, and the module nvidia of %s: it belongs to another driver",
              peer, driver);
  if (hasPeer && hasOld)
    tuttiFind(
        f, TUTTI_FOUND_WARNING, "module.twice", "nv_peer_mem", "sudo rmmod nv_peer_mem",
        "both nvidia_peermem and the older nv_peer_mem are loaded, and serve the same memory");
}

/* ---- device files --------------------------------------------------------------------------- */

/* Device files of verbs: how many there are. */
static int countVerbsFiles(const tuttiView *v) {
  TUTTI_FREED tuttiName *names = NULL;
  int n, files = 0;
  if (tuttiMachineList(v->m, "dev/infiniband", &names, &n) != tuttiSuccess) return 0;
  for (int i = 0; i < n; i++)
    files += strncmp(names[i], "uverbs", 6) == 0;
  for (int i = 0; i < v->nnics; i++) { /* whoever opens a device has what it takes */
    const char *opened = tuttiMachineAnswer(v->m, "verbs.%s.open", v->nics[i].name);
    files += opened && strcmp(opened, "ok") == 0;
  }
  return files;
}

/* True: they are there. */
static bool checkFiles(const tuttiView *v, tuttiFindings *f) {
  if (countVerbsFiles(v) > 0) return true;
  if (v->container)
    tuttiFind(f, TUTTI_FOUND_WARNING, "container.rdma", "/dev/infiniband",
              "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1",
              "the host has %d RDMA devices, and this container has no /dev/infiniband: RDMA can't "
              "be used, NET/Socket serves",
              v->nnics);
  else
    tuttiFind(
        f, TUTTI_FOUND_FAILURE, "module.uverbs", "/dev/infiniband", "sudo modprobe ib_uverbs",
        "there are %d RDMA devices, and no file in /dev/infiniband to use them by: the module "
        "ib_uverbs is not loaded",
        v->nnics);
  return false;
}

/* ---- libibverbs ----------------------------------------------------------------------------- */

static void checkDevice(const tuttiView *v, const tuttiViewNic *nic, tuttiFindings *f) {
  const char *opened = tuttiMachineAnswer(v->m, "verbs.%s.open", nic->name);
  if (opened && strcmp(opened, "ok") == 0) return;
  if (opened)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "rdma.rights", nic->name,
              v->container ? "docker run --device=/dev/infiniband"
                           : "ls -l /dev/infiniband; sudo chmod a+rw /dev/infiniband/uverbs*",
              TUTTI_IB_NOT_OPENED, "it", opened);
  else
    tuttiFind(f, TUTTI_FOUND_FAILURE, "rdma.provider", nic->name,
              "sudo apt install ibverbs-providers || sudo dnf install libibverbs",
              "libibverbs does not list it: its user-space driver for %s is not installed",
              nic->driver[0] ? nic->driver : "this device");
}

/* True: libibverbs is there and was asked. */
static bool checkLibrary(const tuttiView *v, tuttiFindings *f) {
  const char *state = tuttiMachineAnswer(v->m, "verbs.state");
  if (state == NULL) return false;
  if (strcmp(state, "not built") == 0)
    tuttiFind(f, TUTTI_FOUND_WARNING, "rdma.built", "tutti",
              "sudo apt install libibverbs-dev && cmake -S . -B build",
              "this tutti was built without infiniband/verbs.h, so it uses no RDMA device");
  else if (strcmp(state, "ok") != 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "rdma.library", "libibverbs",
              "sudo apt install rdma-core ibverbs-providers || sudo dnf install rdma-core", "%s",
              state);
  return strcmp(state, "ok") == 0;
}

/* ---- settings ------------------------------------------------------------------------------- */

/* True: some port may be used. */
static bool checkSettings(const tuttiView *v, tuttiFindings *f) {
  const char *list = tuttiViewSetting(v, "IB_HCA");
  int allowed = 0, usable = 0;
  if (strcmp(tuttiViewSetting(v, "IB_DISABLE"), "1") == 0 ||
      strcmp(tuttiViewSetting(v, "NET"), "Socket") == 0) {
    tuttiFind(f, TUTTI_FOUND_NOTE, "setting.rdma", "settings", "unset TUTTI_IB_DISABLE TUTTI_NET",
              "TUTTI_IB_DISABLE or TUTTI_NET forbids RDMA");
    return false;
  }
  for (int i = 0; i < v->nnics; i++) {
    usable += v->nics[i].usable;
    for (int p = 0; p < v->nics[i].nports; p++)
      allowed += v->nics[i].ports[p].allowed;
  }
  if (allowed == 0 && usable > 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "setting.hca", "TUTTI_IB_HCA", "unset TUTTI_IB_HCA",
              TUTTI_IB_NONE_USABLE "; its value is '%s'", v->nnics, list);
  if (allowed > TUTTI_IB_PORTS)
    tuttiFind(f, TUTTI_FOUND_NOTE, "setting.ports", "TUTTI_IB_HCA", "tutti env",
              "there are %d ports, of which a rank uses %d at most; TUTTI_IB_HCA chooses", allowed,
              TUTTI_IB_PORTS);
  return allowed > 0;
}

void tuttiCheckRdma(const tuttiView *v, tuttiFindings *f) {
  checkModules(v, f);
  if (v->nnics == 0 || !checkSettings(v, f)) return;
  if (!checkFiles(v, f) || !checkLibrary(v, f)) return;
  for (int i = 0; i < v->nnics; i++)
    if (v->nics[i].usable)
      checkDevice(v, &v->nics[i], f);
    else
      tuttiFind(f, TUTTI_FOUND_NOTE, "rdma.kind", v->nics[i].name, "",
                "it is neither InfiniBand nor RoCE (iWARP, say), so NET/IB does not serve it; "
                "NET/Socket uses its interface");
}
