/* Small operations, without the state of a run. */
#ifndef TUTTI_DEVICE_CPU_BRIEF_H_
#define TUTTI_DEVICE_CPU_BRIEF_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "collectives/task.h"

__BEGIN_DECLS

/* Carries out the first steps of a task, as long as their messages lie in descriptors of memory
 * that the ranks share, and what they wait for comes soon. Returns how many: an executor goes on
 * with the step behind them, and finds there whatever is wrong. What they keep in scratch memory is
 * in `scratch` then, which has so many bytes. */
uint64_t tuttiCpuRunBriefly(const tuttiTask *task, uint8_t *scratch, size_t bytes);

__END_DECLS

#endif
