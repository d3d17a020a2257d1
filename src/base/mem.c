#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define ALIGNMENT 64

/* In front of every block, so that tuttiFree knows whom to credit. */
typedef struct {
  tuttiMemAccount *account;
  size_t bytes; /* of the whole block */
} blockHeader;

static void count(tuttiMemAccount *account, int64_t bytes) {
  if (account != NULL) tuttiFetchAddAcqRel(&account->bytes, (uint64_t)bytes);
}

tuttiResult_t tuttiAlloc(void **ptr, size_t n, size_t size, const char *what,
                         tuttiMemAccount *account) {
  size_t bytes, block;
  if (__builtin_mul_overflow(n, size, &bytes) || __builtin_add_overflow(bytes, ALIGNMENT, &block))
    return TUTTI_FAIL(tuttiSystemError,
                      "cannot allocate %s: %zu elements of %zu bytes are more than memory can hold",
                      what, n, size);
  void *base;
  int err = posix_memalign(&base, ALIGNMENT, block);
  if (err != 0)
    return TUTTI_FAIL(tuttiSystemError,
                      "cannot allocate %zu bytes for %s: %s; check the memory limits (ulimit -v, "
                      "cgroup) and what else runs on this host",
                      bytes, what, tuttiErrnoText(err));
  memset(base, 0, block);
  *(blockHeader *)base = (blockHeader){.account = account, .bytes = block};
  count(account, (int64_t)block);
  *ptr = (char *)base + ALIGNMENT;
  return tuttiSuccess;
}

void tuttiFree(void *ptr) {
  if (ptr == NULL) return;
  blockHeader *header = (blockHeader *)((char *)ptr - ALIGNMENT);
  count(header->account, -(int64_t)header->bytes);
  free(header);
}

tuttiResult_t tuttiGrow(void **array, int used, int *capacity, size_t size, const char *what,
                        tuttiMemAccount *account) {
  void *bigger;
  int more = *capacity > 0 ? 2 * *capacity : 16;
  if (used < *capacity) return tuttiSuccess;
  TUTTI_TRY(tuttiAlloc(&bigger, (size_t)more, size, what, account));
  if (used > 0) memcpy(bigger, *array, (size_t)used * size);
  tuttiFree(*array);
  *array = bigger;
  *capacity = more;
  return tuttiSuccess;
}

size_t tuttiPagesUp(size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (size + page - 1) / page * page;
}

/* Touching a page beyond the end of a file kills the process (SIGBUS). */
static tuttiResult_t checkFileSize(int fd, size_t size, const char *what) {
  struct stat st;
  if (fstat(fd, &st) != 0)
    return TUTTI_FAIL(tuttiSystemError, "cannot map %s: fstat of fd %d: %s", what, fd,
                      tuttiErrnoText(errno));
  if (st.st_size < 0 || (uint64_t)st.st_size < size)
    return TUTTI_FAIL(tuttiSystemError,
                      "cannot map %zu bytes for %s: the memory behind fd %d is only %lld bytes",
                      size, what, fd, (long long)st.st_size);
  return tuttiSuccess;
}

tuttiResult_t tuttiMap(void **at, size_t size, int fd, const char *what, tuttiMemAccount *account) {
  return tuttiMapPart(at, 0, size, fd, what, account);
}

tuttiResult_t tuttiMapPart(void **at, size_t offset, size_t size, int fd, const char *what,
                           tuttiMemAccount *account) {
  size_t bytes = tuttiPagesUp(size);
  if (bytes < size || bytes == 0)
    return TUTTI_FAIL(tuttiSystemError, "cannot map %s: no mapping has %zu bytes", what, size);
  if (fd >= 0) TUTTI_TRY(checkFileSize(fd, offset + size, what));
  int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd >= 0 ? fd : -1, (off_t)offset);
  if (mapped == MAP_FAILED)
    return TUTTI_FAIL(
        tuttiSystemError,
        "cannot map %zu bytes for %s: %s; check the memory limits (ulimit -v, cgroup) "
        "and vm.max_map_count",
        bytes, what, tuttiErrnoText(errno));
  /* Core dumps and forked children have no use for it, and a page that a fork made copy on write
   * would part from the one that devices work on. */
  madvise(mapped, bytes, MADV_DONTDUMP);
  madvise(mapped, bytes, MADV_DONTFORK);
  count(account, (int64_t)bytes);
  *at = mapped;
  return tuttiSuccess;
}

void tuttiUnmap(void *ptr, size_t size, tuttiMemAccount *account) {
  if (ptr == NULL) return;
  size_t bytes = tuttiPagesUp(size);
  munmap(ptr, bytes);
  count(account, -(int64_t)bytes);
}

size_t tuttiResident(void *ptr, size_t size) {
  size_t page = tuttiPagesUp(1), pages = tuttiPagesUp(size) / page, touched = 0;
  unsigned char present[1024];
  for (size_t first = 0, n; first < pages; first += n) {
    n = pages - first < sizeof present ? pages - first : sizeof present;
    if (mincore((char *)ptr + first * page, n * page, present) != 0) return 0;
    for (size_t i = 0; i < n; i++)
      touched += present[i] & 1;
  }
  return touched * page;
}

_Static_assert(sizeof(blockHeader) <= ALIGNMENT, "the header fits in front of the block");
