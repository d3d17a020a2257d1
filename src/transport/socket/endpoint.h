/* What endpoint.c (messages over sockets) and meet.c (how the two endpoints of a connection find
 * each other) share, and what others have from them: every rank has one listener for the endpoints
 * of all networks (net.c), and one of NET/IB begins with an endpoint of these, meets its peer in
 * the same way and keeps the socket (transport/ib).
 *
 * On the wire a message is its slot descriptor, then its payload unless that is in there. A
 * connection has one or more sockets, its parts. Everything goes over part 0, but for payloads
 * above TUTTI_STRIPE_MIN, which are cut into one share per part. Nothing is ever sent the other way
 * after the reply, so closing with a plain FIN loses nothing. */
#ifndef TUTTI_TRANSPORT_SOCKET_ENDPOINT_H_
#define TUTTI_TRANSPORT_SOCKET_ENDPOINT_H_

#include <sys/cdefs.h>

#include "socket/socket.h"
#include "transport/meter.h"
#include "transport/net.h"

__BEGIN_DECLS

#define TUTTI_SOCKET_PARTS 16
#define TUTTI_STRIPE_MIN   65536u
/* What part 0 may read past what it needs, so that one call gets many small messages. */
#define TUTTI_SOCKET_AHEAD 4096
/* Connections that have not said a complete hello yet; beyond, the oldest is dropped. */
#define TUTTI_SOCKET_STRANGERS 64
/* How long a sender first waits for the reply before it tries another address; then doubled. */
#define TUTTI_SOCKET_PATIENCE_MS 1000

/* In tuttiPeer.net. */
typedef struct {
  tuttiAddressList addresses;
  char interface[IF_NAMESIZE]; /* of the first address */
  uint32_t megabits;           /* its speed; 0: no driver tells; 24 Gb/s for lo */
} tuttiSocketHandle;

/* One socket of an endpoint. Messages before `number` have passed entirely, and `offset` bytes of
 * what message `number` has for this socket (sending: the descriptor counts, receiving: it does
 * not). */
typedef struct {
  tuttiProxySource source;  /* fd -1: not connected yet */
  uint64_t number, attempt; /* recv: attempt of its hello */
  size_t offset;
  bool carried; /* recv: something has come */
  bool closed;  /* recv: the peer closed it between two messages */
} tuttiSocketPart;

/* A send endpoint on its way to its receiver, one part after the other. */
typedef struct {
  tuttiDial dial;
  int part; /* the one that is being connected; == nparts: all are */
  bool dialling;
  uint64_t deadline; /* of reaching the peer */
  uint32_t napMs;
  tuttiAddressList targets;
} tuttiSocketJoin;

struct tuttiSocketListener;

typedef struct tuttiSocketEndpoint {
  tuttiCommView *view;
  struct tuttiSocketListener *listener;
  tuttiNetHello hello; /* send: of the part that is being connected */
  tuttiConn fifo;
  char who[128 + TUTTI_HOSTNAME]; /* "rank 3 (host node7, pid 123), channel 2" */
  int nparts;                     /* recv: 0 before the first hello */
  tuttiSocketPart parts[TUTTI_SOCKET_PARTS];
  uint64_t known;  /* messages whose descriptor is known: seen in the FIFO, or received */
  uint64_t passed; /* messages that have passed on all parts: == credit, or published */
  uint64_t placed; /* recv: messages of which it is settled where the payload goes */
  /* recv: whoever runs the loop is in an operation; until when, at the latest, the payload of that
   * message waits to be told its place. */
  bool attended;
  uint64_t waitsFor, waitsUntil;
  uint8_t *target[TUTTI_FIFO_DEPTH];  /* recv: where */
  uint32_t payload[TUTTI_FIFO_DEPTH]; /* bytes of known messages that follow the descriptor */
  uint8_t descriptors[TUTTI_FIFO_DEPTH][TUTTI_LINE]; /* send: as they go on the wire */
  uint8_t ahead[TUTTI_SOCKET_AHEAD];                 /* recv: what part 0 has read ahead */
  size_t aheadBegin, aheadEnd;
  /* Bytes of payloads that have come; NET/IB's sender: acknowledged, of large ones. */
  uint64_t carried;
  tuttiMeter meter;
  uint64_t metered;                 /* recv: the message in which it has set its last mark */
  char interface[IF_NAMESIZE];      /* of this side, if it has been asked for; "" */
  tuttiSocketJoin join;             /* send */
  struct tuttiSocketEndpoint *next; /* recv: in the listener's list, once its first turn has come */
  bool listed;
  bool windows; /* recv: payloads may have been written to windows of this rank */
} tuttiSocketEndpoint;

/* Of a socket that has said a good hello before its receive endpoint was opened. */
typedef struct tuttiSocketEarly {
  tuttiNetHello hello;
  int fd;
  struct tuttiSocketEarly *next;
} tuttiSocketEarly;

typedef struct tuttiSocketListener {
  tuttiCommView *view;
  tuttiListener listener;
  tuttiGreeter greeter;
  tuttiProxySource source; /* of the greeter, once it is open */
  uint64_t due;            /* when the greeter has a turn in any case */
  bool paused;             /* no descriptors left: no turn before */
  bool met;                /* a hello was good */
  uint64_t carried;        /* bytes of payloads that have come to all endpoints of NET/Socket */
  tuttiSocketEndpoint *endpoints;
  tuttiSocketEarly *early;
} tuttiSocketListener;

/* NULL, or what is wrong with the descriptor of message `number` that came from the network.
 * `windows`: it may be one of TUTTI_WHERE_WINDOW. */
const char *tuttiSocketDescriptorCheck(const tuttiSlotDescriptor *d, uint64_t number,
                                       size_t slotBytes, bool windows);
/* Send: takes up the messages that the FIFO's writer has published, up to number `until`:
 * descriptors[] gets them as they go out, and known counts them. */
void tuttiSocketLook(tuttiSocketEndpoint *e, uint64_t until);
/* Send: a message has been published. Before, nobody waits for the connection: a kernel gets all of
 * its algorithm, also those of no use to it, and who is done at their other end may have left. */
static inline bool tuttiSocketIsUsed(const tuttiSocketEndpoint *e) {
  return e->known > 0 || tuttiLoadAcquire(&e->fifo.descriptors[0].seq) == 1;
}
/* Recv: puts the descriptor of message `number`, once checked, into its slot, which is free, and
 * its payload[]; seq is left to the caller. */
tuttiResult_t tuttiSocketTakeDescriptor(tuttiSocketEndpoint *e, uint64_t number,
                                        const tuttiSlotDescriptor *d);
/* NULL, or what is wrong with a genuine hello of this version. */
const char *tuttiSocketHelloCheck(const tuttiCommView *v, const tuttiNetHello *hello);
/* The share of `part` in a payload: whole pages, but for the last one. */
void tuttiSocketShare(size_t bytes, int parts, int part, size_t *begin, size_t *share);

/* An endpoint that will have so many sockets, if it sends; its memory is the caller's, zeroed, or
 * what begins with it. The peer's record was checked by canConnect. */
void tuttiSocketEndpointInit(tuttiSocketEndpoint *e, tuttiCommView *v,
                             tuttiSocketListener *listener, const tuttiNetHello *hello,
                             const tuttiConn *fifo, int nparts);
void tuttiSocketEndpointFree(void *end); /* its memory too */

/* Its part of tuttiNet.tell. */
bool tuttiSocketTell(void *end, tuttiProxyFacts *out);

/* Takes a port, and fills the handle, which is zero; there nobody is let in yet. *listener is NULL
 * if this host has no interface for it, which is logged. */
tuttiResult_t tuttiSocketListen(tuttiCommView *v, uint8_t handle[TUTTI_NET_HANDLE],
                                tuttiSocketListener **listener);
tuttiResult_t tuttiSocketListenerStart(tuttiSocketListener *l);
/* A turn of the proxy (see tuttiProxyOp): accepts connections and reads hellos; drops whatever is
 * not a peer's. Never blocks. */
tuttiProxyState tuttiSocketAccept(tuttiSocketListener *l, tuttiProxyTurn *turn);
void tuttiSocketCloseListener(tuttiSocketListener *l); /* NULL is allowed */
/* Receive endpoint: takes its place in the listener's list and the sockets that came early. */
void tuttiSocketAwait(tuttiSocketEndpoint *e);
/* Send endpoint: goes on connecting. */
tuttiResult_t tuttiSocketJoinStep(tuttiSocketEndpoint *e, tuttiProxyTurn *turn);
void tuttiSocketCloseFd(tuttiProxy *proxy, tuttiProxySource *source);

__END_DECLS

#endif
