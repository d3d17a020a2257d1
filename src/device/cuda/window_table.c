#ifdef TUTTI_HAVE_CUDA

#include "device/cuda/window_table.h"

#include <stddef.h>
#include <string.h>

#include "base/cuda.h"
#include "base/error.h"
#include "kernels/allpairs.h"

#define ROWS       (TUTTI_ALLPAIRS_WINDOWS / TUTTI_WINDOW_ROW)
#define SEEN_BYTES 128 /* for each window, so that none shares lines with another */
#define SEEN_AT    ((ROWS * sizeof(tuttiWindowRow) + SEEN_BYTES - 1) / SEEN_BYTES * SEEN_BYTES)
#define BYTES      (SEEN_AT + (size_t)TUTTI_ALLPAIRS_WINDOWS * SEEN_BYTES)

_Static_assert(sizeof(struct tuttiWindow) <= SEEN_BYTES, "each has its place");
_Static_assert(sizeof(struct tuttiWindow) == 72, "NCCL's layout");
_Static_assert(sizeof(tuttiWindowRow) == 776, "NCCL's layout");

static tuttiResult_t fill(const tuttiWindowTable *t) {
  CUDA_TRY(cudaMemsetAsync(t->memory, 0, BYTES, t->stream));
  tuttiWindowRow *rows = (tuttiWindowRow *)t->memory;
  for (unsigned i = 0; i + 1 < ROWS; i++) {
    uint64_t next = (uintptr_t)&rows[i + 1];
    TUTTI_TRY(tuttiCudaTell(&rows[i].next, &next, sizeof next, t->stream));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiWindowTableMake(tuttiWindowTable *t, int device, cudaStream_t stream) {
  tuttiWindowTable made = {.device = device, .stream = stream};
  if (t->memory) return tuttiSuccess;
  CUDA_TRY(tuttiVmmAlloc(BYTES, (void **)&made.memory));
  tuttiResult_t result = fill(&made);
  if (result != tuttiSuccess) {
    tuttiVmmFreeIdle(device, made.memory, BYTES);
    return result;
  }
  *t = made;
  return tuttiSuccess;
}

void tuttiWindowTableFree(tuttiWindowTable *t) {
  if (t->memory) tuttiVmmFreeIdle(t->device, t->memory, BYTES);
  t->memory = NULL;
}

struct tuttiWindow tuttiWindowSeen(const tuttiFlat *flat, size_t beside, const tuttiCommView *v) {
  int lsaRank = v->rank % v->lsaSize;
  size_t places = (size_t)(v->rank - lsaRank - flat->first);
  return (struct tuttiWindow){
      .lsaBase = (char *)(flat->base + places * flat->stride + beside), // NOLINT: of the GPU
      .lsaRank = lsaRank,
      .worldRank = v->rank,
      .stride4G = (uint32_t)(flat->stride >> 32)};
}

tuttiResult_t tuttiWindowTableAdd(tuttiWindowTable *t, int index, const struct tuttiWindow *seen,
                                  uintptr_t buff, size_t size, tuttiWindow_t *out) {
  uint8_t *at = t->memory + SEEN_AT + (size_t)index * SEEN_BYTES;
  tuttiWindowRow *rows = (tuttiWindowRow *)t->memory;
  tuttiWindowEntry entry = {.base = buff, .size = size, .window = (uintptr_t)at};
  TUTTI_TRY(tuttiCudaTell(at, seen, sizeof *seen, t->stream));
  TUTTI_TRY(tuttiCudaTell(&rows[index / TUTTI_WINDOW_ROW].entry[index % TUTTI_WINDOW_ROW], &entry,
                          sizeof entry, t->stream));
  *out = (tuttiWindow_t)at;
  return tuttiSuccess;
}

void tuttiWindowTableRemove(const tuttiWindowTable *t, int index) {
  static const tuttiWindowEntry none;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  tuttiWindowRow *rows = (tuttiWindowRow *)t->memory;
  void *at = &rows[index / TUTTI_WINDOW_ROW].entry[index % TUTTI_WINDOW_ROW];
  cudaError_t err = cudaSuccess;
  if (tuttiCudaEnter(t->device, &before) != tuttiSuccess) return;
  err = cudaMemcpyAsync(at, &none, sizeof none, cudaMemcpyHostToDevice, t->stream);
  if (err == cudaSuccess) err = cudaStreamSynchronize(t->stream);
  if (err != cudaSuccess) cudaGetLastError(); /* nobody looks it up any more */
}

#endif
