/* Who this process shares memory and cores with. */
#ifndef TUTTI_BASE_HOST_H_
#define TUTTI_BASE_HOST_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* Identity of the memory this process can share: boot id and the namespaces that memory travels in
 * (pid, ipc, net), or TUTTI_HOSTID alone when that is set. Equal values: ranks can share memory. */
uint64_t tuttiHostId(void);
/* Where numbers of processes mean the same: by boot id and PID namespace, whatever TUTTI_HOSTID
 * says. Equal values but 0, which is "not known": the same kernel counts them, but for one chance
 * in 65,536. */
uint16_t tuttiPidSpace(void);
/* The letter of /proc/PID/stat; 'X': there is no such file. */
char tuttiProcessState(int pid);
/* A process of this number, of this process's own PID namespace, has ended: there is none, or it
 * only waits to be reaped. False where that cannot be known. */
bool tuttiProcessGone(int pid);
/* Cores that the calling thread may run on, by its affinity, and whose time its process may use, by
 * the quota of its control group. */
int tuttiCpuCount(void);
/* Bytes of the last cache before memory, of the first core; 0: not known. */
uint64_t tuttiCacheBytes(void);
/* Which these are: threads of one host that have equal ones share their cores. */
uint64_t tuttiCpuSet(void);

__END_DECLS

#endif
