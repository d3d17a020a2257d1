/* Memory for kernels of the user, of all ranks of a local team in one flat range: entries of
 * tuttiDevice. */
#ifndef TUTTI_DEVICE_CUDA_DEVCOMM_H_
#define TUTTI_DEVICE_CUDA_DEVCOMM_H_

#include <sys/cdefs.h>

#include "collectives/task.h"
#include "transport/transport.h"

__BEGIN_DECLS

bool tuttiCudaServesKernels(const tuttiCommView *v, char why[TUTTI_SENTENCE]);
tuttiResult_t tuttiCudaDevCommCreate(tuttiCommView *v, tuttiTaskContext *context, size_t bytes,
                                     tuttiDevComm_t *out, void **made);
void tuttiCudaDevCommDestroy(void *made);

struct tuttiCuda;
/* Ends what is left; the GPU is idle. */
void tuttiCudaDevCommsClose(struct tuttiCuda *s);

__END_DECLS

#endif
