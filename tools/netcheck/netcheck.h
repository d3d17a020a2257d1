/* tutti netcheck, its parts:
 *   netcheck.c   the command line, who the hosts are, and what each of them does
 *   rounds.c     which hosts meet in which round; the first host, which leads all
 *   line.c       what the first host and another one tell each other
 *   pair.c       two hosts: which rails there are between them, and what is tried on each
 *   rail.c       one rail: its bytes, its latency, its rate
 *   facts.c      what a communicator knows of its path, and a host of its devices
 *   judge.c      what is wrong with a rail, and the remedy
 *   print.c      table and JSON lines
 *
 * One process of each host takes part; it is in one pair at a time. Every rail of a pair has a
 * communicator of its own, which may use one port on either side alone, so that what is measured is
 * what operations of the library get by that rail. */
#ifndef TUTTI_TOOLS_NETCHECK_NETCHECK_H_
#define TUTTI_TOOLS_NETCHECK_NETCHECK_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "perf.h"
#include "transport/transport.h"
#include "tutti.h"

__BEGIN_DECLS

#define NETCHECK_COMMAND "tutti netcheck"
#define NETCHECK_RAILS   TUTTI_PATH_RAILS
#define NETCHECK_TEXT    512
#define NETCHECK_NIC     24

typedef struct {
  int device;       /* tuttiDevice_t */
  size_t bytes;     /* of a timed message */
  int seconds;      /* for a pair: no rail begins later */
  int least;        /* percent of the line rate below which a rail is slow */
  const char *json; /* NULL: none; "-": stdout */
  int port;         /* as of tutti perf */
  bool all;         /* show rows without findings, however many there are */
} netOptions;

/* How long one operation may wait, and the lines between the two hosts of a pair: longer, as one
 * side may yet wait for an operation that the other has given up. */
static inline int netStepMs(const netOptions *o) {
  return o->seconds * 250 > 2000 ? o->seconds * 250 : 2000;
}
static inline int netPairLineMs(const netOptions *o) {
  return 2 * netStepMs(o);
}
/* How long a pair can take at most, whatever happens to the other host. */
static inline int netPairMs(const netOptions *o) {
  return o->seconds * 1000 + 6 * netStepMs(o);
}

/* ---- hosts and rounds ------------------------------------------------------------------------ */

typedef struct {
  int rank;      /* that takes part: the first of its host */
  char name[80]; /* the host's; with the rank, where several have one name */
} netHost;

/* Fills hosts[n] in order of their ranks from the peer records; returns how many there are. */
int netHostsOf(const tuttiPeer *peers, int n, netHost *hosts);

/* A round-robin tournament of n hosts: so many rounds, in which every two hosts meet once. */
int netRounds(int n);
/* Whom a host meets in a round; -1: nobody. */
int netPartner(int n, int round, int host);

/* ---- what is told of a pair ------------------------------------------------------------------ */

/* One rail, as one of its two hosts saw it: [0] of arrays is this host, [1] the other. */
typedef struct {
  char nic[2][NETCHECK_NIC]; /* port or interface */
  char via[TUTTI_VIA];       /* of what this host sends; "": the path is not known */
  char why[TUTTI_SENTENCE];
  char failure[NETCHECK_TEXT];       /* why it was not tried to the end; or "" */
  char fault[PERF_FAULT_TEXT];       /* the first wrong element that came; or "" */
  uint64_t wrong;                    /* elements that came */
  double line;                       /* GB/s of the slower port; 0: not known */
  double pcie;                       /* GB/s of the PCIe link of this host's NIC; 0: not known */
  double copy;                       /* GB/s at which a core of this host copies; 0: GPU memory */
  double alone, together, latencyUs; /* GB/s that this host has sent; 0: not measured */
  int32_t port[2];                   /* numbers of the ports in the peer records */
  int32_t down[2];                   /* the port is */
  int32_t worse;                     /* there should be a better path than this one */
  int32_t gpu;                       /* -1: host memory */
} netRailReport;

/* What a host says of a pair it was in. */
typedef struct {
  int32_t nrails;
  char failure[NETCHECK_TEXT]; /* why there are no rails, or no more; or "" */
  netRailReport rails[NETCHECK_RAILS];
} netPairReport;

/* Makes what came from another host safe to read and print. */
void netPairReportClean(netPairReport *report);

/* ---- lines between the first host and the others (line.c) ------------------------------------ */

/* A communicator of two ranks: if one host dies or hangs, no other line notices. */
typedef struct {
  tuttiComm_t comm; /* NULL: not open, or given up */
  int side;
  char why[NETCHECK_TEXT]; /* it was given up */
} netLine;

/* Each returns false when the line is given up, at the deadline (tuttiNow() clock) too. */
bool netLineOpen(netLine *line, const tuttiUniqueId *id, int side, uint64_t deadline);
bool netLineSend(netLine *line, const void *data, size_t bytes, uint64_t deadline);
bool netLineReceive(netLine *line, void *data, size_t bytes, uint64_t deadline);
void netLineClose(netLine *line);

/* ---- what a host does ------------------------------------------------------------------------ */

/* This host's test with another one. side 0 has made the id. *report is filled in any case. */
void netPairRun(const netOptions *options, const tuttiUniqueId *id, int side,
                netPairReport *report);

typedef struct {
  const netOptions *options;
  const perfPlace *place;
  const netHost *hosts;
  int nhosts;
} netJob;

/* As the first host: leads all rounds, over lines[nhosts] of which lines[0] is none; returns the
 * exit code. As another one: does what it is told until the end. */
int netLead(const netJob *job, netLine *lines);
int netFollow(const netJob *job, netLine *line);

/* ---- one rail (rail.c) ----------------------------------------------------------------------- */

typedef struct {
  const netOptions *options;
  int side, number;
  char hca[2][NETCHECK_NIC]; /* the ports, as NET/IB names them; "": whatever there is */
  int ports[2];              /* their numbers in the peer records */
  tuttiComm_t comm;
  perfDevice device;
  bool opened;                        /* device */
  unsigned char *send, *recv, *small; /* of the device */
  unsigned char *stage;               /* the same as `recv` on host memory */
  int messages;                       /* for netRailTogether */
  double seconds;
  netRailReport *report;
} netRail;

/* Each returns false when it has failed, and has said so in the report. Both sides call them in the
 * same order, after the communicator is there. */
bool netRailPrepare(netRail *rail);
bool netRailCheck(netRail *rail);   /* messages of several sizes, both ways, compared */
bool netRailLatency(netRail *rail); /* half of a round trip of 8 bytes */
bool netRailRate(netRail *rail, bool sends);
bool netRailFill(netRail *rail);     /* before the next, whose time it is no part of */
bool netRailTogether(netRail *rail); /* both ways at once; any thread */
void netRailClose(netRail *rail);    /* whatever there is of it */
/* Says in the report why it ends here; false. */
bool netRailFail(netRail *rail, const char *what);

/* ---- what is known (facts.c) ----------------------------------------------------------------- */

/* What two hosts that meet know of their ports. */
typedef struct {
  int n; /* 0: they do not meet by RDMA */
  struct {
    int port[2];
    char name[2][NETCHECK_NIC];
    bool down[2];
  } rails[NETCHECK_RAILS];
  bool rdma; /* one of them has RDMA ports */
} netRails;

/* The rails that the library would make between the ranks of a communicator of two, were all ports
 * up: [0] is this rank, [1] the other, and both see the same ones in the same order. */
bool netRailsFind(tuttiComm_t comm, int side, netRails *rails);
/* Fills what the report says of the path. False: the communicator is not this rail's alone. */
bool netRailDescribe(netRail *rail, bool rdma);
/* The interface that this host's sockets use; "?" where that cannot be told. */
void netInterface(char name[NETCHECK_NIC]);
/* GB/s of the PCIe link above a NIC, and of an interface; 0: not known. */
double netPcieRate(const char *nic);
double netInterfaceRate(const char *name);
/* The CUDA device that is nearest to a NIC, "mlx5_0:1"; 0 where that cannot be told. */
int netGpuNear(const char *nic);
/* GB/s at which this core copies. */
double netCopyRate(void);

/* ---- judging (judge.c) ----------------------------------------------------------------------- */

#define NETCHECK_FINDINGS(X)                                                                       \
  X(Fine, "ok")                                                                                    \
  X(Together, "together")                                                                          \
  X(Slow, "slow")                                                                                  \
  X(Path, "path")                                                                                  \
  X(Down, "down")                                                                                  \
  X(Failed, "failed")                                                                              \
  X(Wrong, "wrong")
#define NETCHECK_FINDING(name, word) netFound##name,
typedef enum { NETCHECK_FINDINGS(NETCHECK_FINDING) netFoundCount } netFinding; /* worst last */
extern const char *const netFindingNames[netFoundCount];

/* One direction of one rail; [0] of arrays is the sender, [1] the receiver. */
typedef struct {
  int host[2];
  int rail; /* -1: the pair as a whole, of which no rail is known */
  int port[2], gpu[2];
  bool down[2], worse;
  char nic[2][NETCHECK_NIC], via[TUTTI_VIA];
  double line, pcie[2], copy[2], alone, together, latencyUs; /* as in netRailReport */
  uint64_t wrong;
  netFinding found;
  char *text; /* what the library says of it: why it failed, what was wrong, why the path is not
                 the best; NULL: nothing. For free(). */
} netRow;

/* Makes the rows of a pair, a to b and back, from what both say; NULL: that host has said nothing,
 * `lost` tells why. Returns how many: at most 2 * NETCHECK_RAILS. */
int netRowsOf(int a, int b, const netPairReport *ofA, const netPairReport *ofB, const char *lost,
              netRow *rows);
void netRowFree(netRow *row);

/* How many of the rows in which a port sends, or receives, are slow. */
typedef struct {
  int slow, fast;
} netPortCount;

typedef struct {
  const netOptions *options;
  const netHost *hosts;
  int nhosts, n;
  netRow *rows;
  netPortCount *ports; /* [nhosts * NETCHECK_RAILS * 2] */
} netJudgement;

/* Fills `found` of all rows, and j->ports, which is for tuttiFree. */
tuttiResult_t netJudge(netJudgement *j);
/* What is wrong with a row, or a note where nothing is, and what to do; "": nothing. */
void netExplain(const netJudgement *j, const netRow *row, char reason[2 * NETCHECK_TEXT],
                char remedy[NETCHECK_TEXT]);
/* Percent of the line rate; 0: not known. */
double netShare(const netRow *row, double rate);
/* 0, TUTTI_EXIT_BAD for findings, NETCHECK_EXIT_WRONG for wrong bytes. */
#define NETCHECK_EXIT_WRONG 4
int netExit(const netJudgement *j);

/* ---- output (print.c) ------------------------------------------------------------------------ */

void netPrintHeader(const netJob *job, bool gpu);
/* On a terminal. */
void netPrintProgress(int round, int rounds);
/* Table, findings and verdict, and JSON lines; returns false if something could not be written. */
bool netPrint(const netJob *job, const netJudgement *j);

__END_DECLS

#endif
