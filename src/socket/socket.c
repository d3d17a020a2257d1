#include "socket/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "base/os.h"
#include "socket/secure.h"

/* How soon a wait sees its failed flag. */
#define SLICE_NS 50000000ull
/* Ports that are free at one address and taken at another are tried so often. */
#define PORT_TRIES 32
/* The kernel cuts it down to net.core.somaxconn. */
#define BACKLOG 65535

/* ---- addresses ------------------------------------------------------------------------------ */

_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
               "the port is at one place in both families");

bool tuttiAddressValid(const tuttiAddress *a) {
  return (a->sa.sa_family == AF_INET || a->sa.sa_family == AF_INET6) && a->v4.sin_port != 0;
}

bool tuttiAddressListValid(const tuttiAddressList *list) {
  if (list->n < 1 || list->n > TUTTI_MAX_ADDRESSES) return false;
  for (int i = 0; i < list->n; i++)
    if (!tuttiAddressValid(&list->a[i])) return false;
  return true;
}

socklen_t tuttiAddressLength(const tuttiAddress *a) {
  return a->sa.sa_family == AF_INET6 ? sizeof(a->v6) : sizeof(a->v4);
}

const char *tuttiAddressText(const tuttiAddress *a, char *buf, size_t size) {
  if (size == 0) return "";
  char host[INET6_ADDRSTRLEN + 1 + IF_NAMESIZE], port[8];
  if ((a->sa.sa_family != AF_INET && a->sa.sa_family != AF_INET6) ||
      getnameinfo(&a->sa, tuttiAddressLength(a), host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    snprintf(buf, size, "(no address)");
  else
    snprintf(buf, size, a->sa.sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
  return buf;
}

/* Splits "host:port" or "[v6]:port" into host and port. Returns NULL, or what is wrong. */
static const char *splitHostPort(const char *text, char *host, size_t size, const char **port) {
  const char *begin = text, *end, *colon;
  if (text[0] == '[') {
    begin = text + 1;
    end = strchr(begin, ']');
    if (!end) return "the [ of an IPv6 address has no ]";
    colon = end + 1;
  } else {
    end = colon = strchr(text, ':');
    if (end && strchr(end + 1, ':')) return "an IPv6 address must stand in brackets";
  }
  if (!end || *colon != ':') return "there is no :port";
  if (end == begin) return "the host is empty";
  if ((size_t)(end - begin) >= size) return "the host is too long";
  memcpy(host, begin, (size_t)(end - begin));
  host[end - begin] = '\0';
  *port = colon + 1;
  size_t digits = strspn(*port, "0123456789");
  if (digits == 0 || digits > 5 || (*port)[digits] != '\0' || atoi(*port) < 1 ||
      atoi(*port) > 65535)
    return "the port must be a number from 1 to 65535";
  return NULL;
}

tuttiResult_t tuttiAddressParse(const char *text, tuttiAddress *out) {
  char host[256];
  const char *port = NULL;
  const char *wrong = splitHostPort(text, host, sizeof(host), &port);
  if (wrong)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "\"%.300s\" is no address: %s; write host:port, 10.0.0.1:4711 or "
                      "[fe80::1%%eth0]:4711",
                      text, wrong);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  struct addrinfo *found = NULL;
  int rc = getaddrinfo(host, port, &hints, &found);
  if (rc != 0)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "cannot resolve host \"%s\" of \"%s\": %s; check the name or give %s", host,
                      text, rc == EAI_SYSTEM ? tuttiErrnoText(errno) : gai_strerror(rc),
                      "a numeric address");
  const struct addrinfo *pick = found;
  while (pick && pick->ai_family != AF_INET && pick->ai_family != AF_INET6)
    pick = pick->ai_next;
  if (pick && pick->ai_addrlen <= sizeof(*out)) {
    memset(out, 0, sizeof(*out));
    memcpy(out, pick->ai_addr, pick->ai_addrlen);
  }
  freeaddrinfo(found);
  if (!pick)
    return TUTTI_FAIL(tuttiInvalidArgument, "host \"%s\" has neither an IPv4 nor an IPv6 address",
                      host);
  return tuttiSuccess;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* The failure of a wait whose flag is set, or tuttiSuccess. */
static tuttiResult_t stopped(tuttiWait wait, const char *who) {
  uint32_t failed = wait.failed ? tuttiLoadAcquire32(wait.failed) : 0;
  if (failed == 0) return tuttiSuccess;
  if (wait.why) return tuttiErrorAdopt((tuttiResult_t)failed, wait.why);
  return TUTTI_FAIL(tuttiRemoteError,
                    "stopped waiting for %s: the communicator failed or was aborted meanwhile",
                    who);
}

tuttiResult_t tuttiPollSlice(struct pollfd *fds, int n, const char *who, tuttiWait wait,
                             uint64_t until, int *ready) {
  TUTTI_TRY(stopped(wait, who));
  uint64_t now = tuttiNow(), end = until < wait.deadline ? until : wait.deadline;
  if (wait.failed && end > now + SLICE_NS) end = now + SLICE_NS;
  struct timespec left = {0}, *timeout = &left;
  if (end == TUTTI_NO_DEADLINE)
    timeout = NULL;
  else if (end > now)
    left = (struct timespec){.tv_sec = (time_t)((end - now) / 1000000000ull),
                             .tv_nsec = (long)((end - now) % 1000000000ull)};
  int rc = ppoll(fds, (nfds_t)n, timeout, NULL);
  if (rc < 0 && errno != EINTR) {
    int err = errno == EINVAL ? EMFILE : errno; /* more entries than this process may have fds */
    return TUTTI_FAIL_SOCKET(tuttiSystemError, err, "poll for %s failed", who);
  }
  if (rc < 0) /* EINTR leaves revents undefined */
    for (int i = 0; i < n; i++)
      fds[i].revents = 0;
  *ready = rc < 0 ? 0 : rc;
  return tuttiSuccess;
}

const char *tuttiSocketRemedy(int err, char *buf, size_t size) {
  static const struct {
    int err[2];
    const char *text;
  } remedies[] = {
      {{ENFILE}, "this host's table of open files is full: raise sysctl fs.file-max"},
      {{ENOMEM, ENOBUFS}, "this host is out of memory for sockets"},
      {{ECONNREFUSED}, "nobody listens there: has that process ended?"},
      {{ENETUNREACH, EHOSTUNREACH},
       "there is no route: choose interfaces that reach each other with TUTTI_SOCKET_IFNAME"},
      {{ETIMEDOUT},
       "packets are swallowed: check firewall and routes, or choose an interface with "
       "TUTTI_SOCKET_IFNAME"},
      {{EADDRINUSE},
       "another process listens there: choose another port; or ip_local_port_range is used up"},
      {{EADDRNOTAVAIL}, "no interface of this host that is up has that address"},
      {{EACCES, EPERM}, "a firewall, or a port below 1024, forbids it"},
      {{ECONNRESET, EPIPE}, "that process has ended or dropped the connection"},
      {{EAFNOSUPPORT}, "this host does not speak that address family"},
      {{EKEYREJECTED},
       "it encrypts with another key: give all ranks the same one (TUTTI_PSK_FILE)"},
      {{EBADMSG}, "what came was not what was sent: see what changes packets on the way"},
  };
  struct rlimit limit;
  if (err == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    snprintf(buf, size, "raise `ulimit -n` (now %llu)", (unsigned long long)limit.rlim_cur);
    return buf;
  }
  const char *text = err == EMFILE ? "raise `ulimit -n`" : "see errno(3)";
  for (size_t i = 0; i < sizeof(remedies) / sizeof(remedies[0]); i++)
    if (remedies[i].err[0] == err || remedies[i].err[1] == err) text = remedies[i].text;
  snprintf(buf, size, "%s", text);
  return buf;
}

/* ---- listening ------------------------------------------------------------------------------ */

static bool isAny6(const tuttiAddress *a) {
  return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr);
}

/* 0, or an errno. `again`: also while connections of the port's last user linger in TIME_WAIT. */
static int bindAt(tuttiAddress *address, bool again, int *out) {
  int fd = socket(address->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int on = 1, off = 0;
  if (again) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (isAny6(address)) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  tuttiAddress bound;
  socklen_t length = sizeof(bound);
  memset(&bound, 0, sizeof(bound));
  if (bind(fd, &address->sa, tuttiAddressLength(address)) != 0 ||
      getsockname(fd, &bound.sa, &length) != 0) {
    int err = errno;
    close(fd);
    return err;
  }
  *address = bound;
  *out = fd;
  return 0;
}

static int listenAt(tuttiAddress *address, int *fd) {
  int err = bindAt(address, tuttiAddressValid(address), fd); /* a fixed port */
  if (err != 0 || listen(*fd, BACKLOG) == 0) return err;
  err = errno;
  close(*fd);
  *fd = -1;
  return err;
}

int tuttiListenNow(tuttiAddress *address, int *fd) {
  *fd = -1;
  int err = listenAt(address, fd);
  if (err == 0 || err == EADDRINUSE || !isAny6(address)) return err;
  /* A sandbox may forbid IPv6. */
  *address = (tuttiAddress){.v4 = {.sin_family = AF_INET, .sin_port = address->v6.sin6_port}};
  return listenAt(address, fd);
}

tuttiResult_t tuttiListen(tuttiAddress *address, int *fd) {
  int got, err = tuttiListenNow(address, &got);
  if (err != 0) {
    char text[80];
    return TUTTI_FAIL_SOCKET(tuttiSystemError, err, "cannot listen on %s",
                             tuttiAddressText(address, text, sizeof(text)));
  }
  *fd = got;
  return tuttiSuccess;
}

/* ---- listeners ------------------------------------------------------------------------------ */

tuttiListener tuttiListenerOf(int fd) {
  tuttiForkCloseAdd(fd);
  return (tuttiListener){.n = 1, .fds = {fd}};
}

void tuttiListenerClose(tuttiListener *listener) {
  while (listener->n > 0)
    tuttiFdClose(&listener->fds[--listener->n]);
}

/* Takes `port` (0: any, written back) at one address; 0, or an errno. */
static int takePort(const tuttiInterface *at, in_port_t *port, tuttiAddressList *list,
                    tuttiListener *listener) {
  tuttiAddress *address = &list->a[list->n];
  int fd = -1;
  *address = at->address;
  address->v4.sin_port = *port;
  int err = bindAt(address, false, &fd);
  if (err != 0) return err;
  tuttiForkCloseAdd(fd);
  *port = address->v4.sin_port;
  listener->fds[listener->n++] = fd;
  list->n++;
  return 0;
}

/* Of the first interfaces, all that can be had with one port, which the first of them is given.
 * Returns 0, or the errno of the last that could not. */
static int takePorts(const tuttiInterface *interfaces, int n, tuttiAddressList *list,
                     tuttiListener *listener) {
  in_port_t port = 0;
  int last = 0;
  memset(list, 0, sizeof(*list));
  *listener = (tuttiListener){0};
  for (int i = 0; i < n && list->n < TUTTI_MAX_ADDRESSES; i++) {
    int err = takePort(&interfaces[i], &port, list, listener);
    if (err == EADDRINUSE) return err; /* somebody has the port there */
    if (err != 0) last = err;
  }
  return last;
}

tuttiResult_t tuttiListenerBind(const tuttiInterface *interfaces, int n, tuttiAddressList *list,
                                tuttiListener *listener) {
  int err = EADDRNOTAVAIL;
  if (n < 1) return TUTTI_FAIL(tuttiSystemError, "cannot listen: this host has no interface");
  for (int tries = 0; tries < PORT_TRIES; tries++) {
    err = takePorts(interfaces, n, list, listener);
    if (err != EADDRINUSE) break;
    tuttiListenerClose(listener);
  }
  if (listener->n > 0) return tuttiSuccess;
  char text[80];
  return TUTTI_FAIL_SOCKET(tuttiSystemError, err, "cannot listen on %s (%s)",
                           tuttiAddressText(&interfaces[0].address, text, sizeof(text)),
                           interfaces[0].name);
}

tuttiResult_t tuttiListenerStart(const tuttiListener *listener) {
  for (int i = 0; i < listener->n; i++)
    if (listen(listener->fds[i], BACKLOG) != 0)
      return TUTTI_FAIL_SOCKET(tuttiSystemError, errno, "cannot listen on a port");
  return tuttiSuccess;
}

tuttiResult_t tuttiListenAny(const tuttiInterface *interfaces, int n, tuttiAddressList *list,
                             tuttiListener *listener) {
  TUTTI_TRY(tuttiListenerBind(interfaces, n, list, listener));
  tuttiResult_t result = tuttiListenerStart(listener);
  if (result != tuttiSuccess) tuttiListenerClose(listener);
  return result;
}

int tuttiAcceptNow(int listenFd, tuttiAddress *from) {
  socklen_t length = sizeof(*from);
  memset(from, 0, sizeof(*from));
  int fd = accept4(listenFd, &from->sa, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  /* Anything but scarcity is of a connection that broke in the queue: not our failure. */
  bool scarce = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  if (fd < 0) return scarce ? -errno : -EAGAIN;
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

/* ---- receiving ------------------------------------------------------------------------------ */

tuttiResult_t tuttiRecvAll(int fd, void *data, size_t bytes, const char *who, tuttiWait wait) {
  char *p = data;
  while (bytes > 0) {
    ssize_t n = tuttiSecureRecv(fd, p, bytes);
    int err = n < 0 ? errno : 0, ready;
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    if (n > 0) {
      p += n;
      bytes -= (size_t)n;
    } else if (n == 0) {
      return TUTTI_FAIL(tuttiRemoteError,
                        "%s closed the connection: its process has ended or given up; its own log "
                        "says why",
                        who);
    } else if (err == EAGAIN) {
      TUTTI_TRY(tuttiPollSlice(&readable, 1, who, wait, TUTTI_NO_DEADLINE, &ready));
      if (!ready && tuttiNow() >= wait.deadline)
        return TUTTI_FAIL(tuttiTimeout,
                          "receiving from %s: nothing moved until the deadline; see what that side "
                          "is doing, or raise TUTTI_TIMEOUT",
                          who);
    } else if (err != EINTR) {
      bool gone = err == ECONNRESET || err == EPIPE || err == ETIMEDOUT;
      return TUTTI_FAIL_SOCKET(gone ? tuttiRemoteError : tuttiSystemError, err,
                               "receiving from %s failed", who);
    }
  }
  return tuttiSuccess;
}
