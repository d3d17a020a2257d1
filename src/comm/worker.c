/* Non-blocking communicators: a thread per communicator runs its operations in the order in which
 * they were queued, while the caller goes on with tuttiInProgress. */
#include <string.h>

#include "base/os.h"
#include "comm/comm.h"

typedef struct Batch {
  struct Batch *next;
  tuttiOp op;
} Batch;

typedef struct tuttiWorker {
  tuttiCommunicator *comm;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  Batch *first, **last;
  tuttiAtomic64 pending; /* queued and running */
  bool stop;
} tuttiWorker;

/* Takes everything queued: operations that were grouped depend on each other and run together. */
static Batch *take(tuttiWorker *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->first && !w->stop)
    pthread_cond_wait(&w->wake, &w->lock);
  Batch *batches = w->first;
  w->first = NULL;
  w->last = &w->first;
  pthread_mutex_unlock(&w->lock);
  return batches;
}

static void runBatches(tuttiWorker *w, Batch *batches) {
  int n = 0;
  for (Batch *b = batches; b; b = b->next)
    n++;
  tuttiOp *ops;
  tuttiResult_t result =
      tuttiAlloc((void **)&ops, (size_t)n, sizeof *ops, "queued operations", NULL);
  if (result == tuttiSuccess) {
    int i = 0;
    for (Batch *b = batches; b; b = b->next)
      ops[i++] = b->op;
    result = tuttiOpsRun(ops, n);
    tuttiFree(ops);
  }
  if (result != tuttiSuccess) tuttiCommFail(w->comm, result);
  for (Batch *b = batches, *next; b; b = next) {
    next = b->next;
    tuttiFree(b);
  }
  tuttiFetchAddAcqRel(&w->pending, (uint64_t)-n);
}

static void *workerMain(void *arg) {
  tuttiWorker *w = arg;
  tuttiErrorScope("a non-blocking call", w->comm->options.name, w->comm->rank, w->comm->nranks);
  for (Batch *batches; (batches = take(w)) != NULL;)
    runBatches(w, batches);
  return NULL;
}

tuttiResult_t tuttiWorkerStart(tuttiCommunicator *c) {
  tuttiWorker *w;
  TUTTI_TRY(tuttiAlloc((void **)&w, 1, sizeof *w, "worker of a communicator", &c->memory));
  w->comm = c;
  w->last = &w->first;
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->wake, NULL);
  int err = pthread_create(&w->thread, NULL, workerMain, w);
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
  Batch *first = NULL, **last = &first;
  tuttiResult_t result = tuttiSuccess;
  for (int i = 0; i < nops && result == tuttiSuccess; i++) {
    Batch *b;
    result = tuttiAlloc((void **)&b, 1, sizeof *b, "a queued operation", NULL);
    if (result != tuttiSuccess) break;
    b->op = ops[i];
    *last = b;
    last = &b->next;
  }
  if (result != tuttiSuccess) {
    for (Batch *next; first; first = next) {
      next = first->next;
      tuttiFree(first);
    }
    return result;
  }
  tuttiFetchAddAcqRel(&w->pending, (uint64_t)nops);
  pthread_mutex_lock(&w->lock);
  *w->last = first;
  w->last = last;
  pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->lock);
  return tuttiSuccess;
}

bool tuttiWorkerIdle(tuttiCommunicator *c) {
  return !c->worker || tuttiLoadAcquire(&c->worker->pending) == 0;
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
