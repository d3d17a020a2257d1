/* A round-robin tournament of hosts, and the first host, which leads it.
 *
 * The hosts stand on a circle of n - 1 places, or n if n is odd, and one in its middle, which is
 * nobody then; in round r those meet whose places add up to r. */
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "netcheck/netcheck.h"
#include "tool.h"

#define GRACE_MS 2000 /* for a host that should be ready by now */

int netRounds(int n) {
  return n % 2 ? n : n - 1;
}

int netPartner(int n, int round, int host) {
  int places = netRounds(n), partner = ((round - host) % places + places) % places;
  if (host == places) { /* in the middle: whose place counts twice */
    partner = round % 2 ? (round + places) / 2 : round / 2;
  } else if (partner == host) {
    partner = places;
  }
  return partner < n ? partner : -1;
}

int netHostsOf(const tuttiPeer *peers, int n, netHost *hosts) {
  int nhosts = 0;
  for (int r = 0; r < n; r++) {
    bool first = true;
    for (int h = 0; h < nhosts && first; h++)
      first = peers[hosts[h].rank].hostId != peers[r].hostId;
    if (!first) continue;
    hosts[nhosts].rank = r;
    snprintf(hosts[nhosts++].name, sizeof hosts->name, "%s", peers[r].host);
  }
  for (int h = 0; h < nhosts; h++) {
    bool alone = true;
    for (int other = 0; other < nhosts; other++)
      alone &= other == h || strcmp(peers[hosts[other].rank].host, peers[hosts[h].rank].host) != 0;
    if (!alone) tuttiAppend(hosts[h].name, sizeof hosts[h].name, "/%d", hosts[h].rank);
  }
  return nhosts;
}

/* ---- what goes over the lines ---------------------------------------------------------------- */

typedef struct {
  int32_t ends; /* there is no more to do */
  int32_t side;
  tuttiUniqueId id; /* side 1: of the pair; side 0 makes it and answers with it */
} command;

int netFollow(const netJob *job, netLine *line) {
  TUTTI_FREED netPairReport *report = NULL;
  command c;
  if (tuttiAlloc((void **)&report, 1, sizeof *report, "a report", NULL) != tuttiSuccess)
    return TUTTI_EXIT_FAILED;
  while (netLineReceive(line, &c, sizeof c, TUTTI_NO_DEADLINE) && !c.ends) {
    if (c.side == 0 && (tuttiGetUniqueId(&c.id) != tuttiSuccess ||
                        !netLineSend(line, &c.id, sizeof c.id, TUTTI_NO_DEADLINE)))
      break;
    netPairRun(job->options, &c.id, c.side, report);
    if (!netLineSend(line, report, sizeof *report, TUTTI_NO_DEADLINE)) break;
  }
  if (line->comm && c.ends) {
    netLineClose(line);
    return TUTTI_EXIT_OK;
  }
  fprintf(stderr, NETCHECK_COMMAND ": rank %d: the host that leads is gone: %s\n", job->place->rank,
          line->comm ? tuttiGetLastError(NULL) : line->why);
  return TUTTI_EXIT_FAILED;
}

/* ---- the first host -------------------------------------------------------------------------- */

typedef struct {
  const netJob *job;
  netLine *lines;         /* [nhosts] */
  netPairReport *reports; /* [nhosts] of this round */
  bool *reported, *met;   /* [nhosts] in this round */
  netRow *rows;
  int nrows, capacity;
} lead;

static bool isAlive(const lead *l, int host) {
  return host == 0 || l->lines[host].comm != NULL;
}

/* Commands go out to all first, so that hosts need not wait for each other. A pair of which one is
 * gone, or goes now, is left out. */
static tuttiResult_t startRound(lead *l, int round, tuttiUniqueId *own) {
  int n = l->job->nhosts;
  int ms = netStepMs(l->job->options);
  memset(l->met, 0, (size_t)n * sizeof *l->met);
  memset(l->reported, 0, (size_t)n * sizeof *l->reported);
  for (int a = 0; a < n; a++) {
    int b = netPartner(n, round, a);
    const command first = {.side = 0};
    if (b < a || !isAlive(l, a) || !isAlive(l, b)) continue;
    l->met[a] = a == 0 || netLineSend(&l->lines[a], &first, sizeof first, tuttiDeadline(ms));
  }
  for (int a = 0; a < n; a++) {
    int b = netPartner(n, round, a);
    command second = {.side = 1};
    if (!l->met[a] || b < a) continue;
    if (a == 0) TUTTI_TRY(tuttiGetUniqueId(&second.id));
    if (a != 0 && !netLineReceive(&l->lines[a], &second.id, sizeof second.id, tuttiDeadline(ms)))
      continue;
    if (a == 0) *own = second.id;
    l->met[b] = netLineSend(&l->lines[b], &second, sizeof second, tuttiDeadline(ms));
  }
  return tuttiSuccess;
}

/* A report that is there is taken, too, when a host before has used up the time. */
static void collect(lead *l, uint64_t deadline) {
  for (int h = 1; h < l->job->nhosts; h++) {
    uint64_t least = tuttiDeadline(GRACE_MS), until = deadline > least ? deadline : least;
    if (!l->met[h]) continue;
    l->reported[h] = netLineReceive(&l->lines[h], &l->reports[h], sizeof l->reports[h], until);
    if (l->reported[h]) netPairReportClean(&l->reports[h]);
  }
}

/* Why there is no report of a pair: one of its hosts has gone, now or before. */
static const char *lostText(const lead *l, int a, int b, char text[NETCHECK_TEXT]) {
  int gone = isAlive(l, a) ? b : a;
  snprintf(text, NETCHECK_TEXT, "host %s is gone: %.400s", l->job->hosts[gone].name,
           l->lines[gone].why);
  return text;
}

static tuttiResult_t takeRows(lead *l, int round) {
  char lost[NETCHECK_TEXT];
  for (int a = 0; a < l->job->nhosts; a++) {
    int b = netPartner(l->job->nhosts, round, a);
    if (b < a) continue;
    while (l->capacity - l->nrows < 2 * NETCHECK_RAILS)
      TUTTI_TRY(tuttiGrow((void **)&l->rows, l->capacity, &l->capacity, sizeof *l->rows,
                          "rows of a table", NULL));
    l->nrows += netRowsOf(a, b, l->reported[a] ? &l->reports[a] : NULL,
                          l->reported[b] ? &l->reports[b] : NULL, lostText(l, a, b, lost),
                          &l->rows[l->nrows]);
  }
  return tuttiSuccess;
}

static tuttiResult_t runRound(lead *l, int round) {
  tuttiUniqueId own;
  TUTTI_TRY(startRound(l, round, &own));
  uint64_t deadline = tuttiDeadline(netPairMs(l->job->options));
  if (l->met[0]) {
    netPairRun(l->job->options, &own, 0, &l->reports[0]);
    l->reported[0] = true;
  }
  collect(l, deadline);
  return takeRows(l, round);
}

static tuttiResult_t runRounds(lead *l) {
  int n = l->job->nhosts, rounds = netRounds(n);
  TUTTI_NEW(l->reports, n, "reports of hosts", NULL);
  TUTTI_NEW(l->reported, n, "reports of hosts", NULL);
  TUTTI_NEW(l->met, n, "reports of hosts", NULL);
  for (int round = 0; round < rounds; round++) {
    netPrintProgress(round, rounds);
    TUTTI_TRY(runRound(l, round));
  }
  netPrintProgress(rounds, rounds);
  return tuttiSuccess;
}

static void dismiss(lead *l) {
  const command last = {.ends = 1};
  for (int h = 1; h < l->job->nhosts; h++)
    if (isAlive(l, h)) netLineSend(&l->lines[h], &last, sizeof last, tuttiDeadline(GRACE_MS));
  for (int h = 1; h < l->job->nhosts; h++)
    netLineClose(&l->lines[h]);
}

static void forget(lead *l) {
  for (int i = 0; i < l->nrows; i++)
    netRowFree(&l->rows[i]);
  tuttiFree(l->rows);
  tuttiFree(l->reports);
  tuttiFree(l->reported);
  tuttiFree(l->met);
}

static tuttiResult_t conclude(const lead *l, int *code) {
  netJudgement j = {.options = l->job->options,
                    .hosts = l->job->hosts,
                    .nhosts = l->job->nhosts,
                    .rows = l->rows,
                    .n = l->nrows};
  TUTTI_TRY(netJudge(&j));
  *code = netPrint(l->job, &j) ? netExit(&j) : TUTTI_EXIT_FAILED;
  tuttiFree(j.ports);
  return tuttiSuccess;
}

int netLead(const netJob *job, netLine *lines) {
  lead l = {.job = job, .lines = lines};
  int code = TUTTI_EXIT_FAILED;
  tuttiResult_t result = runRounds(&l);
  if (result == tuttiSuccess) result = conclude(&l, &code);
  if (result != tuttiSuccess) fprintf(stderr, NETCHECK_COMMAND ": %s\n", tuttiErrorText());
  dismiss(&l);
  forget(&l);
  return code;
}
