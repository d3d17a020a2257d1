/* What the two halves of bench_onesided share: host memory in onesided.c, GPUs in onesided_gpu.c.
 */
#ifndef TUTTI_BENCH_ONESIDED_H_
#define TUTTI_BENCH_ONESIDED_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tutti.h"

#define CHECK(call)                                                                                \
  do {                                                                                             \
    if ((call) != tuttiSuccess) {                                                                  \
      fprintf(stderr, "%s: %s\n", #call, tuttiGetLastError(NULL));                                 \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* Memory of both ranks. */
typedef struct {
  tuttiUniqueId id;
  bool threads;       /* of one process */
  char *window;       /* of rank 1, for the plain copy */
  uint8_t handle[64]; /* the same for another process: a cudaIpcMemHandle_t */
  int told;           /* they are there; atomic */
} onesidedShared;

extern const bool onesidedGpuBuilt;
/* Measures and prints, as rank 0 or 1; ends the process on failure. */
void onesidedGpu(int rank, onesidedShared *shared, int rounds);

#endif
