/* Works that have ended, in the order of their ends, for one thread that looks after many. */
#include <stdlib.h>

#include "group.h"

struct tuttiWorkEnds {
  pthread_mutex_t lock; /* taken with the lock of any group held */
  pthread_cond_t some;
  tuttiWork *first, **last;
  bool closed;
};

tuttiWorkEnds *tuttiWorkEndsMake(void) {
  tuttiWorkEnds *ends = calloc(1, sizeof *ends);
  if (!ends) return NULL;
  pthread_mutex_init(&ends->lock, NULL);
  pthread_cond_init(&ends->some, NULL);
  ends->last = &ends->first;
  return ends;
}

void tuttiWorkEndsPut(tuttiWorkEnds *ends, tuttiWork *work) {
  pthread_mutex_lock(&ends->lock);
  work->nextEnded = NULL;
  *ends->last = work;
  ends->last = &work->nextEnded;
  pthread_cond_signal(&ends->some);
  pthread_mutex_unlock(&ends->lock);
}

void tuttiWorkEndsAdd(tuttiWorkEnds *ends, tuttiWork *work) {
  pthread_mutex_lock(&work->group->lock);
  work->ends = ends;
  if (work->done) tuttiWorkEndsPut(ends, work);
  pthread_mutex_unlock(&work->group->lock);
}

tuttiWork *tuttiWorkEndsNext(tuttiWorkEnds *ends) {
  pthread_mutex_lock(&ends->lock);
  while (!ends->first && !ends->closed)
    pthread_cond_wait(&ends->some, &ends->lock);
  tuttiWork *work = ends->closed ? NULL : ends->first;
  if (work) ends->first = work->nextEnded;
  if (!ends->first) ends->last = &ends->first;
  pthread_mutex_unlock(&ends->lock);
  return work;
}

void tuttiWorkEndsClose(tuttiWorkEnds *ends) {
  pthread_mutex_lock(&ends->lock);
  ends->closed = true;
  pthread_cond_broadcast(&ends->some);
  pthread_mutex_unlock(&ends->lock);
}

void tuttiWorkEndsFree(tuttiWorkEnds *ends) {
  if (!ends) return;
  pthread_cond_destroy(&ends->some);
  pthread_mutex_destroy(&ends->lock);
  free(ends);
}
