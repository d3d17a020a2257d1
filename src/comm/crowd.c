#include "comm/crowd.h"

#include <pthread.h>
#include <stddef.h>

#include "base/os.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tuttiCrowd *all; /* of communicators that live */

int tuttiCrowdJoin(tuttiCrowd *mine, int ranks) {
  TUTTI_LOCKED(&lock);
  int most = ranks;
  for (const tuttiCrowd *c = all; c != NULL; c = c->next)
    if (c->ranks > most) most = c->ranks;
  mine->ranks = ranks;
  mine->next = all;
  all = mine;
  return most;
}

void tuttiCrowdLeave(tuttiCrowd *mine) {
  TUTTI_LOCKED(&lock);
  for (tuttiCrowd **at = &all; *at != NULL; at = &(*at)->next) {
    if (*at != mine) continue;
    *at = mine->next;
    return;
  }
}
