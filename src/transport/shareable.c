#include "transport/shareable.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "transport/region.h"

/* Pages that are shared, at their place in the allocation's memfd. */
typedef struct piece {
  uint8_t *begin, *end;
  struct piece *next;
} piece;

typedef struct allocation {
  uint8_t *base;
  size_t size;  /* whole pages */
  int fd;       /* as large as it, with what is shared; -1: nothing is yet */
  bool refused; /* some was to be shared and could not: see addPiece */
  piece *pieces;
  uint64_t region;
  struct allocation *next;
} allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static allocation *allocations;

tuttiResult_t tuttiShareableAlloc(void **ptr, size_t size) {
  TUTTI_FRESH(allocation, a, 1, "an allocation", NULL);
  a->size = tuttiPagesUp(size > 0 ? size : 1);
  a->fd = -1;
  a->base = MAP_FAILED;
  if (a->size >= size)
    a->base = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (a->base == MAP_FAILED)
    return TUTTI_FAIL(tuttiSystemError, "cannot allocate %zu bytes of host memory: %s", size,
                      tuttiErrnoText(a->size < size ? ENOMEM : errno));
  tuttiResult_t result = tuttiRegionAdd(a->base, a->size, &a->region);
  if (result != tuttiSuccess) {
    munmap(a->base, a->size);
    return result;
  }
  *ptr = a->base;
  TUTTI_LOCKED(&lock);
  TUTTI_LINK(allocations, a);
  a = NULL;
  return tuttiSuccess;
}

static allocation *holding(const void *at, size_t bytes) {
  uintptr_t begin = (uintptr_t)at;
  allocation *a = allocations;
  while (a && (begin < (uintptr_t)a->base || begin - (uintptr_t)a->base > a->size ||
               bytes > a->size - (begin - (uintptr_t)a->base)))
    a = a->next;
  return a;
}

void tuttiShareableFree(void *ptr) {
  TUTTI_LOCKED(&lock);
  allocation *a = allocations;
  while (a && a->base != ptr)
    a = a->next;
  if (!a) return;
  TUTTI_UNLINK(allocations, a);
  for (piece *p; (p = a->pieces) != NULL; tuttiFree(p))
    a->pieces = p->next;
  tuttiRegionRemove(a->region);
  munmap(a->base, a->size);
  tuttiFdClose(&a->fd);
  tuttiFree(a);
}

static tuttiResult_t openShared(allocation *a) {
  TUTTI_CLOSED int fd = -1;
  TUTTI_TRY(tuttiSharedFd("memory of a window", &fd));
  TUTTI_TRY(tuttiSharedFdSeal(fd, a->size, "memory of a window"));
  a->fd = tuttiFdTake(&fd);
  tuttiForkCloseAdd(a->fd);
  return tuttiSuccess;
}

/* The same contents as memory of the memfd, put in the place of the old in one step. What networks
 * have registered of the old, for whichever region, is told to be out of date when the new is
 * there: who looks before that finds no more than the old. */
static tuttiResult_t become(const allocation *a, uint8_t *begin, size_t bytes) {
  off_t offset = begin - a->base;
  void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, offset);
  if (copy == MAP_FAILED)
    return TUTTI_FAIL(tuttiSystemError, "cannot map memory of a window: %s", tuttiErrnoText(errno));
  memcpy(copy, begin, bytes);
  if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED) {
    int err = errno;
    munmap(copy, bytes);
    return TUTTI_FAIL(tuttiSystemError, "cannot move memory of a window: %s", tuttiErrnoText(err));
  }
  tuttiRegionRemapped(begin, bytes);
  return tuttiSuccess;
}

/* Where that has failed once, networks write to the window that was not shared, and would go on
 * writing to its old pages: nothing of the allocation changes its pages any more. */
static tuttiResult_t addPiece(allocation *a, uint8_t *begin, uint8_t *end, piece **added) {
  if (a->refused)
    return TUTTI_FAIL(tuttiSystemError, "another window in this memory could not be shared");
  a->refused = true;
  TUTTI_FRESH(piece, p, 1, "a piece of shared memory", NULL);
  if (a->fd < 0) TUTTI_TRY(openShared(a));
  TUTTI_TRY(become(a, begin, (size_t)(end - begin)));
  *p = (piece){.begin = begin, .end = end};
  TUTTI_LINK(a->pieces, p);
  *added = p;
  p = NULL;
  a->refused = false;
  return tuttiSuccess;
}

/* The first that has some of [begin, end); NULL: there is none. */
static piece *firstPiece(const allocation *a, const uint8_t *begin, const uint8_t *end) {
  piece *first = NULL;
  for (piece *p = a->pieces; p; p = p->next)
    if (p->begin < end && begin < p->end && (!first || p->begin < first->begin)) first = p;
  return first;
}

/* Pages that are shared already stay what they are, for other windows are in them. */
static tuttiResult_t share(allocation *a, uint8_t *begin, uint8_t *end) {
  for (piece *p; begin < end; begin = p->end) {
    p = firstPiece(a, begin, end);
    if (!p || p->begin > begin) TUTTI_TRY(addPiece(a, begin, p ? p->begin : end, &p));
  }
  return tuttiSuccess;
}

void tuttiShareableShare(const void *at, size_t bytes, tuttiShareableCard *card) {
  *card = (tuttiShareableCard){.fd = {.fd = -1}};
  TUTTI_LOCKED(&lock);
  allocation *a = bytes > 0 ? holding(at, bytes) : NULL;
  if (!a) return;
  size_t page = tuttiPagesUp(1), offset = (size_t)((const uint8_t *)at - a->base);
  if (share(a, a->base + offset / page * page, a->base + tuttiPagesUp(offset + bytes)) !=
      tuttiSuccess) {
    TUTTI_INFO(INIT, "a window is not shared, which only costs time: %s", tuttiErrorText());
    return;
  }
  if (tuttiPeerFdDescribe(a->fd, &card->fd) != 0) return;
  card->offset = offset;
  card->bytes = a->size;
}

void *tuttiShareableMap(int32_t pid, const tuttiShareableCard *card) {
  char why[128];
  struct stat st;
  if (card->fd.fd < 0 || card->bytes == 0) return NULL;
  TUTTI_CLOSED int fd = tuttiPeerFdOpen(pid, &card->fd, why, sizeof why);
  if (fd < 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size != card->bytes) return NULL;
  void *mapped = mmap(NULL, card->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return mapped != MAP_FAILED ? mapped : NULL;
}

void tuttiShareableUnmap(void *mapped, const tuttiShareableCard *card) {
  if (mapped) munmap(mapped, card->bytes);
}
