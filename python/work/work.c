/* Works, their queues, and who runs them: whoever waits for a work of an idle queue carries it out
 * in its own thread, which spares two switches of threads; else the queue's thread does. Most works
 * are waited for a few microseconds after they were made, or where there are more ranks than cores
 * as soon as the waiter has one. So the thread takes none that has not been there for the group's
 * grace; and while there are works now and then it looks for them by itself, as waking it would
 * cost more than a small one takes, and a core where there are few. It looks less often while their
 * waiters carry them out, and as often as it can once it was needed. */
#include "work.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>

#include "group.h"

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 10
/* gcc 12's -fanalyzer loses what hangs on an element that a loop took off a list, and reports the
 * texts there as leaked; tuttiWorkUnref and the end of a queue free them. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

enum { MOST_US = 1600, LOOKS = 40, SLACK_NS = 1000 };

static _Thread_local char lastText[WORK_TEXT]; /* of this thread's last failed call */

uint64_t tuttiWorkNow(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- ends and references ---- */

tuttiWork *tuttiWorkMake(tuttiWorkGroup *group, Queue *queue, int nsteps) {
  tuttiWork *work = calloc(1, sizeof *work + (size_t)nsteps * sizeof *work->steps);
  if (!work) return NULL;
  work->group = group;
  work->queue = queue;
  work->nsteps = nsteps;
  work->refs = 2;
  work->fd = -1;
  group->refs++;
  return work;
}

void tuttiWorkUnref(tuttiWork *work) {
  if (--work->refs) return;
  work->group->refs--; /* who holds the lock has a reference of its own */
  free(work->text);
  free(work);
}

static void untime(tuttiWork *work) {
  for (tuttiWork **at = &work->group->timed; *at; at = &(*at)->nextTimed) {
    if (*at != work) continue;
    *at = work->nextTimed;
    break;
  }
  work->timed = false;
}

/* Whoever has the descriptor reads it when it likes: only a counter at its end would refuse one
 * more. */
static void tell(const tuttiWork *work) {
  if (work->fd >= 0) (void)eventfd_write(work->fd, 1);
}

void tuttiWorkFinish(tuttiWork *work, tuttiResult_t result, const char *text) {
  char late[WORK_TEXT + 96];
  if (work->late && result != tuttiSuccess) { /* gloo's words first, which programs look for */
    snprintf(late, sizeof late, "Timed out waiting %dms: the operation's timeout has passed: %s",
             work->timeoutMs, text);
    text = late;
    result = tuttiTimeout;
  }
  if (work->timed) untime(work);
  if (result != tuttiSuccess) work->text = strdup(text);
  work->result = result;
  work->done = true;
  tell(work);
  if (work->ends) tuttiWorkEndsPut(work->ends, work);
  pthread_cond_broadcast(&work->group->done);
  tuttiWorkUnref(work);
}

void tuttiQueueKill(Queue *queue, tuttiResult_t code, const char *text) {
  if (!queue->dead) {
    queue->code = code;
    queue->text = strdup(text);
    queue->dead = true;
  }
  while (queue->first) {
    tuttiWork *work = queue->first;
    queue->first = work->next;
    tuttiWorkFinish(work, code, text);
  }
  queue->last = &queue->first;
  if (queue->mail) tuttiMailFail(queue->group, queue->peer, code, text);
  pthread_cond_broadcast(&queue->more);
  pthread_cond_broadcast(&queue->group->done);
}

/* ---- carrying out ---- */

static tuttiResult_t runStep(const tuttiWorkStep *s, tuttiComm_t comm) {
  static const char zero;
  char one = 0;
  tuttiDataType_t type = (tuttiDataType_t)s->type;
  tuttiRedOp_t op = (tuttiRedOp_t)s->op;
  switch ((tuttiWorkKind)s->kind) {
  case tuttiWorkAllReduce:
    return tuttiAllReduce(s->send, s->recv, s->count, type, op, comm, NULL);
  case tuttiWorkBroadcast:
    return tuttiBroadcast(s->send, s->recv, s->count, type, s->peer, comm, NULL);
  case tuttiWorkReduce:
    return tuttiReduce(s->send, s->recv, s->count, type, op, s->peer, comm, NULL);
  case tuttiWorkAllGather:
    return tuttiAllGather(s->send, s->recv, s->count, type, comm, NULL);
  case tuttiWorkReduceScatter:
    return tuttiReduceScatter(s->send, s->recv, s->count, type, op, comm, NULL);
  case tuttiWorkAllToAll:
    return tuttiAlltoAll(s->send, s->recv, s->count, type, comm, NULL);
  case tuttiWorkGather:
    return tuttiGather(s->send, s->recv, s->count, type, s->peer, comm, NULL);
  case tuttiWorkScatter:
    return tuttiScatter(s->send, s->recv, s->count, type, s->peer, comm, NULL);
  case tuttiWorkSend:
    return tuttiSend(s->send, s->count, type, s->peer, comm, NULL);
  case tuttiWorkRecv:
    return tuttiRecv(s->recv, s->count, type, s->peer, comm, NULL);
  case tuttiWorkBarrier:
    return tuttiAllReduce(&zero, &one, 1, tuttiInt8, tuttiMax, comm, NULL);
  case tuttiWorkCopy:
    memmove(s->recv, s->send, s->count);
    return tuttiSuccess;
  default:
    return tuttiInvalidArgument;
  }
}

/* The calls from `first` on that run together: up to the next copy. A barrier is alone, as its
 * buffers are in runStep. */
static int neighbours(const tuttiWorkStep *steps, int first, int nsteps) {
  int end = first;
  while (end < nsteps && steps[end].kind != tuttiWorkCopy && steps[end].kind != tuttiWorkBarrier)
    end++;
  return end > first ? end - first : 1;
}

static tuttiResult_t runGroup(const tuttiWorkStep *steps, int nsteps, tuttiComm_t comm) {
  tuttiResult_t result = tuttiGroupStart();
  if (result != tuttiSuccess) return result;
  for (int i = 0; i < nsteps && result == tuttiSuccess; i++)
    result = runStep(&steps[i], comm);
  tuttiResult_t ended = tuttiGroupEnd(); /* of a call that was refused it tells the same */
  return result != tuttiSuccess ? result : ended;
}

static tuttiResult_t runSteps(const tuttiWorkStep *steps, int nsteps, tuttiComm_t comm) {
  tuttiResult_t result = tuttiSuccess;
  for (int i = 0; i < nsteps && result == tuttiSuccess;) {
    int n = neighbours(steps, i, nsteps);
    result = n == 1 ? runStep(&steps[i], comm) : runGroup(&steps[i], n, comm);
    i += n;
  }
  return result;
}

/* An argument that a call refuses is this call's failure alone; what has failed the communicator
 * ends the queue. */
static void concludeWork(tuttiWork *work, tuttiResult_t result) {
  Queue *queue = work->queue;
  char text[WORK_TEXT];
  tuttiResult_t state = tuttiSuccess;
  text[0] = 0;
  if (result != tuttiSuccess) {
    snprintf(text, sizeof text, "%s", tuttiGetLastError(queue->comm));
    if (tuttiCommGetAsyncError(queue->comm, &state) != tuttiSuccess) state = result;
  }
  tuttiWorkFinish(work, result, text);
  if (state != tuttiSuccess) tuttiQueueKill(queue, result, text);
}

static bool ready(const Queue *queue) {
  if (!queue->open || queue->dead) return false;
  return queue->mail ? tuttiMailWanted(queue) : queue->first != NULL;
}

/* Does the next of what the queue has. Holds the lock, which it lets go meanwhile. */
static void runNext(Queue *queue) {
  queue->running = true;
  queue->begun++;
  if (queue->mail) {
    tuttiMailPull(queue);
  } else {
    tuttiWork *work = queue->first;
    queue->first = work->next;
    if (!queue->first) queue->last = &queue->first;
    pthread_mutex_unlock(&queue->group->lock);
    tuttiResult_t result =
        queue->peer < 0 ? runSteps(work->steps, work->nsteps, queue->comm) : tuttiMailSend(work);
    pthread_mutex_lock(&queue->group->lock);
    concludeWork(work, result);
  }
  queue->running = false;
  pthread_cond_broadcast(&queue->group->done);
}

/* Sleeps until somebody wakes it. */
static void sleepDeep(Queue *queue) {
  queue->asleep = true;
  pthread_cond_wait(&queue->more, &queue->group->lock);
  queue->asleep = false;
}

static void *runQueue(void *argument) {
  Queue *queue = argument;
  tuttiWorkGroup *group = queue->group;
  uint64_t begun = 0; /* what the queue had begun at the last look */
  long pause;
  int idle = 0;     /* looks in vain */
  bool due = false; /* at the last look there was a work, and `begun` ones before it */
  (void)prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0); /* else a look comes 50 us late */
  pthread_mutex_lock(&group->lock);
  pause = group->graceUs;
  while (!group->closing && !queue->dead) {
    bool has = !queue->running && ready(queue), helped = queue->begun != begun;
    if (has && due && !helped) {
      runNext(queue);
      begun = queue->begun; /* what follows has waited long enough */
      pause = group->graceUs;
      idle = 0;
      continue;
    }
    if (helped && pause < MOST_US) pause *= 2;
    due = has;
    begun = queue->begun;
    idle = has || helped ? 0 : idle + 1;
    if (idle < LOOKS)
      tuttiGroupLook(group, &queue->more, has ? group->graceUs : pause);
    else
      sleepDeep(queue);
  }
  pthread_mutex_unlock(&group->lock);
  return NULL;
}

void tuttiQueueWake(Queue *queue) {
  if (!ready(queue) || queue->running || queue->group->closing) return;
  if (queue->threaded && !queue->asleep) return; /* it looks by itself */
  if (queue->threaded)
    pthread_cond_signal(&queue->more);
  else if (pthread_create(&queue->thread, NULL, runQueue, queue))
    tuttiQueueKill(queue, tuttiSystemError,
                   "no thread can be made for operations in the background");
  else
    queue->threaded = true;
}

void tuttiWorkEnqueue(tuttiWork *work) {
  Queue *queue = work->queue;
  if (work->group->text) {
    tuttiWorkFinish(work, tuttiRemoteError, work->group->text);
  } else if (queue->dead) {
    tuttiWorkFinish(work, queue->code, queue->text);
  } else {
    *queue->last = work;
    queue->last = &work->next;
  }
}

/* ---- waiting ---- */

/* May the waiter's thread carry out what stands before this work, and the work? */
static bool mayHelp(const tuttiWork *work) {
  const Queue *queue = work->queue;
  return queue && ready(queue) && !queue->running && !work->group->closing;
}

static tuttiResult_t waitFor(tuttiWork *work) {
  while (!work->done) {
    if (mayHelp(work))
      runNext(work->queue);
    else
      pthread_cond_wait(&work->group->done, &work->group->lock);
  }
  /* The thread may have been passed over while this one was at it. */
  if (work->queue) tuttiQueueWake(work->queue);
  return work->result;
}

/* Keeps the text for tuttiWorkGroupText; lets go of lock and work. */
static tuttiResult_t endWait(tuttiWork *work) {
  tuttiWorkGroup *group = work->group;
  tuttiResult_t result = work->result;
  snprintf(lastText, sizeof lastText, "%s", work->text ? work->text : "");
  tuttiWorkUnref(work);
  pthread_mutex_unlock(&group->lock);
  return result;
}

static tuttiResult_t noMemory(void) {
  snprintf(lastText, sizeof lastText, "no memory for an operation");
  return tuttiSystemError;
}

tuttiResult_t tuttiWorkRun(tuttiWorkGroup *group, const tuttiWorkStep *steps, int nsteps) {
  pthread_mutex_lock(&group->lock);
  tuttiWork *work = tuttiWorkMake(group, &group->all, nsteps);
  if (!work) {
    pthread_mutex_unlock(&group->lock);
    return noMemory();
  }
  memcpy(work->steps, steps, (size_t)nsteps * sizeof *steps);
  tuttiWorkEnqueue(work);
  waitFor(work);
  return endWait(work);
}

tuttiResult_t tuttiWorkRunOne(tuttiWorkGroup *group, int kind, const void *send, void *recv,
                              size_t count, int type, int op, int peer) {
  tuttiWorkStep step = {.kind = kind,
                        .type = type,
                        .op = op,
                        .peer = peer,
                        .send = send,
                        .recv = recv,
                        .count = count};
  return tuttiWorkRun(group, &step, 1);
}

tuttiWork *tuttiWorkSubmit(tuttiWorkGroup *group, const tuttiWorkStep *steps, int nsteps,
                           int timeoutMs) {
  pthread_mutex_lock(&group->lock);
  tuttiWork *work = tuttiWorkMake(group, &group->all, nsteps);
  if (work) {
    memcpy(work->steps, steps, (size_t)nsteps * sizeof *steps);
    tuttiWorkEnqueue(work);
    if (timeoutMs > 0 && !tuttiWorkWatch(work, timeoutMs))
      tuttiQueueKill(&group->all, tuttiSystemError, "no thread can be made to look at timeouts");
    tuttiQueueWake(&group->all);
  }
  pthread_mutex_unlock(&group->lock);
  return work;
}

static Queue *laneOf(tuttiWorkGroup *group, int sending, int peer) {
  return sending ? &group->sends[peer] : &group->mails[peer];
}

tuttiWork *tuttiWorkPost(tuttiWorkGroup *group, int sending, void *data, size_t bytes, int peer,
                         int tag) {
  if (peer >= group->nranks || peer < (sending ? 0 : TUTTI_WORK_ANY)) return NULL;
  Queue *queue = peer == TUTTI_WORK_ANY ? NULL : laneOf(group, sending, peer);
  pthread_mutex_lock(&group->lock);
  tuttiWork *work = tuttiWorkMake(group, queue, 0);
  if (work) {
    work->data = data;
    work->bytes = bytes;
    work->peer = peer;
    work->tag = tag;
    if (sending)
      tuttiWorkEnqueue(work);
    else
      tuttiMailPost(work);
    if (queue) tuttiQueueWake(queue);
    (void)tuttiWorkWatch(work, group->timeoutMs); /* without it, the wait's own holds */
  }
  pthread_mutex_unlock(&group->lock);
  return work;
}

tuttiResult_t tuttiWorkWait(tuttiWork *work, int timeoutMs) {
  tuttiWorkGroup *group = work->group;
  pthread_mutex_lock(&group->lock);
  if (timeoutMs > 0 && !work->done && !tuttiWorkWatch(work, timeoutMs)) {
    work->late = true; /* nobody can end it in time: it ends as soon as it can */
    work->timeoutMs = timeoutMs;
  }
  tuttiResult_t result = waitFor(work);
  pthread_mutex_unlock(&group->lock);
  return result;
}

int tuttiWorkDone(tuttiWork *work) {
  pthread_mutex_lock(&work->group->lock);
  int done = work->done;
  pthread_mutex_unlock(&work->group->lock);
  return done;
}

void tuttiWorkNotify(tuttiWork *work, int fd) {
  pthread_mutex_lock(&work->group->lock);
  work->fd = fd;
  if (work->done) tell(work);
  pthread_mutex_unlock(&work->group->lock);
}

tuttiResult_t tuttiWorkResult(const tuttiWork *work) {
  return work->result;
}

const char *tuttiWorkText(const tuttiWork *work) {
  return work->text ? work->text : "";
}

int tuttiWorkPeer(const tuttiWork *work) {
  return work->peer;
}

void tuttiWorkFree(tuttiWork *work) {
  if (!work) return;
  tuttiWorkGroup *group = work->group;
  pthread_mutex_lock(&group->lock);
  group->refs++; /* so that the last work does not free the lock that is held */
  tuttiWorkUnref(work);
  tuttiGroupUnref(group);
}

const char *tuttiWorkGroupText(const tuttiWorkGroup *group) {
  (void)group;
  return lastText;
}

/* For the calls of group.c, whose failures are told in the same way. */
void tuttiWorkSetText(const char *text) {
  snprintf(lastText, sizeof lastText, "%s", text);
}
