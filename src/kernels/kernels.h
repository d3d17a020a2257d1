/* The kernels that there are, by element type. Needs no CUDA header. */
#ifndef TUTTI_KERNELS_KERNELS_H_
#define TUTTI_KERNELS_KERNELS_H_

#include <sys/cdefs.h>

__BEGIN_DECLS

/* Those between all pairs of one type, as the CUDA runtime takes them; group.cuh has them compiled.
 */
typedef struct {
  const void *simple;      /* allpairs_simple.cuh */
  const void *unrooted[2]; /* allpairs_regions.cuh, for up to 3 and for up to 7 links */
  const void *rooted[2];   /*   the same with a root */
  const void *staged;      /*   in host memory, for up to 7 links */
} tuttiKernels;

/* clang-format off */
/* X(element type, whose kernels it has): signed and unsigned integers have the same. */
#define TUTTI_KERNELS_OF_TYPES(X)                                                                  \
  X(Int8, Int8) X(Uint8, Int8) X(Int32, Int32) X(Uint32, Int32) X(Int64, Int64) X(Uint64, Int64)   \
  X(Float16, Float16) X(Bfloat16, Bfloat16) X(Float32, Float32) X(Float64, Float64)                \
  X(Float8e4m3, Float8e4m3) X(Float8e5m2, Float8e5m2)
/* clang-format on */
#define TUTTI_KERNELS(type, like) extern const tuttiKernels tuttiKernels##like;
TUTTI_KERNELS_OF_TYPES(TUTTI_KERNELS)
#undef TUTTI_KERNELS

/* Of what is only moved, as words of 8 bytes: copies.cu. No `simple`: that of int64 does. */
extern const tuttiKernels tuttiKernelsCopies;
/* Of any type: messages are bytes. allpairs_messages.cuh */
extern const void *const tuttiKernelMessages;
extern const void *const tuttiKernelRingTree; /* ringtree.cu: for all types */
/* onesided.cu */
extern const void *const tuttiKernelPut, *const tuttiKernelPutWords, *const tuttiKernelRelay,
                                                                         *const tuttiKernelAwait;

__END_DECLS

#endif
