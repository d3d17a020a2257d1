#include "comm/registration.h"

#include <pthread.h>

#include "base/os.h"
#include "comm/communicator.h"
#include "transport/region.h"

/* Kernels and ranks of one process reach memory as it is, and other processes cannot reach memory
 * that was not made for sharing, but for windows: what is prepared is for the network alone, on
 * first use. */
typedef struct tuttiRegistration {
  struct tuttiRegistration *next;
  uint64_t region;
} Registration;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all communicators' lists */

/* Takes it out of the list; NULL if it is not there. */
static Registration *takeOut(tuttiCommunicator *c, const void *handle) {
  TUTTI_LOCKED(&lock);
  Registration **at = &c->registrations;
  while (*at && *at != handle)
    at = &(*at)->next;
  Registration *r = *at;
  if (r) *at = r->next;
  return r;
}

tuttiResult_t tuttiRegistrationRemove(tuttiCommunicator *c, void *handle) {
  Registration *r = takeOut(c, handle);
  if (!r)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument handle (%p) is no live handle of tuttiCommRegister of this "
                      "communicator",
                      handle);
  tuttiRegionRemove(r->region);
  tuttiFree(r);
  return tuttiSuccess;
}

void tuttiCommDeregisterAll(tuttiCommunicator *c) {
  while (c->registrations)
    tuttiRegistrationRemove(c, c->registrations);
}

tuttiResult_t tuttiRegistrationAdd(tuttiCommunicator *c, void *buff, size_t size, void **handle) {
  TUTTI_FRESH(Registration, r, 1, "a registration", &c->memory);
  TUTTI_TRY(tuttiRegionAdd(buff, size, &r->region));
  TUTTI_LOCKED(&lock);
  TUTTI_LINK(c->registrations, r);
  *handle = r;
  r = NULL;
  return tuttiSuccess;
}
