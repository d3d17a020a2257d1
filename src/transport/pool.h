/* Host memory for the FIFOs of connections that kernels of a GPU work on. It is pinned as a whole,
 * before any kernel runs: to pin memory can wait for kernels, and these for this rank. For the
 * thread that opens and closes connections. */
#ifndef TUTTI_TRANSPORT_POOL_H_
#define TUTTI_TRANSPORT_POOL_H_

#include <sys/cdefs.h>

#include "base/blocks.h"
#include "base/pinned.h"
#include "transport/transport.h"

__BEGIN_DECLS

/* Zero: none, of which nothing can be taken. */
typedef struct {
  void *memory;
  size_t bytes;
  tuttiPinned pinned;
  tuttiBlocks pages;
  size_t counted; /* bytes of it on the account */
  tuttiMemAccount *account;
} tuttiPool;

/* Maps `bytes`, which are rounded down to pages, and pins them for this rank's GPU. On failure
 * there is none. No kernel may wait for this rank yet. */
tuttiResult_t tuttiPoolMake(const tuttiCommView *v, size_t bytes, tuttiPool *pool);
/* Whole pages, of which nobody knows what is in them, until they are given back; NULL: there are
 * not so many in a row. */
void *tuttiPoolTake(tuttiPool *pool, size_t bytes);
void tuttiPoolGive(tuttiPool *pool, const void *at);
/* Brings the account up to date: the pages that are in use, which are all once they are pinned. */
void tuttiPoolMeasure(tuttiPool *pool);
/* No kernel and no network works on it any more. May be called again. */
void tuttiPoolDrop(tuttiPool *pool);

__END_DECLS

#endif
