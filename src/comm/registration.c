#include "comm/registration.h"

#include "comm/communicator.h"
#include "transport/region.h"

/* Kernels and ranks of one process reach memory as it is, and other processes cannot reach memory
 * that was not made for sharing, but for windows: what is prepared is for the network alone, on
 * first use. */
typedef struct tuttiRegistration {
  struct tuttiRegistration *next;
  uint64_t region;
} Registration;

tuttiResult_t tuttiRegistrationRemove(tuttiCommunicator *c, void *handle) {
  for (Registration **at = &c->registrations; *at; at = &(*at)->next) {
    Registration *r = *at;
    if (r != handle) continue;
    *at = r->next;
    tuttiRegionRemove(r->region);
    tuttiFree(r);
    return tuttiSuccess;
  }
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument handle (%p) is no live handle of tuttiCommRegister of this "
                    "communicator",
                    handle);
}

void tuttiCommDeregisterAll(tuttiCommunicator *c) {
  while (c->registrations)
    tuttiRegistrationRemove(c, c->registrations);
}

tuttiResult_t tuttiRegistrationAdd(tuttiCommunicator *c, void *buff, size_t size, void **handle) {
  TUTTI_FRESH(Registration, r, 1, "a registration", &c->memory);
  TUTTI_TRY(tuttiRegionAdd(buff, size, &r->region));
  r->next = c->registrations;
  *handle = c->registrations = r;
  r = NULL;
  return tuttiSuccess;
}
