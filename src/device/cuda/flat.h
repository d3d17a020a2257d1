/* Memory of several ranks in one flat range of addresses, each rank's part as far behind the one
 * before as all others are: a kernel finds a part by the rank's number alone. It takes memory that
 * can be mapped where one wants it (base/vmm.h), which is handed over by number within a process
 * and by descriptor between processes.
 *
 * In order, by all ranks at once: tuttiFlatOffer, an exchange of cards, tuttiFlatMap, an exchange
 * of anything, tuttiFlatOffered. */
#ifndef TUTTI_DEVICE_CUDA_FLAT_H_
#define TUTTI_DEVICE_CUDA_FLAT_H_

#include <cuda_runtime_api.h>
#include <sys/cdefs.h>

#include "base/vmm.h"
#include "transport/fd_box.h"
#include "transport/transport.h"

__BEGIN_DECLS

/* What a rank tells of its memory. */
typedef struct {
  uint64_t handle;        /* a tuttiVmmHandle, for ranks of its process; 0: it has no such memory */
  uint64_t bytes, offset; /* of the allocation; of the part in it */
  int32_t exported;       /* it has a descriptor for ranks of other processes */
  tuttiFdAddress box;     /* where those for this rank are to go */
} tuttiFlatCard;

/* This rank's memory, held until all have mapped it. */
typedef struct {
  tuttiVmmHandle handle; /* 0: none */
  int fd;                /* -1: no rank of another process can have it */
} tuttiFlatOwn;

/* Of one communicator: where descriptors come in. Zero at first. */
typedef struct {
  tuttiFdBox box;
  bool open;
  bool cut;       /* one has not come: between these processes none ever will */
  uint32_t round; /* counted alike on all ranks */
} tuttiFlatPost;

/* Where one part is. */
typedef struct {
  uintptr_t at;     /* 0: nowhere */
  uintptr_t mapped; /* what is mapped for it: all of the allocation */
  size_t bytes;
  const char *step; /* what failed; NULL: nothing has */
  int error;        /* a cudaError_t of it, or */
  bool system;      /* an errno */
} tuttiFlatPart;

typedef struct {
  uintptr_t base;     /* where the first rank's part is, or would be */
  size_t stride;      /* from each part to the next; a multiple of 4 GiB */
  int first, n;       /* of ranks `first` to `first + n - 1`; not all need be there */
  bool even;          /* parts that are there are where base and stride say */
  uintptr_t reserved; /* all addresses of it */
  size_t reservedBytes;
  tuttiFlatPart *part; /* [n] */
} tuttiFlat;

/* Describes the memory at `buff`; NULL: none. Ranks that have none take part all the same. */
void tuttiFlatOffer(tuttiFlatPost *post, const tuttiCommView *v, const void *buff,
                    tuttiFlatOwn *own, tuttiFlatCard *card);
/* The same of memory that is held, but mapped nowhere; the hold is given away. */
void tuttiFlatOfferHeld(tuttiFlatPost *post, const tuttiCommView *v, tuttiVmmHandle handle,
                        size_t bytes, tuttiFlatOwn *own, tuttiFlatCard *card);
/* Maps the memory of this rank, and of those that have such and store to this one, for `device`,
 * the current one. cards[nranks]. What fails is told in the parts; only memory of the host may be
 * missing. */
tuttiResult_t tuttiFlatMap(tuttiFlatPost *post, const tuttiCommView *v, int device,
                           const tuttiFlatCard *cards, const tuttiFlatOwn *own, tuttiFlat *flat);
/* All have mapped it. May be called again. */
void tuttiFlatOffered(tuttiFlatOwn *own);
/* Unmaps it; no kernel of this rank may use it any more. May be called again. */
void tuttiFlatUnmap(tuttiFlat *flat);
void tuttiFlatPostClose(tuttiFlatPost *post);

/* Where the part of a rank is; 0: nowhere in this range. */
uintptr_t tuttiFlatAt(const tuttiFlat *flat, int rank);
/* The parts of ranks `first` to `first + n - 1` are there, where base and stride say. */
bool tuttiFlatComplete(const tuttiFlat *flat, int first, int n);
/* Why the part of a rank that has such memory is not mapped; false: nothing has failed. */
bool tuttiFlatExplain(const tuttiFlat *flat, int rank, char why[TUTTI_SENTENCE]);

__END_DECLS

#endif
