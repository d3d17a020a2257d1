/* The doctor as ranks of a launcher: the first rank of each host looks at it, rank 0 compares. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/host.h"
#include "base/mem.h"
#include "doctor/hosts.h"
#include "doctor/ranks.h"

#define MEET_MS 240000 /* one host may start, or look, for longer than another */

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

/* Whether no rank before this one is on its host. */
static tuttiResult_t findFirst(tuttiRanks *ranks) {
  const perfPlace *place = ranks->place;
  uint64_t mine = tuttiHostId();
  TUTTI_FRESH(uint64_t, ids, place->nranks, "identities of hosts", NULL);
  TUTTI_TRY(tuttiAllGather(&mine, ids, 1, tuttiUint64, ranks->comm, NULL));
  int first = 0;
  while (ids[first] != mine)
    first++;
  ranks->looks = first == place->rank;
  return tuttiSuccess;
}

tuttiResult_t tuttiRanksMeet(tuttiRanks *ranks) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  const perfPlace *place = ranks->place;
  tuttiUniqueId id;
  config.device = tuttiDeviceHost;
  config.netName = "Socket"; /* whatever is wrong with RDMA */
  config.timeoutMs = MEET_MS;
  TUTTI_TRY(tuttiGetUniqueId(&id));
  tuttiResult_t result =
      tuttiCommInitRankConfig(&ranks->comm, place->nranks, id, place->rank, &config);
  if (result == tuttiSuccess) result = findFirst(ranks);
  if (result != tuttiSuccess) tuttiRanksLeave(ranks);
  return result;
}

static tuttiResult_t gather(const tuttiRanks *ranks, const rankReport *mine, FILE *out,
                            tuttiSeverity *worst) {
  const perfPlace *place = ranks->place;
  TUTTI_FREED rankReport *all = NULL;
  if (place->rank == 0) TUTTI_NEW(all, place->nranks, "reports of ranks", NULL);
  TUTTI_TRY(tuttiGather(mine, all, sizeof *mine, tuttiInt8, 0, ranks->comm, NULL));
  return place->rank == 0 ? compare(all, place->nranks, out, worst) : tuttiSuccess;
}

tuttiResult_t tuttiHostsByRanks(tuttiRanks *ranks, const tuttiView *v, const tuttiFindings *f,
                                FILE *out, tuttiSeverity *worst) {
  TUTTI_FRESH(rankReport, mine, 1, "findings", NULL);
  *worst = TUTTI_FOUND_OK;
  tuttiResult_t result = v ? fill(mine, v, f) : tuttiSuccess;
  if (result == tuttiSuccess) result = gather(ranks, mine, out, worst);
  if (result == tuttiSuccess) {
    result = tuttiCommDestroy(ranks->comm);
    ranks->comm = NULL;
  }
  tuttiRanksLeave(ranks);
  return result;
}

void tuttiRanksLeave(tuttiRanks *ranks) {
  if (ranks->comm) (void)tuttiCommAbort(ranks->comm);
  ranks->comm = NULL;
}
