/* The part of the CUDA driver's ABI that the software HCA calls, declared anew: it builds without
 * CUDA's headers, and libcuda is used only if the process has loaded it already. Also what the
 * stand-in for libcuda (fakecuda.c) exports. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int cuResult;
typedef uint64_t cuPointer;
typedef struct {
  unsigned char reserved[64];
} cuIpcHandle;

/* CUmemLocation */
typedef struct {
  int type, id;
} cuLocation;

/* CUDA_MEMCPY2D */
typedef struct {
  size_t srcX, srcY;
  int srcType;
  const void *srcHost;
  cuPointer srcDevice;
  void *srcArray;
  size_t srcPitch;
  size_t dstX, dstY;
  int dstType;
  void *dstHost;
  cuPointer dstDevice;
  void *dstArray;
  size_t dstPitch;
  size_t width, height;
} cuCopy2d;

enum {
  CU_OK = 0,
  CU_INVALID_VALUE = 1,
  CU_NO_MEMORY = 2,
  CU_INVALID_CONTEXT = 201,
  CU_INVALID_HANDLE = 400,
  CU_NOT_READY = 600,

  CU_TYPE_HOST = 1,
  CU_TYPE_DEVICE = 2,

  CU_LOCATION_DEVICE = 1,
  CU_ACCESS_READ_WRITE = 3,

  CU_POINTER_TYPE = 2,
  CU_POINTER_MANAGED = 8,
  CU_POINTER_ORDINAL = 9,

  CU_STREAM_NONBLOCKING = 1,
  CU_EVENT_NO_TIMING = 2,
  CU_REGISTER_PORTABLE = 1,
  CU_IPC_LAZY_PEER = 1,
  CU_RANGE_DMABUF = 1,
};

/* name here, symbol, arguments */
#define CU_CALLS(X)                                                                                \
  X(retainContext, cuDevicePrimaryCtxRetain, (void **context, int device))                         \
  X(setContext, cuCtxSetCurrent, (void *context))                                                  \
  X(pointerAttribute, cuPointerGetAttribute, (void *value, int attribute, cuPointer pointer))      \
  X(addressRange, cuMemGetAddressRange_v2, (cuPointer * base, size_t * size, cuPointer pointer))   \
  X(getAccess, cuMemGetAccess,                                                                     \
    (unsigned long long *flags, const cuLocation *location, cuPointer pointer))                    \
  X(priorities, cuCtxGetStreamPriorityRange, (int *least, int *greatest))                          \
  X(createStream, cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority))       \
  X(destroyStream, cuStreamDestroy_v2, (void *stream))                                             \
  X(synchronize, cuStreamSynchronize, (void *stream))                                              \
  X(createEvent, cuEventCreate, (void **event, unsigned flags))                                    \
  X(destroyEvent, cuEventDestroy_v2, (void *event))                                                \
  X(recordEvent, cuEventRecord, (void *event, void *stream))                                       \
  X(queryEvent, cuEventQuery, (void *event))                                                       \
  X(copy, cuMemcpyAsync, (cuPointer to, cuPointer from, size_t bytes, void *stream))               \
  X(copy2d, cuMemcpy2DAsync_v2, (const cuCopy2d *copy, void *stream))                              \
  X(registerHost, cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags))                   \
  X(unregisterHost, cuMemHostUnregister, (void *p))                                                \
  X(exportIpc, cuIpcGetMemHandle, (cuIpcHandle * handle, cuPointer pointer))                       \
  X(openIpc, cuIpcOpenMemHandle_v2, (cuPointer * pointer, cuIpcHandle handle, unsigned flags))     \
  X(closeIpc, cuIpcCloseMemHandle, (cuPointer pointer))

typedef struct {
#define X(name, symbol, arguments) cuResult(*name) arguments;
  CU_CALLS(X)
#undef X
} softDriver;

/* NULL where the process has not loaded libcuda.so.1 (yet). Any thread may call it. */
const softDriver *softDriverGet(void);
