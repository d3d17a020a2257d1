/* What a test can make the software HCA of its own process do, beside what the configuration says.
 * Thread-safe; the device is a number, in the order of the configuration. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Cuts the port's cable, or puts it back: from now on it is down or up, whatever the configuration
 * says. */
void softHcaPort(int device, int port, int up);
/* The subnet manager gives the port another LID; somebody changes the row of its table of partition
 * keys; the GIDs of the port end in another byte, of RoCE that of the IPv4 address; there is
 * another subnet manager. What is sent to a LID or a GID that a port had before is lost. Each
 * raises its event in the contexts of this process, and other processes of the fabric know nothing
 * of it. */
void softHcaLid(int device, int port, unsigned lid);
void softHcaPkey(int device, int port, unsigned row, unsigned key);
void softHcaGid(int device, int port, unsigned byte);
void softHcaManager(int device, int port);
/* What has arrived at GPUs can be seen there, as after the driver's call for that. */
void softHcaReveal(void);
/* Frames that this process has sent through the port. */
uint64_t softHcaFrames(int device, int port);
/* Registrations of memory that this process has now. */
int softHcaRegistrations(void);
/* Times that this process has registered memory with relaxed ordering. */
uint64_t softHcaRelaxed(void);

#ifdef __cplusplus
}
#endif
