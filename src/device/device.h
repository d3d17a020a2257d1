/* Where a communicator's buffers live. One table per kind of device; the only caller of executors.
 */
#ifndef TUTTI_DEVICE_DEVICE_H_
#define TUTTI_DEVICE_DEVICE_H_

#include <stddef.h>

#include "kernels/task.h"
#include "tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tuttiDevice {
  const char *name; /* "host" */
  tuttiDevice_t kind;
  tuttiResult_t (*alloc)(void **ptr, size_t size);
  tuttiResult_t (*free)(void *ptr);
  /* Makes [buff, buff + size) known to peers of the communicator, if that helps. */
  tuttiResult_t (*registerBuffer)(void *buff, size_t size, void **handle);
  tuttiResult_t (*deregisterBuffer)(void *handle);
  /* Runs the tasks, of one or several communicators, to their end (host) or enqueues them on their
   * streams (CUDA). */
  tuttiResult_t (*run)(tuttiTask **tasks, int ntasks);
  /* Reads one scalar of `type`, wherever it lives. */
  tuttiResult_t (*readScalar)(const void *scalar, tuttiDataType_t type, tuttiScalar *out);
} tuttiDevice;

extern const tuttiDevice tuttiDeviceHostTable;

#ifdef __cplusplus
}
#endif

#endif
