#include "device/cpu/stores.h"

#include <stdbool.h>

#include "base/os.h"

/* Of each way: a page, so that where pages are touched for the first time both have as many. */
#define COMPARED_BYTES 4096u
#define COMPARED_ALIGN 64u /* both begin with a cache line */
#define APART_BYTES                                                                                \
  (2u << 20) /* between comparisons: the slower way may take ten times as long                     \
              */

/* What is stored past the caches is fetched from memory: not worth it for a little, and where the
 * ways take about the same nothing is gained by going to and fro. */
#define LEAVE_AT  3.0
#define RETURN_AT 2.0
#define DOUBTS    2 /* one comparison may have met an interrupt */

void tuttiStoresCompared(tuttiStoreWay *way, uint64_t ordinary, uint64_t past) {
  bool better = (double)ordinary > (way->streams ? RETURN_AT : LEAVE_AT) * (double)past;
  bool doubted = better != (way->streams != 0);
  way->doubts = doubted ? way->doubts + 1 : 0;
  way->left = doubted ? 0 : APART_BYTES;
  way->turn = !way->turn;
  if (way->doubts < DOUBTS) return;
  way->streams = better;
  way->doubts = 0;
  way->left = APART_BYTES;
}

/* The first `count` elements, which args does not have any more then; returns the time. */
static uint64_t storePart(tuttiReduceArgs *args, const void **in, void **out, size_t count,
                          int nstreams) {
  tuttiReduceArgs part = *args;
  part.count = count;
  part.nstreams = nstreams;
  uint64_t begin = tuttiNow();
  tuttiReduceCopy(&part);
  uint64_t took = tuttiNow() - begin;
  size_t bytes = count * tuttiTypeSize(args->type);
  for (int i = 0; i < args->nin; i++)
    in[i] = (const uint8_t *)in[i] + bytes;
  for (int j = 0; j < args->nout; j++)
    out[j] = (uint8_t *)out[j] + bytes;
  args->count -= count;
  return took;
}

void tuttiStoreSlots(tuttiStoreWay *way, tuttiReduceArgs *args, const void **in, void **out,
                     int slots) {
  size_t size = tuttiTypeSize(args->type), bytes = args->count * size;
  if (bytes < TUTTI_STORES_LEAST) {
    tuttiReduceCopy(args);
    return;
  }
  if (way->left < bytes) {
    size_t half = bytes / 2 / COMPARED_ALIGN * COMPARED_ALIGN;
    size_t count = (half < COMPARED_BYTES ? half : COMPARED_BYTES) / size;
    int first = way->turn ? slots : 0;
    uint64_t took[2];
    took[way->turn] = storePart(args, in, out, count, first);
    took[!way->turn] = storePart(args, in, out, count, slots - first);
    tuttiStoresCompared(way, took[0], took[1]);
  } else {
    way->left -= (uint32_t)bytes;
  }
  args->nstreams = way->streams ? slots : 0;
  tuttiReduceCopy(args);
}
