/* What begins each message of a connection of TUTTI_RMA_CHANNEL: where its data goes. For those who
 * write messages, a CPU or a kernel, and for who takes them (rma_net.h). The data follows in the
 * same payload, or is the whole payload of the next message: a header must be where a CPU can read
 * it, and slots may be GPU memory. */
#ifndef TUTTI_TRANSPORT_RMA_MESSAGE_H_
#define TUTTI_TRANSPORT_RMA_MESSAGE_H_

#include <stdint.h>

/* The same on all hosts of a communicator. */
typedef struct {
  uint64_t offset; /* in the window */
  uint32_t window; /* its number; 0: no data */
  uint32_t bytes;  /* of data */
  uint32_t counter;
  uint32_t last; /* 1: the put is complete, count its signal; 0: more follows */
} tuttiRmaHeader;

#endif
