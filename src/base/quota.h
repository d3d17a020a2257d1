/* What control groups allow this process of the machine's cores. */
#ifndef TUTTI_BASE_QUOTA_H_
#define TUTTI_BASE_QUOTA_H_

#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

typedef struct {
  int cores;    /* whose time its groups may use up in all, rounded up; 0: that of any number */
  uint64_t set; /* equal for processes of one group, where that is limited; else 0 */
} tuttiCpuQuota;

/* Reads /proc/self/cgroup, and cpu.max (version 2) or cpu.cfs_quota_us (version 1) of the group and
 * of those above it, as far as they are to be seen here. `root` stands in front of all paths: ""
 * but in tests. */
tuttiCpuQuota tuttiCpuQuotaRead(const char *root);

__END_DECLS

#endif
