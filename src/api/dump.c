/* The public call that writes the record. */
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/facts.h"
#include "comm/handle.h"

tuttiResult_t tuttiCommDump(tuttiComm_t comm, const char *path) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("path", path));
  if (tuttiLoadAcquire32(&c->state) == tuttiCommStarting)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "there is no record before the init has succeeded; tutti status tells of "
                      "that");
  return tuttiCommWriteRecord(c, path);
}
