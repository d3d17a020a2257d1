/* NET: connections between hosts. net.c keeps the ends of one communicator and hands them to the
 * proxy; a backend (net_socket.c, later net_ib/) moves slots between the FIFO on this side and the
 * FIFO on the other. Backends are rows of a table, like transports.
 *
 * A connection is opened from the sending side alone: its proxy connects to the receiver's listener
 * (handle in the peer record) and says hello {communicator, secret, from, to, channel}; the
 * receiver's proxy accepts, checks the hello, and binds the end to the FIFO that the receiver
 * opened or will open. So open() never waits for a peer. */
#ifndef TUTTI_TRANSPORT_NET_H_
#define TUTTI_TRANSPORT_NET_H_

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

typedef enum {
  TUTTI_NET_IDLE,  /* nothing to do now */
  TUTTI_NET_MOVED, /* moved something */
  TUTTI_NET_BROKEN /* failed: the thread's last error says how */
} tuttiNetProgress;

typedef struct tuttiNet {
  const char *name; /* "Socket" */
  /* Devices this backend can use, best first; 0 and a sentence in `why` when it can't serve. */
  int (*devices)(tuttiNetDevice *devices, int max, char *why);
  /* Starts to listen; fills the handle (checked by connect on the other side). */
  tuttiResult_t (*listen)(tuttiWires *w, uint8_t handle[TUTTI_NET_HANDLE], void **listener);
  /* Starts a send end; finishes in progress(). */
  tuttiResult_t (*connect)(tuttiWires *w, void *listener, const uint8_t handle[TUTTI_NET_HANDLE],
                           const tuttiNetHello *hello, tuttiConn *fifo, void **end);
  /* Starts a receive end, which waits in progress() for its sender's hello. */
  tuttiResult_t (*expect)(tuttiWires *w, void *listener, const tuttiNetHello *hello,
                          tuttiConn *fifo, void **end);
  /* Accepts connections and reads hellos; drops whatever is not a peer's. Never blocks. */
  tuttiNetProgress (*accept)(void *listener);
  /* Moves what can be moved on one end. Never blocks. */
  tuttiNetProgress (*progress)(void *end);
  /* File descriptors to sleep on when all is idle: calls add(ctx, fd, events) for each. */
  void (*waitOn)(void *listenerOrEnd, bool isListener, void (*add)(void *ctx, int fd, short events),
                 void *ctx);
  /* True when every published slot is with the peer's kernel or memory: nothing lost by close. */
  bool (*drained)(void *end);
  void (*closeEnd)(void *end);
  void (*closeListener)(void *listener);
} tuttiNet;

/* True when nothing that this rank has sent is still in its own memory. */
bool tuttiNetDrained(const tuttiWires *w);

extern const tuttiNet *const tuttiNets[]; /* in order of priority, NULL at the end */

#ifdef __cplusplus
}
#endif

#endif
