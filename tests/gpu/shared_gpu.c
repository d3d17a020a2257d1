/* Lets a program that takes one GPU for each of its ranks run where there is one: preloaded, it
 * shows the process SHARED_GPU_DEVICES devices, each of which is GPU 0, and makes ncclCommInitAll
 * of ncclCommInitRank, as the former takes no GPU twice. For processes of MPI it does the same:
 * rank 1 finds a device 1. The program must be linked with CUDA's shared runtime.
 *
 *   cc -shared -fPIC -o shared_gpu.so tests/gpu/shared_gpu.c
 *   SHARED_GPU_DEVICES=2 LD_PRELOAD=$PWD/shared_gpu.so:$PWD/libnccl.so.2 ./program
 *
 * The prototypes are CUDA's and NCCL's, written out here, so that it compiles without either. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_STREAMS = 1024, NON_BLOCKING = 1, ERROR_INVALID_VALUE = 1, ERROR_INVALID_DEVICE = 101 };

typedef void *stream;

typedef struct {
  char internal[128];
} uniqueId;

static _Thread_local int current;

/* The streams that there are, and the devices for which each was made. */
static struct {
  pthread_mutex_t lock;
  unsigned long used; /* a bit for each device that has been set */
  int n;
  stream streams[MAX_STREAMS];
  int devices[MAX_STREAMS];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The function of that name behind this library. */
static void *next(const char *name) {
  void *function = dlsym(RTLD_NEXT, name);
  if (!function) {
    fprintf(stderr, "shared_gpu: no %s in what this program is linked with\n", name);
    abort();
  }
  return function;
}

#define NEXT(name) ((__typeof__(&(name)))next(#name))

static int deviceCount(void) {
  const char *text = getenv("SHARED_GPU_DEVICES");
  int count = text ? atoi(text) : 1;
  return count < 1 ? 1 : count > 64 ? 64 : count;
}

static int isDevice(int device) {
  return device >= 0 && device < deviceCount();
}

/* ---- devices --------------------------------------------------------------------------------- */

int cudaGetDeviceCount(int *count) {
  int err = NEXT(cudaGetDeviceCount)(count);
  if (err == 0 && *count > 0) *count = deviceCount();
  return err;
}

int cudaSetDevice(int device) {
  if (!isDevice(device)) return ERROR_INVALID_DEVICE;
  int err = NEXT(cudaSetDevice)(0);
  if (err) return err;
  current = device;
  pthread_mutex_lock(&all.lock);
  all.used |= 1ul << device;
  pthread_mutex_unlock(&all.lock);
  return 0;
}

int cudaGetDevice(int *device) {
  int err = NEXT(cudaGetDevice)(device);
  if (err == 0) *device = current;
  return err;
}

int cudaGetDeviceProperties(void *properties, int device) {
  return isDevice(device) ? NEXT(cudaGetDeviceProperties)(properties, 0) : ERROR_INVALID_DEVICE;
}

/* What it is called in programs compiled with CUDA 12. */
int cudaGetDeviceProperties_v2(void *properties, int device) {
  return isDevice(device) ? NEXT(cudaGetDeviceProperties_v2)(properties, 0) : ERROR_INVALID_DEVICE;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  if (!isDevice(device)) return ERROR_INVALID_DEVICE;
  return NEXT(cudaDeviceGetAttribute)(value, attribute, 0);
}

int cudaDeviceGetPCIBusId(char *id, int size, int device) {
  return isDevice(device) ? NEXT(cudaDeviceGetPCIBusId)(id, size, 0) : ERROR_INVALID_DEVICE;
}

/* All devices are one, so each reaches the memory of all. */
int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (!isDevice(device) || !isDevice(peer)) return ERROR_INVALID_DEVICE;
  *can = device != peer;
  return 0;
}

int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)flags;
  return isDevice(peer) && peer != current ? 0 : ERROR_INVALID_DEVICE;
}

int cudaDeviceDisablePeerAccess(int peer) {
  return isDevice(peer) && peer != current ? 0 : ERROR_INVALID_DEVICE;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Passes `err` on; a stream that was made is remembered. */
static int made(int err, const stream *s) {
  if (err) return err;
  pthread_mutex_lock(&all.lock);
  if (all.n == MAX_STREAMS) {
    fprintf(stderr, "shared_gpu: more than %d streams\n", MAX_STREAMS);
    abort();
  }
  all.streams[all.n] = *s;
  all.devices[all.n++] = current;
  pthread_mutex_unlock(&all.lock);
  return 0;
}

int cudaStreamCreateWithFlags(stream *s, unsigned flags);

/* Not blocked by what the default stream does for another device. */
int cudaStreamCreate(stream *s) {
  if (deviceCount() > 1) return cudaStreamCreateWithFlags(s, NON_BLOCKING);
  return made(NEXT(cudaStreamCreate)(s), s);
}

int cudaStreamCreateWithFlags(stream *s, unsigned flags) {
  return made(NEXT(cudaStreamCreateWithFlags)(s, flags), s);
}

int cudaStreamCreateWithPriority(stream *s, unsigned flags, int priority) {
  return made(NEXT(cudaStreamCreateWithPriority)(s, flags, priority), s);
}

int cudaStreamDestroy(stream s) {
  pthread_mutex_lock(&all.lock);
  for (int i = 0; i < all.n; i++)
    if (all.streams[i] == s) {
      all.streams[i] = all.streams[--all.n];
      all.devices[i] = all.devices[all.n];
      break;
    }
  pthread_mutex_unlock(&all.lock);
  return NEXT(cudaStreamDestroy)(s);
}

int cudaStreamSynchronize(stream s); /* CUDA's own */

/* Waits for the work of this device alone, its streams and the default one. CUDA would wait for
 * what the other ranks of this process have under way, which waits for this rank: on a GPU of its
 * own it never meets them. */
int cudaDeviceSynchronize(void) {
  stream mine[MAX_STREAMS + 1] = {NULL};
  int n = 1;
  pthread_mutex_lock(&all.lock);
  int others = (all.used & ~(1ul << current)) != 0;
  for (int i = 0; i < all.n; i++)
    if (all.devices[i] == current) mine[n++] = all.streams[i];
  pthread_mutex_unlock(&all.lock);
  if (!others) return NEXT(cudaDeviceSynchronize)();
  int err = 0;
  for (int i = 0; i < n && err == 0; i++)
    err = NEXT(cudaStreamSynchronize)(mine[i]);
  return err;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, stream s); /* CUDA's own */
int cudaMemsetAsync(void *at, int value, size_t bytes, stream s);

/* A stream of this thread's, for what the default one would do. */
static stream own(void) {
  static _Thread_local stream s;
  if (!s && NEXT(cudaStreamCreateWithFlags)(&s, NON_BLOCKING) != 0) s = NULL;
  return s;
}

/* Behind the work of this device alone, and done when it returns. */
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  if (deviceCount() == 1) return NEXT(cudaMemcpy)(to, from, bytes, kind);
  int err = cudaDeviceSynchronize();
  if (err == 0) err = NEXT(cudaMemcpyAsync)(to, from, bytes, kind, own());
  return err ? err : NEXT(cudaStreamSynchronize)(own());
}

int cudaMemset(void *at, int value, size_t bytes) {
  if (deviceCount() == 1) return NEXT(cudaMemset)(at, value, bytes);
  int err = cudaDeviceSynchronize();
  if (err == 0) err = NEXT(cudaMemsetAsync)(at, value, bytes, own());
  return err ? err : NEXT(cudaStreamSynchronize)(own());
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

int ncclGetUniqueId(uniqueId *id);
int ncclCommInitRank(void **comm, int nranks, uniqueId id, int rank);
int ncclGroupStart(void);
int ncclGroupEnd(void);

int ncclCommInitAll(void **comms, int ndev, const int *devlist) {
  uniqueId id;
  int before = current;
  int err = NEXT(ncclGetUniqueId)(&id);
  if (err == 0) err = NEXT(ncclGroupStart)();
  if (err) return err;
  for (int i = 0; i < ndev && err == 0; i++) {
    err = cudaSetDevice(devlist ? devlist[i] : i) ? ERROR_INVALID_VALUE : 0;
    if (err == 0) err = NEXT(ncclCommInitRank)(&comms[i], ndev, id, i);
  }
  int ended = NEXT(ncclGroupEnd)();
  cudaSetDevice(before);
  return err ? err : ended;
}
