/* GPUDirect RDMA: whether a NIC could write a GPU's memory by itself, as a receiver needs it, and
 * read it, as a sender does; judged by what sysfs says of both. Nothing is tried here. */
#ifndef TUTTI_TOPOLOGY_GDR_H_
#define TUTTI_TOPOLOGY_GDR_H_

#include "topology/topology.h"

__BEGIN_DECLS

/* The answers, each with a clause for the line of a channel: ranks tell each other theirs. */
#define TUTTI_GDR_ANSWERS(X)                                                                       \
  X(NOT_ASKED, "the buffers are host memory")                                                      \
  X(YES, "it is")                                                                                  \
  X(NO_PATH, "no PCI path is known between GPU and NIC")                                           \
  X(NO_DRIVER, "no driver lets the NIC at the GPU's memory")                                       \
  X(FAR, "GPU and NIC are too far apart")                                                          \
  X(DETOUR, "IOMMU or ACS is in the way")                                                          \
  X(OFF, "TUTTI_NET_GDR=off")                                                                      \
  X(NO_READ, "what is sent is staged, see TUTTI_NET_GDR_READ")                                     \
  X(DOWN, "the port was down at init")                                                             \
  X(BROKEN, "it was tried at init and does not work, see the warning")
#define TUTTI_GDR_NAME(name, clause) TUTTI_GDR_##name,
typedef enum { TUTTI_GDR_ANSWERS(TUTTI_GDR_NAME) TUTTI_GDR_COUNT } tuttiGdr;
extern const char *const tuttiGdrClauses[TUTTI_GDR_COUNT];

typedef struct {
  uint64_t gpu;      /* PCI bus id */
  const char *nic;   /* the RDMA device */
  const char *level; /* how far apart they may be, a value of TUTTI_NET_GDR_LEVEL */
  const char *read;  /* a value of TUTTI_NET_GDR_READ */
  bool able, dmabuf; /* the GPU has it; GPU, kernel and NIC can do it by dma-buf */
  bool preAmpere;    /* the GPU is older than compute capability 8.0 */
} tuttiGdrQuestion;

typedef struct {
  tuttiGdr write; /* what comes: the NIC writes into the GPU's memory */
  tuttiGdr read;  /* what is sent: it reads there; YES only if `write` is */
} tuttiGdrAnswer;

/* For devices of the host `t` whose sysfs is at `sysfs`. `why` gets a sentence of at most so many
 * bytes: what serves, the distance, and what to mend where an answer is no or the way is slow. */
#define TUTTI_GDR_SENTENCE 512
tuttiGdrAnswer tuttiGdrDecide(const tuttiTopology *t, const char *sysfs, const tuttiGdrQuestion *q,
                              char why[TUTTI_GDR_SENTENCE]);
/* Of such a sentence what stands behind devices and distance, which is the same for others. */
const char *tuttiGdrReason(const char *why);

__END_DECLS

#endif
