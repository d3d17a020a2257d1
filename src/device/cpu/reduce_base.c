/* Reduction loops for every CPU of this architecture. */
#include "device/cpu/reduce_loops.h"

static bool supported(void) {
  return true;
}

const tuttiReduceLevel tuttiReduceBase = {"base", supported, TUTTI_REDUCE_TABLE};
