/* Messages of a connection of TUTTI_RMA_CHANNEL, one for each piece of a put. For those who write
 * them, a CPU or a kernel, and for who takes them (rma_net.h).
 *
 * A header begins what the descriptor has inlined, where a CPU can read it: slots may be GPU
 * memory. The data follows there if there is room for it (TUTTI_WHERE_INLINE), else it is the
 * payload (TUTTI_WHERE_SLOT). To a peer that has told the keys of its window a network may write
 * such a payload to where it belongs (TUTTI_WHERE_WINDOW), for which the rest of what is inlined
 * says where; the message then tells only that it is there. A network that cannot, or cannot any
 * more, writes it into the slot: that is for it to choose each time it sends a message. */
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

#define TUTTI_RMA_KEYS 12 /* ports of a rank beyond these write no window */

/* By which peers write to a window of this rank by themselves, one for each of its ports; 0: not by
 * this one. */
typedef struct {
  uint32_t key[TUTTI_RMA_KEYS];
} tuttiRmaKeys;

/* Inlined in the descriptor of a message whose data is the payload. Only the header is sent. */
typedef struct {
  tuttiRmaHeader header;
  uint64_t to; /* address of header.offset in the receiver's process */
  tuttiRmaKeys keys;
} tuttiRmaTarget;

#endif
