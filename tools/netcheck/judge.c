/* What is wrong with a rail, and the remedy: pure, of what both hosts have told. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "netcheck/netcheck.h"
#include "tool.h"

/* A message in host memory is copied once by a core of each host, beside which it does more. */
#define OF_COPY 0.4

#define NAME(name, word) word,
const char *const netFindingNames[netFoundCount] = {NETCHECK_FINDINGS(NAME)};

/* ---- rows ------------------------------------------------------------------------------------ */

static void endText(char *text, size_t size) {
  text[size - 1] = '\0';
  for (char *c = text; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' ';
}

/* Rates and times are not negative and no NaN. */
static void cleanNumbers(netRailReport *r) {
  double *numbers[] = {&r->line, &r->pcie, &r->copy, &r->alone, &r->together, &r->latencyUs};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!(*numbers[i] >= 0 && *numbers[i] < 1e15)) *numbers[i] = 0;
  for (int side = 0; side < 2; side++)
    if (r->port[side] < 0 || r->port[side] >= NETCHECK_RAILS) r->port[side] = 0;
}

void netPairReportClean(netPairReport *report) {
  if (report->nrails < 0 || report->nrails > NETCHECK_RAILS) report->nrails = 0;
  endText(report->failure, sizeof report->failure);
  for (int i = 0; i < report->nrails; i++) {
    netRailReport *r = &report->rails[i];
    endText(r->nic[0], sizeof r->nic[0]);
    endText(r->nic[1], sizeof r->nic[1]);
    endText(r->via, sizeof r->via);
    endText(r->why, sizeof r->why);
    endText(r->failure, sizeof r->failure);
    endText(r->fault, sizeof r->fault);
    cleanNumbers(r);
  }
}

/* Of several reasons for a failure the first that there is. */
static const char *failureOf(const netRailReport *sent, const netRailReport *got,
                             const char *lost) {
  if (sent && sent->failure[0]) return sent->failure;
  if (got && got->failure[0]) return got->failure;
  return sent && got ? NULL : lost;
}

/* `seen` is what tells of the rail: the sender's report, or the receiver's if there is none. */
static void describe(netRow *row, const netRailReport *seen, bool bySender) {
  for (int i = 0; i < 2; i++) {
    int side = bySender ? i : !i;
    snprintf(row->nic[i], sizeof row->nic[i], "%s", seen->nic[side]);
    row->port[i] = seen->port[side];
    row->down[i] = seen->down[side] != 0;
    row->gpu[i] = -1;
  }
  row->worse = seen->worse != 0;
  row->line = seen->line;
}

static void makeRow(netRow *row, const netRailReport *sent, const netRailReport *got,
                    const char *lost) {
  const netRailReport *const reports[2] = {sent, got};
  describe(row, sent ? sent : got, sent != NULL);
  for (int i = 0; i < 2; i++) {
    if (!reports[i]) continue;
    row->gpu[i] = reports[i]->gpu;
    row->pcie[i] = reports[i]->pcie;
    row->copy[i] = reports[i]->copy;
  }
  if (sent) {
    snprintf(row->via, sizeof row->via, "%s", sent->via);
    row->alone = sent->alone;
    row->together = sent->together;
    row->latencyUs = sent->latencyUs;
  }
  if (got) row->wrong = got->wrong;
  const char *text = failureOf(sent, got, lost);
  row->found = text ? netFoundFailed : netFoundFine;
  if (got && got->wrong) {
    row->found = netFoundWrong;
    text = got->fault;
  } else if (!text && row->worse && sent) {
    text = sent->why;
  }
  if (text && text[0]) row->text = strdup(text);
}

int netRowsOf(int a, int b, const netPairReport *ofA, const netPairReport *ofB, const char *lost,
              netRow *rows) {
  const netPairReport *const reports[2] = {ofA, ofB};
  const int hosts[2] = {a, b};
  int nrails[2] = {ofA ? ofA->nrails : 0, ofB ? ofB->nrails : 0}, n = 0;
  int most = nrails[0] > nrails[1] ? nrails[0] : nrails[1];
  const char *whole = ofA && ofA->failure[0]   ? ofA->failure
                      : ofB && ofB->failure[0] ? ofB->failure
                                               : lost;
  for (int rail = 0; rail < most; rail++) {
    for (int from = 0; from < 2; from++) {
      const netRailReport *told[2];
      for (int side = 0; side < 2; side++) {
        int who = side == 0 ? from : !from;
        told[side] = rail < nrails[who] ? &reports[who]->rails[rail] : NULL;
      }
      rows[n] = (netRow){.host = {hosts[from], hosts[!from]}, .rail = rail};
      makeRow(&rows[n++], told[0], told[1], whole);
    }
  }
  if (most > 0) return n;
  rows[0] = (netRow){.host = {a, b}, .rail = -1, .gpu = {-1, -1}, .found = netFoundFailed};
  rows[0].text = strdup(whole);
  return 1;
}

void netRowFree(netRow *row) {
  free(row->text);
  row->text = NULL;
}

/* ---- findings -------------------------------------------------------------------------------- */

double netShare(const netRow *row, double rate) {
  return row->line > 0 ? 100 * rate / row->line : 0;
}

static bool isHost(const netRow *row) {
  return row->gpu[0] < 0 && row->gpu[1] < 0;
}

/* GB/s of messages that a core of either host can copy; 0: no matter. */
static double copyBound(const netRow *row) {
  if (!isHost(row) || row->copy[0] <= 0 || row->copy[1] <= 0) return 0;
  return OF_COPY * (row->copy[0] < row->copy[1] ? row->copy[0] : row->copy[1]);
}

/* What this rail should carry at least; 0: nobody knows. In host memory cores may be slower than
 * the line, which says nothing of the network. */
static double leastRate(const netJudgement *j, const netRow *row) {
  double bound = copyBound(row), line = row->line;
  if (bound > 0 && bound < line) line = bound;
  return line * j->options->least / 100;
}

/* In host memory cores and memory carry all rails at once, so that only GPUs tell what NICs and
 * PCIe can do together. */
static void judgeRow(const netJudgement *j, netRow *row) {
  double least = leastRate(j, row);
  if (row->down[0] || row->down[1])
    row->found = netFoundDown;
  else if (row->found != netFoundFine)
    return;
  else if (row->worse)
    row->found = netFoundPath;
  else if (row->alone < least)
    row->found = netFoundSlow;
  else if (!isHost(row) && row->together > 0 && row->together < least)
    row->found = netFoundTogether;
}

static netPortCount *countOf(const netJudgement *j, const netRow *row, int side) {
  return &j->ports[(row->host[side] * NETCHECK_RAILS + row->port[side]) * 2 + side];
}

tuttiResult_t netJudge(netJudgement *j) {
  TUTTI_NEW(j->ports, j->nhosts * NETCHECK_RAILS * 2, "counts of ports", NULL);
  for (int i = 0; i < j->n; i++) {
    netRow *row = &j->rows[i];
    judgeRow(j, row);
    if (row->rail < 0 || row->alone <= 0) continue;
    for (int side = 0; side < 2; side++) {
      bool slow = row->alone < leastRate(j, row);
      countOf(j, row, side)->slow += slow;
      countOf(j, row, side)->fast += !slow;
    }
  }
  return tuttiSuccess;
}

int netExit(const netJudgement *j) {
  netFinding worst = netFoundFine;
  for (int i = 0; i < j->n; i++)
    if (j->rows[i].found > worst) worst = j->rows[i].found;
  if (worst == netFoundWrong) return NETCHECK_EXIT_WRONG;
  return worst == netFoundFine ? TUTTI_EXIT_OK : TUTTI_EXIT_BAD;
}

/* ---- sentences ------------------------------------------------------------------------------- */

#define DOCTOR "run `tutti doctor` on host %s"

static const char *hostName(const netJudgement *j, const netRow *row, int side) {
  return j->hosts[row->host[side]].name;
}

typedef enum { BLAME_SENDER, BLAME_RECEIVER, BLAME_WAY, BLAME_BOTH, BLAME_UNKNOWN } blamed;

/* A port that is slow with all it was tried with in this direction, where the other's is not, is to
 * blame itself. */
static blamed blame(const netJudgement *j, const netRow *row) {
  const netPortCount *sender = countOf(j, row, 0), *receiver = countOf(j, row, 1);
  if (sender->fast == 0 && receiver->fast > 0) return BLAME_SENDER;
  if (sender->fast > 0 && receiver->fast == 0) return BLAME_RECEIVER;
  if (sender->fast > 0) return BLAME_WAY;
  return sender->slow > 1 || receiver->slow > 1 ? BLAME_BOTH : BLAME_UNKNOWN;
}

/* The side whose PCIe link carries less than the rail should; -1: neither. */
static int narrowPcie(const netJudgement *j, const netRow *row) {
  for (int side = 0; side < 2; side++)
    if (row->pcie[side] > 0 && row->pcie[side] < leastRate(j, row)) return side;
  return -1;
}

static void explainPort(const netJudgement *j, const netRow *row, char *reason, char *remedy) {
  const char *from = hostName(j, row, 0), *to = hostName(j, row, 1);
  blamed at = blame(j, row);
  if (at == BLAME_SENDER || at == BLAME_RECEIVER) {
    int side = at == BLAME_RECEIVER;
    tuttiAppend(reason, NETCHECK_TEXT,
                "%s of host %s %s slowly with all others, %s of host %s does not", row->nic[side],
                hostName(j, row, side), side ? "receives" : "sends", row->nic[!side],
                hostName(j, row, !side));
    snprintf(remedy, NETCHECK_TEXT,
             "see to its cable and the switch's port; " DOCTOR " for its PCIe link and counters",
             hostName(j, row, side));
  } else if (at == BLAME_WAY) {
    tuttiAppend(reason, NETCHECK_TEXT,
                "both ports are fast with others, so it is the way between them");
    snprintf(remedy, NETCHECK_TEXT, "see to the switches between hosts %s and %s, and their routes",
             from, to);
  } else {
    tuttiAppend(reason, NETCHECK_TEXT, "%s",
                at == BLAME_BOTH ? "so are both ports with all others"
                                 : "whose port it is, a third host would tell");
    snprintf(remedy, NETCHECK_TEXT,
             "see to cables, the switches' ports and congestion control; " DOCTOR " and on %s",
             from, to);
  }
}

static void explainSlow(const netJudgement *j, const netRow *row, char *reason, char *remedy) {
  int narrow = narrowPcie(j, row);
  snprintf(reason, NETCHECK_TEXT, "%.0f%% of the line rate: ", netShare(row, row->alone));
  if (narrow >= 0) {
    tuttiAppend(reason, NETCHECK_TEXT, "the PCIe link of %s on host %s carries %.3g GB/s only",
                row->nic[narrow], hostName(j, row, narrow), row->pcie[narrow]);
    snprintf(remedy, NETCHECK_TEXT, "see to its slot and the BIOS; " DOCTOR,
             hostName(j, row, narrow));
  } else if (strncmp(row->via, "NET/Socket", 10) == 0) {
    tuttiAppend(reason, NETCHECK_TEXT, "one TCP connection carries no more here");
    snprintf(remedy, NETCHECK_TEXT,
             "export TUTTI_SOCKET_NSOCKS=4, or use RDMA; see `ip -s link` for errors, and the MTU");
  } else {
    explainPort(j, row, reason, remedy);
  }
}

static void explainDown(const netJudgement *j, const netRow *row, char *reason, char *remedy) {
  int side = row->down[0] ? 0 : 1;
  snprintf(reason, NETCHECK_TEXT, "%s of host %s is down", row->nic[side], hostName(j, row, side));
  if (row->down[0] && row->down[1])
    tuttiAppend(reason, NETCHECK_TEXT, ", and %s of host %s", row->nic[1], hostName(j, row, 1));
  snprintf(remedy, NETCHECK_TEXT, "see to its cable and the switch's port; " DOCTOR,
           hostName(j, row, side));
}

/* In host memory a core bounds what the line would carry. */
static void note(const netRow *row, char *reason) {
  double bound = copyBound(row);
  if (bound > 0 && row->line > bound && row->alone > 0)
    snprintf(reason, NETCHECK_TEXT,
             "in host memory, which a core copies at %.3g GB/s here: the line may carry more",
             bound / OF_COPY);
}

static void explainPath(const netJudgement *j, const netRow *row, char *reason, char *remedy) {
  snprintf(reason, 2 * NETCHECK_TEXT, "not the best path: %s", row->text ? row->text : "");
  snprintf(remedy, NETCHECK_TEXT, DOCTOR " and on %s, which say why and what to type",
           hostName(j, row, 0), hostName(j, row, 1));
}

/* The library's texts name ranks of the communicator of both hosts. */
static void explainFailed(const netJudgement *j, const netRow *row, char *reason, char *remedy) {
  int first = row->host[0] > row->host[1];
  snprintf(reason, 2 * NETCHECK_TEXT, "%s", row->text ? row->text : "it could not be tried");
  if (strstr(reason, "rank "))
    tuttiAppend(reason, 2 * NETCHECK_TEXT, " (there rank 0 is host %s, rank 1 host %s)",
                hostName(j, row, first), hostName(j, row, !first));
  snprintf(remedy, NETCHECK_TEXT, "see to hosts %s and %s, and run this again",
           hostName(j, row, first), hostName(j, row, !first));
}

static void explainWrong(const netJudgement *j, const netRow *row, char *reason, char *remedy) {
  snprintf(reason, 2 * NETCHECK_TEXT, "%llu wrong elements of 4 bytes came: %s",
           (unsigned long long)row->wrong, row->text ? row->text : "");
  snprintf(
      remedy, NETCHECK_TEXT,
      "do not use this rail (TUTTI_IB_HCA=^...): NIC, memory or PCIe of host %s or %s corrupts "
      "data; see dmesg and their ECC and AER counters",
      hostName(j, row, 0), hostName(j, row, 1));
}

void netExplain(const netJudgement *j, const netRow *row, char reason[2 * NETCHECK_TEXT],
                char remedy[NETCHECK_TEXT]) {
  reason[0] = remedy[0] = '\0';
  switch (row->found) {
  case netFoundWrong:
    explainWrong(j, row, reason, remedy);
    break;
  case netFoundFailed:
    explainFailed(j, row, reason, remedy);
    break;
  case netFoundDown:
    explainDown(j, row, reason, remedy);
    break;
  case netFoundPath:
    explainPath(j, row, reason, remedy);
    break;
  case netFoundSlow:
    explainSlow(j, row, reason, remedy);
    break;
  case netFoundTogether:
    snprintf(reason, NETCHECK_TEXT,
             "%.0f%% of the line rate while all rails carry in both directions, though %.0f%% "
             "alone: rails share a PCIe link, or the fabric is too narrow for all",
             netShare(row, row->together), netShare(row, row->alone));
    snprintf(remedy, NETCHECK_TEXT,
             "compare `tutti topo` of hosts %s and %s, and the switches' uplinks",
             hostName(j, row, 0), hostName(j, row, 1));
    break;
  default:
    note(row, reason);
  }
}
