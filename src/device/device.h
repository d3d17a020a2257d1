/* Where a communicator's buffers live. One table per kind of device; the only caller of executors.
 *
 * Life for a communicator: describe (who am I, for the peer record) -> attach, when its transports
 * are -> run ... -> detach, before they go. */
#ifndef TUTTI_DEVICE_DEVICE_H_
#define TUTTI_DEVICE_DEVICE_H_

#include <stddef.h>
#include <sys/cdefs.h>

#include "collectives/task.h"
#include "transport/rma.h"
#include "transport/transport.h"
#include "tutti.h"

__BEGIN_DECLS

/* No entry is NULL: device/stub.h has what does nothing. */
typedef struct tuttiDevice {
  const char *name; /* "host" */
  tuttiDevice_t kind;
  tuttiResult_t (*alloc)(void **ptr, size_t size);
  tuttiResult_t (*free)(void *ptr);
  /* Runs the tasks, of one or several communicators, to their end (host) or enqueues them on their
   * streams (CUDA). */
  tuttiResult_t (*run)(const tuttiTaskSet *set);
  /* Reads one scalar of `type`, wherever it lives. *later, NULL at first: where executors read it
   * when they run, and *out is left as it is. */
  tuttiResult_t (*readScalar)(const void *scalar, tuttiDataType_t type, tuttiScalar *out,
                              const void **later);
  /* Copies between buffers of the user, in order of the stream of each. */
  tuttiResult_t (*copy)(tuttiTaskContext *context, void *to, tuttiStream_t receiver,
                        const void *from, size_t bytes, tuttiStream_t stream);
  /* Records an event of the user in the stream, before what is run next; tuttiInvalidUsage where
   * there are no streams. */
  tuttiResult_t (*mark)(tuttiTaskContext *context, tuttiStream_t stream, void *event);
  /* NULL, or what is wrong with a buffer of the user. Errors and faults later are worse. */
  const char *(*refuse)(const void *buffer);
  /* What the rest needs of the communicator. */
  tuttiResult_t (*describe)(int ordinal, tuttiCommView *v, tuttiPeer *mine);
  tuttiResult_t (*attach)(tuttiCommView *v, tuttiTaskContext *context);
  void (*detach)(tuttiCommView *v, tuttiTaskContext *context);
  /* Waits until nothing that was run is under way. */
  tuttiResult_t (*drain)(tuttiTaskContext *context);
  /* Host memory that tasks can work on and a stream for them, both the communicator's own, and the
   * wait for that stream. *memory is NULL where any memory will do, and `run` waits. */
  tuttiResult_t (*stage)(tuttiTaskContext *context, void **memory, size_t *bytes,
                         tuttiStream_t *stream);
  tuttiResult_t (*waitStaged)(tuttiTaskContext *context);
  /* Makes the ranges of all ranks known to each other. All ranks call it at once, with the same
   * size, each from a thread of its own; context->exchange is for what they tell each other.
   * *window is the device's, or NULL, for windowDeregister, which is called by each rank alone,
   * also when the communicator has failed. Each rank tells where its buffer is, so that none need
   * be symmetric. *seen: the address by which kernels of the user know it, or NULL. */
  tuttiResult_t (*windowRegister)(tuttiCommView *v, tuttiTaskContext *context, void *buff,
                                  size_t size, void **window, tuttiWindow_t *seen);
  void (*windowDeregister)(void *window);
  /* Before others know of a window, which has a number that is the same on all ranks: they may put
   * into it once they know. And from when on they can't; nobody is in it when that returns. On the
   * host transport/rma.h sees to both. */
  tuttiResult_t (*windowOpen)(tuttiTaskContext *context, uint32_t number, void *base, size_t size,
                              tuttiRmaKeys *keys);
  void (*windowClose)(tuttiTaskContext *context, uint32_t number);
  /* Where this rank can store into the part of `rank`; or NULL, and why not. */
  void *(*windowPart)(const void *window, int rank, char why[TUTTI_SENTENCE]);
  /* The same for kernels of the user, which have seen the window, and ranks of the local team. */
  void *(*windowFlat)(const void *window, int rank, char why[TUTTI_SENTENCE]);
  /* Kernels of the user reach other ranks of the local team; else why not. */
  bool (*servesKernels)(const tuttiCommView *v, char why[TUTTI_SENTENCE]);
  /* Makes `bytes` of zeroed memory on each rank for kernels of its local team, where these are
   * served. Called by all ranks at once, as windowRegister; *made is for devCommDestroy, which each
   * rank calls alone. Fills what *out tells of it. */
  tuttiResult_t (*devCommCreate)(tuttiCommView *v, tuttiTaskContext *context, size_t bytes,
                                 tuttiDevComm_t *out, void **made);
  void (*devCommDestroy)(void *made);
  /* One-sided operations, in order of the stream, once there has been a window. A put goes to
   * put->mapped, or by messages to a peer that this rank does not store to; puts follow all that
   * was run before on any stream. A wait follows its stream alone. On the host transport/rma.h
   * carries them out, and these are not called. */
  tuttiResult_t (*put)(tuttiTaskContext *context, const tuttiRmaPut *put, tuttiStream_t stream);
  tuttiResult_t (*awaitSignals)(tuttiTaskContext *context, const tuttiWaitSignalDesc_t *descs,
                                int n, tuttiStream_t stream);
} tuttiDevice;

extern const tuttiDevice tuttiDeviceCpuTable;
/* CUDA's, or NULL; then *why says in a sentence what is missing. Looks only once. */
const tuttiDevice *tuttiDeviceCudaTable(const char **why);
/* The device of a rank that names `ordinal` (-1: none): with CUDA the thread's current one if none,
 * without CUDA the ordinal as it is. */
int tuttiDeviceCudaOrdinal(int ordinal);

__END_DECLS

#endif
