/* The one arithmetic routine of the host executor: reduces any number of operands into any number
 * of outputs. */
#ifndef TUTTI_DEVICE_CPU_REDUCE_H_
#define TUTTI_DEVICE_CPU_REDUCE_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "collectives/signature.h"
#include "tutti.h"

__BEGIN_DECLS

typedef struct {
  const void *const *in; /* nin operands of count elements; each aligned to its element */
  int nin;               /* >= 1 */
  void *const *out;      /* nout outputs; one may equal an operand exactly, no other overlap */
  int nout;              /* >= 0 */
  size_t count;
  tuttiDataType_t type;
  tuttiRedOp_t op; /* tuttiSum .. tuttiAvg; PreMulSum arrives as tuttiSum with premul set */
  int premul; /* k > 0: operand k - 1 (this rank's own input) is multiplied by `scalar` first */
  tuttiScalar scalar;
  int divide;   /* > 1: divide the result by it (tuttiAvg on the final value) */
  int nstreams; /* so many outputs, the last ones, are stored past the caches where the CPU can:
                 * this core will not read them soon */
} tuttiReduceArgs;

/* out[j][i] = round(in[0][i] op in[1][i] op ...), for all j. 16- and 8-bit floats accumulate in
 * float32 and round once, to nearest even, but for the product with `scalar`, which is rounded,
 * too; float8e4m3 overflows to NaN as OCP FP8 says (no infinity), float8e5m2 has infinities. With
 * nin == 1, no premul and divide <= 1 it is a copy of bytes; any other NaN result is the type's
 * positive quiet NaN without payload. Operands are reduced in the order given, so equal calls give
 * equal bits, whatever the CPU. Thread-safe. */
void tuttiReduceCopy(const tuttiReduceArgs *args);

/* An element of a float type to double, and from double, rounded once to nearest even. */
double tuttiFloatToDouble(tuttiDataType_t type, const void *element);
void tuttiFloatFromDouble(tuttiDataType_t type, double value, void *element);

__END_DECLS

#endif
