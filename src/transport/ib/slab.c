/* Blocks of GPU memory for the payloads of connections. */
#include <string.h>

#include "base/mem.h"
#include "transport/ib/endpoint.h"

tuttiResult_t tuttiIbSlabDivide(const tuttiIbNode *node, tuttiIbSlab *slab, int nblocks,
                                size_t blockBytes) {
  TUTTI_NEW(slab->taken, (size_t)nblocks, "blocks of GPU memory", node->view->memory);
  slab->blockBytes = blockBytes;
  slab->nblocks = nblocks;
  slab->account = node->view->memory;
  tuttiFetchAddAcqRel(&slab->account->bytes, slab->memory.bytes);
  return tuttiSuccess;
}

uint8_t *tuttiIbSlabTake(tuttiIbSlab *slab) {
  for (int i = 0; i < slab->nblocks; i++) {
    if (slab->taken[i]) continue;
    slab->taken[i] = true;
    return (uint8_t *)slab->memory.memory + (size_t)i * slab->blockBytes;
  }
  return NULL;
}

bool tuttiIbSlabHas(const tuttiIbSlab *slab, const uint8_t *block) {
  uintptr_t base = (uintptr_t)slab->memory.memory, at = (uintptr_t)block;
  return at >= base && at - base < (size_t)slab->nblocks * slab->blockBytes;
}

void tuttiIbSlabGive(tuttiIbSlab *slab, const uint8_t *block) {
  slab->taken[(size_t)(block - (uint8_t *)slab->memory.memory) / slab->blockBytes] = false;
}

void tuttiIbSlabDrop(tuttiIbSlab *slab) {
  tuttiIbDeregister(slab->mr);
  if (slab->account) tuttiFetchAddAcqRel(&slab->account->bytes, -(uint64_t)slab->memory.bytes);
  tuttiGpuFree(&slab->memory);
  tuttiFree(slab->taken);
  *slab = (tuttiIbSlab){0};
}
