/* Two hosts: which rails there are between them, and what is tried on each. Both sides do the same
 * in the same order; over a line in host memory by sockets, which does not depend on what is tried,
 * they tell each other before each rail that they are ready, and after it whether they go on. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "netcheck/netcheck.h"

#define HCA "TUTTI_IB_HCA"

typedef struct {
  const netOptions *options;
  int side;
  uint64_t until; /* no rail begins later */
  tuttiComm_t line;
  netRails found;
  int nrails;
  netRail rails[NETCHECK_RAILS];
  netPairReport *report;
} pair;

/* ---- the line -------------------------------------------------------------------------------- */

static bool pairFail(pair *p, tuttiComm_t comm, const char *what) {
  if (p->report->failure[0] == '\0')
    snprintf(p->report->failure, sizeof p->report->failure, "%s: %.460s", what,
             tuttiGetLastError(comm));
  return false;
}

/* Both tell each other something of `bytes`, at most. */
static bool swap(pair *p, const void *mine, void *theirs, size_t bytes) {
  int peer = !p->side;
  bool good = p->line != NULL && tuttiGroupStart() == tuttiSuccess;
  if (good) {
    good = tuttiSend(mine, bytes, tuttiUint8, peer, p->line, NULL) == tuttiSuccess &&
           tuttiRecv(theirs, bytes, tuttiUint8, peer, p->line, NULL) == tuttiSuccess;
    good = tuttiGroupEnd() == tuttiSuccess && good;
  }
  return good || pairFail(p, p->line, "the hosts lost each other");
}

/* *both: this side and the other say yes. */
static bool agree(pair *p, bool mine, bool *both) {
  int32_t told = mine, theirs = 0;
  if (!swap(p, &told, &theirs, sizeof told)) return false;
  *both = mine && theirs == 1;
  return true;
}

static bool openLine(pair *p, const tuttiUniqueId *id) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceHost;
  config.netName = "Socket"; /* whatever is wrong with RDMA */
  config.commName = "netcheck pair";
  config.timeoutMs = netPairLineMs(p->options);
  return tuttiCommInitRankConfig(&p->line, 2, *id, p->side, &config) == tuttiSuccess ||
         pairFail(p, NULL, "the hosts do not meet");
}

/* ---- communicators of rails ------------------------------------------------------------------ */

/* Has communicators use one port alone until the setting is what the user gave, *before, again. */
static void onlyPort(const char *hca, char **before) {
  const char *now = getenv(HCA);
  char text[NETCHECK_NIC + 1];
  *before = now ? strdup(now) : NULL;
  if (hca[0] == '\0') return;
  snprintf(text, sizeof text, "=%s", hca);
  setenv(HCA, text, 1);
}

static void anyPort(const char *hca, char *before) {
  if (hca[0] != '\0' && before)
    setenv(HCA, before, 1);
  else if (hca[0] != '\0')
    unsetenv(HCA);
  free(before);
}

/* Makes a communicator of both hosts; *comm is set on both or on none, then *why says why not.
 * False: the line is gone. */
static bool meet(pair *p, int device, const char *hca, tuttiComm_t *comm, char why[NETCHECK_TEXT]) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  tuttiUniqueId mine = {0}, theirs;
  tuttiComm_t made = NULL;
  char *before;
  bool done;
  if (p->side == 0 && tuttiGetUniqueId(&mine) != tuttiSuccess)
    return pairFail(p, NULL, "no id can be made");
  if (!swap(p, &mine, &theirs, sizeof mine)) return false;
  config.device = device;
  config.commName = "netcheck rail";
  config.timeoutMs = netStepMs(p->options);
  onlyPort(hca, &before);
  bool good = tuttiCommInitRankConfig(&made, 2, p->side == 0 ? mine : theirs, p->side, &config) ==
              tuttiSuccess;
  anyPort(hca, before);
  snprintf(why, NETCHECK_TEXT, "%.500s", good ? "the other host gave up" : tuttiGetLastError(NULL));
  if (!agree(p, good, &done)) done = false;
  if (good && !done) (void)tuttiCommAbort(made);
  *comm = done ? made : NULL;
  return p->report->failure[0] == '\0';
}

/* Finds the rails: all ports there are, as a job of host memory would see them. */
static bool scout(pair *p) {
  tuttiComm_t comm;
  char why[NETCHECK_TEXT];
  if (!meet(p, tuttiDeviceHost, "", &comm, why)) return false;
  if (!comm) {
    snprintf(p->report->failure, sizeof p->report->failure, "%s", why);
    return false;
  }
  bool good = netRailsFind(comm, p->side, &p->found);
  (void)tuttiCommDestroy(comm);
  return good || pairFail(p, NULL, "its ports cannot be told");
}

/* ---- rails ----------------------------------------------------------------------------------- */

/* Without RDMA between the hosts there is one rail, of their sockets. */
static bool listRails(pair *p) {
  char mine[NETCHECK_NIC], theirs[NETCHECK_NIC];
  double rates[2] = {0}, others[2];
  netInterface(mine);
  rates[0] = netInterfaceRate(mine);
  if (!swap(p, mine, theirs, sizeof mine) || !swap(p, rates, others, sizeof rates)) return false;
  theirs[sizeof theirs - 1] = '\0';
  p->nrails = p->found.n > 0 ? p->found.n : 1;
  for (int i = 0; i < p->nrails; i++) {
    netRail *rail = &p->rails[i];
    netRailReport *r = &p->report->rails[i];
    bool rdma = p->found.n > 0;
    *rail = (netRail){.options = p->options, .side = p->side, .number = i, .report = r};
    *r = (netRailReport){.gpu = -1};
    for (int k = 0; k < 2; k++) {
      r->down[k] = rdma && p->found.rails[i].down[k];
      r->port[k] = rail->ports[k] = rdma ? p->found.rails[i].port[k] : 0;
      if (rdma) snprintf(rail->hca[k], NETCHECK_NIC, "%s", p->found.rails[i].name[k]);
      snprintf(r->nic[k], NETCHECK_NIC, "%s", rdma ? rail->hca[k] : k == 0 ? mine : theirs);
    }
    if (!rdma) r->line = rates[0] < others[0] ? rates[0] : others[0];
    r->pcie = netPcieRate(r->nic[0]);
  }
  p->report->nrails = p->nrails;
  return true;
}

/* Opens the memory that is nearest to the port, and the communicator. */
static bool openRail(pair *p, netRail *rail) {
  char why[NETCHECK_TEXT];
  rail->opened =
      perfDeviceOpen(&rail->device, (tuttiDevice_t)p->options->device, netGpuNear(rail->hca[0]));
  bool both;
  if (!agree(p, rail->opened, &both)) return false;
  if (!both) return netRailFail(rail, "its memory cannot be used");
  if (!meet(p, rail->device.cuda ? tuttiDeviceCuda : tuttiDeviceHost, rail->hca[0], &rail->comm,
            why))
    return false;
  if (!rail->comm) {
    snprintf(rail->report->failure, sizeof rail->report->failure, "%s", why);
    return false;
  }
  return netRailDescribe(rail, p->found.rdma) || netRailFail(rail, "it is not used alone");
}

/* Side 0 sends first. */
static bool tryRail(netRail *rail) {
  bool first = rail->side == 0;
  return netRailPrepare(rail) && netRailCheck(rail) && netRailLatency(rail) &&
         netRailRate(rail, first) && netRailRate(rail, !first);
}

/* False: the line is gone. */
static bool runRail(pair *p, netRail *rail, double copy) {
  bool begins, good;
  if (rail->report->down[0] || rail->report->down[1]) return true;
  if (!agree(p, tuttiNow() < p->until, &begins)) return false;
  if (!begins) {
    snprintf(rail->report->failure, sizeof rail->report->failure,
             "not tried, as the time for a pair, %d s, was over: see --seconds",
             p->options->seconds);
    return true;
  }
  good = openRail(p, rail);
  rail->report->copy = rail->device.cuda ? 0 : copy;
  bool kept = agree(p, good && tryRail(rail), &good);
  if (!good && rail->report->failure[0] == '\0') netRailFail(rail, "the other host gave up");
  return kept;
}

/* ---- all rails at once ----------------------------------------------------------------------- */

static void *runTogether(void *rail) {
  (void)netRailTogether(rail);
  return NULL;
}

/* So many messages on each rail that all should take as long. */
static bool countMessages(pair *p) {
  double mine[NETCHECK_RAILS] = {0}, theirs[NETCHECK_RAILS] = {0};
  for (int i = 0; i < p->nrails; i++)
    mine[i] = p->rails[i].comm ? p->rails[i].report->alone : 0;
  if (!swap(p, mine, theirs, sizeof mine)) return false;
  for (int i = 0; i < p->nrails; i++) {
    double slower = mine[i] < theirs[i] ? mine[i] : theirs[i];
    double n = 0.3e9 * slower / (double)p->options->bytes;
    p->rails[i].messages = slower <= 0 ? 0 : n < 2 ? 2 : n > 4096 ? 4096 : (int)n;
  }
  return true;
}

/* What each carries then, with a thread for each: as the ranks of a host would. */
static bool runAllRails(pair *p) {
  pthread_t threads[NETCHECK_RAILS];
  bool started[NETCHECK_RAILS] = {0}, unused;
  if (!countMessages(p)) return false;
  for (int i = 0; i < p->nrails; i++)
    if (p->rails[i].comm && p->rails[i].messages > 0) (void)netRailFill(&p->rails[i]);
  if (!agree(p, true, &unused)) return false;
  for (int i = 0; i < p->nrails; i++)
    if (p->rails[i].comm && p->rails[i].messages > 0)
      started[i] = pthread_create(&threads[i], NULL, runTogether, &p->rails[i]) == 0 ||
                   netRailFail(&p->rails[i], "no thread can be started");
  for (int i = 0; i < p->nrails; i++)
    if (started[i]) pthread_join(threads[i], NULL);
  return agree(p, true, &unused);
}

/* ---- a pair ---------------------------------------------------------------------------------- */

static bool runPair(pair *p, const tuttiUniqueId *id) {
  double copy = netCopyRate();
  if (!openLine(p, id) || !scout(p) || !listRails(p)) return false;
  for (int i = 0; i < p->nrails; i++)
    if (!runRail(p, &p->rails[i], copy)) return false;
  return runAllRails(p);
}

/* Rails that nothing was said of share what ended the pair. */
static void spread(pair *p) {
  for (int i = 0; i < p->nrails; i++) {
    netRailReport *r = &p->report->rails[i];
    bool whole = r->together > 0 || r->down[0] || r->down[1];
    if (!whole && r->failure[0] == '\0')
      snprintf(r->failure, sizeof r->failure, "%s", p->report->failure);
  }
}

void netPairRun(const netOptions *options, const tuttiUniqueId *id, int side,
                netPairReport *report) {
  pair p = {.options = options,
            .side = side,
            .until = tuttiDeadline(options->seconds * 1000),
            .report = report};
  memset(report, 0, sizeof *report);
  bool good = runPair(&p, id);
  if (!good) spread(&p);
  for (int i = 0; i < p.nrails; i++)
    netRailClose(&p.rails[i]);
  if (p.line && good)
    (void)tuttiCommDestroy(p.line);
  else if (p.line)
    (void)tuttiCommAbort(p.line);
}
