/* The arguments of kernels between all pairs: what a plan, the task that it is of and the windows
 * say, in bytes and by link. The one place where they are filled. */
#ifndef TUTTI_DEVICE_CUDA_ARGUMENTS_H_
#define TUTTI_DEVICE_CUDA_ARGUMENTS_H_

#include <sys/cdefs.h>

#include "device/cuda/state.h"

__BEGIN_DECLS

/* Sets in s->args and s->regions what is the same for all launches. */
void tuttiCudaArgsInit(tuttiCuda *s, const tuttiCommView *v);
/* Sets the rest of those that the plan's kernel takes, for a collective. */
void tuttiCudaArgsCollective(tuttiCuda *s, const tuttiTask *t);

/* For messages of a group that one launch carries, all of `proto`: Begin with none, Message for
 * each, of which a link has at most one in each direction, then End with any of them, for what they
 * have in common. */
void tuttiCudaArgsBegin(tuttiCuda *s);
void tuttiCudaArgsMessage(tuttiCuda *s, const tuttiTask *t);
void tuttiCudaArgsEnd(tuttiCuda *s, const tuttiTask *t, int proto);

__END_DECLS

#endif
