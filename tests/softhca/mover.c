/* Threads that copy from and to memory of GPUs, and if they shall, of the host.
 *
 * The driver may make a caller wait, for as long as a kernel runs or another thread is inside it,
 * so nobody calls it who holds hca.lock. Each mover has a queue, and for each GPU a stream in each
 * direction; what it finds in its queue it launches at once, with one event behind it. A copy
 * counts as done when that event has passed. */
#include "hca.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The driver makes copies to the GPU of up to 24 KiB, and all copies inside one, by kernels, which
 * wait where other kernels fill the GPU. What has two rows goes by a copy engine. */
#define BY_KERNEL_BYTES 65536
static const uint64_t SPIN_NS = 20000;
static const uint64_t STOP_NS = 5000000000;

typedef struct Batch {
  struct Batch *next;
  softJob *jobs;
  void *event;
  cuResult result;
} Batch;

/* One stream and what is under way on it, oldest first. */
typedef struct {
  void *stream;
  Batch *first, *last;
} Lane;

enum { LANES = 2 }; /* to the GPU; from it or inside it */
enum { SPARE = 64 };

typedef struct {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t filled;
  softJob *first, *last;
  _Atomic uint32_t queued, busy; /* jobs */
  bool stop;
  Lane lanes[SOFT_MAX_GPUS][LANES]; /* from here on, the thread's own */
  int current;                      /* GPU whose context is set, or -1 */
  void *spare[SPARE];               /* events for batches to come, of any GPU of theirs */
  int spareGpu[SPARE], nspare;
} Mover;

typedef struct Opened {
  struct Opened *next;
  cuIpcHandle handle;
  int gpu;
  cuPointer base;
} Opened;

static Mover movers[SOFT_MAX_MOVERS];
static int nmovers;
static const softDriver *cu;
static pthread_mutex_t sharedLock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static void *contexts[SOFT_MAX_GPUS];
static Opened *opened;

/* ---- the driver ----------------------------------------------------------------------------- */

static cuResult enter(Mover *m, int gpu) {
  if (m->current == gpu) return CU_OK;
  pthread_mutex_lock(&sharedLock);
  cuResult r = contexts[gpu] ? CU_OK : cu->retainContext(&contexts[gpu], gpu);
  pthread_mutex_unlock(&sharedLock);
  if (r == CU_OK) r = cu->setContext(contexts[gpu]);
  m->current = r == CU_OK ? gpu : -1;
  return r;
}

/* Memory of another process, which stays open until the end: peers use the same again and again. */
static cuResult openPeer(const softDirect *direct, int gpu, cuPointer *base) {
  cuResult r = CU_OK;
  pthread_mutex_lock(&sharedLock);
  Opened *o = opened;
  while (o && (o->gpu != gpu || memcmp(&o->handle, &direct->handle, sizeof o->handle) != 0))
    o = o->next;
  if (!o) {
    o = calloc(1, sizeof *o);
    r = o ? cu->openIpc(&o->base, direct->handle, CU_IPC_LAZY_PEER) : CU_NO_MEMORY;
    if (r == CU_OK) {
      o->handle = direct->handle;
      o->gpu = gpu;
      o->next = opened;
      opened = o;
    } else {
      free(o);
      o = NULL;
    }
  }
  if (o) *base = o->base;
  pthread_mutex_unlock(&sharedLock);
  return r;
}

/* Between two addresses of this GPU, or from the host. */
static cuResult twoRows(cuPointer to, cuPointer from, bool inside, size_t width, void *stream) {
  cuCopy2d copy = {.srcType = inside ? CU_TYPE_DEVICE : CU_TYPE_HOST,
                   .srcHost =
                       inside ? NULL : (void *)(uintptr_t)from, /* NOLINT: the ABI's integer */
                   .srcDevice = inside ? from : 0,
                   .srcPitch = width,
                   .dstType = CU_TYPE_DEVICE,
                   .dstDevice = to,
                   .dstPitch = width,
                   .width = width,
                   .height = 2};
  return cu->copy2d(&copy, stream);
}

/* An odd number of bytes: all but the last, then all but the first. */
static cuResult byEngine(cuPointer to, cuPointer from, bool inside, size_t bytes, void *stream) {
  cuResult r = twoRows(to, from, inside, bytes / 2, stream);
  if (r != CU_OK || bytes % 2 == 0) return r;
  return twoRows(to + 1, from + 1, inside, bytes / 2, stream);
}

static cuResult copy(const softJob *job, void *stream) {
  cuPointer from = job->from;
  bool inside = false;
  cuResult r = CU_OK;
  if (job->direct) {
    from = job->direct->address;
    inside = job->direct->gpu == job->gpu && job->move == SOFT_TO_GPU;
    if (job->direct->pid != getpid()) {
      r = openPeer(job->direct, job->gpu, &from);
      from += job->direct->fromBase;
    }
    from += job->from; /* how far into it */
  }
  if (r != CU_OK) return r;
  bool small = job->move == SOFT_TO_GPU && !job->direct && job->bytes <= BY_KERNEL_BYTES;
  bool rows = job->bytes > 1 && (small || inside);
  if (rows) r = byEngine(job->to, from, inside, job->bytes, stream);
  /* The driver need not take any pitch for copies inside a GPU. */
  if (!rows || (inside && r == CU_INVALID_VALUE)) r = cu->copy(job->to, from, job->bytes, stream);
  return r;
}

/* Atomic among all queue pairs of the HCA, as IBV_ATOMIC_HCA has it. */
static cuResult atomic(const softJob *job, void *stream) {
  static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
  const softFrame *f = &job->flight->frame;
  uint64_t *old = &job->flight->value, value;
  pthread_mutex_lock(&one);
  cuResult r = cu->copy((uintptr_t)old, job->to, sizeof *old, stream);
  if (r == CU_OK) r = cu->synchronize(stream);
  bool add = f->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  value = add ? *old + f->operand : f->swap;
  if (r == CU_OK && (add || *old == f->operand)) {
    r = byEngine(job->to, (uintptr_t)&value, false, sizeof value, stream);
    if (r == CU_OK) r = cu->synchronize(stream);
  }
  pthread_mutex_unlock(&one);
  return r;
}

static void unpin(softStaging *s) {
  cu->unregisterHost(s->base);
  softStagingUnmap(s);
}

/* ---- a mover -------------------------------------------------------------------------------- */

static Lane *laneOf(Mover *m, const softJob *job) {
  return &m->lanes[job->gpu][job->move == SOFT_TO_GPU ? 0 : 1];
}

/* Streams share few queues to the GPU, those of one priority theirs: at the greatest none of these
 * stands behind a kernel that waits for what its copies bring. */
static cuResult makeStream(void **stream) {
  int least, greatest;
  cuResult r = cu->priorities(&least, &greatest);
  if (r == CU_OK) r = cu->createStream(stream, CU_STREAM_NONBLOCKING, greatest);
  return r;
}

static cuResult launch(Mover *m, const softJob *job) {
  Lane *lane = laneOf(m, job);
  cuResult r = enter(m, job->gpu);
  if (r == CU_OK && !lane->stream) r = makeStream(&lane->stream);
  if (r != CU_OK) return r;
  switch (job->move) {
  case SOFT_GPU_ATOMIC:
    return atomic(job, lane->stream);
  case SOFT_PIN: /* without it, copies are slower */
    cu->registerHost(job->staging->base, job->staging->size, CU_REGISTER_PORTABLE);
    return CU_OK;
  case SOFT_UNPIN:
    unpin(job->staging);
    return CU_OK;
  default:
    return copy(job, lane->stream);
  }
}

/* Making and destroying an event takes longer than using it. */
static cuResult takeEvent(Mover *m, int gpu, void **event) {
  for (int i = m->nspare - 1; i >= 0; i--)
    if (m->spareGpu[i] == gpu) {
      *event = m->spare[i];
      m->nspare--;
      m->spare[i] = m->spare[m->nspare];
      m->spareGpu[i] = m->spareGpu[m->nspare];
      return CU_OK;
    }
  return cu->createEvent(event, CU_EVENT_NO_TIMING);
}

static void giveEvent(Mover *m, int gpu, void *event) {
  if (m->nspare == SPARE) {
    cu->destroyEvent(event);
    return;
  }
  m->spare[m->nspare] = event;
  m->spareGpu[m->nspare++] = gpu;
}

static void finishJob(Mover *m, softJob *job, bool good) {
  if (!good && job->flight) atomic_store(&job->flight->failed, true);
  /* Either may be gone as soon as nothing is counted there. */
  if (job->mr) atomic_fetch_sub(&job->mr->copies, 1);
  if (job->also) atomic_fetch_sub(job->also, 1);
  if (job->flight) atomic_fetch_sub_explicit(&job->flight->pending, 1, memory_order_release);
  free(job->owned);
  free(job);
  atomic_fetch_sub(&m->busy, 1);
}

static void finish(Mover *m, int gpu, Batch *batch) {
  if (batch->result != CU_OK) fprintf(stderr, "softhca: CUDA error %d of a copy\n", batch->result);
  for (softJob *job = batch->jobs, *next; job; job = next) {
    next = job->next;
    finishJob(m, job, batch->result == CU_OK);
  }
  if (batch->event) giveEvent(m, gpu, batch->event);
  free(batch);
}

/* Of memory of the host, all of which this thread reaches. */
static void copyHost(Mover *m, softJob *job) {
  cuPointer from = job->from + (job->direct ? job->direct->address : 0);
  memcpy((void *)(uintptr_t)job->to, (const void *)(uintptr_t)from, job->bytes); /* NOLINT */
  finishJob(m, job, true);
  softEngineWake();
}

/* Launches the first jobs that belong to one lane; *jobs: the rest. */
static void launchSome(Mover *m, softJob **jobs) {
  Batch *batch = calloc(1, sizeof *batch);
  while (!batch) { /* the jobs must not get lost */
    sched_yield();
    batch = calloc(1, sizeof *batch);
  }
  softJob **end = &batch->jobs;
  Lane *lane = laneOf(m, *jobs);
  int gpu = (*jobs)->gpu;
  while (*jobs && batch->result == CU_OK && (*jobs)->gpu >= 0 && laneOf(m, *jobs) == lane) {
    *end = *jobs;
    *jobs = (*jobs)->next;
    (*end)->next = NULL;
    batch->result = launch(m, *end);
    end = &(*end)->next;
  }
  if (lane->stream && batch->result == CU_OK) batch->result = takeEvent(m, gpu, &batch->event);
  if (lane->stream && batch->result == CU_OK)
    batch->result = cu->recordEvent(batch->event, lane->stream);
  /* What was launched before something failed may still touch the memory. */
  if (lane->stream && batch->result != CU_OK) cu->synchronize(lane->stream);
  *(lane->last ? &lane->last->next : &lane->first) = batch;
  lane->last = batch;
}

static bool passed(Mover *m, int gpu, Batch *batch) {
  if (batch->result != CU_OK || !batch->event) return true;
  cuResult r = enter(m, gpu);
  if (r == CU_OK) r = cu->queryEvent(batch->event);
  if (r == CU_NOT_READY) return false;
  batch->result = r;
  return true;
}

static bool finishSome(Mover *m) {
  bool any = false;
  for (int gpu = 0; gpu < SOFT_MAX_GPUS; gpu++)
    for (int i = 0; i < LANES; i++) {
      Lane *lane = &m->lanes[gpu][i];
      while (lane->first && passed(m, gpu, lane->first)) {
        Batch *batch = lane->first;
        lane->first = batch->next;
        if (!lane->first) lane->last = NULL;
        finish(m, gpu, batch);
        any = true;
      }
    }
  return any;
}

/* All that is queued; waits for something if nothing is under way. NULL without jobs: the end. */
static softJob *takeJobs(Mover *m, bool *end) {
  bool idle = atomic_load(&m->busy) == atomic_load(&m->queued);
  if (idle && hca.cores > 2)
    for (uint64_t until = softNow() + SPIN_NS; !atomic_load(&m->queued) && softNow() < until;)
      sched_yield();
  pthread_mutex_lock(&m->lock);
  while (idle && !m->first && !m->stop)
    pthread_cond_wait(&m->filled, &m->lock);
  softJob *jobs = m->first;
  m->first = m->last = NULL;
  atomic_store(&m->queued, 0);
  *end = idle && !jobs;
  pthread_mutex_unlock(&m->lock);
  return jobs;
}

/* Nothing is under way any more, in any mover (softMoverDrain). */
static void closePeers(Mover *m) {
  for (Opened *o; (o = opened);) {
    opened = o->next;
    if (enter(m, o->gpu) == CU_OK) cu->closeIpc(o->base);
    free(o);
  }
}

static void *move(void *argument) {
  Mover *m = argument;
  for (bool end = false; !end;) {
    softJob *jobs = takeJobs(m, &end);
    while (jobs)
      if (jobs->gpu >= 0) {
        launchSome(m, &jobs);
      } else {
        softJob *job = jobs;
        jobs = job->next;
        copyHost(m, job);
      }
    if (finishSome(m))
      softEngineWake();
    else
      sched_yield();
  }
  for (int gpu = 0; gpu < SOFT_MAX_GPUS; gpu++)
    for (int i = 0; i < LANES; i++)
      if (m->lanes[gpu][i].stream && enter(m, gpu) == CU_OK)
        cu->destroyStream(m->lanes[gpu][i].stream);
  while (m->nspare > 0)
    cu->destroyEvent(m->spare[--m->nspare]);
  if (m == &movers[0]) closePeers(m);
  return NULL;
}

/* ---- all of them ---------------------------------------------------------------------------- */

void softMoverSubmit(const softJob *template, uint32_t qpn) {
  softJob *job = malloc(sizeof *job);
  if (!job) {
    if (template->flight) atomic_store(&template->flight->failed, true);
    return;
  }
  *job = *template;
  job->next = NULL;
  if (job->mr) atomic_fetch_add(&job->mr->copies, 1);
  if (job->flight) atomic_fetch_add(&job->flight->pending, 1);
  if (job->also) atomic_fetch_add(job->also, 1);
  Mover *m = &movers[qpn % (uint32_t)nmovers];
  pthread_mutex_lock(&m->lock);
  if (m->last)
    m->last->next = job;
  else
    m->first = job;
  m->last = job;
  atomic_fetch_add(&m->busy, 1);
  if (atomic_fetch_add(&m->queued, 1) == 0) pthread_cond_signal(&m->filled);
  pthread_mutex_unlock(&m->lock);
}

int softMoverStart(void) {
  sigset_t all, before;
  int error = 0;
  if (nmovers > 0) return 0;
  cu = softDriverGet();
  sigfillset(&all); /* the application's signals are for its own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (; nmovers < (int)hca.config.movers && !error; nmovers += !error) {
    Mover *m = &movers[nmovers];
    memset(m, 0, sizeof *m);
    m->current = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->filled, NULL);
    error = pthread_create(&m->thread, NULL, move, m);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return nmovers > 0 ? 0 : error;
}

static bool allDone(uint32_t unused) {
  (void)unused;
  for (int i = 0; i < nmovers; i++)
    if (atomic_load(&movers[i].busy)) return false;
  return true;
}

bool softMoverAwait(bool (*done)(uint32_t), uint32_t argument) {
  for (uint64_t until = softNow() + STOP_NS; !done(argument);) {
    if (softNow() > until) {
      fprintf(stderr, "softhca: a copy from or to a GPU does not end\n");
      return false;
    }
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
  return true;
}

bool softMoverDrain(void) {
  return softMoverAwait(allDone, 0);
}

void softMoverStop(void) {
  for (int i = 0; i < nmovers; i++) {
    pthread_mutex_lock(&movers[i].lock);
    movers[i].stop = true;
    pthread_cond_signal(&movers[i].filled);
    pthread_mutex_unlock(&movers[i].lock);
    pthread_join(movers[i].thread, NULL);
    pthread_mutex_destroy(&movers[i].lock);
    pthread_cond_destroy(&movers[i].filled);
  }
  nmovers = 0;
}
