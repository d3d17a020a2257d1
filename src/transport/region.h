/* Memory that the user promised to keep: what tuttiMemAlloc gave on host memory, and what
 * tuttiCommRegister was told of. A network that can send straight out of it looks it up here. */
#ifndef TUTTI_TRANSPORT_REGION_H_
#define TUTTI_TRANSPORT_REGION_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

typedef struct tuttiRegion {
  uintptr_t begin, end;
  uint64_t id;   /* never used again */
  uint64_t time; /* since when it has its pages; in a copy, when that was made */
  struct tuttiRegion *next;
} tuttiRegion;

/* Thread-safe. The region stays until tuttiRegionRemove, which returns false if there is none with
 * that id. */
tuttiResult_t tuttiRegionAdd(const void *begin, size_t bytes, uint64_t *id);
bool tuttiRegionRemove(uint64_t id);
/* The id of the region that begins at `begin`, of the oldest if there are more; 0: none. */
uint64_t tuttiRegionAt(const void *begin);
/* The newest region that holds all of [addr, addr + bytes), as a copy; false: none. */
bool tuttiRegionFind(const void *addr, size_t bytes, tuttiRegion *found);
/* There are other pages at [begin, begin + bytes) now: what was made of a region there is out of
 * date. */
void tuttiRegionRemapped(const void *begin, size_t bytes);
/* Whether what was made of `found`, a copy of Find, is right still: a region that was there then
 * and holds all of that is there, with the pages that it had. It may be another one than was found:
 * several may hold the same memory, and each keeps it there. */
bool tuttiRegionLasts(const tuttiRegion *found);
/* Counts removals, and Remapped: who keeps something for a region looks again when it has changed.
 */
uint64_t tuttiRegionsRemoved(void);
/* Has the proxy kicked at each of these, so that its operations look at once, until Unwatch, after
 * which it is not touched any more. Unwatch of what is zero does nothing. */
struct tuttiProxy;
typedef struct tuttiRegionWatcher {
  struct tuttiProxy *proxy;
  struct tuttiRegionWatcher *next;
} tuttiRegionWatcher;
void tuttiRegionWatch(tuttiRegionWatcher *w, struct tuttiProxy *proxy);
void tuttiRegionUnwatch(tuttiRegionWatcher *w);

__END_DECLS

#endif
