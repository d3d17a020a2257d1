/* The life of a group: its communicators, the watchdog that ends what is late, and the end. */
#include "group.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What graceUs is, and what it is where ranks share cores. */
#define GRACE_US         50
#define GRACE_US_CROWDED 1000

/* Makes a condition whose waits may end by the monotonic clock. */
static bool initTimed(pthread_cond_t *condition) {
  pthread_condattr_t monotonic;
  if (pthread_condattr_init(&monotonic)) return false;
  bool made = !pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) &&
              !pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
  return made;
}

static bool initQueue(Queue *queue, tuttiWorkGroup *group, int peer, bool mail) {
  queue->group = group;
  queue->peer = peer;
  queue->mail = mail;
  queue->last = &queue->first;
  return initTimed(&queue->more);
}

static bool initLock(tuttiWorkGroup *group) {
  return !pthread_mutex_init(&group->lock, NULL) && !pthread_cond_init(&group->done, NULL) &&
         initTimed(&group->tick);
}

static void freeGroup(tuttiWorkGroup *group) {
  tuttiMailFree(group);
  for (int i = -1; i < 2 * group->nranks; i++) {
    Queue *queue = i < 0 ? &group->all : &group->sends[i];
    free(queue->text);
    pthread_cond_destroy(&queue->more);
  }
  pthread_cond_destroy(&group->done);
  pthread_cond_destroy(&group->tick);
  pthread_mutex_destroy(&group->lock);
  free(group->text);
  free(group->sends);
  free(group);
}

tuttiWorkGroup *tuttiWorkGroupMake(int nranks, int rank, int timeoutMs, const char *name) {
  if (nranks < 1 || rank < 0 || rank >= nranks || timeoutMs < 0) return NULL;
  tuttiWorkGroup *group = calloc(1, sizeof *group);
  Queue *lanes = calloc(2 * (size_t)nranks, sizeof *lanes);
  if (!group || !lanes || !initLock(group)) {
    free(group);
    free(lanes);
    return NULL;
  }
  group->nranks = nranks;
  group->rank = rank;
  group->timeoutMs = timeoutMs;
  group->graceUs = GRACE_US;
  group->refs = 1;
  snprintf(group->name, sizeof group->name, "%s", name);
  group->sends = lanes;
  group->mails = lanes + nranks;
  group->postedLast = &group->posted;
  group->earlyLast = &group->early;
  bool made = initQueue(&group->all, group, -1, false);
  for (int i = 0; i < nranks; i++)
    made = initQueue(&group->sends[i], group, i, false) && made;
  for (int i = 0; i < nranks; i++)
    made = initQueue(&group->mails[i], group, i, true) && made;
  if (made) return group;
  freeGroup(group);
  return NULL;
}

void tuttiGroupUnref(tuttiWorkGroup *group) {
  bool last = --group->refs == 0;
  pthread_mutex_unlock(&group->lock);
  if (last) freeGroup(group);
}

/* ---- opening ---- */

/* Joins a communicator. Without the lock. */
static tuttiResult_t join(const tuttiWorkGroup *group, int nranks, int rank, int timeoutMs,
                          const tuttiUniqueId *id, tuttiComm_t *comm) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceHost;
  config.commName = group->name;
  config.timeoutMs = timeoutMs;
  return tuttiCommInitRankConfig(comm, nranks, *id, rank, &config);
}

/* Takes the queue's new communicator into use, unless the group has ended meanwhile. */
static tuttiResult_t openQueue(Queue *queue, tuttiResult_t result, tuttiComm_t comm) {
  tuttiWorkGroup *group = queue->group;
  char text[WORK_TEXT];
  snprintf(text, sizeof text, "%s", result == tuttiSuccess ? "" : tuttiGetLastError(NULL));
  pthread_mutex_lock(&group->lock);
  if (result != tuttiSuccess) {
    tuttiQueueKill(queue, result, text);
  } else if (queue->dead || group->closing || group->text) {
    snprintf(text, sizeof text, "the group has ended while it was opened");
    result = tuttiInvalidUsage;
  } else {
    queue->comm = comm;
    queue->open = true;
    comm = NULL;
    tuttiQueueWake(queue);
    pthread_cond_broadcast(&group->done);
  }
  group->refs--; /* the caller's call holds the group */
  bool last = group->refs == 0;
  pthread_mutex_unlock(&group->lock);
  if (comm) (void)tuttiCommAbort(comm);
  tuttiWorkSetText(text);
  if (last) freeGroup(group);
  return result;
}

/* Where ranks share cores, whoever comes to wait for a work has to get one first. */
static void setGrace(tuttiWorkGroup *group, tuttiComm_t comm) {
  tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
  bool crowded = tuttiCommQueryProperties(comm, &p) == tuttiSuccess && p.ranksOnCores > p.cores;
  pthread_mutex_lock(&group->lock);
  group->graceUs = crowded ? GRACE_US_CROWDED : GRACE_US;
  pthread_mutex_unlock(&group->lock);
}

static void hold(tuttiWorkGroup *group) {
  pthread_mutex_lock(&group->lock);
  group->refs++;
  pthread_mutex_unlock(&group->lock);
}

tuttiResult_t tuttiWorkGroupOpen(tuttiWorkGroup *group, const tuttiUniqueId *id) {
  tuttiComm_t comm = NULL;
  hold(group);
  tuttiResult_t result = join(group, group->nranks, group->rank, group->timeoutMs, id, &comm);
  if (result == tuttiSuccess) setGrace(group, comm);
  return openQueue(&group->all, result, comm);
}

tuttiResult_t tuttiWorkGroupAdopt(tuttiWorkGroup *group, tuttiComm_t comm) {
  pthread_mutex_lock(&group->lock);
  bool fresh = !group->all.comm && !group->closing && !group->text;
  if (fresh) {
    group->all.comm = comm;
    group->all.open = true;
    tuttiQueueWake(&group->all);
  }
  pthread_mutex_unlock(&group->lock);
  if (fresh) setGrace(group, comm);
  if (fresh) return tuttiSuccess;
  tuttiWorkSetText("the group has a communicator already, or has ended");
  return tuttiInvalidUsage;
}

/* A lane's communicator has the deadline of its rendezvous only: who receives from anybody listens
 * to lanes on which nothing may ever come. The watchdog holds the deadlines of works. */
tuttiResult_t tuttiWorkLaneOpen(tuttiWorkGroup *group, int sending, int peer,
                                const tuttiUniqueId *id) {
  tuttiComm_t comm = NULL;
  Queue *queue = sending ? &group->sends[peer] : &group->mails[peer];
  hold(group);
  tuttiResult_t result = join(group, 2, sending ? 0 : 1, 0, id, &comm);
  return openQueue(queue, result, comm);
}

void tuttiWorkLaneFail(tuttiWorkGroup *group, int sending, int peer, const char *text) {
  pthread_mutex_lock(&group->lock);
  tuttiQueueKill(sending ? &group->sends[peer] : &group->mails[peer], tuttiRemoteError, text);
  pthread_mutex_unlock(&group->lock);
}

/* ---- the watchdog ---- */

void tuttiGroupLook(tuttiWorkGroup *group, pthread_cond_t *condition, long us) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += us * 1000;
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  pthread_cond_timedwait(condition, &group->lock, &until);
}

/* Ends a late work: it is taken out of where it waits, or the communicator that it runs on is
 * revoked, which ends the queue. Holds the lock, lets it go meanwhile. */
static void endLate(tuttiWork *work) {
  tuttiWorkGroup *group = work->group;
  Queue *queue = work->queue;
  char text[128];
  work->late = true;
  work->deadline = 0; /* once is enough */
  work->refs++;
  snprintf(text, sizeof text, "no peer has done its part in this time");
  bool taken = tuttiMailUnpost(work);
  if (taken) tuttiWorkFinish(work, tuttiTimeout, text);
  bool revoke = queue && queue->open && queue->running && !queue->dead;
  if (!taken && queue && !revoke) {
    tuttiQueueKill(queue, tuttiTimeout, text);
  } else if (revoke) {
    tuttiComm_t comm = queue->comm;
    pthread_mutex_unlock(&group->lock);
    (void)tuttiCommRevoke(comm, TUTTI_REVOKE_DEFAULT);
    pthread_mutex_lock(&group->lock);
  }
  tuttiWorkUnref(work);
}

static tuttiWork *findLate(const tuttiWorkGroup *group) {
  uint64_t now = tuttiWorkNow();
  for (tuttiWork *work = group->timed; work; work = work->nextTimed)
    if (work->deadline && work->deadline <= now) return work;
  return NULL;
}

static void *watch(void *argument) {
  tuttiWorkGroup *group = argument;
  int idle = 0; /* ticks without a deadline */
  pthread_mutex_lock(&group->lock);
  while (!group->closing) {
    tuttiWork *late = findLate(group);
    if (late) {
      endLate(late);
      continue;
    }
    idle = group->timed ? 0 : idle + 1;
    group->resting = idle > IDLE_TICKS;
    if (group->resting)
      pthread_cond_wait(&group->tick, &group->lock);
    else
      tuttiGroupLook(group, &group->tick, TICK_MS * 1000L);
    group->resting = false;
  }
  pthread_mutex_unlock(&group->lock);
  return NULL;
}

bool tuttiWorkWatch(tuttiWork *work, int timeoutMs) {
  tuttiWorkGroup *group = work->group;
  if (work->done || timeoutMs <= 0) return true;
  if (!group->watched && (group->closing || pthread_create(&group->watchdog, NULL, watch, group)))
    return false;
  group->watched = true;
  uint64_t deadline = tuttiWorkNow() + (uint64_t)timeoutMs;
  if (!work->deadline || deadline < work->deadline) {
    work->deadline = deadline;
    if (!work->late) work->timeoutMs = timeoutMs;
  }
  if (!work->timed) {
    work->timed = true;
    work->nextTimed = group->timed;
    group->timed = work;
    if (group->resting) pthread_cond_signal(&group->tick);
  }
  return true;
}

/* ---- the end ---- */

static Queue *queueAt(tuttiWorkGroup *group, int i) {
  return i ? &group->sends[i - 1] : &group->all;
}

static int queues(const tuttiWorkGroup *group) {
  return 1 + 2 * group->nranks;
}

void tuttiWorkGroupAbort(tuttiWorkGroup *group, const char *text) {
  pthread_mutex_lock(&group->lock);
  if (!group->text) group->text = strdup(text);
  for (int i = 0; i < queues(group); i++) {
    Queue *queue = queueAt(group, i);
    tuttiComm_t comm = queue->open ? queue->comm : NULL;
    queue->open = false;
    tuttiQueueKill(queue, tuttiRemoteError, text);
    pthread_mutex_unlock(&group->lock);
    if (comm) (void)tuttiCommAbort(comm); /* whoever is in it returns first */
    pthread_mutex_lock(&group->lock);
  }
  pthread_mutex_unlock(&group->lock);
}

/* Nothing is under way any more that will end by itself. */
static bool drained(tuttiWorkGroup *group) {
  for (int i = 0; i < queues(group); i++) {
    const Queue *queue = queueAt(group, i);
    if (!queue->mail && queue->open && !queue->dead && (queue->first || queue->running))
      return false;
  }
  return true;
}

/* Leaves a queue's communicator: at once if a receive is under way, which nothing may ever end. */
static void leave(tuttiWorkGroup *group, Queue *queue) {
  pthread_mutex_lock(&group->lock);
  tuttiComm_t comm = queue->open ? queue->comm : NULL;
  bool busy = queue->running;
  queue->open = false;
  tuttiQueueKill(queue, tuttiInvalidUsage, "the process group has been shut down");
  pthread_mutex_unlock(&group->lock);
  if (comm && busy)
    (void)tuttiCommAbort(comm);
  else if (comm)
    (void)tuttiCommDestroy(comm);
  if (queue->threaded) pthread_join(queue->thread, NULL);
  queue->threaded = false;
}

void tuttiWorkGroupClose(tuttiWorkGroup *group) {
  pthread_mutex_lock(&group->lock);
  bool first = !group->closing;
  while (first && !group->text && !drained(group)) {
    for (int i = 0; i < queues(group); i++)
      tuttiQueueWake(queueAt(group, i));
    pthread_cond_wait(&group->done, &group->lock);
  }
  group->closing = true;
  if (!group->text) group->text = strdup("the process group has been shut down");
  for (int i = 0; i < queues(group); i++)
    pthread_cond_broadcast(&queueAt(group, i)->more);
  pthread_cond_broadcast(&group->tick);
  bool watched = first && group->watched;
  pthread_mutex_unlock(&group->lock);
  if (!first) return;
  if (watched) pthread_join(group->watchdog, NULL);
  for (int i = 0; i < queues(group); i++)
    leave(group, queueAt(group, i));
}

void tuttiWorkGroupFree(tuttiWorkGroup *group) {
  tuttiWorkGroupClose(group);
  pthread_mutex_lock(&group->lock);
  tuttiGroupUnref(group);
}
