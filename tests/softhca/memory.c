/* Protection domains and registered memory. */
#include "hca.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

void softCopy(void *to, const void *from, size_t length) {
  memcpy(to, from, length);
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct ibv_pd *pd = calloc(1, sizeof *pd);
  if (pd) pd->context = context;
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

static uint32_t freeMr(void) { /* 0: none */
  for (uint32_t n = 0; n < SOFT_MAX_MRS; n++) {
    hca.nextMr = (hca.nextMr + 1) % SOFT_MAX_MRS;
    if (hca.nextMr && !hca.mrs[hca.nextMr]) return hca.nextMr;
  }
  return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned access) {
  unsigned remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  bool odd = (access & remote) && !(access & IBV_ACCESS_LOCAL_WRITE);
  softMr *mr = odd ? NULL : calloc(1, sizeof *mr);
  if (!mr) {
    errno = odd ? EINVAL : ENOMEM;
    return NULL;
  }
  *mr = (softMr){.pd = pd, .iova = iova, .access = access};
  pthread_mutex_lock(&hca.lock);
  uint32_t index = softChance(hca.config.faults.refuse) ? 0 : freeMr();
  if (index) {
    hca.mrs[index] = mr;
    uint32_t key = index << 8 | ++hca.mrTurn[index];
    mr->ibv = (struct ibv_mr){.context = pd->context,
                              .pd = pd,
                              .addr = addr,
                              .length = length,
                              .handle = index,
                              .lkey = key,
                              .rkey = key};
  }
  pthread_mutex_unlock(&hca.lock);
  if (index) return &mr->ibv;
  free(mr);
  errno = ENOMEM;
  return NULL;
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
  if (fcntl(fd, F_GETFD) < 0) return NULL;
  if (offset) {
    errno = EINVAL;
    return NULL;
  }
  return ibv_reg_mr_iova2(pd, (void *)(uintptr_t)iova, length, iova, (unsigned)access); /* NOLINT */
}

int ibv_dereg_mr(struct ibv_mr *mr) {
  pthread_mutex_lock(&hca.lock);
  hca.mrs[mr->handle] = NULL;
  pthread_mutex_unlock(&hca.lock);
  free(mr);
  return 0;
}

softMr *softMrFind(struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t length,
                   unsigned access) {
  uint32_t index = key >> 8;
  softMr *mr = index < SOFT_MAX_MRS ? hca.mrs[index] : NULL;
  if (!mr || mr->ibv.lkey != key || mr->pd != pd || (mr->access & access) != access) return NULL;
  if (address < mr->iova || length > mr->ibv.length) return NULL;
  return address - mr->iova <= mr->ibv.length - length ? mr : NULL;
}

/* One walk for both directions: to memory if `from` is set, else out of it. */
static bool walk(struct ibv_pd *pd, const struct ibv_sge *sge, int nsge, uint32_t offset,
                 const uint8_t *from, uint8_t *to, uint32_t length) {
  for (int i = 0; i < nsge && length > 0; i++) {
    if (offset >= sge[i].length) {
      offset -= sge[i].length;
      continue;
    }
    uint32_t part = sge[i].length - offset < length ? sge[i].length - offset : length;
    softMr *mr =
        softMrFind(pd, sge[i].lkey, sge[i].addr + offset, part, from ? IBV_ACCESS_LOCAL_WRITE : 0);
    if (!mr) return false;
    char *memory = (char *)mr->ibv.addr + (sge[i].addr + offset - mr->iova);
    softCopy(from ? memory : (void *)to, from ? (const void *)from : memory, part);
    if (from) from += part;
    if (to) to += part;
    length -= part;
    offset = 0;
  }
  return length == 0;
}

bool softGather(struct ibv_pd *pd, const struct ibv_sge *sge, int nsge, uint32_t offset, void *to,
                uint32_t length) {
  return walk(pd, sge, nsge, offset, NULL, to, length);
}

bool softScatter(struct ibv_pd *pd, const struct ibv_sge *sge, int nsge, uint32_t offset,
                 const void *from, uint32_t length) {
  return walk(pd, sge, nsge, offset, from, NULL, length);
}
