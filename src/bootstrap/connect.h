/* Connecting without blocking: attempts at several addresses side by side, 250 ms apart, so that
 * one that swallows packets costs no time. Those that fail are tried again. */
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
  int fd;                     /* -1: none in flight */
  int error;                  /* errno of the last attempt; 0 before the first ended */
  uint32_t backoffMs;
  uint64_t startAt;      /* when the next attempt begins */
  uint64_t giveUpAt;     /* when the attempt in flight ends */
  uint64_t refusedSince; /* no attempt has met anything but ECONNREFUSED since; 0: not so */
} tuttiAttempt;

typedef struct {
  int n;
  tuttiAttempt attempts[TUTTI_MAX_TARGETS];
} tuttiConnector;

/* `targets` may hold link-local addresses with the scope of another host: they are tried on each of
 * the `ninterfaces` local interfaces of that kind too. */
void tuttiConnectorInit(tuttiConnector *c, const tuttiAddress *targets, int n,
                        const tuttiInterface *interfaces, int ninterfaces);
/* Starts and ends attempts. *fd is the first connection made, of attempts[*index], or -1 when there
 * is none yet. Fails only when this process can't make sockets. */
tuttiResult_t tuttiConnectorStep(tuttiConnector *c, const char *who, int *fd, int *index);
/* Fills TUTTI_MAX_TARGETS entries and returns when to step next even without an event. */
uint64_t tuttiConnectorWaitOn(const tuttiConnector *c, struct pollfd *fds);
/* Abandons the attempts in flight. */
void tuttiConnectorStop(tuttiConnector *c);
/* The connection of attempts[index] proved useless: that address is tried again later, the others
 * now. */
void tuttiConnectorReject(tuttiConnector *c, int index, int error);
/* True when every address has refused for `ms`: nobody is listening any more. */
bool tuttiConnectorRefused(const tuttiConnector *c, uint32_t ms);
/* "10.0.0.1:4711 from eth0 (10.0.0.2, up): Connection refused; ... <remedy>"; returns buf. */
const char *tuttiConnectorText(const tuttiConnector *c, char *buf, size_t size);

__END_DECLS

#endif
