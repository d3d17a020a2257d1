/* Groups: what one thread collects between tuttiGroupStart and tuttiGroupEnd runs together, so that
 * calls which depend on each other can't block one another. */
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os.h"
#include "comm/comm.h"

typedef struct {
  tuttiOp *ops;
  int nops, capacity;
  tuttiJob *jobs, **jobsEnd;
  tuttiResult_t failure;
  char text[TUTTI_ERROR_TEXT];
} Group;

static _Thread_local int depth;   /* of groups open in this thread */
static _Thread_local Group group; /* has a meaning while depth > 0 */

static uint32_t threadId(void) {
  static _Thread_local uint32_t id;
  if (id == 0) id = (uint32_t)syscall(SYS_gettid);
  return id;
}

/* A communicator is used by one thread at a time; a second one is told instead of corrupting it. */
tuttiResult_t tuttiCommOccupy(tuttiCommunicator *c) {
  uint32_t self = threadId();
  if (tuttiCompareExchange32(&c->busy, 0, self)) return tuttiSuccess;
  uint32_t owner = tuttiLoadAcquire32(&c->busy);
  if (owner == self) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "thread %u is inside a call of communicator %s, which one thread may use at a "
                    "time; order the calls or make a communicator per thread",
                    owner, c->options.name);
}

void tuttiCommVacate(tuttiCommunicator *c) {
  /* Once per communicator: later calls of a group's end find it vacated. */
  if (tuttiLoadRelaxed32(&c->busy) == threadId()) tuttiStoreRelease32(&c->busy, 0);
}

static void release(const tuttiOp *ops, int nops) {
  for (int i = 0; i < nops; i++)
    tuttiHandleLeave(ops[i].comm);
}

static tuttiResult_t runBlocking(const tuttiOp *ops, int nops) {
  tuttiResult_t result = tuttiSuccess;
  int held = 0;
  for (; held < nops && result == tuttiSuccess; held++)
    result = tuttiCommOccupy(ops[held].comm);
  if (result == tuttiSuccess)
    result = tuttiOpsRun(ops, nops);
  else
    held--; /* the last one belongs to another thread */
  for (int i = 0; i < held; i++)
    tuttiCommVacate(ops[i].comm);
  return result;
}

/* Hands the operations of non-blocking communicators, in place behind the blocking ones, to their
 * workers: all of one communicator at once, since those of a group may depend on each other. */
static tuttiResult_t queueAll(tuttiOp *ops, int nops) {
  while (nops > 0) {
    tuttiCommunicator *c = ops[0].comm;
    int mine = 0;
    for (int i = 0; i < nops; i++) {
      if (ops[i].comm != c) continue;
      tuttiOp op = ops[i];
      memmove(&ops[mine + 1], &ops[mine], (size_t)(i - mine) * sizeof *ops);
      ops[mine++] = op;
    }
    TUTTI_TRY(tuttiWorkerQueue(c, ops, mine));
    ops += mine;
    nops -= mine;
  }
  return tuttiSuccess;
}

/* Blocking communicators' operations run here, the others' on their workers; each communicator's
 * stay in order. */
static tuttiResult_t runAll(tuttiOp *ops, int nops) {
  int here = 0;
  if (nops == 1 && ops->comm->options.blocking) return runBlocking(ops, 1);
  for (int i = 0; i < nops; i++) {
    if (!ops[i].comm->options.blocking) continue;
    if (here < i) {
      tuttiOp op = ops[i];
      memmove(&ops[here + 1], &ops[here], (size_t)(i - here) * sizeof *ops);
      ops[here] = op;
    }
    here++;
  }
  TUTTI_TRY(queueAll(ops + here, nops - here));
  if (here > 0) TUTTI_TRY(runBlocking(ops, here));
  return here < nops ? tuttiInProgress : tuttiSuccess;
}

static tuttiResult_t append(const tuttiOp *op) {
  if (group.nops == group.capacity) {
    int capacity = group.capacity ? group.capacity * 2 : 16;
    tuttiOp *ops;
    TUTTI_TRY(
        tuttiAlloc((void **)&ops, (size_t)capacity, sizeof *ops, "operations of a group", NULL));
    if (group.nops) memcpy(ops, group.ops, (size_t)group.nops * sizeof *ops);
    tuttiFree(group.ops);
    group.ops = ops;
    group.capacity = capacity;
  }
  group.ops[group.nops++] = *op;
  return tuttiSuccess;
}

tuttiResult_t tuttiOpSubmit(tuttiOp *op) {
  tuttiResult_t result;
  if (depth > 0) {
    result = append(op);
    if (result != tuttiSuccess) tuttiGroupFail(result);
  } else {
    result = runAll(op, 1);
  }
  tuttiHandleLeave(op->comm);
  return result;
}

static tuttiResult_t runJob(tuttiJob *job) {
  job->result = job->run(job);
  if (job->result != tuttiSuccess && job->result != tuttiInProgress)
    strncpy(job->text, tuttiErrorText(), sizeof job->text - 1);
  return job->result;
}

static void *jobMain(void *arg) {
  for (tuttiJob *job = arg; job; job = job->then)
    runJob(job);
  return NULL;
}

static void discardJob(tuttiJob *job) {
  if (job->discard)
    job->discard(job);
  else
    tuttiFree(job);
}

/* Puts a job behind the one before it in `jobs` that uses the same communicator; false: none. */
static bool follow(tuttiJob *jobs, tuttiJob *job) {
  if (!job->uses) return false;
  tuttiJob *last = NULL;
  for (tuttiJob *before = jobs; before != job; before = before->next)
    if (before->uses == job->uses) last = before;
  if (last) last->then = job;
  return last != NULL;
}

static void startJob(tuttiJob *job) {
  int err = tuttiThreadStart(&job->thread, "tutti-init", jobMain, job);
  job->started = err == 0;
  if (!err) return;
  for (; job; job = job->then) {
    job->result =
        TUTTI_FAIL(tuttiSystemError, "no thread for a communicator's init: %s; raise `ulimit -u`",
                   tuttiErrnoText(err));
    strncpy(job->text, tuttiErrorText(), sizeof job->text - 1);
  }
}

tuttiResult_t tuttiJobsRun(tuttiJob *jobs) {
  tuttiResult_t result = tuttiSuccess;
  int threads = 0;
  for (tuttiJob *job = jobs; job; job = job->next)
    threads += job->leads = !follow(jobs, job);
  for (tuttiJob *job = jobs; job; job = job->next) {
    if (threads == 1) { /* alone: this thread */
      jobMain(job);
      break;
    }
    if (job->leads) startJob(job);
  }
  for (tuttiJob *job = jobs; job; job = job->next)
    if (job->started) pthread_join(job->thread, NULL);
  for (tuttiJob *job = jobs, *next; job; job = next) {
    next = job->next;
    bool failed = job->result != tuttiSuccess && job->result != tuttiInProgress;
    if (failed && (result == tuttiSuccess || result == tuttiInProgress))
      result = tuttiErrorAdopt(job->result, job->text);
    else if (!failed && result == tuttiSuccess)
      result = job->result;
    discardJob(job);
  }
  return result;
}

tuttiResult_t tuttiJobSubmit(tuttiJob *job) {
  job->next = NULL;
  if (depth == 0) return tuttiJobsRun(job);
  *group.jobsEnd = job;
  group.jobsEnd = &job->next;
  return tuttiSuccess;
}

tuttiResult_t tuttiJobLaunch(tuttiResult_t checked, const tuttiJob *job, size_t bytes) {
  tuttiJob *copy;
  if (checked == tuttiSuccess)
    checked = tuttiAlloc((void **)&copy, 1, bytes, "work of a communicator", NULL);
  if (checked != tuttiSuccess) {
    tuttiGroupFail(checked);
    return checked;
  }
  memcpy(copy, job, bytes);
  return tuttiJobSubmit(copy);
}

void tuttiGroupFail(tuttiResult_t code) {
  if (depth == 0 || group.failure != tuttiSuccess) return;
  group.failure = code;
  strncpy(group.text, tuttiErrorText(), sizeof group.text - 1);
}

tuttiResult_t tuttiGroupStart(void) {
  if (depth++ == 0) {
    group.jobs = NULL;
    group.jobsEnd = &group.jobs;
    group.nops = 0;
    group.failure = tuttiSuccess;
  }
  return tuttiSuccess;
}

/* A group holds no communicator before its end, so that an abort elsewhere need not wait for it. */
static tuttiResult_t runGroup(tuttiOp *ops, int nops) {
  tuttiResult_t result = tuttiSuccess;
  int held = 0;
  for (; held < nops; held++) {
    TUTTI_TRY_GOTO(tuttiHandleEnter(ops[held].handle, "tuttiGroupEnd", &ops[held].comm), result,
                   out);
  }
  result = runAll(ops, nops);
out:
  release(ops, held);
  return result;
}

static void discardJobs(tuttiJob *jobs) {
  for (tuttiJob *job = jobs, *next; job; job = next) {
    next = job->next;
    discardJob(job);
  }
}

static tuttiResult_t discardGroup(tuttiJob *jobs) {
  discardJobs(jobs);
  return tuttiErrorAdopt(group.failure, group.text);
}

/* What a group held when it ended: taken away, so that nothing below finds it. */
typedef struct {
  tuttiOp *ops;
  int nops;
  tuttiJob *jobs;
} Taken;

/* Ends one level; *last if it was the outermost, whose lists are then in *taken. */
static tuttiResult_t leave(Taken *taken, bool *last) {
  if (depth == 0)
    return TUTTI_FAIL(tuttiInvalidUsage, "no group is open in this thread; call tuttiGroupStart "
                                         "first");
  *last = --depth == 0;
  if (!*last) return tuttiSuccess;
  *taken = (Taken){group.ops, group.nops, group.jobs};
  group.ops = NULL;
  group.nops = group.capacity = 0;
  group.jobs = NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiGroupEnd(void) {
  Taken taken;
  bool last;
  tuttiErrorScope(__func__, NULL, 0, 0);
  TUTTI_TRY(leave(&taken, &last));
  if (!last) return tuttiSuccess;
  tuttiResult_t result = tuttiSuccess, jobResult = tuttiSuccess;
  if (group.failure != tuttiSuccess) {
    result = discardGroup(taken.jobs);
  } else {
    if (taken.nops > 0) result = runGroup(taken.ops, taken.nops);
    jobResult = tuttiJobsRun(taken.jobs);
    if (jobResult != tuttiSuccess && (result == tuttiSuccess || result == tuttiInProgress))
      result = jobResult;
  }
  tuttiFree(taken.ops);
  return result;
}

/* Adds the time of one operation to *us. */
static tuttiResult_t addTime(tuttiOp *op, float *us) {
  TUTTI_TRY(tuttiHandleEnter(op->handle, "tuttiGroupSimulateEnd", &op->comm));
  tuttiResult_t result = tuttiCommOccupy(op->comm);
  if (result == tuttiSuccess) {
    *us += tuttiOpTime(op);
    tuttiCommVacate(op->comm);
  }
  tuttiHandleLeave(op->comm);
  return result;
}

/* Operations of one communicator follow each other; communicators run side by side. */
static tuttiResult_t expect(tuttiOp *ops, int nops, float *longest) {
  for (int i = 0; i < nops; i++) {
    float us = 0;
    bool seen = false;
    for (int j = 0; j < i && !seen; j++)
      seen = ops[j].handle == ops[i].handle;
    for (int j = i; j < nops && !seen; j++)
      if (ops[j].handle == ops[i].handle) TUTTI_TRY(addTime(&ops[j], &us));
    if (us > *longest) *longest = us;
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiGroupSimulateEnd(tuttiSimInfo_t *simInfo) {
  Taken taken;
  bool last;
  float us = 0;
  tuttiErrorScope(__func__, NULL, 0, 0);
  if (!simInfo || simInfo->magic != TUTTI_SIM_INFO_MAGIC || simInfo->size < sizeof *simInfo)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument simInfo (%p) is not initialized; start it "
                      "from TUTTI_SIM_INFO_INITIALIZER",
                      (void *)simInfo);
  TUTTI_TRY(leave(&taken, &last));
  if (!last) return tuttiSuccess;
  tuttiResult_t result = group.failure;
  if (result == tuttiSuccess) result = expect(taken.ops, taken.nops, &us);
  if (result == tuttiSuccess) simInfo->estimatedTime = us;
  tuttiFree(taken.ops);
  discardJobs(taken.jobs);
  return group.failure == tuttiSuccess ? result : tuttiErrorAdopt(group.failure, group.text);
}
