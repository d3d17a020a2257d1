/* What one rank believes an operation to be. Travels with every message, so that a mismatch between
 * ranks is seen where the data meets, at the cost of comparing six numbers (GPUs: one hash). */
#ifndef TUTTI_COLLECTIVES_SIGNATURE_H_
#define TUTTI_COLLECTIVES_SIGNATURE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_MAX_CHANNELS 32  /* of an operation */
#define TUTTI_MAX_BLOCKS   128 /* of an operation on a GPU */

#define TUTTI_COLLECTIVES(X)                                                                       \
  X(AllReduce)                                                                                     \
  X(Broadcast)                                                                                     \
  X(Reduce) X(AllGather) X(ReduceScatter) X(AlltoAll) X(Gather) X(Scatter) X(SendRecv) X(Split)

#define TUTTI_COLLECTIVE(name) tuttiColl##name,
typedef enum { TUTTI_COLLECTIVES(TUTTI_COLLECTIVE) tuttiCollCount } tuttiColl;

/* clang-format off */
/* Element types: end of the enumerator, name, bytes. */
#define TUTTI_TYPES(X)                                                                             \
  X(Int8, int8, 1) X(Uint8, uint8, 1) X(Int32, int32, 4) X(Uint32, uint32, 4)                      \
  X(Int64, int64, 8) X(Uint64, uint64, 8) X(Float16, float16, 2) X(Float32, float32, 4)            \
  X(Float64, float64, 8) X(Bfloat16, bfloat16, 2)                                                  \
  X(Float8e4m3, float8e4m3, 1) X(Float8e5m2, float8e5m2, 1)
/* clang-format on */

/* The scalar of PreMulSum, in the widest form of its type: f for float types, i for integer types
 * (sign- or zero-extended). */
typedef union {
  double f;
  uint64_t i;
} tuttiScalar;

static inline bool tuttiCollReduces(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollReduce || coll == tuttiCollReduceScatter;
}

static inline bool tuttiCollHasRoot(int coll) {
  return coll == tuttiCollBroadcast || coll == tuttiCollReduce || coll == tuttiCollGather ||
         coll == tuttiCollScatter;
}

/* One buffer of a collective: whether it has a block per rank, and whether it is the root's alone.
 */
typedef struct {
  bool perRank, rootOnly;
} tuttiBufferShape;
typedef struct {
  tuttiBufferShape send, recv;
} tuttiCollShape;
/* A message has one of the two, of one block. */
extern const tuttiCollShape tuttiCollShapes[tuttiCollCount];
/* Blocks that a rank has in such a buffer; 0: the buffer is not used. */
static inline size_t tuttiShapeBlocks(tuttiBufferShape shape, bool isRoot, int nranks) {
  if (shape.rootOnly && !isRoot) return 0;
  return shape.perRank ? (size_t)nranks : 1;
}

/* Enum names, from the lists in their headers; "?" when out of range. */
const char *tuttiCollName(int coll);     /* "AllReduce" */
const char *tuttiTypeName(int datatype); /* "float32" */
const char *tuttiRedOpName(int op);      /* "sum"; "premulsum" for handles */

extern const char *const tuttiTypeNames[tuttiNumTypes], *const tuttiRedOpNames[tuttiNumOps];
extern const uint8_t tuttiTypeSizes[tuttiNumTypes];
/* Bytes, a power of two; 0 when out of range. */
static inline size_t tuttiTypeSize(int datatype) {
  return datatype >= 0 && datatype < tuttiNumTypes ? tuttiTypeSizes[datatype] : 0;
}
/* The same, to divide by: 1 for what is no type, which the calls refuse. */
static inline size_t tuttiElementBytes(int datatype) {
  size_t bytes = tuttiTypeSize(datatype);
  return bytes > 0 ? bytes : 1;
}

static inline bool tuttiTypeIsUnsigned(int datatype) {
  return datatype == tuttiUint8 || datatype == tuttiUint32 || datatype == tuttiUint64;
}

typedef struct {
  uint64_t seq;   /* 1, 2, ...: collectives of a communicator, or messages of one ordered pair */
  uint64_t count; /* as passed by the caller */
  int32_t root;   /* -1 where the collective has none */
  uint8_t coll;   /* tuttiColl */
  uint8_t type;   /* tuttiDataType_t */
  uint16_t redop; /* 0..4, 5 for PreMulSum; 0xffff where there is none */
} tuttiSignature; /* 24 bytes, no padding; travels between hosts of one byte order */

/* Without a branch for each: nearly always all are equal. */
static inline bool tuttiSignatureEqual(const tuttiSignature *a, const tuttiSignature *b) {
  uint32_t differs = (uint32_t)(a->root ^ b->root) | (uint32_t)(a->coll ^ b->coll) |
                     (uint32_t)(a->type ^ b->type) | (uint32_t)(a->redop ^ b->redop);
  return ((a->seq ^ b->seq) | (a->count ^ b->count) | differs) == 0;
}

/* FNV-1a over what must be equal on both sides of a message but its number; never 0. */
static inline uint32_t tuttiSignatureHash(const tuttiSignature *sig) {
  tuttiSignature key = *sig;
  key.seq = 0;
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < sizeof key; i++)
    h = (h ^ ((const uint8_t *)&key)[i]) * 16777619u;
  return h | 1;
}

/* "#12 AllReduce(count 1024, float32, sum)"; returns buf. */
const char *tuttiSignatureText(const tuttiSignature *sig, char *buf, size_t size);

__END_DECLS

#endif
