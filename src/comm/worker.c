/* Non-blocking communicators: a thread per communicator runs its operations in the order in which
 * they were queued, while the caller goes on with tuttiInProgress. */
#include <string.h>

#include "base/os.h"
#include "comm/comm.h"

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
  tuttiAtomic64 pending; /* batches queued and running */
  bool stop;
} tuttiWorker;

/* Takes the oldest batch, NULL when there will be no more. One at a time: a later call may use what
 * an earlier one wrote. */
static Batch *take(tuttiWorker *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->first && !w->stop)
    pthread_cond_wait(&w->wake, &w->lock);
  Batch *batch = w->first;
  if (batch) w->first = batch->next;
  if (!w->first) w->last = &w->first;
  pthread_mutex_unlock(&w->lock);
  return batch;
}

static void runBatch(tuttiWorker *w, Batch *batch) {
  tuttiResult_t result = tuttiOpsRun(batch->ops, batch->nops);
  if (result != tuttiSuccess) tuttiCommFail(w->comm, result);
  tuttiFree(batch);
  tuttiFetchAddAcqRel(&w->pending, (uint64_t)-1); /* last: whoever sees it sees the failure too */
}

static void *workerMain(void *arg) {
  tuttiWorker *w = arg;
  tuttiErrorScope("a non-blocking call", w->comm->options.name, w->comm->rank, w->comm->nranks);
  for (Batch *batch; (batch = take(w)) != NULL;)
    runBatch(w, batch);
  return NULL;
}

tuttiResult_t tuttiWorkerStart(tuttiCommunicator *c) {
  tuttiWorker *w;
  TUTTI_TRY(tuttiAlloc((void **)&w, 1, sizeof *w, "worker of a communicator", &c->memory));
  w->comm = c;
  w->last = &w->first;
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->wake, NULL);
  int err = tuttiThreadStart(&w->thread, "tutti-worker", workerMain, w);
  if (err) {
    tuttiFree(w);
    return TUTTI_FAIL(tuttiSystemError,
                      "no thread for a non-blocking communicator: %s; raise "
                      "`ulimit -u`",
                      tuttiErrnoText(err));
  }
  c->worker = w;
  return tuttiSuccess;
}

tuttiResult_t tuttiWorkerQueue(tuttiCommunicator *c, const tuttiOp *ops, int nops) {
  tuttiWorker *w = c->worker;
  Batch *batch;
  TUTTI_TRY(tuttiAlloc((void **)&batch, 1, sizeof *batch + (size_t)nops * sizeof *ops,
                       "queued operations", NULL));
  batch->nops = nops;
  memcpy(batch->ops, ops, (size_t)nops * sizeof *ops);
  tuttiFetchAddAcqRel(&w->pending, 1);
  pthread_mutex_lock(&w->lock);
  *w->last = batch;
  w->last = &batch->next;
  pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->lock);
  return tuttiSuccess;
}

bool tuttiWorkerIdle(tuttiCommunicator *c) {
  return !c->worker || tuttiLoadAcquire(&c->worker->pending) == 0;
}

tuttiResult_t tuttiWorkerAwait(tuttiCommunicator *c) {
  uint64_t deadline = tuttiDeadline(c->options.timeoutMs);
  tuttiBackoff pause = {0, 0};
  while (!tuttiWorkerIdle(c)) {
    TUTTI_TRY(tuttiCommFailure(c));
    if (tuttiNow() > deadline)
      return TUTTI_FAIL(tuttiTimeout, "operations queued before did not end within %.1f s",
                        (double)c->options.timeoutMs / 1e3);
    tuttiBackoffPause(&pause);
  }
  return tuttiCommFailure(c);
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
