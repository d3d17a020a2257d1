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
/* Frames that this process has sent through the port. */
uint64_t softHcaFrames(int device, int port);
/* Registrations of memory that this process has now. */
int softHcaRegistrations(void);
/* Times that this process has registered memory with relaxed ordering. */
uint64_t softHcaRelaxed(void);

#ifdef __cplusplus
}
#endif
