#include "comm/premul.h"

#include "comm/communicator.h"

tuttiResult_t tuttiPreMulAdd(tuttiCommunicator *c, const tuttiPreMul *m, tuttiRedOp_t *op) {
  int i = 0;
  while (i < c->npremul && c->premul[i].used)
    i++;
  TUTTI_TRY(
      tuttiGrow((void **)&c->premul, i, &c->npremul, sizeof *m, "reduction handles", &c->memory));
  c->premul[i] = *m;
  *op = (tuttiRedOp_t)(tuttiNumOps + i);
  return tuttiSuccess;
}

tuttiPreMul *tuttiPreMulOf(const tuttiCommunicator *c, tuttiRedOp_t op) {
  int i = (int)op < tuttiNumOps ? -1 : (int)op - tuttiNumOps;
  return i >= 0 && i < c->npremul && c->premul[i].used ? &c->premul[i] : NULL;
}
