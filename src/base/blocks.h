/* Memory in blocks of one size, of which some in a row are taken and given back. Who made the
 * memory keeps it; it is never looked at here, and may be that of a GPU. One thread at a time. */
#ifndef TUTTI_BASE_BLOCKS_H_
#define TUTTI_BASE_BLOCKS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/mem.h"

__BEGIN_DECLS

/* Zero: none, of which nothing can be taken. */
typedef struct {
  uint8_t *base;
  size_t each; /* bytes */
  int n;
  int32_t *taken; /* [n]: at the first of those taken at once, how many these are; else 0 */
} tuttiBlocks;

/* Divides the memory at `base` into n blocks; `what` and `account` are of their list. */
tuttiResult_t tuttiBlocksDivide(tuttiBlocks *b, void *base, int n, size_t each, const char *what,
                                tuttiMemAccount *account);
/* The first blocks in a row that are free and have so many bytes, at least 1; NULL: there are none.
 */
uint8_t *tuttiBlocksTake(tuttiBlocks *b, size_t bytes);
/* What Take has given, all of it. */
void tuttiBlocksGive(tuttiBlocks *b, const uint8_t *at);
bool tuttiBlocksHave(const tuttiBlocks *b, const uint8_t *at);
/* Forgets them. May be called again. */
void tuttiBlocksForget(tuttiBlocks *b);

__END_DECLS

#endif
