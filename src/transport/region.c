#include "transport/region.h"

#include <pthread.h>

#include "base/atomic.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "proxy/proxy.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static tuttiRegion *regions;
static uint64_t lastTime; /* counts regions, whose ids it gives, and changes of their pages */
static tuttiAtomic64 removed;
static tuttiRegionWatcher *watchers;

tuttiResult_t tuttiRegionAdd(const void *begin, size_t bytes, uint64_t *id) {
  tuttiRegion *r;
  TUTTI_NEW(r, 1, "a region of user memory", NULL);
  r->begin = (uintptr_t)begin;
  r->end = r->begin + bytes;
  TUTTI_LOCKED(&lock);
  *id = r->id = r->time = ++lastTime;
  TUTTI_LINK(regions, r);
  return tuttiSuccess;
}

/* Who keeps something for a region is to look again. */
static void tellWatchers(void) {
  tuttiFetchAddAcqRel(&removed, 1);
  for (const tuttiRegionWatcher *w = watchers; w; w = w->next)
    tuttiProxyKick(w->proxy); /* which takes no lock that is held while a region is looked for */
}

bool tuttiRegionRemove(uint64_t id) {
  TUTTI_LOCKED(&lock);
  tuttiRegion **at = &regions;
  while (*at && (*at)->id != id)
    at = &(*at)->next;
  tuttiRegion *r = *at;
  if (r) *at = r->next;
  tuttiFree(r);
  if (r) tellWatchers();
  return r != NULL;
}

uint64_t tuttiRegionAt(const void *begin) {
  TUTTI_LOCKED(&lock);
  uint64_t id = 0;
  for (const tuttiRegion *r = regions; r; r = r->next)
    if (r->begin == (uintptr_t)begin) id = r->id; /* newest first */
  return id;
}

static bool holds(const tuttiRegion *r, uintptr_t begin, uintptr_t end) {
  return r->begin <= begin && end <= r->end;
}

bool tuttiRegionFind(const void *addr, size_t bytes, tuttiRegion *found) {
  uintptr_t begin = (uintptr_t)addr, end = begin + bytes;
  TUTTI_LOCKED(&lock);
  const tuttiRegion *r = regions;
  while (r && !holds(r, begin, end))
    r = r->next;
  if (!r) return false;
  *found = *r;
  found->time = lastTime;
  return true;
}

void tuttiRegionRemapped(const void *begin, size_t bytes) {
  uintptr_t from = (uintptr_t)begin, to = from + bytes;
  TUTTI_LOCKED(&lock);
  lastTime++;
  for (tuttiRegion *r = regions; r; r = r->next)
    if (r->begin < to && from < r->end) r->time = lastTime;
  tellWatchers();
}

bool tuttiRegionLasts(const tuttiRegion *found) {
  TUTTI_LOCKED(&lock);
  const tuttiRegion *r = regions;
  while (r && !(holds(r, found->begin, found->end) && r->time <= found->time))
    r = r->next;
  return r != NULL;
}

uint64_t tuttiRegionsRemoved(void) {
  return tuttiLoadAcquire(&removed);
}

void tuttiRegionWatch(tuttiRegionWatcher *w, tuttiProxy *proxy) {
  TUTTI_LOCKED(&lock);
  w->proxy = proxy;
  TUTTI_LINK(watchers, w);
}

void tuttiRegionUnwatch(tuttiRegionWatcher *w) {
  TUTTI_LOCKED(&lock);
  if (w->proxy) TUTTI_UNLINK(watchers, w);
  w->proxy = NULL;
}
