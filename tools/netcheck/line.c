#include <string.h>

#include "base/backoff.h"
#include "base/os.h"
#include "netcheck/netcheck.h"

#define LOOK_US 300

/* Waits for what was begun; non-blocking, so that whoever waits for one host can turn to the next
 * at a time of its own. */
static bool finish(netLine *line, tuttiResult_t result, uint64_t deadline, const char *what) {
  while (result == tuttiInProgress && tuttiNow() < deadline) {
    tuttiNap(LOOK_US);
    if (tuttiCommGetAsyncError(line->comm, &result) != tuttiSuccess) result = tuttiInternalError;
  }
  if (result == tuttiSuccess) return true;
  if (result == tuttiInProgress)
    snprintf(line->why, sizeof line->why, "it does not answer (%s): it hangs or is stopped", what);
  else
    snprintf(line->why, sizeof line->why, "%s", tuttiGetLastError(line->comm));
  if (line->comm) (void)tuttiCommAbort(line->comm);
  line->comm = NULL;
  return false;
}

bool netLineOpen(netLine *line, const tuttiUniqueId *id, int side, uint64_t deadline) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  *line = (netLine){.side = side};
  config.blocking = 0;
  config.device = tuttiDeviceHost;
  config.netName = "Socket"; /* whatever is wrong with RDMA */
  config.commName = "netcheck line";
  config.timeoutMs = 0;
  return finish(line, tuttiCommInitRankConfig(&line->comm, 2, *id, side, &config), deadline,
                "as the hosts meet");
}

bool netLineSend(netLine *line, const void *data, size_t bytes, uint64_t deadline) {
  return line->comm &&
         finish(line, tuttiSend(data, bytes, tuttiUint8, !line->side, line->comm, NULL), deadline,
                "to a command");
}

bool netLineReceive(netLine *line, void *data, size_t bytes, uint64_t deadline) {
  return line->comm &&
         finish(line, tuttiRecv(data, bytes, tuttiUint8, !line->side, line->comm, NULL), deadline,
                "with its report");
}

void netLineClose(netLine *line) {
  tuttiResult_t result = tuttiInProgress;
  if (line->comm == NULL) return;
  (void)tuttiCommFinalize(line->comm);
  uint64_t deadline = tuttiDeadline(2000);
  while (result == tuttiInProgress && tuttiNow() < deadline) {
    tuttiNap(LOOK_US);
    if (tuttiCommGetAsyncError(line->comm, &result) != tuttiSuccess) break;
  }
  if (result == tuttiSuccess)
    (void)tuttiCommDestroy(line->comm);
  else
    (void)tuttiCommAbort(line->comm);
  line->comm = NULL;
}
