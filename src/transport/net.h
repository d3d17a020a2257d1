/* NET: connections between hosts. net.c keeps the endpoints of one communicator and hands them to
 * the proxy; a backend (ib/, socket/) moves slots between the FIFO on this side and the FIFO on the
 * other. Backends are rows of a table, like transports.
 *
 * A connection is opened from the sending side alone: its proxy connects to the receiver's listener
 * (handle in the peer record) and says hello {communicator, from, to, channel}, and both prove that
 * they know the secret; the receiver's proxy binds the endpoint to the FIFO that the receiver
 * opened or will open. So open() never waits for a peer.
 *
 * On a send endpoint a message may stay in the caller's memory (TUTTI_WHERE_DIRECT): the network
 * reads it from there, and it arrives in the receiver's slot. Credit is given when the network has
 * it. */
#ifndef TUTTI_TRANSPORT_NET_H_
#define TUTTI_TRANSPORT_NET_H_

#include <sys/cdefs.h>

#include "bootstrap/handshake.h"
#include "proxy/proxy.h"
#include "transport/rma_message.h"
#include "transport/transport.h"

__BEGIN_DECLS

/* First bytes on every connection; checked before anything is believed. */
typedef struct {
  tuttiHello head; /* its hash names the communicator */
  int32_t channel;
  int32_t part, parts; /* which of the connection's sockets (or queue pairs) this is */
  uint64_t attempt;    /* grows; the receiver takes none that is older than what it has */
} tuttiNetHello;

struct tuttiSocketListener;

typedef enum {
  tuttiNetConnects,
  tuttiNetRefuses, /* they do not meet, by any network */
  tuttiNetPasses   /* it is for the next network to say */
} tuttiNetAnswer;

/* A port counts for where it is if it has at least this part of the fastest one's speed. */
#define TUTTI_NET_SLOWEST 4

/* A port of a rank, as rails are made of them. */
typedef struct {
  char name[24];     /* "mlx5_0:1", the same for all ranks of a host */
  uint32_t megabits; /* 0: not known */
  uint8_t distance;  /* a tuttiDistance from the rank's GPU; TUTTI_DISTANCE_COUNT: not known */
  bool up;
  bool usable; /* and one that connections of this rank would take */
  bool later;  /* it is down, and would be usable if it were up, as far as can be told */
} tuttiNetPort;

/* What is wrong with a rank's network while it mends it. */
typedef struct {
  char port[24];   /* the first that went down, "mlx5_0:1"; "": none did */
  uint16_t down;   /* ports that did */
  uint16_t broken; /* connections that are being made anew */
} tuttiNetTrouble;

/* Every rank listens on a socket (socket/meet.c), by which the endpoints of all networks meet; its
 * addresses begin each handle. Endpoints and nodes are driven by operations of the communicator's
 * proxy: `serve` and `progress` are their turns (see tuttiProxyOp), and the two close calls what
 * Remove calls. No entry is NULL: transport/stub.h has what does nothing. */
typedef struct tuttiNet {
  const char *name; /* "Socket" */
  /* Opens what this rank has for the network, and adds to mine->net. *node is what all endpoints
   * share, NULL if nothing. If it can't serve here, `why` (of TUTTI_SENTENCE bytes, empty at first)
   * says why, and *node stays NULL. */
  tuttiResult_t (*open)(tuttiCommView *v, tuttiPeer *mine, void **node, char *why);
  /* What the handles in two peer records say about connecting these ranks, and why; else as in
   * tuttiTransport. */
  tuttiNetAnswer (*canConnect)(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path,
                               tuttiReason *why);
  void (*explain)(tuttiReason why, const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                  char *buf, size_t size);
  /* The ports of which the peer's record tells, numbered as there, in ports[TUTTI_PATH_RAILS];
   * returns how many. 0: no connection has a choice. */
  int (*ports)(const tuttiPeer *peer, tuttiNetPort *ports);
  /* How well a port of a reaches one of b, and the rail that they make; 0: not at all. Of peers
   * whose ports are known from above. */
  int (*join)(const tuttiPeer *a, int portOfA, const tuttiPeer *b, int portOfB, tuttiRail *rail);
  /* Gets ready for connections with so many peers, before any kernel runs. */
  tuttiResult_t (*attach)(tuttiCommView *v, void *node, int npeers);
  /* Of so many connections to open, for how many there is such memory as takeData gives. After
   * attach. */
  int (*room)(void *node, int sends, int receives);
  /* GPU memory for the payloads of the connection that `conn` names, which has TUTTI_FIFO_DEPTH
   * slots, of this rank's GPU or of the one by which its messages go; NULL: there is none, and they
   * go through host memory. To be given back when the connection is closed. */
  tuttiResult_t (*takeData)(void *node, const tuttiConn *conn, uint8_t **data);
  void (*giveData)(void *node, const uint8_t *data);
  /* Lets peers write to [base, base + bytes) of this rank's device by themselves, until withdrawn:
   * with the keys, which are zero at first. NULL, and no keys: they can't. Any thread. */
  void *(*expose)(void *node, void *base, size_t bytes, tuttiRmaKeys *keys);
  void (*withdraw)(void *node, void *exposed);
  /* Whether the network can read and write all of [addr, addr + bytes) of the user's GPU memory by
   * itself, for which that must be registered (region.h); false where payloads go through host
   * memory. For the thread that launches kernels. */
  bool (*reaches)(void *node, const void *addr, size_t bytes);
  /* Makes an endpoint, which goes on in progress(): a send endpoint dials, a receive endpoint waits
   * for its sender's hello. What the peer's record says is checked. It may set fifo->registered
   * and fifo->lends. */
  tuttiResult_t (*connect)(tuttiCommView *v, void *node, struct tuttiSocketListener *listener,
                           const tuttiNetHello *hello, tuttiConn *fifo, void **end);
  /* Moves what is common to all endpoints. Never blocks; not called where there is no node. */
  tuttiProxyState (*serve)(void *node, tuttiProxyTurn *turn);
  /* Moves what can be moved on one end. Never blocks. */
  tuttiProxyState (*progress)(void *end, tuttiProxyTurn *turn);
  /* Any thread: every published slot is with the peer's kernel or memory, so that close loses
   * nothing; or the communicator has failed. An endpoint that fails is not drained: its failure
   * reaches the communicator a moment later, and who waits must not take that moment for success.
   */
  bool (*drained)(void *end);
  /* The network stops reading and writing memory of the user by itself. */
  void (*haltEndpoint)(void *end);
  bool (*tell)(void *end, tuttiProxyFacts *out);     /* as of tuttiProxyOp */
  void (*trouble)(void *node, tuttiNetTrouble *out); /* zero at first. Any thread */
  void (*closeEndpoint)(void *end);
  void (*close)(void *node); /* of `open`, not NULL */
} tuttiNet;

extern const tuttiNet tuttiNetIb; /* if built with the headers of libibverbs */
extern const tuttiNet tuttiNetSocket;
extern const tuttiNet *const tuttiNets[];       /* in order of priority, NULL at the end */
const tuttiNet *tuttiNetFind(const char *name); /* in capitals or not; NULL: there is none */

/* The proxy of an endpoint; the listener is with those that receive. Endpoints of the two share the
 * memory account, the log, how failures are told, and what nobody writes of the view: no more. */
static inline tuttiProxy *tuttiNetProxy(const tuttiCommView *v, tuttiDirection direction) {
  return direction == TUTTI_RECV && v->receiver ? v->receiver : v->proxy;
}
/* True when no send endpoint of this communicator has anything left to hand over. Whoever wants its
 * last messages to arrive waits for it, running the proxy meanwhile, before it closes. For the
 * thread that opens and closes connections. */
bool tuttiNetDrained(const tuttiCommView *v);
/* Payloads of connections with slots in GPU memory that lie in host memory all the same, at most.
 */
#define TUTTI_NET_SMALL_MAX ((size_t)32768)
/* Of the host memory of a connection's FIFO: descriptors, credit, posts and what a network keeps
 * behind them. */
#define TUTTI_NET_CONTROL_BYTES 8192
/* Bytes of an endpoint, as v has slots. The same on all ranks, whatever networks they have. */
#define TUTTI_NET_ENDPOINT_BYTES 33408 /* at most, without the slots */
size_t tuttiNetEndpointBytes(const tuttiCommView *v);
/* Bytes of host memory of a connection's FIFO: TUTTI_NET_CONTROL_BYTES, then the payloads, of which
 * only small ones if there is room for them in the GPU's memory. */
size_t tuttiNetHostBytes(const tuttiCommView *v, bool gpuData);
/* As expose and withdraw of the network that this rank has, if it has one; NULL is allowed. */
void *tuttiNetExpose(const tuttiCommView *v, void *base, size_t bytes, tuttiRmaKeys *keys);
void tuttiNetWithdraw(const tuttiCommView *v, void *exposed);
/* As trouble of the network that this rank has; zero: there is none. For whoever may read v->net.
 */
void tuttiNetTroubleOf(const tuttiCommView *v, tuttiNetTrouble *out);
/* As reaches of the network that this rank has. */
bool tuttiNetReaches(const tuttiCommView *v, const void *addr, size_t bytes);
/* Fails if TUTTI_NET_GDR=require. `what` is a clause that names what this rank's GPU goes without.
 */
#define TUTTI_NET_NO_NIC                                                                           \
  "no NIC reads and writes the memory of its GPU: TUTTI_DEBUG=INFO says why for each"
tuttiResult_t tuttiNetWithoutGdr(const tuttiCommView *v, const char *what);
/* Brings v->memory up to date with the pages that messages have touched; same thread. */
void tuttiNetMeasure(tuttiCommView *v);

__END_DECLS

#endif
