/* The public calls about groups. */
#include "comm/group.h"

tuttiResult_t tuttiGroupStart(void) {
  tuttiGroupOpen();
  return tuttiSuccess;
}

tuttiResult_t tuttiGroupEnd(void) {
  tuttiErrorScope(__func__, NULL, 0, 0);
  return tuttiGroupRun();
}

tuttiResult_t tuttiGroupSimulateEnd(tuttiSimInfo_t *simInfo) {
  tuttiErrorScope(__func__, NULL, 0, 0);
  if (simInfo && simInfo->magic == TUTTI_SIM_INFO_MAGIC && simInfo->size >= sizeof *simInfo)
    return tuttiGroupExpect(&simInfo->estimatedTime);
  float unused; /* the group ends all the same */
  tuttiGroupExpect(&unused);
  tuttiResult_t wrong = TUTTI_FAIL(tuttiInvalidArgument,
                                   "argument simInfo (%p) is not initialized; start it "
                                   "from TUTTI_SIM_INFO_INITIALIZER",
                                   (void *)simInfo);
  tuttiGroupFail(wrong); /* the one around it, if there is one */
  return wrong;
}
