#ifdef TUTTI_HAVE_CUDA

#include "base/vmm.h"

#include <cuda.h>
#include <pthread.h>

#include "base/atomic.h"
#include "base/cuda.h"
#include "base/os.h"

/* Where a driver has not the call. */
#define CALL(call, ...) ((call) ? (cudaError_t)(call)(__VA_ARGS__) : cudaErrorNotSupported)

/* Drivers (580) lose count when two threads unmap the same memory at once, and damage the heap:
 * ranks of one process that share a GPU do. So one thread at a time is in these calls. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool has(int device, CUdevice_attribute attribute) {
  CUresult (*get)(int *value, CUdevice_attribute attribute, CUdevice device) =
      tuttiCudaDriver("cuDeviceGetAttribute");
  int value = 0;
  return CALL(get, &value, attribute, device) == cudaSuccess && value;
}

/* A NIC may have it only if that was asked for. */
static CUmemAllocationProp properties(int device) {
  CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  p.allocFlags.gpuDirectRDMACapable =
      has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  return p;
}

cudaError_t tuttiVmmBind(int device) {
  return cudaSetDevice(device);
}

cudaError_t tuttiVmmUnit(int device, size_t *unit) {
  CUresult (*get)(size_t * unit, const CUmemAllocationProp *prop,
                  CUmemAllocationGranularity_flags option) =
      tuttiCudaDriver("cuMemGetAllocationGranularity");
  CUmemAllocationProp p = properties(device);
  return CALL(get, unit, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}

cudaError_t tuttiVmmCreate(int device, size_t *bytes, tuttiVmmHandle *out) {
  CUresult (*create)(CUmemGenericAllocationHandle * handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags) =
      tuttiCudaDriver("cuMemCreate");
  CUmemAllocationProp p = properties(device);
  CUmemGenericAllocationHandle handle = 0;
  size_t unit;
  cudaError_t err = tuttiVmmUnit(device, &unit);
  if (err != cudaSuccess) return err;
  if (*bytes > SIZE_MAX - unit) return cudaErrorMemoryAllocation;
  size_t whole = (*bytes + unit - 1) / unit * unit;
  {
    TUTTI_LOCKED(&lock);
    err = CALL(create, &handle, whole, &p, 0);
  }
  if (err != cudaSuccess) return err;
  *bytes = whole;
  *out = handle;
  return cudaSuccess;
}

void tuttiVmmRelease(tuttiVmmHandle handle) {
  CUresult (*release)(CUmemGenericAllocationHandle handle) = tuttiCudaDriver("cuMemRelease");
  TUTTI_LOCKED(&lock);
  (void)CALL(release, handle);
}

cudaError_t tuttiVmmHold(uintptr_t at, tuttiVmmHandle *out, uintptr_t *base, size_t *bytes) {
  CUresult (*range)(CUdeviceptr * base, size_t * bytes, CUdeviceptr at) =
      tuttiCudaDriver("cuMemGetAddressRange");
  CUresult (*hold)(CUmemGenericAllocationHandle * handle, void *at) =
      tuttiCudaDriver("cuMemRetainAllocationHandle");
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr begin = 0;
  TUTTI_LOCKED(&lock);
  cudaError_t err = CALL(range, &begin, bytes, at);
  if (err == cudaSuccess) err = CALL(hold, &handle, (void *)(uintptr_t)begin);
  if (err != cudaSuccess) return err;
  *out = handle;
  *base = begin;
  return cudaSuccess;
}

cudaError_t tuttiVmmExport(tuttiVmmHandle handle, int *fd) {
  CUresult (*export)(void *fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                     unsigned long long flags) = tuttiCudaDriver("cuMemExportToShareableHandle");
  TUTTI_LOCKED(&lock);
  return CALL(export, fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

cudaError_t tuttiVmmImport(int fd, tuttiVmmHandle *out) {
  CUresult (*import)(CUmemGenericAllocationHandle * handle, void *fd,
                     CUmemAllocationHandleType type) =
      tuttiCudaDriver("cuMemImportFromShareableHandle");
  CUmemGenericAllocationHandle handle = 0;
  TUTTI_LOCKED(&lock);
  cudaError_t err = CALL(import, &handle, (void *)(uintptr_t)(unsigned)fd, // NOLINT: as it wants it
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (err == cudaSuccess) *out = handle;
  return err;
}

/* A sandbox between program and driver may lack what the driver says that it has. */
static bool passes(int device) {
  tuttiVmmHandle handle;
  size_t bytes = 1;
  TUTTI_CLOSED int fd = -1;
  cudaError_t err = tuttiVmmBind(device);
  if (err == cudaSuccess) err = tuttiVmmCreate(device, &bytes, &handle);
  if (err != cudaSuccess) return false;
  err = tuttiVmmExport(handle, &fd);
  tuttiVmmRelease(handle);
  return err == cudaSuccess;
}

static bool find(int device) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  return has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
         has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) &&
         tuttiCudaEnter(device, &before) == tuttiSuccess && passes(device);
}

bool tuttiVmmHas(int device) {
  enum { DEVICES = 64, YES = 1, NO };
  static tuttiAtomic32 known[DEVICES]; /* several threads may find out, and find the same */
  if (device < 0 || device >= DEVICES) return false;
  uint32_t answer = tuttiLoadAcquire32(&known[device]);
  if (!answer) {
    answer = find(device) ? YES : NO;
    tuttiStoreRelease32(&known[device], answer);
  }
  return answer == YES;
}

cudaError_t tuttiVmmReserve(size_t bytes, uintptr_t *out) {
  CUresult (*reserve)(CUdeviceptr * at, size_t bytes, size_t alignment, CUdeviceptr wish,
                      unsigned long long flags) = tuttiCudaDriver("cuMemAddressReserve");
  CUdeviceptr at = 0;
  TUTTI_LOCKED(&lock);
  cudaError_t err = CALL(reserve, &at, bytes, 0, 0, 0);
  if (err == cudaSuccess) *out = at;
  return err;
}

void tuttiVmmUnreserve(uintptr_t at, size_t bytes) {
  CUresult (*let)(CUdeviceptr at, size_t bytes) = tuttiCudaDriver("cuMemAddressFree");
  TUTTI_LOCKED(&lock);
  (void)CALL(let, at, bytes);
}

static cudaError_t allow(uintptr_t at, size_t bytes, int device) {
  CUresult (*set)(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t n) =
      tuttiCudaDriver("cuMemSetAccess");
  CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  TUTTI_LOCKED(&lock);
  return CALL(set, at, bytes, &desc, 1);
}

static cudaError_t map(uintptr_t at, size_t bytes, tuttiVmmHandle handle) {
  CUresult (*call)(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                   unsigned long long flags) = tuttiCudaDriver("cuMemMap");
  TUTTI_LOCKED(&lock);
  return CALL(call, at, bytes, 0, handle, 0);
}

cudaError_t tuttiVmmMap(uintptr_t at, size_t bytes, tuttiVmmHandle handle, int device) {
  cudaError_t err = map(at, bytes, handle);
  if (err != cudaSuccess) return err;
  err = allow(at, bytes, device);
  if (err != cudaSuccess) tuttiVmmUnmap(at, bytes);
  return err;
}

void tuttiVmmUnmap(uintptr_t at, size_t bytes) {
  CUresult (*unmap)(CUdeviceptr at, size_t bytes) = tuttiCudaDriver("cuMemUnmap");
  TUTTI_LOCKED(&lock);
  (void)CALL(unmap, at, bytes);
}

/* ---- memory at an address of its own --------------------------------------------------------- */

/* Those that cannot reach it go without. */
static void allowOthers(uintptr_t at, size_t bytes, int device) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) cudaGetLastError();
  for (int other = 0; other < n; other++) {
    int reaches = 0;
    if (other == device) continue;
    if (cudaDeviceCanAccessPeer(&reaches, other, device) != cudaSuccess) cudaGetLastError();
    if (reaches) (void)allow(at, bytes, other);
  }
}

cudaError_t tuttiVmmAlloc(size_t bytes, void **out) {
  int device;
  uintptr_t at = 0;
  tuttiVmmHandle handle;
  cudaError_t err = cudaGetDevice(&device);
  if (err != cudaSuccess) return err;
  if (!tuttiVmmHas(device)) return cudaErrorNotSupported;
  err = tuttiVmmBind(device);
  if (err == cudaSuccess) err = tuttiVmmCreate(device, &bytes, &handle);
  if (err != cudaSuccess) return err;
  err = tuttiVmmReserve(bytes, &at);
  if (err == cudaSuccess) {
    err = tuttiVmmMap(at, bytes, handle, device);
    if (err != cudaSuccess) tuttiVmmUnreserve(at, bytes);
  }
  tuttiVmmRelease(handle); /* it lives as long as it is mapped */
  if (err != cudaSuccess) return err;
  allowOthers(at, bytes, device);
  *out = (void *)at; // NOLINT: an address of the GPU
  return cudaSuccess;
}

/* Unmapping waits for no kernel, as cudaFree does. */
cudaError_t tuttiVmmFree(void *memory) {
  struct cudaPointerAttributes of;
  tuttiVmmHandle handle;
  uintptr_t base;
  size_t bytes;
  cudaError_t err = cudaPointerGetAttributes(&of, memory);
  if (err != cudaSuccess) cudaGetLastError();
  if (err != cudaSuccess || of.type != cudaMemoryTypeDevice) return cudaErrorInvalidValue;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (tuttiCudaEnter(of.device, &before) != tuttiSuccess) return cudaErrorInvalidDevice;
  err = tuttiVmmBind(of.device);
  if (err == cudaSuccess) err = tuttiVmmHold((uintptr_t)memory, &handle, &base, &bytes);
  if (err != cudaSuccess) return cudaErrorInvalidValue;
  tuttiVmmRelease(handle);
  if (base != (uintptr_t)memory) return cudaErrorInvalidValue;
  err = cudaDeviceSynchronize();
  if (err != cudaSuccess) cudaGetLastError(); /* its own trouble, which its user meets elsewhere */
  tuttiVmmUnmap(base, bytes);
  tuttiVmmUnreserve(base, bytes);
  return cudaSuccess;
}

void tuttiVmmFreeIdle(int device, void *memory, size_t bytes) {
  size_t unit;
  if (tuttiVmmUnit(device, &unit) != cudaSuccess) return;
  size_t whole = (bytes + unit - 1) / unit * unit;
  tuttiVmmUnmap((uintptr_t)memory, whole);
  tuttiVmmUnreserve((uintptr_t)memory, whole);
}

#endif
