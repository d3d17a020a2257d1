/* The public call that splits a communicator. */
#include "comm/split.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/options.h"

static tuttiResult_t check(tuttiComm_t comm, const tuttiConfig_t *config, tuttiSplitJob *split) {
  TUTTI_ENTER_READY(c, comm, "tuttiCommSplit");
  TUTTI_TRY(tuttiCheckOutput("newcomm", split->out));
  if (split->color < 0 && split->color != TUTTI_SPLIT_NOCOLOR)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument color is %d; it must be at least 0, or TUTTI_SPLIT_NOCOLOR",
                      split->color);
  return tuttiOptionsResolve(config, &c->options, &split->options);
}

tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t *newcomm,
                             tuttiConfig_t *config) {
  tuttiSplitJob split = {
      .job = {.run = tuttiSplitRun, .uses = comm}, .color = color, .key = key, .out = newcomm};
  return tuttiJobLaunch(check(comm, config, &split), &split.job, sizeof split);
}
