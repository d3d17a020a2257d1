/* Groups: what one thread collects between tuttiGroupStart and tuttiGroupEnd runs together, so that
 * calls which depend on each other can't block one another. */
#include "comm/group.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/nvtx.h"
#include "base/os.h"
#include "comm/communicator.h"
#include "comm/handle.h"
#include "comm/job.h"
#include "comm/operation.h"
#include "comm/worker.h"

#define FEW_OPS 8 /* a group of no more allocates nothing */

typedef struct {
  tuttiOp *ops;
  int nops, capacity;
  tuttiJob *jobs, **jobsEnd, *lasts, **lastsEnd;
  tuttiResult_t failure;
} Group;

static _Thread_local int depth;   /* of groups open in this thread */
static _Thread_local Group group; /* all zero while depth is 0 */
/* Of the last group that failed before its end. Such a group runs nothing, so that none comes
 * between its failure and its end. */
static _Thread_local char failureText[TUTTI_ERROR_TEXT];
/* Where a group keeps its first operations; a group within the run of another finds it taken. */
static _Thread_local tuttiOp few[FEW_OPS];
static _Thread_local bool fewTaken;

static inline tuttiResult_t runBlocking(const tuttiOp *ops, int nops) {
  tuttiResult_t result = tuttiSuccess;
  int held = 0;
  for (; held < nops && result == tuttiSuccess; held++)
    result = tuttiCommOccupy(ops[held].comm);
  if (result == tuttiSuccess) result = tuttiOpsRun(ops, nops);
  for (int i = 0; i < held; i++) /* but for a last one that belongs to another thread */
    tuttiCommVacate(ops[i].comm);
  return result;
}

/* Brings the operations of blocking communicators, or those of `c`, to the front; all stay in
 * order. Returns their number. */
static int bring(tuttiOp *ops, int nops, bool blocking, const tuttiCommunicator *c) {
  int n = 0;
  for (int i = 0; i < nops; i++) {
    if (blocking ? !ops[i].comm->options.blocking : ops[i].comm != c) continue;
    if (n < i) {
      tuttiOp op = ops[i];
      memmove(&ops[n + 1], &ops[n], (size_t)(i - n) * sizeof *ops);
      ops[n] = op;
    }
    n++;
  }
  return n;
}

/* Operations of blocking communicators run here, the others' on their workers: all of one at once,
 * since those of a group may depend on each other. */
static tuttiResult_t runAll(tuttiOp *ops, int nops) {
  int here = bring(ops, nops, true, NULL);
  for (int at = here, n; at < nops; at += n) {
    tuttiCommunicator *c = ops[at].comm;
    n = bring(ops + at, nops - at, false, c);
    TUTTI_TRY(tuttiWorkerQueue(c, ops + at, n));
  }
  if (here > 0) TUTTI_TRY(runBlocking(ops, here));
  return here < nops ? tuttiInProgress : tuttiSuccess;
}

static void freeOps(tuttiOp *ops) {
  if (ops == few)
    fewTaken = false;
  else
    tuttiFree(ops);
}

/* Room for one operation more. */
static tuttiResult_t makeRoom(void) {
  if (group.nops < group.capacity) return tuttiSuccess;
  if (!group.ops && !fewTaken) {
    fewTaken = true;
    group.ops = few;
    group.capacity = FEW_OPS;
    return tuttiSuccess;
  }
  bool fromFew = group.ops == few;
  tuttiOp *ops = fromFew ? NULL : group.ops;
  int used = fromFew ? 0 : group.nops, capacity = fromFew ? 0 : group.capacity;
  TUTTI_TRY(tuttiGrow((void **)&ops, used, &capacity, sizeof *ops, "operations of a group", NULL));
  if (fromFew) {
    memcpy(ops, few, sizeof few);
    fewTaken = false;
  }
  group.ops = ops;
  group.capacity = capacity;
  return tuttiSuccess;
}

tuttiResult_t tuttiOpSubmit(tuttiOp *op) {
  if (depth == 0) return op->comm->options.blocking ? runBlocking(op, 1) : runAll(op, 1);
  tuttiResult_t result = makeRoom();
  if (result == tuttiSuccess)
    group.ops[group.nops++] = *op;
  else
    tuttiGroupFail(result);
  return result;
}

static void finishJob(tuttiJob *job, tuttiResult_t result) {
  job->result = result;
  if (result != tuttiSuccess && result != tuttiInProgress)
    strncpy(job->text, tuttiErrorText(), sizeof job->text - 1);
}

static void runInOrder(tuttiJob *job) {
  for (; job; job = job->then)
    finishJob(job, job->run(job));
}

static void *jobMain(void *first) {
  tuttiThreadIsOwn = true;
  runInOrder(first);
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

/* It and those behind it on its thread. */
static bool onlyEnqueues(const tuttiJob *job) {
  while (job && job->enqueues)
    job = job->then;
  return !job;
}

static void startJob(tuttiJob *job) {
  tuttiResult_t result = tuttiThreadStart(&job->thread, "tutti-init", jobMain, job);
  job->started = result == tuttiSuccess;
  for (; result != tuttiSuccess && job; job = job->then)
    finishJob(job, result);
}

/* Runs those that wait for nobody; returns how many threads the others take. */
static int runEnqueuing(tuttiJob *jobs) {
  int threads = 0;
  for (tuttiJob *job = jobs; job; job = job->next)
    job->leads = !follow(jobs, job);
  for (tuttiJob *job = jobs; job; job = job->next) {
    if (!job->leads) continue;
    if (onlyEnqueues(job))
      runInOrder(job);
    else
      threads++;
  }
  return threads;
}

/* Runs all jobs of a list, each that may wait on a thread of its own, to their ends. */
static void runAllJobs(tuttiJob *jobs) {
  int threads = runEnqueuing(jobs);
  for (tuttiJob *job = jobs; job; job = job->next) {
    if (!job->leads || onlyEnqueues(job)) continue;
    if (threads > 1)
      startJob(job);
    else /* alone: this thread */
      runInOrder(job);
  }
  for (tuttiJob *job = jobs; job; job = job->next)
    if (job->started) pthread_join(job->thread, NULL);
}

/* How much a result says: that a peer failed says less than what that peer failed with, if it is of
 * this list too. */
static int weight(tuttiResult_t result) {
  if (result == tuttiSuccess) return 0;
  if (result == tuttiInProgress) return 1;
  return result == tuttiRemoteError ? 2 : 3;
}

/* Runs all jobs of a list and frees them; returns the first of the results that say most. */
static tuttiResult_t runJobs(tuttiJob *jobs) {
  tuttiResult_t result = tuttiSuccess;
  runAllJobs(jobs);
  for (tuttiJob *job = jobs, *next; job; job = next) {
    next = job->next;
    if (weight(job->result) > weight(result)) {
      result = job->result;
      if (result != tuttiInProgress) tuttiErrorAdopt(result, job->text);
    }
    discardJob(job);
  }
  return result;
}

bool tuttiGroupIsOpen(void) {
  return depth > 0;
}

tuttiResult_t tuttiJobSubmit(tuttiJob *job) {
  job->next = NULL;
  if (depth == 0) return runJobs(job);
  tuttiJob ***end = job->last ? &group.lastsEnd : &group.jobsEnd;
  **end = job;
  *end = &job->next;
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
  strncpy(failureText, tuttiErrorText(), sizeof failureText - 1);
}

void tuttiGroupOpen(void) {
  if (depth++ > 0) return;
  group.jobsEnd = &group.jobs;
  group.lastsEnd = &group.lasts;
}

/* A group holds no communicator before its end, so that an abort elsewhere need not wait for it. */
static tuttiResult_t runGroup(tuttiOp *ops, int nops) {
  tuttiResult_t result = tuttiSuccess;
  int held = 0;
  for (; held < nops && result == tuttiSuccess; held++)
    result = tuttiHandleEnter(ops[held].handle, "tuttiGroupEnd", &ops[held].comm);
  if (result == tuttiSuccess)
    result = runAll(ops, nops);
  else
    held--; /* the last one is dead */
  for (int i = 0; i < held; i++)
    tuttiHandleLeave(ops[i].comm);
  return result;
}

/* Ends one level; *last if it was the outermost, then in *ended: nothing below finds it. */
static tuttiResult_t leave(Group *ended, bool *last) {
  if (depth == 0)
    return TUTTI_FAIL(tuttiInvalidUsage, "no group is open in this thread; call tuttiGroupStart "
                                         "first");
  *last = --depth == 0;
  if (!*last) return tuttiSuccess;
  *group.jobsEnd = group.lasts;
  *ended = group;
  group = (Group){0};
  return tuttiSuccess;
}

/* Frees what was collected and returns `result`, or what a call of the group failed with. */
static tuttiResult_t closeGroup(Group *ended, tuttiResult_t result) {
  freeOps(ended->ops);
  for (tuttiJob *job = ended->jobs, *next; job; job = next) {
    next = job->next;
    discardJob(job);
  }
  return ended->failure ? tuttiErrorAdopt(ended->failure, failureText) : result;
}

/* Operations, then jobs, whatever the operations end with; what those failed with comes first. */
static tuttiResult_t runCollected(Group *ended) {
  char why[TUTTI_ERROR_TEXT];
  tuttiResult_t result = ended->nops > 0 ? runGroup(ended->ops, ended->nops) : tuttiSuccess;
  bool failed = result != tuttiSuccess && result != tuttiInProgress;
  if (failed) snprintf(why, sizeof why, "%s", tuttiErrorText());
  tuttiResult_t jobResult = runJobs(ended->jobs);
  ended->jobs = NULL;
  if (failed) return tuttiErrorAdopt(result, why);
  return jobResult != tuttiSuccess ? jobResult : result;
}

tuttiResult_t tuttiGroupRun(void) {
  Group ended;
  bool last;
  TUTTI_TRY(leave(&ended, &last));
  if (!last) return tuttiSuccess;
  uint64_t range = tuttiRangeOpen("tuttiGroupEnd", 0, -1, 0);
  tuttiResult_t result = ended.failure == tuttiSuccess ? runCollected(&ended) : tuttiSuccess;
  result = closeGroup(&ended, result);
  tuttiRangeClose(range);
  return result;
}

/* Adds the time of one operation to *us. */
static tuttiResult_t addTime(tuttiOp *op, float *us) {
  TUTTI_ENTER(c, op->handle, "tuttiGroupSimulateEnd");
  TUTTI_TRY(tuttiWorkerAwait(c)); /* it uses what is kept of operations too */
  TUTTI_TRY(tuttiCommOccupy(c));
  op->comm = c;
  *us += tuttiOpTime(op);
  tuttiCommVacate(c);
  return tuttiSuccess;
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

tuttiResult_t tuttiGroupExpect(float *us) {
  Group ended;
  bool last;
  float longest = 0;
  TUTTI_TRY(leave(&ended, &last));
  if (!last) return tuttiSuccess;
  tuttiResult_t result = ended.failure;
  if (result == tuttiSuccess) result = expect(ended.ops, ended.nops, &longest);
  if (result == tuttiSuccess) *us = longest;
  return closeGroup(&ended, result);
}
