/* Protection domains and registered memory. */
#include "control.h"
#include "hca.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  bool removed = softRefuses(context);
  struct ibv_pd *pd = removed ? NULL : calloc(1, sizeof *pd);
  if (pd) pd->context = context;
  if (removed) errno = EIO;
  return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
  bool used = false;
  pthread_mutex_lock(&hca.lock);
  for (uint32_t i = 1; i < SOFT_MAX_MRS; i++)
    used = used || (hca.mrs[i] && hca.mrs[i]->pd == pd);
  for (softQp *qp = hca.qps; qp; qp = qp->next)
    used = used || qp->ibv.qp_base.pd == pd;
  pthread_mutex_unlock(&hca.lock);
  if (used) return EBUSY;
  free(pd);
  return 0;
}

static _Atomic uint64_t relaxedMrs;

uint64_t softHcaRelaxed(void) {
  return atomic_load(&relaxedMrs);
}

int softHcaRegistrations(void) {
  int n = 0;
  pthread_mutex_lock(&hca.lock);
  for (uint32_t i = 1; i < SOFT_MAX_MRS; i++)
    n += hca.mrs[i] != NULL;
  pthread_mutex_unlock(&hca.lock);
  return n;
}

static uint32_t freeMr(void) { /* 0: none */
  for (uint32_t n = 0; n < SOFT_MAX_MRS; n++) {
    hca.nextMr = (hca.nextMr + 1) % SOFT_MAX_MRS;
    if (hca.nextMr && !hca.mrs[hca.nextMr]) return hca.nextMr;
  }
  return 0;
}

/* Copies enter a GPU that reaches the memory. The one that it lies in need not, where a process has
 * mapped memory of another for a GPU of its own; only of memory that is mapped does the driver
 * know. */
static bool reaches(const softDriver *cu, int gpu, cuPointer address) {
  const cuLocation location = {.type = CU_LOCATION_DEVICE, .id = gpu};
  unsigned long long access = 0;
  cuResult r = cu->getAccess(&access, &location, address);
  return r == CU_OK && access == CU_ACCESS_READ_WRITE;
}
static int reaching(const softDriver *cu, int home, cuPointer address) {
  if (reaches(cu, home, address)) return home;
  for (int gpu = 0; gpu < SOFT_MAX_GPUS; gpu++)
    if (reaches(cu, gpu, address)) return gpu;
  return home;
}

/* The GPU by which memory is reached, or -1. Managed memory counts as the host's: its pages come
 * when they are touched. */
static int gpuOf(const softDriver *cu, cuPointer address) {
  unsigned type = 0, managed = 0;
  int gpu = -1;
  if (!cu || cu->pointerAttribute(&type, CU_POINTER_TYPE, address) != CU_OK) return -1;
  if (type != CU_TYPE_DEVICE) return -1;
  if (cu->pointerAttribute(&managed, CU_POINTER_MANAGED, address) == CU_OK && managed) return -1;
  if (cu->pointerAttribute(&gpu, CU_POINTER_ORDINAL, address) != CU_OK) return -1;
  return gpu < SOFT_MAX_GPUS ? reaching(cu, gpu, address) : -1;
}

static int startMovers(void) {
  pthread_mutex_lock(&hca.lock);
  int error = softMoverStart();
  pthread_mutex_unlock(&hca.lock);
  return error;
}

/* Without the lock: the driver may make it wait. 0 or an errno. */
static int describeGpu(const softDriver *cu, softMr *mr, cuPointer address, bool allowed) {
  size_t size;
  if (!allowed) return EFAULT; /* as the kernel says of pages that it cannot pin */
  if (hca.config.direct && cu->addressRange(&mr->base, &size, address) == CU_OK)
    mr->exported = cu->exportIpc(&mr->handle, mr->base) == CU_OK;
  int error = startMovers();
  pthread_mutex_lock(&hca.lock);
  if (!error) softPinAll();
  pthread_mutex_unlock(&hca.lock);
  return error;
}

/* Gives it a key; 0 or an errno. */
static int publish(softMr *mr, void *addr, size_t length) {
  pthread_mutex_lock(&hca.lock);
  uint32_t index = softStrikes(&hca.config.faults.refuse) ? 0 : freeMr();
  if (index) {
    hca.mrs[index] = mr;
    uint32_t key = index << 8 | ++hca.mrTurn[index];
    mr->ibv = (struct ibv_mr){.context = mr->pd->context,
                              .pd = mr->pd,
                              .addr = addr,
                              .length = length,
                              .handle = index,
                              .lkey = key,
                              .rkey = key};
  }
  pthread_mutex_unlock(&hca.lock);
  return index ? 0 : ENOMEM;
}

static struct ibv_mr *registerMemory(softMr how, void *addr, size_t length, bool gpuAllowed) {
  unsigned remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const softDriver *cu = softDriverGet();
  bool relaxed = how.access & IBV_ACCESS_RELAXED_ORDERING;
  int error = softRefuses(how.pd->context)                                      ? EIO
              : (how.access & remote) && !(how.access & IBV_ACCESS_LOCAL_WRITE) ? EINVAL
              : relaxed && !hca.config.relaxing                                 ? EOPNOTSUPP
                                                                                : 0;
  softMr *mr = error ? NULL : malloc(sizeof *mr);
  if (!error && !mr) error = ENOMEM;
  if (!error) {
    *mr = how;
    mr->gpu = gpuOf(cu, (uintptr_t)addr);
    if (mr->gpu >= 0)
      error = describeGpu(cu, mr, (uintptr_t)addr, gpuAllowed);
    else if (hca.config.offload)
      error = startMovers();
  }
  if (!error) error = publish(mr, addr, length);
  if (!error && relaxed) atomic_fetch_add(&relaxedMrs, 1);
  if (!error) return &mr->ibv;
  free(mr);
  errno = error;
  return NULL;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned access) {
  softMr how = {.pd = pd, .iova = iova, .access = access};
  return registerMemory(how, addr, length, hca.config.peermem);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                               int access) {
  return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

/* The exporter's memory cannot be mapped through the descriptor everywhere, so iova must be its
 * address in this process, as NCCL and tutti have it. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access) {
  if (!hca.config.dmabuf) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  if (fcntl(fd, F_GETFD) < 0) return NULL; /* EBADF */
  if (offset) {
    errno = EINVAL;
    return NULL;
  }
  softMr how = {.pd = pd, .iova = iova, .access = (unsigned)access};
  return registerMemory(how, (void *)(uintptr_t)iova, length, true); /* NOLINT */
}

/* As a real HCA does, it returns when the memory is not touched any more. */
int ibv_dereg_mr(struct ibv_mr *ibv) {
  softMr *mr = (softMr *)ibv;
  pthread_mutex_lock(&hca.lock);
  hca.mrs[ibv->handle] = NULL;
  if (mr->gpu >= 0) softReveal(mr->gpu);
  pthread_mutex_unlock(&hca.lock);
  while (atomic_load(&mr->copies))
    sched_yield();
  free(mr);
  return 0;
}

softMr *softMrByKey(uint32_t key) {
  uint32_t index = key >> 8;
  softMr *mr = index < SOFT_MAX_MRS ? hca.mrs[index] : NULL;
  return mr && mr->ibv.lkey == key ? mr : NULL;
}

softMr *softMrFind(struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t length,
                   unsigned access) {
  softMr *mr = softMrByKey(key);
  if (!mr || mr->pd != pd || (mr->access & access) != access) return NULL;
  if (address < mr->iova || length > mr->ibv.length) return NULL;
  return address - mr->iova <= mr->ibv.length - length ? mr : NULL;
}
