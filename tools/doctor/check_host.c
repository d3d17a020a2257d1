/* The host: limits, cores, interfaces, and what the kernel's settings mean for ranks. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "doctor/view.h"
#include "socket/socket.h"

#define MIB              (1ull << 20)
#define REGISTERED_LEAST (256 * MIB) /* what some connections over NET/IB register */
#define FILES_LEAST      1024
#define MAPPINGS_LEAST   65530 /* the kernel's default */
#define SHM_OTHERS       (1024 * MIB)

static unsigned long long answered(const tuttiView *v, const char *key,
                                   unsigned long long missing) {
  const char *said = tuttiMachineAnswer(v->m, "%s", key);
  if (said && strcmp(said, "unlimited") == 0) return ~0ull;
  return said ? strtoull(said, NULL, 10) : missing;
}

/* ---- limits --------------------------------------------------------------------------------- */

static void checkLimits(const tuttiView *v, tuttiFindings *f) {
  unsigned long long locked = answered(v, "limit.memlock", ~0ull);
  unsigned long long descriptors = answered(v, "limit.nofile", ~0ull);
  long mappings = tuttiMachineNumber(v->m, "proc/sys/vm", "max_map_count", MAPPINGS_LEAST);
  if (v->nnics > 0 && locked != ~0ull && answered(v, "cap.ipc_lock", 0) == 0)
    tuttiFind(f, locked < REGISTERED_LEAST ? TUTTI_FOUND_FAILURE : TUTTI_FOUND_WARNING,
              "host.memlock", "RDMA",
              v->container ? "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK"
                           : "echo '* - memlock unlimited' | sudo tee "
                             "/etc/security/limits.d/90-rdma.conf # then log in anew",
              TUTTI_IB_LOCKED_MEMORY, locked / 1024);
  if (descriptors < FILES_LEAST)
    tuttiFind(f, TUTTI_FOUND_WARNING, "host.files", "this process", "ulimit -n 65536",
              "it may open %llu files, and each rank takes a few for each of its peers",
              descriptors);
  if (mappings < MAPPINGS_LEAST)
    tuttiFind(f, TUTTI_FOUND_WARNING, "host.mappings", "this host",
              "sudo sysctl -w vm.max_map_count=65530",
              "vm.max_map_count is %ld, below the kernel's default of %d: many ranks need more "
              "mappings",
              mappings, MAPPINGS_LEAST);
}

/* ---- cores and memory ----------------------------------------------------------------------- */

/* GPUs of this process: ranks of others, on GPUs that it may not use, have cores of their own. */
static unsigned usableGpus(const tuttiView *v) {
  unsigned n = 0;
  for (int i = 0; i < v->ngpus; i++)
    n += v->gpus[i].told;
  return n;
}

static void checkCores(const tuttiView *v, tuttiFindings *f) {
  char governor[32], driver[32];
  const char *dir = "sys/devices/system/cpu/cpu0/cpufreq/";
  char path[128];
  unsigned long long quota = answered(v, "cores.quota", 0);
  unsigned long long allowed = answered(v, "cores.allowed", 0);
  unsigned long long online = answered(v, "cores.online", 0);
  unsigned usable = usableGpus(v);
  snprintf(path, sizeof path, "%sscaling_governor", dir);
  bool slow =
      tuttiMachineRead(v->m, path, governor, sizeof governor) && strcmp(governor, "powersave") == 0;
  snprintf(path, sizeof path, "%sscaling_driver", dir);
  (void)tuttiMachineRead(v->m, path, driver, sizeof driver);
  /* Of these two drivers "powersave" is a governor that rises with the load. */
  if (slow && strcmp(driver, "intel_pstate") != 0 && strcmp(driver, "amd-pstate-epp") != 0)
    tuttiFind(f, TUTTI_FOUND_WARNING, "host.governor", "CPU",
              "sudo cpupower frequency-set -g performance",
              "the governor powersave of %s keeps all cores at their lowest clock",
              driver[0] ? driver : "cpufreq");
  if (quota > 0 && quota < 100ull * usable)
    tuttiFind(f, TUTTI_FOUND_WARNING, "host.cores", "CPU", "cat /sys/fs/cgroup/cpu.max",
              "the control group grants %llu.%02llu cores, less than one for each GPU (%u)",
              quota / 100, quota % 100, usable);
  if (allowed > 0 && allowed < usable)
    tuttiFind(f, TUTTI_FOUND_WARNING, "host.cores", "CPU", "taskset -cp $$",
              "this process may run on %llu of %llu cores, fewer than the %u GPUs", allowed, online,
              usable);
}

static void checkMemory(const tuttiView *v, tuttiFindings *f) {
  const char *shm = tuttiMachineAnswer(v->m, "shm.bytes");
  unsigned long long bytes = answered(v, "shm.bytes", ~0ull);
  if (shm && (strcmp(shm, "none") == 0 || bytes < SHM_OTHERS))
    tuttiFind(f, TUTTI_FOUND_NOTE, "host.shm", "/dev/shm",
              v->container ? "docker run --ipc=host" : "sudo mount -o remount,size=50% /dev/shm",
              "it has %llu MiB; tutti does not need it, but data loaders of PyTorch and NCCL do",
              strcmp(shm, "none") == 0 ? 0 : bytes / MIB);
  if (tuttiMachineNumber(v->m, "proc/sys/kernel", "numa_balancing", 0) > 0 && v->ngpus > 0)
    tuttiFind(f, TUTTI_FOUND_NOTE, "host.numa", "this host",
              "sudo sysctl -w kernel.numa_balancing=0",
              "the kernel moves pages between NUMA nodes by itself, which can delay GPU work");
  if (tuttiMachineNumber(v->m, "proc/sys/kernel/yama", "ptrace_scope", 0) > 0)
    tuttiFind(f, TUTTI_FOUND_NOTE, "host.ptrace", "this host",
              "sudo sysctl -w kernel.yama.ptrace_scope=0",
              "kernel.yama.ptrace_scope forbids processes to read each other's memory, so large "
              "messages in host memory are copied twice");
}

/* ---- interfaces ----------------------------------------------------------------------------- */

/* "eth0 v4 up carrier". An address of the kind that was told stands for the true one. */
static void parseInterface(const char *text, int index, tuttiFoundInterface *i) {
  char name[IF_NAMESIZE], kind[16];
  *i = (tuttiFoundInterface){0};
  if (sscanf(text, "%15s %15s", name, kind) != 2) return;
  snprintf(i->at.name, sizeof i->at.name, "%s", name);
  i->flags = (strstr(text, " up") ? IFF_UP : 0u) | (strstr(text, " carrier") ? IFF_RUNNING : 0u) |
             (strstr(text, " loopback") ? IFF_LOOPBACK : 0u);
  i->bridge = strstr(text, " bridge") != NULL;
  if (strncmp(kind, "v4", 2) == 0) {
    i->at.address.v4.sin_family = AF_INET;
    i->at.address.v4.sin_addr.s_addr =
        htonl((strcmp(kind, "v4-link") == 0 ? 0xa9fe0000u : 0x0a000000u) + (unsigned)index + 1);
  } else if (strncmp(kind, "v6", 2) == 0) {
    i->at.address.v6.sin6_family = AF_INET6;
    i->at.address.v6.sin6_addr.s6_addr[0] = strcmp(kind, "v6-link") == 0 ? 0xfe : 0xfd;
    i->at.address.v6.sin6_addr.s6_addr[1] = strcmp(kind, "v6-link") == 0 ? 0x80 : 0;
    i->at.address.v6.sin6_addr.s6_addr[15] = (uint8_t)(index + 1);
  }
}

static void checkProbe(const tuttiView *v, const tuttiInterface *i, tuttiFindings *f) {
  static const char *const kinds[] = {"v4", "v4-link", "v6", "v6-link"};
  const char *unusable = tuttiErrnoText(EADDRNOTAVAIL);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    const char *said = tuttiMachineAnswer(v->m, "probe.%s %s", i->name, kinds[k]);
    if (said && strcmp(said, unusable) == 0)
      tuttiFind(f, TUTTI_FOUND_WARNING, "host.interfaces", i->name, "ip addr show",
                "an address of it cannot be used (%s): another host has it, too, or it is not "
                "ready yet",
                said);
    else if (said && strcmp(said, "ok") != 0)
      tuttiFind(
          f, TUTTI_FOUND_FAILURE, "host.firewall", i->name,
          "sudo nft list ruleset || sudo iptables -L -n",
          "a connection from this host to its own address on it fails (%s), for which no wire "
          "is needed: a rule of a firewall, most likely; ranks need all TCP ports between "
          "each other",
          said);
  }
}

static void checkInterfaces(const tuttiView *v, tuttiFindings *f) {
  tuttiFoundInterface found[64];
  tuttiInterface chosen[TUTTI_MAX_INTERFACES];
  char names[256] = "";
  int nfound = 0, n = 0;
  for (const char *said; nfound < 64 && (said = tuttiMachineAnswer(v->m, "net.%03d", nfound));
       nfound++)
    parseInterface(said, nfound, &found[nfound]);
  if (nfound == 0) return;
  if (tuttiInterfacesChoose(found, nfound, tuttiViewSetting(v, "SOCKET_IFNAME"),
                            tuttiViewSetting(v, "SOCKET_FAMILY"), chosen, TUTTI_MAX_INTERFACES,
                            &n) != tuttiSuccess) {
    tuttiFind(f, TUTTI_FOUND_FAILURE, "host.interfaces", "TUTTI_SOCKET_IFNAME",
              "unset TUTTI_SOCKET_IFNAME TUTTI_SOCKET_FAMILY; ip addr", "%s", tuttiErrorText());
    tuttiErrorClear();
    return;
  }
  for (int i = 0; i < n; i++) {
    if (i == 0 || strcmp(chosen[i].name, chosen[i - 1].name) != 0)
      tuttiAppend(names, sizeof names, "%s%s", names[0] ? ", " : "", chosen[i].name);
    checkProbe(v, &chosen[i], f);
  }
  if (strcmp(chosen[0].name, "lo") == 0)
    tuttiFind(f, TUTTI_FOUND_WARNING, "host.interfaces", "lo", "ip -br addr",
              "only the loopback interface is up, so ranks of other hosts can't be met");
  else
    tuttiFind(f, TUTTI_FOUND_OK, "host.interfaces", names, "", "ranks meet over it, best first");
}

void tuttiCheckHost(const tuttiView *v, tuttiFindings *f) {
  checkLimits(v, f);
  checkCores(v, f);
  checkMemory(v, f);
  checkInterfaces(v, f);
  if (tuttiMachineSaid(v->m, "host.log", "denied") && v->ngpus > 0)
    tuttiFind(f, TUTTI_FOUND_NOTE, "unseen.log", "the kernel's log", "sudo tutti doctor",
              "only root may read it, so errors of GPUs that it holds (Xid) were not looked for");
}
