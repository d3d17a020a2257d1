// The library's own calls of CUDA (base/gpu_memory.h, base/pinned.h), replaced by those of the
// stand-in for libcuda, so that what uses them runs anywhere: link standin.cc.
#pragma once

#include <atomic>
#include <climits>

#include "fakecuda.h"

// What the GPU needs, has not or allows of allocations; and what has been asked of it.
extern std::atomic<bool> needsFlush, lendsNothing;
extern std::atomic<int> allocations, driverFlushes, limit;
extern std::atomic<int> pins;      // of host memory, ever
extern std::atomic<size_t> pinned; // bytes of the last one

inline cuPointer pointerOf(const void *p) {
  return reinterpret_cast<cuPointer>(p);
}
