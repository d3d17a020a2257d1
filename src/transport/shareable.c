#include "transport/shareable.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "transport/region.h"

typedef struct allocation {
  uint8_t *base;
  size_t size; /* whole pages */
  int fd;      /* of what it has become; -1: it is not shared */
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
  tuttiRegionRemove(a->region);
  munmap(a->base, a->size);
  tuttiFdClose(&a->fd);
  tuttiFree(a);
}

/* The same contents as memory of a memfd, put in the place of the old in one step. What networks
 * have registered of the old, for whichever region, is told to be out of date when the new is
 * there: who looks before that finds no more than the old. */
static tuttiResult_t become(allocation *a) {
  TUTTI_CLOSED int fd = -1;
  TUTTI_TRY(tuttiSharedFd("memory of a window", &fd));
  TUTTI_TRY(tuttiSharedFdSeal(fd, a->size, "memory of a window"));
  void *copy = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (copy == MAP_FAILED)
    return TUTTI_FAIL(tuttiSystemError, "cannot map memory of a window: %s", tuttiErrnoText(errno));
  memcpy(copy, a->base, a->size);
  if (mremap(copy, a->size, a->size, MREMAP_MAYMOVE | MREMAP_FIXED, a->base) == MAP_FAILED) {
    int err = errno;
    munmap(copy, a->size);
    return TUTTI_FAIL(tuttiSystemError, "cannot move memory of a window: %s", tuttiErrnoText(err));
  }
  a->fd = tuttiFdTake(&fd);
  tuttiForkCloseAdd(a->fd);
  tuttiRegionRemapped(a->base, a->size);
  return tuttiSuccess;
}

void tuttiShareableShare(const void *at, size_t bytes, tuttiShareableCard *card) {
  *card = (tuttiShareableCard){.fd = {.fd = -1}};
  TUTTI_LOCKED(&lock);
  allocation *a = holding(at, bytes);
  if (!a) return;
  if (a->fd < 0 && become(a) != tuttiSuccess)
    TUTTI_INFO(INIT, "a window is not shared, which only costs time: %s", tuttiErrorText());
  if (a->fd < 0 || tuttiPeerFdDescribe(a->fd, &card->fd) != 0) return;
  card->offset = (uint64_t)((const uint8_t *)at - a->base);
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
