#include "comm/premul.h"

#include <pthread.h>

#include "base/os.h"
#include "comm/communicator.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all communicators' lists */

tuttiResult_t tuttiPreMulAdd(tuttiCommunicator *c, const tuttiPreMul *m, tuttiRedOp_t *op) {
  TUTTI_LOCKED(&lock);
  int i = 0;
  while (i < c->npremul && c->premul[i].used)
    i++;
  TUTTI_TRY(
      tuttiGrow((void **)&c->premul, i, &c->npremul, sizeof *m, "reduction handles", &c->memory));
  c->premul[i] = *m;
  *op = (tuttiRedOp_t)(tuttiNumOps + i);
  return tuttiSuccess;
}

/* Under the lock; NULL if `op` is no live handle. */
static tuttiPreMul *find(const tuttiCommunicator *c, tuttiRedOp_t op) {
  int i = (int)op < tuttiNumOps ? -1 : (int)op - tuttiNumOps;
  return i >= 0 && i < c->npremul && c->premul[i].used ? &c->premul[i] : NULL;
}

bool tuttiPreMulFind(const tuttiCommunicator *c, tuttiRedOp_t op, tuttiPreMul *m) {
  TUTTI_LOCKED(&lock);
  const tuttiPreMul *found = find(c, op);
  if (found) *m = *found;
  return found != NULL;
}

bool tuttiPreMulRemove(tuttiCommunicator *c, tuttiRedOp_t op) {
  TUTTI_LOCKED(&lock);
  tuttiPreMul *found = find(c, op);
  if (found) found->used = false;
  return found != NULL;
}
