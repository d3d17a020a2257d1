#include "doctor/hosts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/text.h"

#define HEAD        "tutti doctor lines 1"
#define END         "end"
#define MOST_SKEW   2.0 /* seconds that a network's delays do not explain */
#define MOST_GROUPS 2048
#define SHOWN_HOSTS 8
#define FACT        "fact" /* in the place of a severity */

/* ---- what a host sends ---------------------------------------------------------------------- */

/* "SEVERITY<tab>ID<tab>SUBJECT<tab>SENTENCE<tab>REMEDY". */
static void putLine(FILE *out, const char *const fields[5]) {
  for (int i = 0; i < 5; i++) {
    for (const char *c = fields[i]; *c; c++)
      putc((unsigned char)*c < ' ' ? ' ' : *c, out);
    putc(i < 4 ? '\t' : '\n', out);
  }
}

static void putFact(FILE *out, const char *name, const char *value) {
  const char *const fields[5] = {FACT, name, "", value ? value : "unknown", ""};
  putLine(out, fields);
}

static void putNumber(FILE *out, const char *name, int n) {
  char text[16];
  snprintf(text, sizeof text, "%d", n);
  putFact(out, name, text);
}

/* The different values of a kind of text that all NICs have, in their order. */
static void putNics(FILE *out, const tuttiView *v) {
  char firmware[256] = "", rates[256] = "";
  for (int i = 0; i < v->nnics; i++) {
    const tuttiViewNic *nic = &v->nics[i];
    if (nic->firmware[0] && !strstr(firmware, nic->firmware))
      tuttiAppend(firmware, sizeof firmware, "%s%s", firmware[0] ? ", " : "", nic->firmware);
    for (int p = 0; p < nic->nports; p++)
      if (nic->ports[p].state == TUTTI_PORT_ACTIVE && !strstr(rates, nic->ports[p].rate))
        tuttiAppend(rates, sizeof rates, "%s%s", rates[0] ? ", " : "", nic->ports[p].rate);
  }
  putNumber(out, "RDMA devices", v->nnics);
  putFact(out, "firmware of RDMA devices", firmware[0] ? firmware : "none");
  putFact(out, "rates of RDMA devices", rates[0] ? rates : "none");
}

void tuttiHostLines(const tuttiView *v, const tuttiFindings *f, FILE *out) {
  struct timespec now;
  fputs(HEAD "\n", out);
  putFact(out, "kernel", tuttiMachineAnswer(v->m, "host.release"));
  putFact(out, "NVIDIA driver", tuttiMachineAnswer(v->m, "nvml.driver"));
  putFact(out, "CUDA", tuttiMachineAnswer(v->m, "nvml.cuda"));
  putNumber(out, "GPUs", v->ngpus);
  putFact(out, "model of the first GPU", v->ngpus > 0 ? v->gpus[0].name : "none");
  putNics(out, v);
  for (int i = 0; i < f->n; i++) {
    const tuttiFinding *found = &f->list[i];
    const char *const fields[5] = {tuttiSeverityNames[found->severity], found->id, found->subject,
                                   found->sentence, found->remedy};
    if (found->severity > TUTTI_FOUND_OK) putLine(out, fields);
  }
  clock_gettime(CLOCK_REALTIME, &now);
  fprintf(out, END "\t%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* What some hosts said alike. */
typedef struct {
  const char *fields[5];
  bool fact;
  tuttiSeverity severity;
  int *hosts, nhosts; /* indexes, rising */
} group;

typedef struct {
  tuttiHostReport *hosts;
  int n;
  group *groups; /* [MOST_GROUPS] */
  int ngroups;
} comparison;

/* Takes a line apart in place; false: it is none. */
static bool splitLine(char *line, const char *fields[5]) {
  for (int i = 0; i < 5; i++) {
    fields[i] = line;
    char *tab = strchr(line, '\t');
    if ((tab == NULL) != (i == 4)) return false;
    if (tab) *tab = '\0';
    line = tab ? tab + 1 : line;
  }
  for (int i = 0; i < 5; i++) /* it goes to a terminal */
    for (const char *c = fields[i]; *c; c++)
      if ((unsigned char)*c < ' ' || *c == 0x7f) return false;
  return true;
}

/* -1: no such severity. */
static int severityOf(const char *word) {
  for (int i = 0; i < TUTTI_FOUND_COUNT; i++)
    if (strcmp(word, tuttiSeverityNames[i]) == 0) return i;
  return -1;
}

static group *groupOf(comparison *c, const char *const fields[5]) {
  for (int i = 0; i < c->ngroups; i++) {
    int same = 0;
    while (same < 4 && strcmp(c->groups[i].fields[same], fields[same]) == 0)
      same++;
    if (same == 4) return &c->groups[i];
  }
  if (c->ngroups == MOST_GROUPS) return NULL;
  group *g = &c->groups[c->ngroups];
  if (tuttiAlloc((void **)&g->hosts, (size_t)c->n, sizeof *g->hosts, "a comparison of hosts",
                 NULL) != tuttiSuccess)
    return NULL;
  memcpy(g->fields, fields, sizeof g->fields);
  g->fact = strcmp(fields[0], FACT) == 0;
  g->severity = g->fact ? TUTTI_FOUND_NOTE : (tuttiSeverity)severityOf(fields[0]);
  c->ngroups++;
  return g;
}

/* False: it is not such a line. What there is no room for is left out. */
static bool takeLine(comparison *c, int host, char *line) {
  const char *fields[5];
  if (!splitLine(line, fields) || (strcmp(fields[0], FACT) != 0 && severityOf(fields[0]) < 0))
    return false;
  group *g = groupOf(c, fields);
  if (g && (g->nhosts == 0 || g->hosts[g->nhosts - 1] != host)) g->hosts[g->nhosts++] = host;
  return true;
}

/* NULL, or what is wrong with what it sent. */
static const char *takeHost(comparison *c, int host) {
  char *line = c->hosts[host].text, *next;
  for (int number = 0; line && *line; line = next, number++) {
    next = strchr(line, '\n');
    if (next) *next++ = '\0';
    if (number == 0 && strcmp(line, HEAD) != 0)
      return "it has no tutti doctor of this version, or none that could be started";
    if (strncmp(line, END "\t", sizeof END) == 0) return NULL;
    if (number > 0 && !takeLine(c, host, line)) return "what it sent is not understood";
  }
  return "what it sent is not whole";
}

/* ---- printing ------------------------------------------------------------------------------- */

static void printHosts(const comparison *c, const group *g, FILE *out) {
  for (int i = 0; i < g->nhosts && i < SHOWN_HOSTS; i++)
    fprintf(out, "%s%s", i ? ", " : "", c->hosts[g->hosts[i]].name);
  if (g->nhosts > SHOWN_HOSTS) fprintf(out, " and %d more", g->nhosts - SHOWN_HOSTS);
}

/* Hosts that sent what could be read. */
static int heard(const comparison *c) {
  int n = 0;
  for (int i = 0; i < c->n; i++)
    n += c->hosts[i].trouble[0] == '\0';
  return n;
}

static void printFinding(const comparison *c, const group *g, FILE *out) {
  int others = heard(c) - g->nhosts;
  fprintf(out, "%-7s  ", g->fields[0]);
  if (others == 0 && g->nhosts > 1)
    fprintf(out, "all %d hosts", g->nhosts);
  else
    printHosts(c, g, out);
  fprintf(out, ": %s: %s", g->fields[2], g->fields[3]);
  if (others > 0) fprintf(out, "; not so on %d other%s", others, others > 1 ? "s" : "");
  fprintf(out, " [%s]\n", g->fields[1]);
  if (g->fields[4][0]) fprintf(out, "         $ %s\n", g->fields[4]);
}

static void printFindings(const comparison *c, bool common, FILE *out) {
  for (int s = TUTTI_FOUND_FAILURE; s > TUTTI_FOUND_OK; s--)
    for (int i = 0; i < c->ngroups; i++) {
      const group *g = &c->groups[i];
      if (!g->fact && (int)g->severity == s && (g->nhosts == heard(c)) == common)
        printFinding(c, g, out);
    }
}

/* The value of a fact that most hosts have; of several that are as frequent, the first. */
static const group *commonest(const comparison *c, const char *fact) {
  const group *most = NULL;
  for (int i = 0; i < c->ngroups; i++) {
    const group *g = &c->groups[i];
    if (g->fact && strcmp(g->fields[1], fact) == 0 && (!most || g->nhosts > most->nhosts)) most = g;
  }
  return most;
}

/* Of facts that differ, the rarer values with their hosts. */
static void printFacts(const comparison *c, FILE *out) {
  for (int i = 0; i < c->ngroups; i++) {
    const group *g = &c->groups[i];
    const group *most = g->fact ? commonest(c, g->fields[1]) : g;
    if (most == g) continue;
    fputs("note     ", out);
    printHosts(c, g, out);
    fprintf(out, ": %s: %s; ", g->fields[1], g->fields[3]);
    printHosts(c, most, out);
    fprintf(out, ": %s [differs]\n", most->fields[3]);
  }
}

static tuttiSeverity printTroubles(const comparison *c, FILE *out) {
  tuttiSeverity worst = TUTTI_FOUND_OK;
  for (int i = 0; i < c->n; i++) {
    const tuttiHostReport *h = &c->hosts[i];
    if (h->trouble[0]) {
      fprintf(out, "failure  %s: %s [host.silent]\n", h->name, h->trouble);
      worst = TUTTI_FOUND_FAILURE;
    } else if (h->timed && fabs(h->skew) > MOST_SKEW) {
      fprintf(out,
              "warning  %s: its clock is %.1f s %s: lines of its log and of others can't be put in "
              "order [host.clock]\n         $ sudo systemctl restart chronyd || sudo timedatectl "
              "set-ntp true\n",
              h->name, fabs(h->skew), h->skew > 0 ? "ahead" : "behind");
      if (worst < TUTTI_FOUND_WARNING) worst = TUTTI_FOUND_WARNING;
    }
  }
  return worst;
}

tuttiSeverity tuttiHostsCompare(tuttiHostReport *hosts, int n, FILE *out) {
  comparison c = {.hosts = hosts, .n = n};
  if (tuttiAlloc((void **)&c.groups, MOST_GROUPS, sizeof *c.groups, "a comparison of hosts",
                 NULL) != tuttiSuccess)
    return TUTTI_FOUND_FAILURE;
  for (int i = 0; i < n; i++) {
    const char *wrong = hosts[i].trouble[0] ? NULL : takeHost(&c, i);
    if (wrong) snprintf(hosts[i].trouble, sizeof hosts[i].trouble, "%s", wrong);
  }
  tuttiSeverity worst = printTroubles(&c, out);
  printFindings(&c, false, out);
  printFacts(&c, out);
  printFindings(&c, true, out);
  for (int i = 0; i < c.ngroups; i++) {
    if (!c.groups[i].fact && c.groups[i].severity > worst) worst = c.groups[i].severity;
    tuttiFree(c.groups[i].hosts);
  }
  fprintf(out, "%d of %d hosts reported; the worst is: %s\n", heard(&c), n,
          tuttiSeverityNames[worst]);
  tuttiFree(c.groups);
  return worst;
}
