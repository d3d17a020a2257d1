/* Shared memory between two processes: payloads travel here, while frames, which say where, take
 * the stream. A segment belongs to one stream and has two rings, requests and answers; the writer
 * of a ring takes chunks from it in turn, and its reader marks each as free, in any order. */
#include "hca.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 64, CONTROL = 4096 };

/* Before each chunk's bytes. */
typedef struct {
  _Atomic uint32_t free;
  uint32_t size; /* with this header */
  char pad[LINE - 8];
} ChunkHeader;

/* At the segment's start, a line for each ring: its writer found no room. */
typedef struct {
  _Atomic uint32_t wanted;
  char pad[LINE - 4];
} RingControl;

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static softStaging *map(int fd, uint32_t ringBytes, bool connector) {
  softStaging *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->size = CONTROL + 2 * (size_t)ringBytes;
  s->base = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (s->base == MAP_FAILED) {
    free(s);
    return NULL;
  }
  s->ringBytes = ringBytes;
  s->writes = connector ? 0 : 1;
  return s;
}

softStaging *softStagingCreate(uint32_t ringBytes, int *fd) {
  *fd = memfd_create("softhca", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0) return NULL;
  softStaging *s = NULL;
  if (ftruncate(*fd, CONTROL + 2 * (off_t)ringBytes) == 0 && fcntl(*fd, F_ADD_SEALS, SEALS) == 0)
    s = map(*fd, ringBytes, true);
  if (!s) close(*fd);
  return s;
}

softStaging *softStagingAccept(int fd, uint32_t ringBytes) {
  struct stat st;
  bool good = ringBytes >= SOFT_PAYLOAD && ringBytes % LINE == 0 && fstat(fd, &st) == 0 &&
              st.st_size == CONTROL + 2 * (off_t)ringBytes && fcntl(fd, F_GET_SEALS) >= 0 &&
              (fcntl(fd, F_GET_SEALS) & SEALS) == SEALS;
  return good ? map(fd, ringBytes, false) : NULL;
}

void softStagingUnmap(softStaging *s) {
  munmap(s->base, s->size);
  free(s);
}

static RingControl *control(const softStaging *s, int ring) {
  return (RingControl *)s->base + ring;
}

static uint8_t *ringOf(const softStaging *s, int ring) {
  return s->base + CONTROL + (size_t)ring * s->ringBytes;
}

static ChunkHeader *headerAt(const softStaging *s, uint64_t position) {
  return (ChunkHeader *)(void *)(ringOf(s, s->writes) + position % s->ringBytes);
}

static void reclaim(softStaging *s) {
  while (s->tail != s->head) {
    ChunkHeader *oldest = headerAt(s, s->tail);
    if (!atomic_load_explicit(&oldest->free, memory_order_acquire)) return;
    s->tail += s->sizes[s->oldest++ % SOFT_MAX_CHUNKS];
  }
}

static bool fits(const softStaging *s, uint32_t size) {
  return s->newest - s->oldest < SOFT_MAX_CHUNKS - 1 && s->head - s->tail + size <= s->ringBytes;
}

/* The reader may write to the segment too, so sizes are remembered here and not read back. */
static uint8_t *append(softStaging *s, uint32_t size, bool isFree) {
  ChunkHeader *h = headerAt(s, s->head);
  h->size = size;
  atomic_store_explicit(&h->free, isFree, memory_order_relaxed);
  s->sizes[s->newest++ % SOFT_MAX_CHUNKS] = size;
  s->head += size;
  return (uint8_t *)(h + 1);
}

uint8_t *softChunkTake(softStaging *s, uint32_t length) {
  uint32_t size = (uint32_t)((sizeof(ChunkHeader) + length + LINE - 1) / LINE * LINE);
  uint32_t toEnd = s->ringBytes - (uint32_t)(s->head % s->ringBytes);
  uint32_t needed = toEnd < size ? toEnd + size : size;
  reclaim(s);
  if (!fits(s, needed)) {
    /* Ask to be told, and look again: the reader may have freed one just before. */
    atomic_store(&control(s, s->writes)->wanted, 1);
    reclaim(s);
    if (!fits(s, needed)) return NULL;
  }
  if (toEnd < size) append(s, toEnd, true);
  return append(s, size, false);
}

uint32_t softChunkName(const softStaging *s, const uint8_t *bytes) {
  return (uint32_t)(bytes - ringOf(s, s->writes));
}

uint8_t *softChunkFind(const softStaging *s, uint32_t name, uint32_t length) {
  if (name < sizeof(ChunkHeader) || name % LINE || name > s->ringBytes ||
      length > s->ringBytes - name)
    return NULL;
  return ringOf(s, !s->writes) + name;
}

bool softChunkFree(const softStaging *s, uint8_t *bytes) {
  bool own = bytes >= ringOf(s, s->writes) && bytes < ringOf(s, s->writes) + s->ringBytes;
  ChunkHeader *h = (ChunkHeader *)(void *)bytes - 1;
  atomic_store(&h->free, 1);
  return !own && atomic_exchange(&control(s, !s->writes)->wanted, 0);
}
