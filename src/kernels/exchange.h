/* The kernel that runs a tuttiExchange on a GPU, and the memory it works on. Needs no CUDA header.
 *
 * Every rank has a symmetric block that all its neighbours can store into. It holds FIFOs of DEPTH
 * slots, filled by a neighbour: one for each of the kernel's thread blocks, exchange and neighbour;
 * and each of these twice: lines that carry their own flag (protocol LL) and plain data whose flag
 * follows a fence (protocol Simple). Both count the same messages. A flag is a message's number and
 * the hash of its operation, so that a neighbour that calls something else is noticed and never
 * believed. */
#ifndef TUTTI_KERNELS_EXCHANGE_H_
#define TUTTI_KERNELS_EXCHANGE_H_

#include <stddef.h>
#include <stdint.h>

#include "collectives/exchange.h"
#include "kernels/reduce.h"
#include "tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_EXCHANGE_BLOCKS       128u /* most thread blocks of one launch */
#define TUTTI_EXCHANGE_LL_BLOCKS    64u  /* the same with protocol LL */
#define TUTTI_EXCHANGE_DEPTH        4u   /* what exchange.cu relies on */
#define TUTTI_EXCHANGE_LINE         128u /* LL: 120 bytes of payload, then 8 of flag */
#define TUTTI_EXCHANGE_LINE_PAYLOAD 120u
#define TUTTI_EXCHANGE_LL_SLOT      8192u
#define TUTTI_EXCHANGE_SIMPLE_SLOT  32768u
#define TUTTI_EXCHANGE_THREADS      512 /* that move data */
#define TUTTI_EXCHANGE_PEERS        (TUTTI_EXCHANGE_MAX - 1)

/* Where every rank sends to every other, messages of LL up to a size have regions of their own
 * instead of slots: exchange_uniform.cuh. */
#define TUTTI_UNIFORM_BLOCKS 128u
#define TUTTI_UNIFORM_REGION ((size_t)2304 << 10)
#define TUTTI_UNIFORM_BYTES                                                                        \
  (TUTTI_UNIFORM_REGION / TUTTI_EXCHANGE_LINE * TUTTI_EXCHANGE_LINE_PAYLOAD)

/* The two exchanges: what `out` sends, what is spread. */
#define TUTTI_EXCHANGE_KINDS 2

/* The head of a symmetric block; zero when new. Peers are in ascending rank without the owner. */
typedef struct {
  uint64_t flag[TUTTI_EXCHANGE_BLOCKS][TUTTI_EXCHANGE_KINDS][TUTTI_EXCHANGE_PEERS]
               [TUTTI_EXCHANGE_DEPTH];
  /* Messages that the peer has taken. */
  uint32_t head[TUTTI_EXCHANGE_BLOCKS][TUTTI_EXCHANGE_KINDS][TUTTI_EXCHANGE_PEERS];
  /* Of this rank alone: messages sent to and taken from each peer by all kernels before. */
  uint32_t sent[TUTTI_EXCHANGE_BLOCKS][TUTTI_EXCHANGE_KINDS][TUTTI_EXCHANGE_PEERS];
  uint32_t taken[TUTTI_EXCHANGE_BLOCKS][TUTTI_EXCHANGE_KINDS][TUTTI_EXCHANGE_PEERS];
  uint32_t uniform[TUTTI_UNIFORM_BLOCKS]; /* uniform exchanges so far; all the same */
} tuttiExchangeHead;

#define TUTTI_EXCHANGE_LL_AT ((sizeof(tuttiExchangeHead) + 4095) / 4096 * 4096)
/* Slots of all FIFOs of `blocks` thread blocks. */
static inline size_t tuttiExchangeSlots(unsigned blocks, int nranks) {
  return (size_t)blocks * TUTTI_EXCHANGE_KINDS * (size_t)(nranks - 1) * TUTTI_EXCHANGE_DEPTH;
}
static inline size_t tuttiExchangeSimpleAt(int nranks) {
  return TUTTI_EXCHANGE_LL_AT +
         tuttiExchangeSlots(TUTTI_EXCHANGE_LL_BLOCKS, nranks) * TUTTI_EXCHANGE_LL_SLOT;
}
static inline size_t tuttiExchangeUniformAt(int nranks) {
  return tuttiExchangeSimpleAt(nranks) +
         tuttiExchangeSlots(TUTTI_EXCHANGE_BLOCKS, nranks) * TUTTI_EXCHANGE_SIMPLE_SLOT;
}
static inline size_t tuttiExchangeBlockBytes(int nranks) {
  return tuttiExchangeUniformAt(nranks) +
         2 * TUTTI_EXCHANGE_KINDS * (size_t)(nranks - 1) * TUTTI_UNIFORM_REGION;
}

/* Host memory that the host and the kernels of one communicator share. */
typedef struct {
  uint32_t abort;  /* host: end every wait */
  uint32_t stalls; /* kernel: grows with each report below */
  int32_t peer;    /* whom a kernel waits for */
  uint32_t waitedMs;
  uint32_t disagrees; /* 1: the peer's message is of another operation */
  uint32_t pad;
  tuttiSignature sig; /* of the operation that waits */
} tuttiExchangeMail;

/* One neighbour. Sizes and offsets in bytes; a part is what one thread block takes care of. */
typedef struct {
  uint8_t *block; /* its symmetric block, as this rank maps it */
  uint64_t outAt, outBytes, outPart;
  uint64_t inBytes, inPart, placeAt;
  uint64_t lateBytes, latePart, lateAt;
  uint32_t spread;
  uint32_t outHash, inHash; /* of the operation, in flags to and from it; not 0 */
  uint32_t column;          /* of this rank in its block */
  int32_t rank;
  uint32_t pad;
} tuttiExchangeLink;

typedef struct {
  uint8_t *block;
  uint64_t simpleAt, uniformAt;
  const uint8_t *send;
  uint8_t *recv;
  uint64_t bytes, part, ownAt, keepAt;
  uint32_t combine, own, keep;
  uint32_t loops; /* chunks of the longest part */
  int32_t nlinks;
  int32_t place; /* of the own operand among the links: operands are reduced in order of rank */
  tuttiRedOp_t op;
  int32_t divide;
  uint32_t premul;
  uint32_t lines, spreads; /* uniform: of the longest message; to all, in the second exchange */
  uint32_t pad;
  tuttiScalar scalar;
  const void *scalarAt; /* of the element's type on the device; NULL: `scalar` */
  tuttiExchangeMail *mail;
  tuttiSignature sig;
  tuttiExchangeLink link[TUTTI_EXCHANGE_PEERS];
} __attribute__((aligned(16))) tuttiExchangeArgs;

/* Enqueues the kernel for elements of `type`; with uniform that of exchange_uniform.cuh. Returns a
 * cudaError_t. */
int tuttiExchangeLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto, int uniform,
                        int nblocks, int nthreads, tuttiStream_t stream);
/* Loads the kernels, so that no first call does; a cudaError_t. */
int tuttiExchangeLoad(void);

#ifdef __cplusplus
}
#endif

#endif
