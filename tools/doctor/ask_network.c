/* The interfaces of this host, and whether what it sends to its own addresses arrives. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "doctor/machine.h"
#include "socket/socket.h"

#define PROBE_MS 1000
#define READY_MS 3000 /* in which the kernel has found out whether another host has an address */
#define AGAIN_US 50000
#define MOST     64 /* interfaces that are told of */

/* What kind of address it is, which is all that a recording has of it. */
static const char *kindOf(const tuttiAddress *a) {
  if (a->sa.sa_family == AF_INET)
    return ntohl(a->v4.sin_addr.s_addr) >> 16 == 0xa9fe ? "v4-link" : "v4";
  if (a->sa.sa_family == AF_INET6)
    return IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr) ? "v6-link" : "v6";
  return "none";
}

static tuttiResult_t tellInterface(tuttiMachine *m, const tuttiFoundInterface *f, int index) {
  char text[128];
  snprintf(text, sizeof text, "%s %s%s%s%s%s", f->at.name, kindOf(&f->at.address),
           f->flags & IFF_UP ? " up" : "", f->flags & IFF_RUNNING ? " carrier" : "",
           f->flags & IFF_LOOPBACK ? " loopback" : "", f->bridge ? " bridge" : "");
  return tuttiMachineTell(m, text, "net.%03d", index);
}

/* 0, or the errno of a connection from this host to its own address, which no wire is needed for:
 * what stops it is a rule of a firewall. */
static int probe(const tuttiInterface *i) {
  tuttiAddress address = i->address;
  TUTTI_CLOSED int listener = -1;
  socklen_t length = sizeof(int);
  address.v4.sin_port = 0;
  int err = tuttiListenNow(&address, &listener);
  if (err) return err;
  TUTTI_CLOSED int fd = socket(address.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  if (connect(fd, &address.sa, tuttiAddressLength(&address)) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  if (poll(&p, 1, PROBE_MS) <= 0) return ETIMEDOUT;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &length) != 0) return errno;
  return err;
}

/* The same, of an address that may have come up a moment ago. */
static int probeReady(const tuttiInterface *i, uint64_t deadline) {
  int err;
  while ((err = probe(i)) == EADDRNOTAVAIL && tuttiNow() < deadline)
    tuttiNap(AGAIN_US);
  return err;
}

tuttiResult_t tuttiAskNetwork(tuttiMachine *m) {
  tuttiInterface chosen[TUTTI_MAX_INTERFACES];
  TUTTI_FREED tuttiFoundInterface *found = NULL;
  int nfound = 0, n = 0;
  TUTTI_TRY(tuttiInterfacesFind(&found, &nfound));
  for (int i = 0; i < nfound && i < MOST; i++)
    TUTTI_TRY(tellInterface(m, &found[i], i));
  if (tuttiInterfacesChoose(found, nfound, tuttiSettingString(TUTTI_SETTING_SOCKET_IFNAME),
                            tuttiSettingString(TUTTI_SETTING_SOCKET_FAMILY), chosen,
                            TUTTI_MAX_INTERFACES, &n) != tuttiSuccess)
    return tuttiSuccess; /* which is found again when it is judged */
  uint64_t deadline = tuttiDeadline(READY_MS);
  for (int i = 0; i < n; i++) {
    int err = probeReady(&chosen[i], deadline);
    TUTTI_TRY(tuttiMachineTell(m, err ? tuttiErrnoText(err) : "ok", "probe.%s %s", chosen[i].name,
                               kindOf(&chosen[i].address)));
  }
  return tuttiSuccess;
}
