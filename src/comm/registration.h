/* Memory that the user has registered with a communicator. Thread-safe: frameworks register from
 * their allocator, in whatever thread that runs. */
#ifndef TUTTI_COMM_REGISTRATION_H_
#define TUTTI_COMM_REGISTRATION_H_

#include "comm/communicator.h"

/* Sets *handle; the memory is the user's and must stay until the handle is removed. */
tuttiResult_t tuttiRegistrationAdd(tuttiCommunicator *c, void *buff, size_t size, void **handle);

/* Forgets it; tuttiInvalidArgument if `handle` is no live one of `c`. */
tuttiResult_t tuttiRegistrationRemove(tuttiCommunicator *c, void *handle);

/* What is left of them when the communicator ends. */
void tuttiCommDeregisterAll(tuttiCommunicator *c);

#endif
