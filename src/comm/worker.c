/* Non-blocking communicators: a thread per communicator runs its init, then its operations in the
 * order in which they were queued, while the caller goes on with tuttiInProgress. */
#include "comm/worker.h"

#include <string.h>

#include "base/os.h"
#include "base/ticks.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/operation.h"

/* The operations of one call or of one group: they run together. */
typedef struct Batch {
  struct Batch *next;
  int nops;
  tuttiOp ops[];
} Batch;

typedef struct tuttiWorker {
  tuttiCommunicator *comm;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  Batch *first, **last;
  tuttiAtomic64 pending; /* batches queued and running; the beginning is one too */
  bool stop;
  void (*begin)(void *argument);
  void *argument;
} tuttiWorker;

/* Takes the oldest batch, NULL when there will be no more. One at a time: a later call may use what
 * an earlier one wrote. */
static Batch *take(tuttiWorker *w) {
  TUTTI_LOCKED(&w->lock);
  while (!w->first && !w->stop)
    pthread_cond_wait(&w->wake, &w->lock);
  Batch *batch = w->first;
  if (batch) w->first = batch->next;
  if (!w->first) w->last = &w->first;
  return batch;
}

/* Last: whoever sees it sees the failure too. */
static void countDone(tuttiWorker *w) {
  tuttiFetchAddAcqRel(&w->pending, (uint64_t)-1);
}

static void *workerMain(void *arg) {
  tuttiWorker *w = arg;
  tuttiThreadIsOwn = true;
  w->begin(w->argument);
  countDone(w);
  tuttiErrorScope("a non-blocking call", w->comm->options.name, w->comm->rank, w->comm->nranks);
  for (Batch *batch; (batch = take(w)) != NULL; countDone(w)) {
    tuttiResult_t result = tuttiOpsRun(batch->ops, batch->nops);
    if (result != tuttiSuccess) tuttiCommFail(w->comm, result);
    tuttiFree(batch);
  }
  return NULL;
}

tuttiResult_t tuttiWorkerStart(tuttiCommunicator *c, void (*begin)(void *), void *argument) {
  tuttiWorker *w;
  TUTTI_NEW(w, 1, "worker of a communicator", &c->memory);
  *w = (tuttiWorker){.comm = c, .last = &w->first, .begin = begin, .argument = argument};
  tuttiStoreRelaxed(&w->pending, 1);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->wake, NULL);
  c->worker = w;
  tuttiResult_t result = tuttiThreadStart(&w->thread, "tutti-worker", workerMain, w);
  if (result != tuttiSuccess) {
    c->worker = NULL;
    tuttiFree(w);
  }
  return result;
}

tuttiResult_t tuttiWorkerQueue(tuttiCommunicator *c, const tuttiOp *ops, int nops) {
  tuttiWorker *w = c->worker;
  Batch *batch;
  TUTTI_TRY(tuttiAlloc((void **)&batch, 1, sizeof *batch + (size_t)nops * sizeof *ops,
                       "queued operations", NULL));
  batch->nops = nops;
  memcpy(batch->ops, ops, (size_t)nops * sizeof *ops);
  for (int i = 0; c->record.traces && i < nops; i++)
    batch->ops[i].enqueued = tuttiTicks();
  tuttiFetchAddAcqRel(&w->pending, 1);
  TUTTI_LOCKED(&w->lock);
  *w->last = batch;
  w->last = &batch->next;
  pthread_cond_signal(&w->wake);
  return tuttiSuccess;
}

bool tuttiWorkerIdle(tuttiCommunicator *c) {
  return !c->worker || tuttiLoadAcquire(&c->worker->pending) == 0;
}

tuttiResult_t tuttiWorkerAwait(tuttiCommunicator *c) {
  return tuttiCommAwait(c, tuttiWorkerIdle, true, "operations queued before did not end", "");
}

void tuttiWorkerStop(tuttiCommunicator *c) {
  tuttiWorker *w = c->worker;
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->stop = true;
  pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->wake);
  tuttiFree(w);
  c->worker = NULL;
}
