#include "base/host.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/quota.h"
#include "base/settings.h"

/* The inode is the identity of a namespace on this kernel; 0 if it cannot be read. */
static uint64_t namespaceInode(const char *name) {
  char path[64];
  struct stat st;
  snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
  return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

uint64_t tuttiHostId(void) {
  const char *chosen = tuttiSettingString(TUTTI_SETTING_HOSTID);
  if (chosen[0] != '\0') return tuttiHash(chosen, strlen(chosen));
  char boot[128 + HOST_NAME_MAX], machine[64], id[sizeof(boot) + 64];
  if (!tuttiReadFile("/proc/sys/kernel/random/boot_id", boot, 128)) {
    tuttiReadFile("/etc/machine-id", machine, sizeof(machine));
    snprintf(boot, sizeof(boot), "%s %s", machine, tuttiHostname());
  }
  int length = snprintf(id, sizeof(id), "%s %" PRIu64 " %" PRIu64 " %" PRIu64, boot,
                        namespaceInode("pid"), namespaceInode("ipc"), namespaceInode("net"));
  return tuttiHash(id, (size_t)length);
}

/* ---- other processes ------------------------------------------------------------------------- */

uint16_t tuttiPidSpace(void) {
  char boot[128], id[sizeof(boot) + 32];
  uint64_t space = namespaceInode("pid");
  if (space == 0 || !tuttiReadFile("/proc/sys/kernel/random/boot_id", boot, sizeof(boot))) return 0;
  int length = snprintf(id, sizeof(id), "%s %" PRIu64, boot, space);
  return (uint16_t)(tuttiHash(id, (size_t)length) % UINT16_MAX + 1);
}

/* What follows the name in /proc/PID/stat, which may hold anything: "S 1 ..."; NULL: nothing. */
static const char *readStat(int pid, char *stat, size_t size) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  if (!tuttiReadFile(path, stat, size)) return NULL;
  const char *end = strrchr(stat, ')');
  return end && end[1] == ' ' ? end + 2 : "";
}

char tuttiProcessState(int pid) {
  char stat[512];
  const char *state = readStat(pid, stat, sizeof(stat));
  return state ? *state : 'X';
}

bool tuttiProcessGone(int pid) {
  char stat[512];
  int threads;
  if (kill(pid, 0) != 0) return errno == ESRCH;
  const char *state = readStat(pid, stat, sizeof(stat));
  /* The first thread may have ended before the others. */
  return state && *state == 'Z' &&
         sscanf(state, "%*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d",
                &threads) == 1 &&
         threads <= 1;
}

/* ---- cores ---------------------------------------------------------------------------------- */

/* The kernel refuses a set that is smaller than its own, which is of at most 8192 so far. */
typedef cpu_set_t cpuMask[(1 << 16) / CPU_SETSIZE];

static tuttiCpuQuota quota;
static pthread_once_t quotaOnce = PTHREAD_ONCE_INIT;

static void readQuota(void) {
  quota = tuttiCpuQuotaRead("");
}

int tuttiCpuCount(void) {
  cpuMask mask;
  long cores = sched_getaffinity(0, sizeof mask, mask) == 0 ? CPU_COUNT_S(sizeof mask, mask)
                                                            : sysconf(_SC_NPROCESSORS_ONLN);
  pthread_once(&quotaOnce, readQuota);
  if (quota.cores > 0 && cores > quota.cores) cores = quota.cores;
  return cores > 0 ? (int)cores : 1;
}

/* As the kernel tells it: what the processor says (sysconf) may be of all its parts together. */
uint64_t tuttiCacheBytes(void) {
  const char *const paths[] = {"/sys/devices/system/cpu/cpu0/cache/index3/size",
                               "/sys/devices/system/cpu/cpu0/cache/index2/size"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    char text[32], *end;
    if (!tuttiReadFile(paths[i], text, sizeof text)) continue;
    unsigned long long size = strtoull(text, &end, 10);
    if (end != text && size <= UINT32_MAX) return *end == 'K' ? size << 10 : size;
  }
  return 0;
}

uint64_t tuttiCpuSet(void) {
  cpuMask mask;
  memset(mask, 0, sizeof mask);
  pthread_once(&quotaOnce, readQuota);
  if (sched_getaffinity(0, sizeof mask, mask) != 0) return quota.set;
  return tuttiHash(mask, sizeof mask) ^ quota.set;
}
