#include "comm/deaths.h"

#include <stdio.h>
#include <string.h>

#include "base/dead.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/failure.h"
#include "comm/handle.h"

/* Guards births and deaths of all communicators. The watch's thread takes it within its own lock,
 * so no watch is called under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void strike(const tuttiBirth *b, int rank, const char *text) {
  char why[TUTTI_ERROR_TEXT];
  if (b->excluded && b->excluded[rank]) return;
  snprintf(why, sizeof why, "%.900s (as a rank of the communicator that this one is made of)",
           text);
  tuttiCommFailAlone(b->child, tuttiRemoteError, why); /* each rank hears of it like this */
}

static void failWith(const tuttiBirth *b, tuttiResult_t code, const char *text) {
  char why[TUTTI_ERROR_TEXT];
  if (!b->agreed) return;
  snprintf(why, sizeof why, "%.900s (in the communicator that this one is made of)", text);
  tuttiCommFailAlone(b->child, code, why);
}

int tuttiOriginRank(const tuttiOrigin *origin, int rank) {
  if (origin->ranks) return origin->ranks[rank];
  if (!origin->excluded) return rank;
  for (int r = 0; r < origin->nranks; r++)
    if (!origin->excluded[r] && rank-- == 0) return r;
  return -1;
}

void tuttiBirthBegin(tuttiBirth *b, const tuttiOrigin *origin, tuttiCommunicator *child) {
  tuttiCommunicator *parent;
  *b = (tuttiBirth){.child = child, .excluded = origin->excluded, .agreed = origin->agreed};
  if (!tuttiHandleLives(origin->parent) ||
      tuttiHandleEnter(origin->parent, "the init of a communicator", &parent) != tuttiSuccess)
    return;
  pthread_mutex_lock(&lock);
  b->parent = parent;
  TUTTI_LINK(parent->births, b);
  for (const tuttiDeath *d = parent->deaths; d; d = d->next)
    strike(b, d->rank, d->text);
  tuttiResult_t failed = (tuttiResult_t)tuttiLoadAcquire32(&parent->failed);
  if (failed != tuttiSuccess && !parent->ended) failWith(b, failed, parent->failure);
  pthread_mutex_unlock(&lock);
  tuttiHandleLeave(parent);
}

void tuttiBirthEnd(tuttiBirth *b) {
  TUTTI_LOCKED(&lock);
  if (b->parent) TUTTI_UNLINK(b->parent->births, b);
}

void tuttiBirthsFail(tuttiCommunicator *c, tuttiResult_t code, const char *text) {
  TUTTI_LOCKED(&lock);
  for (tuttiBirth *b = c->births; b; b = b->next)
    failWith(b, code, text);
}

void tuttiCommDied(tuttiCommunicator *c, int rank, const char *text) {
  tuttiDeath *death;
  tuttiCommFailText(c, tuttiRemoteError, text, false); /* also of one that is only suspected */
  tuttiDeadNote(c->wireup.peers[rank].process);
  TUTTI_LOCKED(&lock);
  for (tuttiBirth *b = c->births; b; b = b->next)
    strike(b, rank, text);
  if (tuttiAlloc((void **)&death, 1, sizeof *death, "a death", NULL) != tuttiSuccess) return;
  death->rank = rank;
  snprintf(death->text, sizeof death->text, "%s", text);
  TUTTI_LINK(c->deaths, death);
}

int tuttiCommDead(const tuttiCommunicator *c) {
  for (int r = 0; r < c->nranks; r++)
    if (tuttiDeadKnown(c->wireup.peers[r].process)) return r;
  return -1;
}

tuttiResult_t tuttiCommComplete(tuttiCommunicator *c, const uint8_t *excluded) {
  TUTTI_LOCKED(&lock);
  for (const tuttiDeath *d = c->deaths; d; d = d->next)
    if (!excluded[d->rank]) return tuttiErrorAdopt(tuttiRemoteError, d->text);
  return tuttiSuccess;
}

void tuttiDeathsForget(tuttiCommunicator *c) {
  TUTTI_LOCKED(&lock);
  for (tuttiBirth *b = c->births; b; b = b->next)
    b->parent = NULL;
  for (tuttiDeath *d = c->deaths, *next; d; d = next) {
    next = d->next;
    tuttiFree(d);
  }
  c->births = NULL;
  c->deaths = NULL;
}
