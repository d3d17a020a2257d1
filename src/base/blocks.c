#include "base/blocks.h"

#include "base/error.h"

tuttiResult_t tuttiBlocksDivide(tuttiBlocks *b, void *base, int n, size_t each, const char *what,
                                tuttiMemAccount *account) {
  TUTTI_NEW(b->taken, n, what, account);
  b->base = base;
  b->each = each;
  b->n = n;
  return tuttiSuccess;
}

uint8_t *tuttiBlocksTake(tuttiBlocks *b, size_t bytes) {
  if (b->n == 0 || bytes > (size_t)b->n * b->each) return NULL;
  int wanted = (int)((bytes + b->each - 1) / b->each), first = 0;
  while (first + wanted <= b->n) {
    int i = first;
    while (i < first + wanted && b->taken[i] == 0)
      i++;
    if (i == first + wanted) {
      b->taken[first] = wanted;
      return b->base + (size_t)first * b->each;
    }
    first = i + b->taken[i];
  }
  return NULL;
}

void tuttiBlocksGive(tuttiBlocks *b, const uint8_t *at) {
  b->taken[(size_t)(at - b->base) / b->each] = 0;
}

bool tuttiBlocksHave(const tuttiBlocks *b, const uint8_t *at) {
  uintptr_t base = (uintptr_t)b->base, place = (uintptr_t)at;
  return place >= base && place - base < (size_t)b->n * b->each;
}

void tuttiBlocksForget(tuttiBlocks *b) {
  tuttiFree(b->taken);
  *b = (tuttiBlocks){0};
}
