/* What bootstrap.c hands over to watch.c; nobody else includes this. */
#ifndef TUTTI_BOOTSTRAP_INTERNAL_H_
#define TUTTI_BOOTSTRAP_INTERNAL_H_

#include "bootstrap/bootstrap.h"

/* First bytes on every bootstrap connection, in both rendezvous and watch. The fields up to
 * `secret` stay where they are in every version. */
typedef struct {
  uint32_t magic;   /* TUTTI_HELLO_MAGIC */
  uint32_t version; /* TUTTI_VERSION_CODE */
  uint8_t secret[16];
  uint64_t hash;        /* which communicator; in a ring hello: the ticket of the listener */
  int32_t kind;         /* tuttiHelloKind */
  int32_t from, nranks; /* sender's rank; its idea of nranks */
  int32_t pid;
  char host[64];
} tuttiHello;
#define TUTTI_HELLO_MAGIC 0x74757474u

typedef enum {
  tuttiHelloCheckIn = 1, /* rank -> root */
  tuttiHelloRing = 2,    /* rank -> next rank of the ring */
  tuttiHelloAsk = 3      /* watch -> watch: a question about state */
} tuttiHelloKind;

/* All fds here are non-blocking, close on exec, and registered with tuttiForkCloseAdd. */
struct tuttiBootstrap {
  int rank, nranks;
  uint64_t hash;
  uint8_t secret[16];
  int listenFd;                /* accepts ring and ask connections; -1 when taken by the watch */
  tuttiAddressList *listeners; /* [nranks] every rank's listener, gathered by Join */
  int prevFd, nextFd;          /* ring sockets; -1 when nranks == 1 or taken by the watch */
  char prevName[96], nextName[96]; /* "rank 3 (host a, pid 17)", for errors */
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int ninterfaces;
};

#endif
