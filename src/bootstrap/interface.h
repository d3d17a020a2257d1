/* The choice of interfaces as a pure function, so that it is tested without making interfaces. */
#ifndef TUTTI_BOOTSTRAP_INTERFACE_H_
#define TUTTI_BOOTSTRAP_INTERFACE_H_

#include <sys/cdefs.h>

#include "bootstrap/socket.h"

__BEGIN_DECLS

/* One address of one interface, in the system's order; family 0: an interface without address. */
typedef struct {
  tuttiInterface at;
  unsigned flags; /* IFF_UP, IFF_RUNNING (has carrier), IFF_LOOPBACK */
  bool bridge;
} tuttiFoundInterface;

/* tuttiInterfaces for these interfaces and these values of TUTTI_SOCKET_IFNAME and _FAMILY. */
tuttiResult_t tuttiInterfacesChoose(const tuttiFoundInterface *found, int nfound,
                                    const char *ifname, const char *family, tuttiInterface *out,
                                    int max, int *n);

__END_DECLS

#endif
