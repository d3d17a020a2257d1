/* A communicator's life on a GPU, from describing it to others to its end, and the thread that
 * listens to what its kernels report and ends them when it fails. Entries of tuttiDevice. */
#ifndef TUTTI_DEVICE_CUDA_LIFE_H_
#define TUTTI_DEVICE_CUDA_LIFE_H_

#include <sys/cdefs.h>

#include "collectives/task.h"
#include "transport/transport.h"

__BEGIN_DECLS

tuttiResult_t tuttiCudaDescribe(int ordinal, tuttiWires *w, tuttiPeer *mine);
tuttiResult_t tuttiCudaAttach(tuttiWires *w, tuttiTaskHost *host);
void tuttiCudaDetach(tuttiWires *w, tuttiTaskHost *host);
tuttiResult_t tuttiCudaDrain(tuttiTaskHost *host);
tuttiResult_t tuttiCudaStage(tuttiTaskHost *host, void **memory, size_t *bytes,
                             tuttiStream_t *stream);
tuttiResult_t tuttiCudaSettle(tuttiTaskHost *host);
tuttiResult_t tuttiCudaWindowRegister(tuttiWires *w, tuttiTaskHost *host, void *buff, size_t size,
                                      void **window);

__END_DECLS

#endif
