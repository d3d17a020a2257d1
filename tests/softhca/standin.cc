#include "standin.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/gpu_memory.h"
#include "base/pinned.h"
#include "control.h"

std::atomic<bool> needsFlush{true}, lendsNothing{false};
std::atomic<int> allocations{0}, driverFlushes{0}, limit{INT_MAX}, pins{0};
std::atomic<size_t> pinned{0};

extern "C" {
tuttiResult_t tuttiGpuAlloc(int rank, int device, size_t bytes, tuttiGpuMemory *out) {
  cuPointer p = 0;
  cuInit(0);
  bytes = (bytes + TUTTI_GPU_UNIT - 1) / TUTTI_GPU_UNIT * TUTTI_GPU_UNIT;
  if (allocations >= limit || cuMemAlloc_v2(&p, bytes) != CU_OK)
    return TUTTI_FAIL(tuttiUnhandledCudaError, "rank %d: the GPU is full", rank);
  allocations++;
  *out = tuttiGpuMemory{reinterpret_cast<void *>(p), bytes, device,
                        false}; // NOLINT: the ABI's integer
  return tuttiSuccess;
}
void tuttiGpuFree(tuttiGpuMemory *m) {
  if (!m->memory) return;
  EXPECT_EQ(cuMemFree_v2(pointerOf(m->memory)), CU_OK);
  allocations--;
  *m = tuttiGpuMemory{};
}
int tuttiGpuExport(const tuttiGpuMemory *m) {
  int fd = -1;
  return cuMemGetHandleForAddressRange(&fd, pointerOf(m->memory), m->bytes, CU_RANGE_DMABUF, 0) ==
                 CU_OK
             ? fd
             : -1;
}
bool tuttiGpuAllocation(const tuttiGpuMemory *m, tuttiGpuMemory *whole) {
  *whole = *m; // tests have no part of one
  return true;
}
tuttiResult_t tuttiGpuRead(const tuttiGpuMemory *m, size_t at, void *to, size_t bytes) {
  cuMemcpyDtoH_v2(to, pointerOf(m->memory) + at, bytes);
  return tuttiSuccess;
}
tuttiResult_t tuttiGpuWrite(const tuttiGpuMemory *m, size_t at, const void *from, size_t bytes) {
  cuMemcpyHtoD_v2(pointerOf(m->memory) + at, from, bytes);
  return tuttiSuccess;
}
bool tuttiGpuNeedsFlush(int) {
  return needsFlush;
}
tuttiResult_t tuttiGpuFlush(int) {
  driverFlushes++;
  softHcaReveal();
  return tuttiSuccess;
}
const char *tuttiGpuLend(int, size_t bytes, tuttiGpuLoan *out) {
  *out = tuttiGpuLoan{-1, -1};
  if (lendsNothing) return "the GPU is full";
  out->memory = memfd_create("loan", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(out->memory, (off_t)bytes), 0);
  out->dmabuf = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return nullptr;
}
const char *tuttiGpuBorrow(int device, int fd, size_t bytes, tuttiGpuMemory *out) {
  cuPointer p = 0;
  cuInit(0);
  if (fakeCudaImport(fd, bytes, &p) != CU_OK) return "the memory cannot be mapped";
  allocations++;
  *out = tuttiGpuMemory{reinterpret_cast<void *>(p), bytes, device, true}; // NOLINT: as above
  return nullptr;
}
tuttiResult_t tuttiPin(int, int device, void *, size_t bytes, tuttiPinned *) {
  if (device < 0) return tuttiSuccess;
  pins++;
  pinned = bytes;
  return tuttiSuccess;
}
void tuttiUnpin(tuttiPinned *) {}
}
