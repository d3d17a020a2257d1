/* TCP for the bootstrap, the watch and the networks: addresses, interfaces, and calls that end at a
 * deadline. */
#ifndef TUTTI_SOCKET_SOCKET_H_
#define TUTTI_SOCKET_SOCKET_H_

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/socket.h>

#include "base/atomic.h"
#include "tutti.h"

__BEGIN_DECLS

typedef union {
  struct sockaddr sa;
  struct sockaddr_in v4; /* its sin_port is the port of an IPv6 address too */
  struct sockaddr_in6 v6;
} tuttiAddress; /* 28 bytes */

/* Ways to reach one listener, best first: it listens on all of them with one port. */
#define TUTTI_MAX_ADDRESSES 3
typedef struct {
  int32_t n;
  tuttiAddress a[TUTTI_MAX_ADDRESSES];
} tuttiAddressList;

#define TUTTI_MAX_INTERFACES 16
#define TUTTI_MAX_LISTENERS  TUTTI_MAX_ADDRESSES
typedef struct {
  char name[IF_NAMESIZE];
  tuttiAddress address;
} tuttiInterface;

/* When a wait must end. */
typedef struct {
  uint64_t deadline;           /* tuttiNow() clock */
  const tuttiAtomic32 *failed; /* NULL, or nonzero means stop now (tuttiRemoteError) */
  const char *why; /* NULL, or set before *failed: the text for that, whose code *failed then is */
} tuttiWait;

/* "10.0.0.1:4711", "[fe80::1%eth0]:4711"; returns buf. */
const char *tuttiAddressText(const tuttiAddress *a, char *buf, size_t size);
/* Parses "host:port" or "[v6]:port"; names are resolved. */
tuttiResult_t tuttiAddressParse(const char *text, tuttiAddress *out);
/* An AF_INET or AF_INET6 address with a port, as bytes from a peer must be. */
bool tuttiAddressValid(const tuttiAddress *a);
socklen_t tuttiAddressLength(const tuttiAddress *a);
/* 1 to TUTTI_MAX_ADDRESSES valid addresses, as a list from a peer must be. */
bool tuttiAddressListValid(const tuttiAddressList *list);

/* Interfaces this rank may use, best first, after TUTTI_SOCKET_IFNAME and TUTTI_SOCKET_FAMILY; all
 * of them are up and have an address. Without a list of wanted ones: those with a carrier, but for
 * docker* and virbr*; if there are none, those without, and docker* and virbr*; if there are none
 * either, loopback. Among these IPv4 comes before IPv6, bridges come later, link-local addresses
 * last. A setting that matches nothing fails with tuttiInvalidArgument listing the interfaces. */
tuttiResult_t tuttiInterfaces(tuttiInterface *out, int max, int *n);
/* One address of one interface, in the system's order; family 0: an interface without address. */
typedef struct {
  tuttiInterface at;
  unsigned flags; /* IFF_UP, IFF_RUNNING (has carrier), IFF_LOOPBACK */
  bool bridge;
} tuttiFoundInterface;

/* All of this host. *found is NULL at first, and for tuttiFree in any case. */
tuttiResult_t tuttiInterfacesFind(tuttiFoundInterface **found, int *n);

/* tuttiInterfaces as a pure function: for these interfaces and these values of TUTTI_SOCKET_IFNAME
 * and _FAMILY. */
tuttiResult_t tuttiInterfacesChoose(const tuttiFoundInterface *found, int nfound,
                                    const char *ifname, const char *family, tuttiInterface *out,
                                    int max, int *n);
/* The interface that carries this local address, and whether it is up: "eth1 (10.0.0.2, down)". */
const char *tuttiInterfaceOf(const tuttiAddress *local, char *buf, size_t size);

/* What to do about a failed socket call, to end a sentence: "raise `ulimit -n` (now 1024)". */
const char *tuttiSocketRemedy(int err, char *buf, size_t size);
/* TUTTI_FAIL with "<text>: <err in words>; <remedy>". The text is a literal. */
#define TUTTI_FAIL_SOCKET(code, err, text, ...)                                                    \
  TUTTI_FAIL((code), text ": %s; %s", ##__VA_ARGS__, tuttiErrnoText(err),                          \
             tuttiSocketRemedy((err), (char[128]){0}, 128))

/* Listens on `address` (port 0: any; written back), close-on-exec, non-blocking. On [::] it listens
 * on every address, or on every one of IPv4 where IPv6 is not to be had. */
tuttiResult_t tuttiListen(tuttiAddress *address, int *fd);
/* tuttiListen without a word in the log: returns 0, or an errno and *fd = -1. */
int tuttiListenNow(tuttiAddress *address, int *fd);
/* One port at several addresses of this host, each with a socket of its own. */
typedef struct {
  int n; /* 0: closed */
  int fds[TUTTI_MAX_LISTENERS];
} tuttiListener;
/* Takes one port at the addresses of the first interfaces and lists them, each with that port; at
 * no other address is anybody listening. Connections are refused until tuttiListenerStart. What
 * happens to sockets at fork is settled, too. An address that cannot be had now (of an interface
 * that is just going) is left out if there is another. */
tuttiResult_t tuttiListenerBind(const tuttiInterface *interfaces, int n, tuttiAddressList *list,
                                tuttiListener *listener);
tuttiResult_t tuttiListenerStart(const tuttiListener *listener);
/* Both at once. */
tuttiResult_t tuttiListenAny(const tuttiInterface *interfaces, int n, tuttiAddressList *list,
                             tuttiListener *listener);
/* Takes over a socket that listens. */
tuttiListener tuttiListenerOf(int fd);
/* Does nothing to one that is closed. */
void tuttiListenerClose(tuttiListener *listener);
/* One slice of a wait: polls until an event, `until` (tuttiNow() clock), the wait's deadline, or 50
 * ms if there is a failed flag to look at. *ready counts the fds with events; 0 is no failure.
 * Fails once the flag is set, as tuttiWait says; judging the deadline is left to the caller.
 * `fds` may hold -1 entries, which are skipped. */
struct pollfd;
tuttiResult_t tuttiPollSlice(struct pollfd *fds, int n, const char *who, tuttiWait wait,
                             uint64_t until, int *ready);
/* Accepts without waiting: an fd that is non-blocking, close-on-exec and TCP_NODELAY; -EAGAIN when
 * there is none, or the -errno of what this process or host has run out of. *from: the caller. */
int tuttiAcceptNow(int listenFd, tuttiAddress *from);
/* Receives exactly `bytes`. A peer that closes gives tuttiRemoteError naming `who`. */
tuttiResult_t tuttiRecvAll(int fd, void *data, size_t bytes, const char *who, tuttiWait wait);

__END_DECLS

#endif
