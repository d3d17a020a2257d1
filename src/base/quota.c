#include "base/quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

#define GROUPS_BYTES 8192
#define PATH_BYTES   4096

/* Cores whose time is `quota` of each `period`; 0: no limit. */
static int coresOf(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  long long cores = (quota - 1) / period + 1;
  return cores < INT32_MAX ? (int)cores : 0;
}

/* "400000 100000", or "max 100000" */
static int readVersion2(const char *folder) {
  char path[PATH_BYTES + 32], text[64];
  long long quota, period;
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  bool limited =
      tuttiReadFile(path, text, sizeof text) && sscanf(text, "%lld %lld", &quota, &period) == 2;
  return limited ? coresOf(quota, period) : 0;
}

static long long readNumber(const char *folder, const char *name) {
  char path[PATH_BYTES + 32], text[64];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return tuttiReadFile(path, text, sizeof text) ? atoll(text) : -1;
}

static int readVersion1(const char *folder) {
  return coresOf(readNumber(folder, "cpu.cfs_quota_us"), readNumber(folder, "cpu.cfs_period_us"));
}

/* The least of the limits of `group` and of those above it, up to the mount, which is all of it
 * that is to be seen in a container. */
static int leastAlong(const char *mount, char *group, int (*read)(const char *)) {
  char folder[PATH_BYTES];
  int least = 0;
  for (bool last = false; !last;) {
    last = group[0] == 0;
    snprintf(folder, sizeof folder, "%s%s", mount, group);
    int cores = read(folder);
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
    char *slash = strrchr(group, '/');
    if (slash) *slash = 0;
    if (!slash && !last) group[0] = 0;
  }
  return least;
}

static bool hasWord(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *at = list; (at = strstr(at, word)) != NULL; at += length) {
    bool begins = at == list || at[-1] == ',', ends = at[length] == 0 || at[length] == ',';
    if (begins && ends) return true;
  }
  return false;
}

/* A line of /proc/self/cgroup, "4:cpu,cpuacct:/group", taken apart; the cores that it limits this
 * process to. */
static int readLine(const char *root, char *line) {
  char mount[PATH_BYTES];
  char *names = strchr(line, ':');
  char *group = names ? strchr(names + 1, ':') : NULL;
  if (!group) return 0;
  *names++ = 0;
  *group++ = 0;
  if (names[0] == 0) {
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
    return leastAlong(mount, group, readVersion2);
  }
  if (!hasWord(names, "cpu")) return 0;
  snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, names);
  return leastAlong(mount, group, readVersion1);
}

tuttiCpuQuota tuttiCpuQuotaRead(const char *root) {
  tuttiCpuQuota quota = {0};
  char path[PATH_BYTES], groups[GROUPS_BYTES];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  if (!tuttiReadFile(path, groups, sizeof groups)) return quota;
  uint64_t set = tuttiHash(groups, strlen(groups));
  char *rest = NULL;
  for (char *line = strtok_r(groups, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    int cores = readLine(root, line);
    if (cores > 0 && (quota.cores == 0 || cores < quota.cores)) quota.cores = cores;
  }
  if (quota.cores > 0) quota.set = set;
  return quota;
}
