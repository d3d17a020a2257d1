/* The doctor as ranks of a launcher: the first rank of each host looks at it, rank 0 compares. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "doctor/hosts.h"
#include "doctor/ranks.h"

#define MEET_MS 240000 /* one host may look for longer than another */

/* What each rank sends to rank 0; no text: it is not the first of its host. */
typedef struct {
  char name[128];
  char text[TUTTI_HOST_BYTES];
} rankReport;

static tuttiResult_t fill(rankReport *r, const tuttiView *v, const tuttiFindings *f) {
  char *text = NULL;
  size_t size = 0;
  FILE *memory = open_memstream(&text, &size);
  snprintf(r->name, sizeof r->name, "%s", tuttiHostname());
  if (memory == NULL) return TUTTI_FAIL(tuttiSystemError, "no memory for the findings");
  tuttiHostLines(v, f, memory);
  fclose(memory);
  snprintf(r->text, sizeof r->text, "%s", text); /* one that is cut is told as not whole */
  free(text);
  return tuttiSuccess;
}

static tuttiResult_t compare(rankReport *all, int nranks, FILE *out, tuttiSeverity *worst) {
  TUTTI_FRESH(tuttiHostReport, hosts, nranks, "reports of hosts", NULL);
  int n = 0;
  for (int r = 0; r < nranks; r++) {
    all[r].name[sizeof all[r].name - 1] = all[r].text[sizeof all[r].text - 1] = '\0';
    if (all[r].text[0] == '\0') continue;
    snprintf(hosts[n].name, sizeof hosts[n].name, "%s", all[r].name);
    hosts[n++].text = all[r].text;
  }
  *worst = tuttiHostsCompare(hosts, n, out);
  return tuttiSuccess;
}

static tuttiResult_t gather(const perfPlace *place, tuttiComm_t comm, const rankReport *mine,
                            FILE *out, tuttiSeverity *worst) {
  TUTTI_FREED rankReport *all = NULL;
  if (place->rank == 0) TUTTI_NEW(all, place->nranks, "reports of ranks", NULL);
  TUTTI_TRY(tuttiGather(mine, all, sizeof *mine, tuttiInt8, 0, comm, NULL));
  return place->rank == 0 ? compare(all, place->nranks, out, worst) : tuttiSuccess;
}

tuttiResult_t tuttiHostsByRanks(const perfPlace *place, const tuttiView *v, const tuttiFindings *f,
                                FILE *out, tuttiSeverity *worst) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  tuttiUniqueId id;
  tuttiComm_t comm = NULL;
  TUTTI_FRESH(rankReport, mine, 1, "findings", NULL);
  *worst = TUTTI_FOUND_OK;
  if (v) TUTTI_TRY(fill(mine, v, f));
  config.device = tuttiDeviceHost;
  config.netName = "Socket"; /* whatever is wrong with RDMA */
  config.timeoutMs = MEET_MS;
  TUTTI_TRY(tuttiGetUniqueId(&id));
  tuttiResult_t result = tuttiCommInitRankConfig(&comm, place->nranks, id, place->rank, &config);
  if (result == tuttiSuccess) result = gather(place, comm, mine, out, worst);
  if (result != tuttiSuccess) {
    if (comm) (void)tuttiCommAbort(comm);
    return result;
  }
  return tuttiCommDestroy(comm);
}
