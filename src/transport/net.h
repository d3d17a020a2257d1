/* NET: connections between hosts. net.c keeps the ends of one communicator and hands them to the
 * proxy; a backend (net_socket.c, later net_ib/) moves slots between the FIFO on this side and the
 * FIFO on the other. Backends are rows of a table, like transports.
 *
 * A connection is opened from the sending side alone: its proxy connects to the receiver's listener
 * (handle in the peer record) and says hello {communicator, secret, from, to, channel}; the
 * receiver's proxy accepts, checks the hello, and binds the end to the FIFO that the receiver
 * opened or will open. So open() never waits for a peer.
 *
 * On a send end a message may stay in the caller's memory (TUTTI_WHERE_DIRECT): the network reads
 * it from there, and it arrives in the receiver's slot. Its head passes when the network has it. */
#ifndef TUTTI_TRANSPORT_NET_H_
#define TUTTI_TRANSPORT_NET_H_

#include "proxy/proxy.h"
#include "transport/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* First bytes on every connection; checked before anything is believed. */
typedef struct {
  uint32_t magic;   /* TUTTI_NET_MAGIC */
  uint32_t version; /* TUTTI_VERSION_CODE */
  uint64_t commHash;
  uint8_t secret[16];
  int32_t from, to, channel;
  int32_t part, parts; /* which of the connection's sockets (or queue pairs) this is */
  int32_t reserved;
} tuttiNetHello;
#define TUTTI_NET_MAGIC 0x7475746eu

typedef struct {
  char name[64];
  float bandwidthGBs, latencyUs;
  char pciPath[128]; /* sysfs path of the device, "" for a virtual one */
  int port;
} tuttiNetDevice;

/* Ends and listeners are driven by operations of the communicator's proxy: `accept` and `progress`
 * are their turns (see tuttiProxyOp), and the two close calls what Remove calls. */
typedef struct tuttiNet {
  const char *name; /* "Socket" */
  /* Devices this backend can use, best first; 0 and a sentence in `why` (of TUTTI_SENTENCE bytes)
   * when it can't serve. */
  int (*devices)(tuttiNetDevice *devices, int max, char *why);
  /* What the handles in two peer records say about connecting these ranks. Same on every rank. */
  void (*canConnect)(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path);
  /* Starts to listen; fills the handle (checked by connect on the other side). */
  tuttiResult_t (*listen)(tuttiWires *w, uint8_t handle[TUTTI_NET_HANDLE], void **listener);
  /* Starts a send end; finishes in progress(). */
  tuttiResult_t (*connect)(tuttiWires *w, void *listener, const uint8_t handle[TUTTI_NET_HANDLE],
                           const tuttiNetHello *hello, const tuttiConn *fifo, void **end);
  /* Starts a receive end, which waits in progress() for its sender's hello. */
  tuttiResult_t (*expect)(tuttiWires *w, void *listener, const tuttiNetHello *hello,
                          const tuttiConn *fifo, void **end);
  /* Accepts connections and reads hellos; drops whatever is not a peer's. Never blocks. */
  tuttiProxyState (*accept)(void *listener, tuttiProxyTurn *turn);
  /* Moves what can be moved on one end. Never blocks. */
  tuttiProxyState (*progress)(void *end, tuttiProxyTurn *turn);
  /* Any thread: every published slot is with the peer's kernel or memory, so that close loses
   * nothing; or the end has failed. */
  bool (*drained)(void *end);
  void (*closeEnd)(void *end);
  void (*closeListener)(void *listener);
} tuttiNet;

extern const tuttiNet tuttiNetSocket;
extern const tuttiNet *const tuttiNets[]; /* in order of priority, NULL at the end */

/* True when no send end of this communicator has anything left to hand over. Whoever wants its last
 * messages to arrive waits for it, running the proxy meanwhile, before it closes. For the thread
 * that opens and closes connections. */
bool tuttiNetDrained(const tuttiWires *w);
/* Brings w->memory up to date with the pages that messages have touched; same thread. */
void tuttiNetMeasure(tuttiWires *w);

#ifdef __cplusplus
}
#endif

#endif
