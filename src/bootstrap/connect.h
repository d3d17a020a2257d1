/* Connecting without blocking: attempts at several addresses by turns, round after round. One that
 * swallows packets costs the others 250 ms in the first round. */
#ifndef TUTTI_BOOTSTRAP_CONNECT_H_
#define TUTTI_BOOTSTRAP_CONNECT_H_

#include <poll.h>
#include <sys/cdefs.h>

#include "bootstrap/socket.h"

__BEGIN_DECLS

/* Addresses of a peer and, for link-local ones, each local interface they may be behind. */
#define TUTTI_MAX_TARGETS 8

typedef struct {
  tuttiAddress target, local; /* local: the source of the last attempt; family 0: none */
  int error;                  /* errno of the last attempt; 0 before the first ended */
  uint64_t refusedSince;      /* no attempt has met anything but ECONNREFUSED since; 0: not so */
} tuttiAttempt;

typedef struct {
  int n;
  tuttiAttempt attempts[TUTTI_MAX_TARGETS];
  int current, fd; /* the address whose turn it is, and the attempt in flight; -1: none */
  uint32_t attemptMs, backoffMs; /* in this round, and after it */
  uint64_t due; /* when the attempt in flight is given up, or the next one begins */
} tuttiConnector;

/* `targets` may hold link-local addresses with the scope of another host: they are tried on each of
 * this host's interfaces of that kind too. */
void tuttiConnectorInit(tuttiConnector *c, const tuttiAddressList *targets);
/* Starts and ends attempts. *fd is the connection, of attempts[*index], or -1 when there is none
 * yet. Fails only when this process can't make sockets. */
tuttiResult_t tuttiConnectorStep(tuttiConnector *c, const char *who, int *fd, int *index);
/* Fills one entry and returns when to step next even without an event. */
uint64_t tuttiConnectorWaitOn(const tuttiConnector *c, struct pollfd *fd);
/* Abandons the attempt in flight. Does nothing to a connector of zeros. */
void tuttiConnectorStop(tuttiConnector *c);
/* The attempt in flight, or the connection that came of the last one, proved useless: the next
 * address has its turn. */
void tuttiConnectorReject(tuttiConnector *c, int error);
/* True when every address has refused for `ms`: nobody is listening any more. */
bool tuttiConnectorRefused(const tuttiConnector *c, uint32_t ms);
/* "10.0.0.1:4711 from eth0 (10.0.0.2, up): Connection refused; ... <remedy>"; returns buf. */
const char *tuttiConnectorText(const tuttiConnector *c, char *buf, size_t size);

__END_DECLS

#endif
