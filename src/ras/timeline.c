#include "ras/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "collectives/planner.h"
#include "ras/report.h"
#include "ras/verdict.h"
#include "topology/xml.h"

#define LATE_NS 100000 /* less is no lateness */
#define LEAST   4      /* operations that show it */

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static int64_t median(int64_t *values, int n) {
  qsort(values, (size_t)n, sizeof *values, compare);
  return values[n / 2];
}

/* The stamped collective of a number on a rank, or NULL. */
static const tuttiOpFacts *findOp(const tuttiRankView *v, uint64_t seq) {
  for (uint32_t i = 0; v->told && i < v->facts.nops; i++) {
    const tuttiOpFacts *op = &v->facts.ops[i];
    if (op->sig.coll != tuttiCollSendRecv && op->sig.seq == seq) return op->start ? op : NULL;
  }
  return NULL;
}

/* No rank ends it before all have begun it. */
static bool joinsAll(const tuttiSignature *sig) {
  return sig->coll == tuttiCollAllReduce || sig->coll == tuttiCollAllGather ||
         sig->coll == tuttiCollReduceScatter || sig->coll == tuttiCollAlltoAll;
}

int64_t tuttiClockOffset(const tuttiCommSnapshot *c, int base, int rank) {
  const tuttiRankView *a = &c->ranks[base], *b = &c->ranks[rank];
  if (base == rank || a->facts.hostId == b->facts.hostId) return 0;
  int64_t differences[TUTTI_FACTS_OPS];
  int n = 0;
  for (uint32_t i = 0; i < a->facts.nops; i++) {
    const tuttiOpFacts *mine = &a->facts.ops[i];
    if (!joinsAll(&mine->sig) || mine->end == 0) continue;
    const tuttiOpFacts *theirs = findOp(b, mine->sig.seq);
    if (theirs && theirs->end != 0) differences[n++] = (int64_t)(mine->end - theirs->end);
  }
  if (n > 0) return median(differences, n);
  return (int64_t)(b->facts.realtime - b->facts.now) - (int64_t)(a->facts.realtime - a->facts.now);
}

static int firstTold(const tuttiCommSnapshot *c) {
  for (int r = 0; r < c->nranks; r++)
    if (c->ranks[r].told) return r;
  return -1;
}

/* ---- the trace ------------------------------------------------------------------------------ */

static void traceOp(const tuttiFacts *f, const tuttiOpFacts *op, int64_t offset, FILE *out) {
  const tuttiSignature *sig = &op->sig;
  uint64_t end = op->end ? op->end : f->now; /* of one that has not ended */
  double from = (double)((int64_t)op->start + offset) / 1e3;
  fprintf(
      out,
      "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": 0, \"ts\": %.3f, "
      "\"dur\": %.3f, \"args\": {\"seq\": %" PRIu64 ", \"count\": %" PRIu64
      ", \"type\": \"%s\", \"bytes\": %" PRIu64 ", \"root\": %d, \"ended\": %s, "
      "\"enqueued_us\": %.3f",
      tuttiCollName(sig->coll), sig->coll == tuttiCollSendRecv ? "message" : "collective", f->rank,
      from, (double)(end > op->start ? end - op->start : 0) / 1e3, sig->seq, sig->count,
      tuttiTypeName(sig->type), sig->count * tuttiTypeSize(sig->type), sig->root,
      op->end ? "true" : "false", (double)((int64_t)op->enqueued + offset) / 1e3);
  if (op->algo < tuttiAlgoCount && op->proto < tuttiProtoCount)
    fprintf(out, ", \"algorithm\": \"%s\", \"protocol\": \"%s\", \"channels\": %u",
            tuttiAlgoNames[op->algo], tuttiProtoNames[op->proto], op->channels);
  fputs("}}", out);
}

void tuttiTraceEvents(const tuttiCommSnapshot *c, bool *first, FILE *out) {
  int base = firstTold(c);
  for (int r = 0; r < c->nranks; r++) {
    const tuttiFacts *f = &c->ranks[r].facts;
    char who[160], name[240];
    if (!c->ranks[r].told) continue;
    int64_t offset = tuttiClockOffset(c, base, r);
    snprintf(name, sizeof name, "%s of %.63s", tuttiWhoText(&c->ranks[r].who, who, sizeof who),
             c->name);
    fprintf(out, "%s{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": ",
            *first ? "" : ",\n", r);
    tuttiJsonString(out, name);
    fputs("}}", out);
    *first = false;
    for (uint32_t i = f->nops; i-- > 0;) {
      if (f->ops[i].start == 0) continue;
      fputs(",\n", out);
      traceOp(f, &f->ops[i], offset, out);
    }
  }
}

static void traceAll(const tuttiSnapshot *s, FILE *out) {
  bool first = true;
  fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", out);
  for (int i = 0; i < s->ncomms; i++)
    tuttiTraceEvents(&s->comms[i], &first, out);
  fputs("\n]", out);
}

void tuttiReportTrace(const tuttiSnapshot *s, FILE *out) {
  traceAll(s, out);
  fputs("}\n", out);
}

/* ---- dumps ---------------------------------------------------------------------------------- */

#define FACTS_KEY "\"tuttiFacts\": \""

void tuttiReportDump(const tuttiSnapshot *s, FILE *out) {
  size_t bytes = 0;
  char *facts = tuttiReportMakeSized(s, tuttiReportFacts, &bytes);
  traceAll(s, out);
  fputs(", " FACTS_KEY, out);
  for (size_t i = 0; facts && i < bytes; i++)
    fprintf(out, "%02x", (unsigned char)facts[i]);
  fputs("\"}\n", out);
  free(facts);
}

static void writeDump(FILE *out, const void *snapshot) {
  tuttiReportDump(snapshot, out);
}

tuttiResult_t tuttiReportSave(const tuttiSnapshot *s, const char *path, const char *asked) {
  return tuttiSaveFile(path, asked, "the record", writeDump, s);
}

static int hexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool tuttiReportDumpTake(const char *text, size_t size, tuttiSnapshot *s) {
  const char *at = memmem(text, size, FACTS_KEY, strlen(FACTS_KEY));
  if (!at) return false;
  at += strlen(FACTS_KEY);
  size_t room = (size - (size_t)(at - text)) / 2, n = 0;
  uint8_t *facts = malloc(room + 1);
  for (; facts && n < room && hexDigit(at[0]) >= 0 && hexDigit(at[1]) >= 0; at += 2)
    facts[n++] = (uint8_t)(hexDigit(at[0]) << 4 | hexDigit(at[1]));
  bool taken = facts && tuttiReportFactsTake(facts, n, s);
  free(facts);
  return taken;
}

/* ---- who is slow ---------------------------------------------------------------------------- */

/* When each rank began collective `seq`, relative to the median of them; false: some rank has no
 * stamp of it. */
static bool lateness(const tuttiCommSnapshot *c, const int64_t *offsets, uint64_t seq,
                     int64_t *starts, int64_t *sorted) {
  for (int r = 0; r < c->nranks; r++) {
    const tuttiOpFacts *op = findOp(&c->ranks[r], seq);
    if (!op) return false;
    starts[r] = sorted[r] = (int64_t)op->start + offsets[r];
  }
  int64_t middle = median(sorted, c->nranks);
  if (c->nranks == 2) middle = sorted[0];
  for (int r = 0; r < c->nranks; r++)
    starts[r] -= middle;
  return true;
}

static int lastRank(const int64_t *starts, int n) {
  int last = 0;
  for (int r = 1; r < n; r++)
    if (starts[r] > starts[last]) last = r;
  return last;
}

/* All that is needed of memory, in one: [nranks] offsets, starts, sorted; then of each stamped
 * operation who was last, and by how much. */
static int judge(const tuttiCommSnapshot *c, int64_t *room, tuttiFinding *out, int max) {
  int n = c->nranks, base = firstTold(c), ops = 0, found = 0;
  int64_t *offsets = room, *starts = room + n, *sorted = room + 2 * n;
  int64_t *late = room + 3 * n, *last = late + TUTTI_FACTS_OPS, *some = last + TUTTI_FACTS_OPS;
  const tuttiFacts *f = &c->ranks[base].facts;
  for (int r = 0; r < n; r++)
    offsets[r] = tuttiClockOffset(c, base, r);
  for (uint32_t i = 0; i < f->nops; i++) {
    bool collective = f->ops[i].sig.coll != tuttiCollSendRecv;
    if (!collective || !lateness(c, offsets, f->ops[i].sig.seq, starts, sorted)) continue;
    last[ops] = lastRank(starts, n);
    late[ops] = starts[last[ops]];
    ops++;
  }
  for (int r = 0; r < n && ops >= LEAST && found < max; r++) {
    char who[160];
    int times = 0;
    for (int i = 0; i < ops; i++)
      if (last[i] == r) some[times++] = late[i];
    if (2 * times <= ops) continue;
    int64_t by = median(some, times);
    if (by < LATE_NS) continue;
    tuttiFinding *finding = &out[found++];
    *finding = (tuttiFinding){.kind = tuttiVerdictStraggler};
    snprintf(finding->text, sizeof finding->text,
             "%s enters collectives last, in %d of the %d that are stamped, by a median of %.1f ms "
             "after the others",
             tuttiWhoText(&c->ranks[r].who, who, sizeof who), times, ops, (double)by / 1e6);
  }
  return found;
}

int tuttiStragglers(const tuttiCommSnapshot *c, tuttiFinding *out, int max) {
  for (int r = 0; r < c->nranks; r++)
    if (!c->ranks[r].told) return 0;
  if (c->nranks < 2) return 0;
  size_t words = 3 * (size_t)c->nranks + (size_t)3 * TUTTI_FACTS_OPS;
  int64_t *room = calloc(words, sizeof *room);
  int found = room ? judge(c, room, out, max) : 0;
  free(room);
  return found;
}
