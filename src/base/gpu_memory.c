#include "base/gpu_memory.h"

#include "base/error.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "base/cuda.h"
#include "base/os.h"
#include "base/vmm.h"

/* Copies by the driver between host and this memory are then done when their call returns, whatever
 * the NIC does meanwhile. */
static void keepCopiesOrdered(void *memory) {
  CUresult (*set)(const void *value, CUpointer_attribute attribute, CUdeviceptr at) =
      tuttiCudaDriver("cuPointerSetAttribute");
  unsigned on = 1;
  if (set) (void)set(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)(uintptr_t)memory);
}

tuttiResult_t tuttiGpuAlloc(int rank, int device, size_t bytes, tuttiGpuMemory *out) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(device, &before));
  size_t whole = (bytes + TUTTI_GPU_UNIT - 1) / TUTTI_GPU_UNIT * TUTTI_GPU_UNIT;
  void *memory;
  cudaError_t err = cudaMalloc(&memory, whole);
  if (err != cudaSuccess) {
    cudaGetLastError(); /* so that no later call finds it */
    return TUTTI_FAIL(
        tuttiUnhandledCudaError,
        "rank %d cannot allocate %zu bytes on its GPU for GPUDirect RDMA: %s (%s); see "
        "what else holds its memory (nvidia-smi), or set TUTTI_NET_GDR=off",
        rank, whole, cudaGetErrorString(err), cudaGetErrorName(err));
  }
  keepCopiesOrdered(memory);
  *out = (tuttiGpuMemory){.memory = memory, .bytes = whole, .device = device};
  return tuttiSuccess;
}

void tuttiGpuFree(tuttiGpuMemory *m) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  bool there = m->memory && tuttiCudaEnter(m->device, &before) == tuttiSuccess;
  if (there && m->borrowed)
    tuttiVmmFreeIdle(m->device, m->memory, m->bytes);
  else if (there)
    cudaFree(m->memory);
  *m = (tuttiGpuMemory){0};
}

bool tuttiGpuAllocation(const tuttiGpuMemory *m, tuttiGpuMemory *whole) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  CUresult (*range)(CUdeviceptr * base, size_t * bytes, CUdeviceptr at) =
      tuttiCudaDriver("cuMemGetAddressRange");
  CUdeviceptr base = 0;
  uintptr_t at = (uintptr_t)m->memory;
  size_t bytes = 0;
  if (!range || tuttiCudaEnter(m->device, &before) != tuttiSuccess) return false;
  if (range(&base, &bytes, (CUdeviceptr)at) != CUDA_SUCCESS) return false;
  *whole = (tuttiGpuMemory){.memory = (void *)(uintptr_t)base, // NOLINT: CUDA's integer
                            .bytes = bytes,
                            .device = m->device};
  return at >= base && at - base <= bytes && m->bytes <= bytes - (at - base);
}

int tuttiGpuExport(const tuttiGpuMemory *m) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  CUresult (*get)(void *handle, CUdeviceptr at, size_t size, CUmemRangeHandleType type,
                  unsigned long long flags) = tuttiCudaDriver("cuMemGetHandleForAddressRange");
  int fd = -1;
  if (!get || tuttiCudaEnter(m->device, &before) != tuttiSuccess) return -1;
  CUresult err =
      get(&fd, (CUdeviceptr)(uintptr_t)m->memory, m->bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  return err == CUDA_SUCCESS ? fd : -1;
}

/* ---- memory of another process --------------------------------------------------------------- */

/* Maps what is held somewhere, as a memory of `device`. */
static cudaError_t mapHeld(int device, tuttiVmmHandle handle, size_t bytes, tuttiGpuMemory *out) {
  uintptr_t at = 0;
  cudaError_t err = tuttiVmmReserve(bytes, &at);
  if (err != cudaSuccess) return err;
  err = tuttiVmmMap(at, bytes, handle, device);
  if (err != cudaSuccess) {
    tuttiVmmUnreserve(at, bytes);
    return err;
  }
  *out = (tuttiGpuMemory){.memory = (void *)at, // NOLINT: an address of the GPU
                          .bytes = bytes,
                          .device = device,
                          .borrowed = true};
  return cudaSuccess;
}

/* The driver makes a dma-buf of what is mapped alone. */
static int exportHeld(int device, tuttiVmmHandle handle, size_t bytes) {
  tuttiGpuMemory mapped = {0};
  if (mapHeld(device, handle, bytes, &mapped) != cudaSuccess) return -1;
  int fd = tuttiGpuExport(&mapped);
  tuttiGpuFree(&mapped);
  return fd;
}

const char *tuttiGpuLend(int device, size_t bytes, tuttiGpuLoan *out) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  tuttiVmmHandle handle;
  size_t whole = bytes;
  *out = (tuttiGpuLoan){.memory = -1, .dmabuf = -1};
  if (tuttiCudaEnter(device, &before) != tuttiSuccess) return "the GPU cannot be entered";
  cudaError_t err = tuttiVmmBind(device);
  if (err == cudaSuccess) err = tuttiVmmCreate(device, &whole, &handle);
  if (err != cudaSuccess) return cudaGetErrorString(err);
  err = whole == bytes ? tuttiVmmExport(handle, &out->memory) : cudaErrorNotSupported;
  if (err == cudaSuccess) out->dmabuf = exportHeld(device, handle, bytes);
  tuttiVmmRelease(handle);
  if (out->dmabuf >= 0) return NULL;
  tuttiFdClose(&out->memory);
  return err != cudaSuccess ? cudaGetErrorString(err) : "no dma-buf of it";
}

const char *tuttiGpuBorrow(int device, int fd, size_t bytes, tuttiGpuMemory *out) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  tuttiVmmHandle handle;
  if (tuttiCudaEnter(device, &before) != tuttiSuccess) return "the GPU cannot be entered";
  cudaError_t err = tuttiVmmBind(device);
  if (err == cudaSuccess) err = tuttiVmmImport(fd, &handle);
  if (err != cudaSuccess) return cudaGetErrorString(err);
  err = mapHeld(device, handle, bytes, out);
  tuttiVmmRelease(handle); /* it stays as long as it is mapped */
  return err == cudaSuccess ? NULL : cudaGetErrorString(err);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* On a stream that waits for no other: kernels may be waiting for what this brings. */
static tuttiResult_t copy(const tuttiGpuMemory *m, void *to, const void *from, size_t bytes,
                          enum cudaMemcpyKind kind) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  cudaStream_t stream;
  TUTTI_TRY(tuttiCudaEnter(m->device, &before));
  CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaError_t err = cudaMemcpyAsync(to, from, bytes, kind, stream);
  if (err == cudaSuccess) err = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  return tuttiCudaCheck(err, "a copy between GPU and host memory");
}

tuttiResult_t tuttiGpuRead(const tuttiGpuMemory *m, size_t at, void *to, size_t bytes) {
  return copy(m, to, (const uint8_t *)m->memory + at, bytes, cudaMemcpyDeviceToHost);
}

tuttiResult_t tuttiGpuWrite(const tuttiGpuMemory *m, size_t at, const void *from, size_t bytes) {
  return copy(m, (uint8_t *)m->memory + at, from, bytes, cudaMemcpyHostToDevice);
}

/* Where CPU and GPU share page tables they share a link other than PCIe, too: what a NIC writes to
 * the GPU and what the GPU reads of host memory then come by two ways, whatever the driver says of
 * PCIe. */
bool tuttiGpuNeedsFlush(int device) {
  int order = 0, linked = 0;
  cudaError_t err = cudaDeviceGetAttribute(&order, cudaDevAttrGPUDirectRDMAWritesOrdering, device);
  if (err == cudaSuccess)
    err =
        cudaDeviceGetAttribute(&linked, cudaDevAttrPageableMemoryAccessUsesHostPageTables, device);
  if (err != cudaSuccess) cudaGetLastError(); /* so that no later call finds it */
  return err != cudaSuccess || linked || order < cudaGPUDirectRDMAWritesOrderingOwner;
}

tuttiResult_t tuttiGpuFlush(int device) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(device, &before));
  return CUDA_CHECK(cudaDeviceFlushGPUDirectRDMAWrites(
      cudaFlushGPUDirectRDMAWritesTargetCurrentDevice, cudaFlushGPUDirectRDMAWritesToOwner));
}

#else

tuttiResult_t tuttiGpuAlloc(int rank, int device, size_t bytes, tuttiGpuMemory *out) {
  (void)device, (void)bytes, (void)out;
  return TUTTI_FAIL(tuttiInternalError, "rank %d: there is no GPU in a build without CUDA", rank);
}
void tuttiGpuFree(tuttiGpuMemory *m) {
  (void)m;
}
bool tuttiGpuAllocation(const tuttiGpuMemory *m, tuttiGpuMemory *whole) {
  (void)m, (void)whole;
  return false;
}
const char *tuttiGpuLend(int device, size_t bytes, tuttiGpuLoan *out) {
  (void)device, (void)bytes;
  *out = (tuttiGpuLoan){.memory = -1, .dmabuf = -1};
  return "there is no GPU in a build without CUDA";
}
const char *tuttiGpuBorrow(int device, int fd, size_t bytes, tuttiGpuMemory *out) {
  (void)device, (void)fd, (void)bytes, (void)out;
  return "there is no GPU in a build without CUDA";
}
int tuttiGpuExport(const tuttiGpuMemory *m) {
  (void)m;
  return -1;
}
tuttiResult_t tuttiGpuRead(const tuttiGpuMemory *m, size_t at, void *to, size_t bytes) {
  (void)m, (void)at, (void)to, (void)bytes;
  return TUTTI_FAIL(tuttiInternalError, "there is no GPU in a build without CUDA");
}
tuttiResult_t tuttiGpuWrite(const tuttiGpuMemory *m, size_t at, const void *from, size_t bytes) {
  (void)m, (void)at, (void)from, (void)bytes;
  return TUTTI_FAIL(tuttiInternalError, "there is no GPU in a build without CUDA");
}
bool tuttiGpuNeedsFlush(int device) {
  (void)device;
  return false;
}

tuttiResult_t tuttiGpuFlush(int device) {
  (void)device;
  return tuttiSuccess;
}

#endif
