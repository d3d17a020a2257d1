/* Inputs of the check and what a collective must make of them, computed without the library.
 *
 * An input element is a function of (seed, rank, index). What is only copied, and integers that
 * wrap, are random bits. What is averaged, and floats to be added or multiplied, are chosen so that
 * every partial result is exactly representable in the element type, whatever the order and the
 * rounding of the algorithm; so a result is right or wrong, with no tolerance. */
#ifndef TUTTI_TOOLS_PERF_PATTERN_H_
#define TUTTI_TOOLS_PERF_PATTERN_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

typedef enum { PERF_SIGNED, PERF_UNSIGNED, PERF_FLOAT } perfKind;

typedef struct {
  const char *aliases[3]; /* NULL where there is none */
  int size;               /* bytes */
  perfKind kind;
  int mantissaBits; /* of a float, without the hidden bit */
} perfType;

extern const perfType perfTypes[tuttiNumTypes];

/* -1 if there is none. */
int perfTypeFind(const char *name);

typedef struct {
  const perfType *type;
  tuttiRedOp_t op;
  bool reduces;
  bool addends; /* small whole numbers: no sum of them is rounded or overflows */
  bool factors; /* 1 or -1, but for one rank, of each element another */
  int nranks;
  uint64_t seed;
  int active;          /* ranks whose addend of an element is not 0 */
  uint64_t limit;      /* greatest magnitude of an addend */
  uint64_t sign, mask; /* of the type's bits: the highest, and all */
  uint64_t one;        /* the bits of 1 */
} perfPattern;

void perfPatternInit(perfPattern *pattern, tuttiDataType_t type, tuttiRedOp_t op, bool reduces,
                     int nranks, uint64_t seed);

/* Writes elements [first, first + n) of `rank`'s input to `out`. */
void perfPatternFill(const perfPattern *pattern, int rank, size_t first, size_t n, void *out);

typedef struct {
  uint64_t wrong;     /* elements */
  size_t first;       /* index in `data` of the first wrong one */
  uint64_t got, want; /* its bits */
} perfMismatch;

#define PERF_REDUCED (-1)
/* Compares data[0..n) with elements [first, first + n) of `rank`'s input, bit by bit, or with their
 * reduction over all ranks (PERF_REDUCED), by value. */
perfMismatch perfPatternCompare(const perfPattern *pattern, int rank, size_t first, size_t n,
                                const void *data);

__END_DECLS

#endif
