/* Transports: how one rank's messages reach another. One row per transport in a table ordered by
 * priority; the first that can connect two ranks does. Each explains itself: canConnect answers
 * with a reason, and explain writes its sentence when somebody reads it, in the INFO line or an
 * error.
 *
 * Life: prepare (create what peers will need, describe it in the peer record) -> bootstrap
 * all-gather of the peer records -> attach (what they say is known from here on) -> open/close of
 * single connections, at any time, without waiting for the peer's caller -> detach. */
#ifndef TUTTI_TRANSPORT_TRANSPORT_H_
#define TUTTI_TRANSPORT_TRANSPORT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/mem.h"
#include "socket/key.h"
#include "topology/gdr.h"
#include "topology/topology.h"
#include "transport/fd_box.h"
#include "transport/fifo.h"
#include "transport/path.h"
#include "transport/peer_fd.h"
#include "transport/remote.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_SENTENCE   256
#define TUTTI_HOSTNAME   64
#define TUTTI_NET_HANDLE 2048
/* Channel of grouped point-to-point messages, apart from those of collectives. */
#define TUTTI_P2P_CHANNEL TUTTI_MAX_CHANNELS
/* Channel of one-sided operations over a network: see rma.h. */
#define TUTTI_RMA_CHANNEL (TUTTI_MAX_CHANNELS + 1)
#define TUTTI_CHANNELS    (TUTTI_MAX_CHANNELS + 2)

/* What every rank tells every other at init. Fixed size, all-gathered as bytes; checked before it
 * is believed (tuttiPeerCheck). */
typedef struct {
  uint32_t version; /* TUTTI_VERSION_CODE */
  int32_t rank, nranks;
  int32_t device;     /* a tuttiDevice_t */
  int32_t cudaDevice; /* -1 on host memory */
  int32_t pid;
  uint64_t process; /* random, one per process: equal means same address space */
  uint64_t hostId;
  uint64_t busId;  /* PCI bus id of the GPU, 0 without */
  int32_t reaches; /* the GPU has access to the memory of all that its process sees */
  int32_t nvlink;  /* NVLinks join the GPU with all others of its host */
  int32_t blocks;  /* that a kernel may have on the GPU; 0: any number */
  char host[TUTTI_HOSTNAME];
  char config[288];   /* what ranks must agree on, as text */
  uint64_t shmSocket; /* names the Unix socket that hands out its segment; 0: there is none */
  tuttiPeerFd segment;
  uint8_t segmentToken[16]; /* which the segment's header repeats: see segment.h */
  uint64_t offer;           /* SHM: see tuttiRemoteOffer */
  tuttiRemoteCost fetch;    /* with an offer: what copies out of others take this rank */
  /* NET: where this rank's proxy listens. */
  uint8_t net[TUTTI_NET_HANDLE];
  int32_t ipc;                      /* symmetric.c: ipcHandle is one */
  uint8_t ipcHandle[64];            /* cudaIpcMemHandle_t of the symmetric block */
  char netName[16];                 /* backend, "Socket" */
  int32_t cores;                    /* that this rank may run on */
  uint64_t cache;                   /* bytes of its cores' last cache; 0: not known */
  uint64_t cpuSet;                  /* which: ranks of a host with equal ones share them */
  int32_t p2pDisabled, shmDisabled; /* its settings at init; what either rank excludes is out */
  uint64_t pxnBytes;    /* most that it borrows of each GPU beside other rails, by way of which it
                           then sends, and lends to each that does; 0: none */
  tuttiFdAddress loans; /* where GPU memory of other processes comes in for that; id 0: nowhere */
} tuttiPeer;

/* The CUDA device whose kernels work on the buffers of a rank; -1: none do. */
static inline int tuttiPeerGpu(const tuttiPeer *peer) {
  return peer->device == tuttiDeviceCuda ? peer->cudaDevice : -1;
}

/* The side that sends in messages from a to b: as an index of a path's rails. */
static inline int tuttiPathTurned(const tuttiPeer *a, const tuttiPeer *b) {
  return a->rank > b->rank;
}
/* The NICs at both ends of a rail reach GPU memory, to read at one and to write at the other. */
static inline bool tuttiRailGdr(const tuttiRail *rail) {
  return rail->gdr[0] == TUTTI_GDR_YES && rail->gdr[1] == TUTTI_GDR_YES;
}
/* The rank to which a reason is due, of the two that it is about, in either order. */
static inline const tuttiPeer *tuttiReasonPeer(tuttiReason why, const tuttiPeer *a,
                                               const tuttiPeer *b) {
  return (a->rank > b->rank) == (why.side == 1) ? a : b;
}

struct tuttiProxy;

/* What transports know of a communicator: a part of tuttiComm, so that this layer does not look
 * up. Peers and flags are read-only after attach. */
typedef struct tuttiCommView {
  int rank, nranks;
  uint64_t commHash;                    /* same on all ranks; names the communicator on the wire */
  uint8_t secret[16];                   /* of the unique id */
  tuttiTlsKey tls;                      /* of connections between hosts or processes */
  const tuttiPeer *peers;               /* [nranks] */
  const tuttiPath *paths;               /* [nranks] of this rank with each; before attach */
  const tuttiChannelRail *channelRails; /* [nchannelRails], see tuttiChannelRailFind; as paths */
  int nchannelRails;
  const tuttiPxnWay *pxn; /* [nranks] of messages to each; NULL: all go from this rank's own GPU */
  const int32_t *lends;   /* [nranks], with pxn: to how many peers each sends by way of this GPU */
  int lsaSize;   /* ranks of each local team: they follow each other, and all store to each other */
  int nchannels; /* channels that collectives may use */
  int neighbours;   /* that rings, trees and rounds of doubling join a rank with on each, at most */
  size_t slotBytes; /* of every FIFO; multiple of TUTTI_LINE */
  size_t memLimit, memTaken;   /* 0: no limit; what this rank may take so far */
  int rmaContexts, rmaSignals; /* of one-sided operations; other ranks may yet say otherwise */
  size_t stagedBytes; /* of the symmetric block that segments hold instead of FIFOs; or 0 */
  uint64_t timeoutMs;
  const tuttiAtomic32 *failed; /* nonzero: give up every wait */
  tuttiMemAccount *memory;
  const tuttiTopology *topology; /* of this host */
  bool gdr, dmabuf, preAmpere;   /* what the GPU's driver says, see tuttiGdrQuestion */
  bool oversubscribed;           /* some host has more ranks than cores */
  struct tuttiProxy *proxy;
  struct tuttiProxy *taker;    /* GPUs: of puts by messages; may wait for copies. Or NULL */
  struct tuttiProxy *receiver; /* of socket endpoints that receive; NULL: `proxy` has them too */
  const char *netName;         /* "" or the only backend allowed */
  uint8_t trafficClass;        /* of RDMA */
  struct tuttiLocal *local;    /* segment.h: what ranks of this host share; NULL without */
  struct tuttiSymmetric *symmetric; /* symmetric.h: GPU memory of all ranks; NULL without */
  void *net;                        /* net.c: this rank's listener and endpoints */
  tuttiAtomic64 mended;             /* network connections that were made anew after trouble */
} tuttiCommView;

/* No entry is NULL: transport/stub.h has what does nothing. */
typedef struct tuttiTransport {
  const char *name; /* "P2P", "SHM", "NET" */
  /* Whether it connects two ranks, and why; formats nothing. a has the lower number. Sets costs,
   * capabilities and `via` of *path, which are zero at first, only if it does. */
  bool (*canConnect)(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path, tuttiReason *why);
  /* Writes what it meant by `why`, a clause or two, for messages from a to b. */
  void (*explain)(tuttiReason why, const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                  char *buf, size_t size);
  tuttiResult_t (*prepare)(tuttiCommView *v, tuttiPeer *mine);
  tuttiResult_t (*attach)(tuttiCommView *v);
  /* Makes this rank's endpoint of the connection, and maps what it needs. Waits for no caller:
   * messages simply are not ready before the other side is. SHM may wait for the peer's proxy,
   * until timeoutMs or `failed`: see shm.c. channel < nchannels or TUTTI_P2P_CHANNEL; shared: the
   * sender's FIFO that all ranks read (peer is -1 for its send endpoint; only where the path of
   * every pair says `sharedFifos`). */
  tuttiResult_t (*open)(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                        bool shared, tuttiConn *conn);
  void (*close)(tuttiCommView *v, tuttiConn *conn);
  void (*detach)(tuttiCommView *v);
} tuttiTransport;

extern const tuttiTransport tuttiTransportP2p; /* p2p.c: threads of one process */
extern const tuttiTransport tuttiTransportShm; /* shm.c: processes of one host */
extern const tuttiTransport tuttiTransportNet; /* net.c: everything else */

/* In order of priority, NULL at the end. */
extern const tuttiTransport *const tuttiTransports[];
/* For tests: puts another table, which stays the caller's and has no more rows than
 * TUTTI_PATH_TRANSPORTS, in the place of tuttiTransports; NULL takes it back. There must be no
 * communicator meanwhile. */
void tuttiTransportsReplace(const tuttiTransport *const *table);

/* Fills *path: the first transport that connects a and b, in whichever order, and why those of
 * higher priority do not. The same on every rank. For src/wireup, whose rows everybody else reads.
 */
void tuttiTransportSelect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path);
/* Writes the word for messages from a to b in the log: "P2P/IPC", "NET/IB/0/GDRDMA" with the port
 * of a; returns buf. */
#define TUTTI_VIA 48
const char *tuttiPathVia(const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                         char buf[TUTTI_VIA]);
/* Writes why the path of a and b is what it is, and why no better one: "shared memory of one host;
 * not P2P: different processes (1, 2)"; returns buf. Named in the order of messages from a to b. */
const char *tuttiPathText(const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                          char buf[TUTTI_SENTENCE]);

/* The rail that messages of a channel take, to or from a peer; NULL: none in particular, as all of
 * the path are alike to it. */
const tuttiRail *tuttiChannelRailFind(const tuttiCommView *v, int peer, int channel,
                                      tuttiDirection direction);
/* Makes `rail` the only one of messages from a to b in a copy of their row, for the two above. */
void tuttiPathOverRail(tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                       const tuttiRail *rail);

/* Calls prepare / attach / detach of every transport. Detach undoes both, also after a failure; it
 * may be called at any time and more than once. */
tuttiResult_t tuttiTransportsPrepare(tuttiCommView *v, tuttiPeer *mine);
tuttiResult_t tuttiTransportsAttach(tuttiCommView *v);
void tuttiTransportsDetach(tuttiCommView *v);
/* Brings v->memory up to date: messages touch pages that nothing else counts. For the thread that
 * uses the communicator. */
void tuttiTransportsMeasure(tuttiCommView *v);

/* For TUTTI_MEM_LIMIT. Halves the slots of all FIFOs; false: they are as small as is useful. */
bool tuttiSlotsShrink(tuttiCommView *v);
/* The failure of a rank that needs more. */
tuttiResult_t tuttiMemExceeded(const tuttiCommView *v, size_t needed);
#define TUTTI_RANK_BYTES 4096 /* at most, for what a communicator keeps of each rank */

/* Checks a record that came over a socket: version, strings, ranges, config. On failure the text
 * names both ranks and hosts. The parts of the transports are checked where they are used. */
tuttiResult_t tuttiPeerCheck(const tuttiPeer *peer, int expectedRank, const tuttiPeer *mine);

__END_DECLS

#endif
