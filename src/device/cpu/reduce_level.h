/* The reduction loops exist once per level of vector instructions, compiled from one source
 * (reduce_loops.h). Only reduce.c and the tests see the levels. */
#ifndef TUTTI_DEVICE_CPU_REDUCE_LEVEL_H_
#define TUTTI_DEVICE_CPU_REDUCE_LEVEL_H_

#include <stdbool.h>
#include <sys/cdefs.h>

#include "device/cpu/reduce.h"

__BEGIN_DECLS

typedef struct {
  const char *name;
  bool (*supported)(void); /* this CPU has the instructions */
  /* By element type. For calls that are no copies; count may be 0. */
  void (*reduce[tuttiNumTypes])(const tuttiReduceArgs *args);
} tuttiReduceLevel;

/* Widest first, NULL at the end; the last one runs anywhere. */
extern const tuttiReduceLevel *const tuttiReduceLevels[];

extern const tuttiReduceLevel tuttiReduceBase;
#if defined(__x86_64__)
extern const tuttiReduceLevel tuttiReduceAvx2, tuttiReduceAvx512;
#endif

__END_DECLS

#endif
