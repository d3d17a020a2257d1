/* The choice of interfaces as a pure function, so that it is tested without making interfaces. */
#ifndef TUTTI_BOOTSTRAP_INTERFACE_H_
#define TUTTI_BOOTSTRAP_INTERFACE_H_

#include "bootstrap/socket.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

#endif
