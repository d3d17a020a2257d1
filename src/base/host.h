/* Who this process shares memory and cores with. */
#ifndef TUTTI_BASE_HOST_H_
#define TUTTI_BASE_HOST_H_

#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* Identity of the memory this process can share: boot id and the namespaces that memory travels in
 * (pid, ipc, net), or TUTTI_HOSTID alone when that is set. Equal values: ranks can share memory. */
uint64_t tuttiHostId(void);
/* Cores that the calling thread may run on, by its affinity, and whose time its process may use, by
 * the quota of its control group. */
int tuttiCpuCount(void);
/* Which these are: threads of one host that have equal ones share their cores. */
uint64_t tuttiCpuSet(void);

__END_DECLS

#endif
