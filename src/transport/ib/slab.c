/* Blocks of GPU memory for the payloads of connections. */
#include "base/mem.h"
#include "transport/ib/endpoint.h"

tuttiResult_t tuttiIbSlabDivide(const tuttiIbNode *node, tuttiIbSlab *slab, int nblocks,
                                size_t blockBytes) {
  tuttiMemAccount *account = node->view->memory;
  TUTTI_TRY(tuttiBlocksDivide(&slab->blocks, slab->memory.memory, nblocks, blockBytes,
                              "blocks of GPU memory", account));
  slab->account = account;
  tuttiFetchAddAcqRel(&account->bytes, slab->memory.bytes);
  return tuttiSuccess;
}

void tuttiIbSlabDrop(tuttiIbSlab *slab) {
  tuttiIbDeregister(slab->mr);
  if (slab->account) tuttiFetchAddAcqRel(&slab->account->bytes, -(uint64_t)slab->memory.bytes);
  tuttiGpuFree(&slab->memory);
  tuttiBlocksForget(&slab->blocks);
  *slab = (tuttiIbSlab){0};
}
