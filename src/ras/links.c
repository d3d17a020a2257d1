/* Which link is slow, by the rates that ranks tell of their links.
 *
 * One end of a link measures it, while nothing but the link holds its connection up. The other end
 * may know a rate that it has reached. The better of the two is the link's `best`: what has been
 * reached can't be slow, whatever was measured while ranks had no cores to run on; and a link that
 * is faster than its ranks is never measured, but is a good sibling.
 *
 * What a connection gets may be its share of a NIC. At the end that measures this is known:
 * `allRate` is what all connections of the rank got meanwhile, and is what is compared. What goes
 * on beside it at other ranks nobody has timed; so as many links may share each NIC as are known to
 * use it, the link's crowd. A rate is compared with a sibling's as it is if that has a crowd as
 * large, for then both may have had a share as small; else with so much less as the crowd may have
 * taken. Where siblings differ as much among themselves as a slow link would from them, none is
 * told from them: so it is where ranks wait for cores. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/text.h"
#include "ras/verdict.h"

#define SIBLINGS 3  /* fewer show nothing */
#define SUSPECTS 64 /* the slowest links, which are looked at closely */

typedef struct {
  const tuttiLinkFacts *facts;
  int end[2]; /* the sender and the receiver */
  int crowd;
  uint32_t best;
  bool atLeast; /* best is not measured */
  bool joined;  /* to the link that the other end has measured */
} link;

/* A link at one of its NICs: `user` is whose share of the NIC it has there. */
typedef struct {
  uint64_t nic, user;
  link *link;
} nicUse;

/* The links of a communicator, the slowest first, and room for as many uses and rates. */
typedef struct {
  const tuttiCommSnapshot *c;
  int n;
  link *links;
  nicUse *uses;
  uint32_t *alike, *rates;
} linkTable;

static bool openTable(linkTable *t, const tuttiCommSnapshot *c) {
  size_t n = 0;
  *t = (linkTable){.c = c};
  for (int r = 0; r < c->nranks; r++)
    n += c->ranks[r].told ? c->ranks[r].facts.nlinks : 0;
  if (n <= SIBLINGS) return false;
  t->links = calloc(n, sizeof *t->links);
  t->uses = calloc(n, sizeof *t->uses);
  t->alike = calloc(n, sizeof *t->alike);
  t->rates = calloc(n, sizeof *t->rates);
  return t->links && t->uses && t->alike && t->rates;
}

static void closeTable(linkTable *t) {
  free(t->links);
  free(t->uses);
  free(t->alike);
  free(t->rates);
}

static bool isSamePair(const link *a, const link *b) {
  return a->end[0] == b->end[0] && a->end[1] == b->end[1];
}

/* What is measured first. */
static int byPair(const void *a, const void *b) {
  const link *x = a, *y = b;
  if (x->end[0] != y->end[0]) return x->end[0] - y->end[0];
  if (x->end[1] != y->end[1]) return x->end[1] - y->end[1];
  return x->facts->atLeast - y->facts->atLeast;
}

static int slowerFirst(const void *a, const void *b) {
  uint32_t x = ((const link *)a)->facts->allRate, y = ((const link *)b)->facts->allRate;
  return (x > y) - (x < y);
}

static void join(link *to, link *other) {
  other->joined = true;
  if (other->best <= to->best) return;
  to->best = other->best;
  to->atLeast = true;
}

static void gather(linkTable *t) {
  for (int r = 0; r < t->c->nranks; r++) {
    const tuttiFacts *f = &t->c->ranks[r].facts;
    for (uint32_t i = 0; t->c->ranks[r].told && i < f->nlinks; i++) {
      const tuttiLinkFacts *facts = &f->links[i];
      link l = {.facts = facts,
                .end = {facts->peer, facts->peer},
                .crowd = 1,
                .best = facts->allRate,
                .atLeast = facts->atLeast};
      l.end[facts->sends ? 0 : 1] = r;
      t->links[t->n++] = l;
    }
  }
  qsort(t->links, (size_t)t->n, sizeof *t->links, byPair);
  for (int i = 1, first = 0; i < t->n; i++) {
    if (isSamePair(&t->links[first], &t->links[i]))
      join(&t->links[first], &t->links[i]);
    else
      first = i;
  }
  qsort(t->links, (size_t)t->n, sizeof *t->links, slowerFirst);
}

/* ---- crowds --------------------------------------------------------------------------------- */

static const char *hostOf(const linkTable *t, const link *l, int side) {
  return t->c->ranks[l->end[side]].who.host;
}

/* All links of the rank that measures count as one there, as it has measured them together. */
static nicUse useOf(const linkTable *t, link *l, int side) {
  char text[160];
  snprintf(text, sizeof text, "%.80s %.23s", hostOf(t, l, side), l->facts->nic[side]);
  bool measures = side == (l->facts->sends != l->facts->atLeast ? 0 : 1);
  uint64_t pair = (uint64_t)l->end[0] * (uint64_t)t->c->nranks + (uint64_t)l->end[1];
  return (nicUse){.nic = tuttiHash(text, strlen(text)),
                  .user = measures ? (uint64_t)l->end[side] : pair,
                  .link = l};
}

static int byNicAndUser(const void *a, const void *b) {
  const nicUse *x = a, *y = b;
  if (x->nic != y->nic) return x->nic > y->nic ? 1 : -1;
  return (x->user > y->user) - (x->user < y->user);
}

static void countCrowds(linkTable *t, int side) {
  for (int i = 0; i < t->n; i++)
    t->uses[i] = useOf(t, &t->links[i], side);
  qsort(t->uses, (size_t)t->n, sizeof *t->uses, byNicAndUser);
  for (int first = 0, next; first < t->n; first = next) {
    int users = 1;
    for (next = first + 1; next < t->n && t->uses[next].nic == t->uses[first].nic; next++)
      users += t->uses[next].user != t->uses[next - 1].user;
    for (int i = first; i < next; i++)
      if (t->uses[i].link->crowd < users) t->uses[i].link->crowd = users;
  }
}

/* ---- verdicts ------------------------------------------------------------------------------- */

static bool isSibling(const linkTable *t, const link *a, const link *b) {
  bool within[2];
  const link *both[2] = {a, b};
  for (int i = 0; i < 2; i++)
    within[i] = strcmp(hostOf(t, both[i], 0), hostOf(t, both[i], 1)) == 0;
  return !isSamePair(a, b) && !b->joined && within[0] == within[1] &&
         strcmp(a->facts->via, b->facts->via) == 0;
}

static int compareRates(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* The lower one, if there are two. */
static uint32_t medianRate(uint32_t *rates, int n) {
  qsort(rates, (size_t)n, sizeof *rates, compareRates);
  return rates[(n - 1) / 2];
}

/* Whether a link is slow, and what its siblings are: how many, their median, and whether some are
 * only known to be at least as fast as they say. */
typedef struct {
  bool slow, atLeast;
  int siblings;
  uint32_t median;
} comparison;

static comparison compare(linkTable *t, const link *l) {
  comparison found = {0};
  int n = 0;
  for (int i = 0; i < t->n; i++) {
    const link *s = &t->links[i];
    if (!isSibling(t, l, s)) continue;
    t->rates[n] = s->best;
    t->alike[n++] = s->crowd >= l->crowd ? s->best : s->best / (uint32_t)l->crowd;
    found.atLeast |= s->atLeast;
  }
  if (n < SIBLINGS) return found;
  found.siblings = n;
  found.median = medianRate(t->rates, n);
  uint32_t middle = medianRate(t->alike, n), low = t->alike[(n - 1) / 4]; /* sorted now */
  bool alike = 2 * (uint64_t)low >= middle;
  found.slow = alike && 2 * (uint64_t)l->best < low;
  return found;
}

/* "rank 2 (host node7, pid 4242, eth0)". */
static void endText(const linkTable *t, const link *l, int side, char *buf, size_t size) {
  const char *nic = l->facts->nic[side];
  tuttiWhoText(&t->c->ranks[l->end[side]].who, buf, size);
  size_t length = strlen(buf);
  if (!nic[0]) return;
  if (length > 0 && buf[length - 1] == ')') buf[length - 1] = '\0';
  tuttiAppend(buf, size, ", %s)", nic);
}

static void slowText(const linkTable *t, const link *l, const comparison *with, char *buf,
                     size_t size) {
  char from[200], to[200];
  endText(t, l, 0, from, sizeof from);
  endText(t, l, 1, to, sizeof to);
  snprintf(buf, size,
           "the link from %s to %s via %s, channel %d, carries %.3g GB/s; the median of its %d "
           "siblings is %s%.3g GB/s",
           from, to, l->facts->via, l->facts->channel, l->facts->allRate / 1e6, with->siblings,
           with->atLeast ? "at least " : "", with->median / 1e6);
}

int tuttiSlowLinks(const tuttiCommSnapshot *c, tuttiFinding *out, int max) {
  linkTable t;
  int found = 0, looked = 0;
  bool open = openTable(&t, c);
  if (open) {
    gather(&t);
    countCrowds(&t, 0);
    countCrowds(&t, 1);
  }
  for (int i = 0; i < t.n && looked < SUSPECTS && found < max; i++) {
    if (t.links[i].facts->atLeast || t.links[i].joined) continue;
    comparison with = compare(&t, &t.links[i]);
    looked++;
    if (!with.slow) continue;
    out[found] = (tuttiFinding){.kind = tuttiVerdictSlowLink};
    slowText(&t, &t.links[i], &with, out[found].text, sizeof out[found].text);
    found++;
  }
  closeTable(&t);
  return found;
}
