/* How payloads are stored in slots. An ordinary store takes its cache line away from the reader,
 * whose core had it last. How long that takes depends on where the two cores are: between two of
 * an AMD EPYC 18 GB/s have been seen, or 5, or, probably between two L3 caches, 1.6, where stores
 * past the caches reach 10 to 14 until the reader has the payload; elsewhere these are the slower
 * ones, by half. Threads and virtual cores move, and no machine tells: so each connection compares
 * both ways from time to time. */
#ifndef TUTTI_DEVICE_CPU_STORES_H_
#define TUTTI_DEVICE_CPU_STORES_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "device/cpu/reduce.h"
#include "transport/fifo.h"

__BEGIN_DECLS

#define TUTTI_STORES_LEAST 4096u /* bytes; of less a comparison tells nothing */

/* tuttiReduceCopy(args), whose last `slots` outputs are slots and whose nstreams is 0, in the way
 * of the connection of the first; messages of TUTTI_STORES_LEAST and more are compared now and
 * then. in and out are the arrays of args and are written to, as is args. */
void tuttiStoreSlots(tuttiStoreWay *way, tuttiReduceArgs *args, const void **in, void **out,
                     int slots);

/* Takes account of one comparison, in whatever unit: of what ordinary stores and those past the
 * caches took for the same bytes. */
void tuttiStoresCompared(tuttiStoreWay *way, uint64_t ordinary, uint64_t past);

__END_DECLS

#endif
