/* What the kernel says of this process and its host, beside files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/error.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "doctor/machine.h"
#include "tool.h"

#define CAP_IPC_LOCK_BIT   14
#define CAP_SYS_ADMIN_BIT  21
#define SYSLOG_READ_ALL    3
#define SYSLOG_SIZE_BUFFER 10
#define MAX_XIDS           64

static tuttiResult_t tellNumber(tuttiMachine *m, const char *key, unsigned long long value) {
  char text[32];
  snprintf(text, sizeof text, "%llu", value);
  return tuttiMachineTell(m, text, "%s", key);
}

static tuttiResult_t askLimit(tuttiMachine *m, int which, const char *key) {
  struct rlimit limit;
  if (getrlimit(which, &limit) != 0) return tuttiSuccess;
  if (limit.rlim_cur == RLIM_INFINITY) return tuttiMachineTell(m, "unlimited", "%s", key);
  return tellNumber(m, key, limit.rlim_cur);
}

/* The capabilities in force: a line of /proc/self/status. */
static tuttiResult_t askCapabilities(tuttiMachine *m) {
  char text[8192];
  if (!tuttiMachineRead(m, "proc/self/status", text, sizeof text)) return tuttiSuccess;
  const char *at = strstr(text, "\nCapEff:");
  if (at == NULL) return tuttiSuccess;
  unsigned long long bits = strtoull(at + sizeof "\nCapEff:" - 1, NULL, 16);
  TUTTI_TRY(tellNumber(m, "cap.ipc_lock", bits >> CAP_IPC_LOCK_BIT & 1));
  return tellNumber(m, "cap.sys_admin", bits >> CAP_SYS_ADMIN_BIT & 1);
}

/* ---- container ------------------------------------------------------------------------------ */

static const char *containerKind(const tuttiMachine *m) {
  char text[4096];
  const char *named = getenv("container");
  if (getenv("KUBERNETES_SERVICE_HOST")) return "Kubernetes";
  if (tuttiMachineAccess(m, ".dockerenv") == 0) return "Docker";
  if (tuttiMachineAccess(m, "run/.containerenv") == 0) return "Podman";
  if (getenv("APPTAINER_CONTAINER") || getenv("SINGULARITY_CONTAINER")) return "Apptainer";
  if (named && named[0]) return "container";
  if (tuttiMachineRead(m, "proc/1/cgroup", text, sizeof text) &&
      (strstr(text, "/docker") || strstr(text, "/kubepods") || strstr(text, "/lxc/")))
    return "container";
  return "none";
}

/* Which of what: the value may list UUIDs. */
static tuttiResult_t askVisible(tuttiMachine *m, const char *variable) {
  const char *value = getenv(variable);
  if (value == NULL) return tuttiSuccess;
  bool word = value[0] == '\0' || strcmp(value, "void") == 0 || strcmp(value, "none") == 0 ||
              strcmp(value, "all") == 0;
  return tuttiMachineTell(m, word ? value : "a list", "env.%s", variable);
}

static tuttiResult_t askContainer(tuttiMachine *m) {
  const char *capabilities = getenv("NVIDIA_DRIVER_CAPABILITIES");
  TUTTI_TRY(tuttiMachineTell(m, containerKind(m), "host.container"));
  TUTTI_TRY(askVisible(m, "NVIDIA_VISIBLE_DEVICES"));
  TUTTI_TRY(askVisible(m, "CUDA_VISIBLE_DEVICES"));
  if (capabilities) TUTTI_TRY(tuttiMachineTell(m, capabilities, "env.NVIDIA_DRIVER_CAPABILITIES"));
  return tuttiSuccess;
}

/* ---- cores and memory ----------------------------------------------------------------------- */

/* Hundredths of cores that the control group grants; nothing is told where it grants all. */
static tuttiResult_t askQuota(tuttiMachine *m) {
  char text[64];
  long long quota = -1, period = 0;
  if (tuttiMachineRead(m, "sys/fs/cgroup/cpu.max", text, sizeof text)) {
    char *end;
    quota = strtoll(text, &end, 10);
    period = end != text ? strtoll(end, NULL, 10) : 0; /* "max 100000" grants all */
  } else if (tuttiMachineRead(m, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof text)) {
    quota = strtoll(text, NULL, 10);
    period = tuttiMachineNumber(m, "sys/fs/cgroup/cpu", "cpu.cfs_period_us", 0);
  }
  if (quota <= 0 || period <= 0) return tuttiSuccess;
  return tellNumber(m, "cores.quota", (unsigned long long)(quota * 100 / period));
}

static tuttiResult_t askShm(tuttiMachine *m) {
  struct statvfs st;
  if (statvfs("/dev/shm", &st) != 0) return tuttiMachineTell(m, "none", "shm.bytes");
  return tellNumber(m, "shm.bytes", (unsigned long long)st.f_blocks * st.f_frsize);
}

/* ---- the kernel's log ----------------------------------------------------------------------- */

/* "NVRM: Xid (PCI:0000:18:00): 79, ..." as "0000:18:00.0 79"; nothing else of the line. */
static tuttiResult_t tellXids(tuttiMachine *m, const char *log) {
  int n = 0;
  for (const char *at = log; n < MAX_XIDS && (at = strstr(at, "NVRM: Xid (PCI:")) != NULL;) {
    char bus[16], number[16], text[64];
    at += sizeof "NVRM: Xid (PCI:" - 1;
    if (sscanf(at, "%15[0-9a-fA-F:]): %15[0-9]", bus, number) != 2) continue;
    snprintf(text, sizeof text, "%s.0 %s", bus, number);
    TUTTI_TRY(tuttiMachineTell(m, text, "xid.%02d", n++));
  }
  return tuttiSuccess;
}

/* Most hosts show the log to root alone. */
static tuttiResult_t askKernelLog(tuttiMachine *m) {
  int size = klogctl(SYSLOG_SIZE_BUFFER, NULL, 0);
  if (size <= 0 || size > 64 << 20) size = 1 << 20;
  TUTTI_FRESH(char, log, size + 1, "the kernel's log", NULL);
  int n = klogctl(SYSLOG_READ_ALL, log, size);
  if (n < 0) return tuttiMachineTell(m, "denied", "host.log");
  log[n] = '\0';
  TUTTI_TRY(tuttiMachineTell(m, "ok", "host.log"));
  return tellXids(m, log);
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Settings that findings depend on, so that a recording is judged as its machine was. */
static tuttiResult_t askSettings(tuttiMachine *m) {
  static const tuttiSettingId strings[] = {TUTTI_SETTING_IB_HCA,       TUTTI_SETTING_IB_ADDR_FAMILY,
                                           TUTTI_SETTING_NET,          TUTTI_SETTING_NET_GDR_LEVEL,
                                           TUTTI_SETTING_NET_GDR,      TUTTI_SETTING_SOCKET_IFNAME,
                                           TUTTI_SETTING_NET_GDR_READ, TUTTI_SETTING_SOCKET_FAMILY};
  static const tuttiSettingId numbers[] = {TUTTI_SETTING_IB_DISABLE, TUTTI_SETTING_IB_GID_INDEX,
                                           TUTTI_SETTING_IB_ROCE_VERSION,
                                           TUTTI_SETTING_DMABUF_ENABLE};
  char number[32];
  for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
    TUTTI_TRY(tuttiMachineTell(m, tuttiSettingString(strings[i]), "setting.%s",
                               tuttiSettingTable[strings[i]].name));
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    snprintf(number, sizeof number, "%lld", (long long)tuttiSettingInt(numbers[i]));
    TUTTI_TRY(tuttiMachineTell(m, number, "setting.%s", tuttiSettingTable[numbers[i]].name));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiAskHost(tuttiMachine *m) {
  struct utsname name;
  char command[8192];
  TUTTI_TRY(askSettings(m));
  if (uname(&name) == 0) {
    TUTTI_TRY(tuttiMachineTell(m, name.release, "host.release"));
    TUTTI_TRY(tuttiMachineTell(m, name.machine, "host.machine"));
  }
  if (tuttiMachineRead(m, "proc/cmdline", command, sizeof command))
    TUTTI_TRY(tuttiMachineTell(m, strstr(command, "iommu=pt") ? "pt" : "default", "host.iommu"));
  TUTTI_TRY(tellNumber(m, "host.root", geteuid() == 0));
  TUTTI_TRY(
      tellNumber(m, "host.uptime", (unsigned long long)tuttiMachineNumber(m, "proc", "uptime", 0)));
  TUTTI_TRY(tellNumber(m, "cores.allowed", (unsigned long long)tuttiCpuCount()));
  TUTTI_TRY(tellNumber(m, "cores.online", (unsigned long long)sysconf(_SC_NPROCESSORS_ONLN)));
  TUTTI_TRY(askLimit(m, RLIMIT_MEMLOCK, "limit.memlock"));
  TUTTI_TRY(askLimit(m, RLIMIT_NOFILE, "limit.nofile"));
  TUTTI_TRY(askCapabilities(m));
  TUTTI_TRY(askContainer(m));
  TUTTI_TRY(askQuota(m));
  TUTTI_TRY(askShm(m));
  return askKernelLog(m);
}
