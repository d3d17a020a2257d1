#include "transport/pool.h"

#include "base/error.h"

static tuttiResult_t makeOne(const tuttiCommView *v, tuttiPool *pool) {
  size_t page = tuttiPagesUp(1);
  TUTTI_TRY(tuttiMap(&pool->memory, pool->bytes, -1, "FIFOs of connections", NULL));
  TUTTI_TRY(tuttiPin(v->rank, tuttiPeerGpu(&v->peers[v->rank]), pool->memory, pool->bytes,
                     &pool->pinned));
  return tuttiBlocksDivide(&pool->pages, pool->memory, (int)(pool->bytes / page), page,
                           "pages for FIFOs", v->memory);
}

tuttiResult_t tuttiPoolMake(const tuttiCommView *v, size_t bytes, tuttiPool *pool) {
  size_t page = tuttiPagesUp(1);
  *pool = (tuttiPool){.bytes = bytes / page * page, .account = v->memory};
  tuttiResult_t result = makeOne(v, pool);
  if (result == tuttiSuccess)
    tuttiPoolMeasure(pool);
  else
    tuttiPoolDrop(pool);
  return result;
}

void *tuttiPoolTake(tuttiPool *pool, size_t bytes) {
  return tuttiBlocksTake(&pool->pages, bytes);
}

void tuttiPoolGive(tuttiPool *pool, const void *at) {
  tuttiBlocksGive(&pool->pages, at);
}

void tuttiPoolMeasure(tuttiPool *pool) {
  if (!pool->memory) return;
  size_t now = tuttiResident(pool->memory, pool->bytes);
  tuttiFetchAddAcqRel(&pool->account->bytes, now - pool->counted); /* wraps when it is less */
  pool->counted = now;
}

void tuttiPoolDrop(tuttiPool *pool) {
  if (pool->account) tuttiFetchAddAcqRel(&pool->account->bytes, -(uint64_t)pool->counted);
  tuttiBlocksForget(&pool->pages);
  tuttiUnpin(&pool->pinned);
  tuttiUnmap(pool->memory, pool->bytes, NULL);
  *pool = (tuttiPool){0};
}
