#include "fakecuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BY_KERNEL_BYTES 24576

typedef struct Memory {
  struct Memory *next;
  char *device; /* what the program has */
  char *bytes;  /* where they are */
  size_t size;
  int fd;
} Memory;

typedef struct {
  _Atomic uint32_t recorded, passed; /* how often */
} Event;

typedef struct Work {
  struct Work *next;
  Event *event; /* NULL: a copy */
  cuCopy2d copy;
  bool byKernel;
} Work;

typedef struct {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  Work *first, *last;
  bool busy, end;
} Stream;

/* What an IPC handle holds. */
typedef struct {
  pid_t pid;
  int fd;
  size_t size;
} Handle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t vacant = PTHREAD_COND_INITIALIZER;
static Memory *memories;
static bool occupied;
static _Atomic bool initialized, failNext, strictPitch;
static _Atomic unsigned delay, copies, pending, pinned;
static int context;

/* ---- memory --------------------------------------------------------------------------------- */

static Memory *find(cuPointer pointer) {
  pthread_mutex_lock(&lock);
  Memory *m = memories;
  while (m && (pointer < (uintptr_t)m->device || pointer - (uintptr_t)m->device >= m->size))
    m = m->next;
  pthread_mutex_unlock(&lock);
  return m;
}

/* Where the bytes are that a pointer of either kind means. */
static char *bytesOf(cuPointer pointer) {
  Memory *m = find(pointer);
  return m ? m->bytes + (pointer - (uintptr_t)m->device)
           : (char *)(uintptr_t)pointer; /* NOLINT: the ABI's integer */
}

static Memory *add(int fd, size_t size) {
  Memory *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  m->fd = fd;
  m->size = size;
  m->bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  m->device = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m->bytes == MAP_FAILED || m->device == MAP_FAILED) {
    if (m->bytes != MAP_FAILED) munmap(m->bytes, size);
    if (m->device != MAP_FAILED) munmap(m->device, size);
    free(m);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  m->next = memories;
  memories = m;
  pthread_mutex_unlock(&lock);
  return m;
}

static cuResult take(cuPointer pointer) {
  pthread_mutex_lock(&lock);
  Memory **at = &memories;
  while (*at && (uintptr_t)(*at)->device != pointer)
    at = &(*at)->next;
  Memory *m = *at;
  if (m) *at = m->next;
  pthread_mutex_unlock(&lock);
  if (!m) return CU_INVALID_VALUE;
  munmap(m->bytes, m->size);
  munmap(m->device, m->size);
  close(m->fd);
  free(m);
  return CU_OK;
}

cuResult cuInit(unsigned flags) {
  atomic_store(&initialized, true);
  return flags ? CU_INVALID_VALUE : CU_OK;
}

cuResult cuMemAlloc_v2(cuPointer *pointer, size_t bytes) {
  int fd = memfd_create("fakecuda", MFD_CLOEXEC);
  Memory *m = fd >= 0 && bytes > 0 && ftruncate(fd, (off_t)bytes) == 0 ? add(fd, bytes) : NULL;
  if (!m) {
    if (fd >= 0) close(fd);
    return CU_NO_MEMORY;
  }
  *pointer = (uintptr_t)m->device;
  return CU_OK;
}

cuResult fakeCudaImport(int fd, size_t bytes, cuPointer *pointer) {
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  Memory *m = own >= 0 && bytes > 0 ? add(own, bytes) : NULL;
  if (!m) {
    if (own >= 0) close(own);
    return CU_INVALID_HANDLE;
  }
  *pointer = (uintptr_t)m->device;
  return CU_OK;
}

static void rest(void) {
  nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

cuResult cuMemFree_v2(cuPointer pointer) {
  while (fakeCudaPending())
    rest();
  return take(pointer);
}

cuResult cuMemcpyHtoD_v2(cuPointer to, const void *from, size_t bytes) {
  memcpy(bytesOf(to), from, bytes);
  return CU_OK;
}

cuResult cuMemcpyDtoH_v2(void *to, cuPointer from, size_t bytes) {
  memcpy(to, bytesOf(from), bytes);
  return CU_OK;
}

cuResult cuMemGetHandleForAddressRange(void *fd, cuPointer pointer, size_t bytes, int type,
                                       unsigned long long flags) {
  Memory *m = find(pointer);
  if (!m || type != CU_RANGE_DMABUF || flags || bytes > m->size) return CU_INVALID_VALUE;
  *(int *)fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return *(int *)fd >= 0 ? CU_OK : CU_NO_MEMORY;
}

cuResult cuPointerGetAttribute(void *value, int attribute, cuPointer pointer) {
  if (!atomic_load(&initialized) || !find(pointer)) return CU_INVALID_VALUE;
  *(int *)value = attribute == CU_POINTER_TYPE ? CU_TYPE_DEVICE : 0;
  return CU_OK;
}

/* It is of no memory that was mapped. */
cuResult cuMemGetAccess(unsigned long long *flags, const cuLocation *location, cuPointer pointer) {
  (void)flags;
  (void)location;
  (void)pointer;
  return CU_INVALID_VALUE;
}

cuResult cuMemGetAddressRange_v2(cuPointer *base, size_t *size, cuPointer pointer) {
  Memory *m = find(pointer);
  if (!m) return CU_INVALID_VALUE;
  *base = (uintptr_t)m->device;
  *size = m->size;
  return CU_OK;
}

cuResult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
  (void)flags;
  if (!p || !bytes) return CU_INVALID_VALUE;
  atomic_fetch_add(&pinned, 1);
  return CU_OK;
}

cuResult cuMemHostUnregister(void *p) {
  if (!p) return CU_INVALID_VALUE;
  atomic_fetch_sub(&pinned, 1);
  return CU_OK;
}

/* ---- IPC ------------------------------------------------------------------------------------ */

cuResult cuIpcGetMemHandle(cuIpcHandle *handle, cuPointer pointer) {
  Memory *m = find(pointer);
  if (!m || pointer != (uintptr_t)m->device) return CU_INVALID_VALUE;
  Handle h = {.pid = getpid(), .fd = m->fd, .size = m->size};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &h, sizeof h);
  return CU_OK;
}

cuResult cuIpcOpenMemHandle_v2(cuPointer *pointer, cuIpcHandle handle, unsigned flags) {
  Handle h;
  char path[64];
  memcpy(&h, &handle, sizeof h);
  if (flags != CU_IPC_LAZY_PEER || h.pid == getpid()) return CU_INVALID_CONTEXT;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  Memory *m = fd >= 0 ? add(fd, h.size) : NULL;
  if (!m) {
    if (fd >= 0) close(fd);
    return CU_INVALID_HANDLE;
  }
  *pointer = (uintptr_t)m->device;
  return CU_OK;
}

cuResult cuIpcCloseMemHandle(cuPointer pointer) {
  return take(pointer);
}

/* ---- streams and events --------------------------------------------------------------------- */

cuResult cuDevicePrimaryCtxRetain(void **out, int device) {
  *out = &context;
  return device == 0 ? CU_OK : CU_INVALID_VALUE;
}

cuResult cuCtxSetCurrent(void *c) {
  return c == &context ? CU_OK : CU_INVALID_CONTEXT;
}

static void linger(unsigned *seed) {
  unsigned most = atomic_load(&delay);
  if (!most) return;
  long ns = (long)(rand_r(seed) % (most + 1)) * 1000;
  nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

static void perform(const Work *work, unsigned *seed) {
  const cuCopy2d *c = &work->copy;
  pthread_mutex_lock(&lock);
  while (work->byKernel && occupied)
    pthread_cond_wait(&vacant, &lock);
  pthread_mutex_unlock(&lock);
  linger(seed);
  for (size_t row = 0; row < c->height; row++)
    memcpy(bytesOf(c->dstDevice + row * c->dstPitch), bytesOf(c->srcDevice + row * c->srcPitch),
           c->width);
}

static void *run(void *argument) {
  Stream *s = argument;
  unsigned seed = (unsigned)(uintptr_t)s;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->first && !s->end)
      pthread_cond_wait(&s->changed, &s->lock);
    Work *work = s->first;
    if (!work) break;
    s->first = work->next;
    if (!s->first) s->last = NULL;
    s->busy = true;
    pthread_mutex_unlock(&s->lock);
    if (work->event) {
      atomic_fetch_add(&work->event->passed, 1);
    } else {
      perform(work, &seed);
      atomic_fetch_sub(&pending, 1);
    }
    free(work);
    pthread_mutex_lock(&s->lock);
    s->busy = false;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

cuResult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return CU_OK;
}

/* Each has a thread, so no one waits for another. */
cuResult cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  (void)priority;
  Stream *s = calloc(1, sizeof *s);
  if (!s || flags != CU_STREAM_NONBLOCKING) {
    free(s);
    return CU_INVALID_VALUE;
  }
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  if (pthread_create(&s->thread, NULL, run, s)) {
    free(s);
    return CU_NO_MEMORY;
  }
  *stream = s;
  return CU_OK;
}

cuResult cuStreamDestroy_v2(void *stream) {
  Stream *s = stream;
  pthread_mutex_lock(&s->lock);
  s->end = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->changed);
  free(s);
  return CU_OK;
}

cuResult cuStreamSynchronize(void *stream) {
  Stream *s = stream;
  pthread_mutex_lock(&s->lock);
  while (s->first || s->busy)
    pthread_cond_wait(&s->changed, &s->lock);
  pthread_mutex_unlock(&s->lock);
  return CU_OK;
}

static cuResult append(Stream *s, const Work *template) {
  Work *work = malloc(sizeof *work);
  if (!work) return CU_NO_MEMORY;
  *work = *template;
  work->next = NULL;
  pthread_mutex_lock(&s->lock);
  if (s->last)
    s->last->next = work;
  else
    s->first = work;
  s->last = work;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  return CU_OK;
}

static cuResult appendCopy(Stream *s, const Work *work) {
  if (atomic_exchange(&failNext, false)) return CU_INVALID_VALUE;
  atomic_fetch_add(&copies, 1);
  atomic_fetch_add(&pending, 1);
  return append(s, work);
}

cuResult cuMemcpyAsync(cuPointer to, cuPointer from, size_t bytes, void *stream) {
  bool toGpu = find(to), fromGpu = find(from);
  Work work = {.copy = {.dstDevice = to, .srcDevice = from, .width = bytes, .height = 1},
               .byKernel = toGpu && (fromGpu || bytes <= BY_KERNEL_BYTES)};
  return appendCopy(stream, &work);
}

cuResult cuMemcpy2DAsync_v2(const cuCopy2d *copy, void *stream) {
  bool fromGpu = copy->srcType == CU_TYPE_DEVICE, toGpu = copy->dstType == CU_TYPE_DEVICE;
  cuPointer from = fromGpu ? copy->srcDevice : (uintptr_t)copy->srcHost;
  cuPointer to = toGpu ? copy->dstDevice : (uintptr_t)copy->dstHost;
  if (copy->srcPitch < copy->width || copy->dstPitch < copy->width || fromGpu != !!find(from) ||
      toGpu != !!find(to))
    return CU_INVALID_VALUE;
  if (fromGpu && toGpu && atomic_load(&strictPitch)) return CU_INVALID_VALUE;
  Work work = {.copy = *copy, .byKernel = copy->height < 2};
  work.copy.srcDevice = from;
  work.copy.dstDevice = to;
  return appendCopy(stream, &work);
}

cuResult cuEventCreate(void **event, unsigned flags) {
  if (flags != CU_EVENT_NO_TIMING) return CU_INVALID_VALUE;
  *event = calloc(1, sizeof(Event));
  return *event ? CU_OK : CU_NO_MEMORY;
}

cuResult cuEventDestroy_v2(void *event) {
  free(event);
  return CU_OK;
}

cuResult cuEventRecord(void *event, void *stream) {
  Work work = {.event = event};
  atomic_fetch_add(&work.event->recorded, 1);
  return append(stream, &work);
}

cuResult cuEventQuery(void *event) {
  Event *e = event;
  return atomic_load(&e->passed) == atomic_load(&e->recorded) ? CU_OK : CU_NOT_READY;
}

/* ---- how it behaves ------------------------------------------------------------------------- */

void fakeCudaDelay(unsigned microseconds) {
  atomic_store(&delay, microseconds);
}

void fakeCudaOccupy(int is) {
  pthread_mutex_lock(&lock);
  occupied = is;
  pthread_cond_broadcast(&vacant);
  pthread_mutex_unlock(&lock);
}

void fakeCudaFail(void) {
  atomic_store(&failNext, true);
}

void fakeCudaPitch(int strict) {
  atomic_store(&strictPitch, strict);
}

unsigned fakeCudaCopies(void) {
  return atomic_load(&copies);
}

unsigned fakeCudaPending(void) {
  return atomic_load(&pending);
}

unsigned fakeCudaPinned(void) {
  return atomic_load(&pinned);
}
