/* Messages of a group: SendRecv tasks, which run before the group's collectives. */
#ifndef TUTTI_DEVICE_CUDA_MESSAGES_H_
#define TUTTI_DEVICE_CUDA_MESSAGES_H_

#include <sys/cdefs.h>

#include "device/cuda/state.h"

__BEGIN_DECLS

/* Whether a task is a message of this communicator. */
static inline bool tuttiCudaIsMessage(const tuttiCuda *s, const tuttiTask *t) {
  return t->context->device == s && t->schedule.coll == tuttiCollSendRecv;
}

/* Enqueues the messages of this communicator among n tasks, whose rounds it sets. */
tuttiResult_t tuttiCudaRunMessages(tuttiCuda *s, tuttiTask *tasks, int n);

__END_DECLS

#endif
