#include "ras/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/settings.h"
#include "base/text.h"
#include "collectives/planner.h"
#include "ras/timeline.h"
#include "ras/verdict.h"

char *tuttiReportMakeSized(const tuttiSnapshot *s, void (*write)(const tuttiSnapshot *, FILE *),
                           size_t *bytes) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  write(s, out);
  bool whole = !ferror(out);
  if (fclose(out) != 0 || !whole) {
    free(text);
    return NULL;
  }
  if (bytes) *bytes = size;
  return text;
}

static void timestamp(uint64_t realtime, char *buf, size_t size) {
  time_t seconds = (time_t)(realtime / 1000000000u);
  struct tm tm;
  buf[0] = 0;
  if (gmtime_r(&seconds, &tm)) strftime(buf, size, "%Y-%m-%d %H:%M:%S UTC", &tm);
}

/* ---- text ----------------------------------------------------------------------------------- */

static int countTold(const tuttiCommSnapshot *c) {
  int told = 0;
  for (int r = 0; r < c->nranks; r++)
    told += c->ranks[r].told != 0;
  return told;
}

static void textWaits(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  char text[400];
  if (f->awaitsSignals)
    fprintf(out, "    waits for %s, since %.1f s\n",
            tuttiSignalsText(&f->signals, &c->ranks[f->signals.peer].who, text, sizeof text),
            f->signals.sinceMs / 1e3);
  for (uint32_t i = 0; i < f->nwaits; i++) {
    tuttiWaitText(&f->waits[i], text, sizeof text);
    fprintf(out, "    %s\n", text);
  }
}

/* On one line: links are many, and mostly well. */
static void textLinks(const tuttiFacts *f, FILE *out) {
  for (uint32_t i = 0; i < f->nlinks; i++) {
    const tuttiLinkFacts *l = &f->links[i];
    fprintf(out, "%s%s rank %d %s%.3g GB/s%s", i == 0 ? "    links: " : ", ",
            l->sends ? "to" : "from", l->peer, l->atLeast ? "at least " : "", l->allRate / 1e6,
            i + 1 == f->nlinks ? "\n" : "");
  }
}

/* Of a rank that has told nothing itself. */
static void textUntold(const tuttiRankView *v, const char *last, bool inside, FILE *out) {
  if (v->answer.answered == TUTTI_ANSWER_LEFT)
    fputs("has left", out);
  else if (v->answer.answered == TUTTI_ANSWER_REFUSED)
    fputs("nobody listens there", out);
  else if (last)
    fprintf(out, "no answer; %.1f s ago it %s %s", v->answer.ageMs / 1e3,
            inside ? "was in" : "had done", last);
  else
    fputs("no answer", out);
}

static void textTold(const tuttiFacts *f, const char *last, bool inside, FILE *out) {
  if (f->phase != tuttiPhaseUsable)
    fprintf(out, "%s, for %.1f s", tuttiPhaseText(f->phase), f->phaseMs / 1e3);
  else if (inside && f->failed != tuttiSuccess)
    fprintf(out, "has failed, in %s", last);
  else if (inside)
    fprintf(out, "in %s since %.1f s", last, f->inMs / 1e3);
  else
    fprintf(out, "idle, last %s", last);
}

static void textRank(const tuttiCommSnapshot *c, const tuttiRankView *v, FILE *out) {
  char who[160], sig[160] = "nothing yet";
  tuttiRankState state;
  bool known = tuttiRankViewState(v, &state);
  bool inside = v->told ? v->facts.inside : known && state.started > state.ended;
  const tuttiSignature *at = v->told && inside ? &v->facts.in : &state.last[0];
  if (known && state.started) tuttiSignatureText(at, sig, sizeof sig);
  fprintf(out, "  %s: ", tuttiWhoText(&v->who, who, sizeof who));
  if (v->process == 'T' || v->process == 't') fputs("stopped; ", out);
  if (v->process == 'X' || v->process == 'Z') fputs("its process is gone; ", out);
  if (v->told)
    textTold(&v->facts, sig, inside, out);
  else
    textUntold(v, known ? sig : NULL, inside, out);
  fputc('\n', out);
  if (!v->told) return;
  if (v->facts.failed == tuttiSuccess) textWaits(c, &v->facts, out);
  textLinks(&v->facts, out);
}

static void textVerdicts(const tuttiCommSnapshot *c, FILE *out) {
  tuttiFinding findings[TUTTI_FINDINGS], slow[TUTTI_SLOW];
  int n = tuttiFindings(c, findings);
  for (int i = 0; i < n; i++)
    fprintf(out, "communicator %s: %s\n", c->name[0] ? c->name : "without a name yet",
            findings[i].text);
  n = tuttiSlowness(c, slow);
  for (int i = 0; i < n; i++)
    fprintf(out, "communicator %s: slow, not dead: %s\n", c->name, slow[i].text);
}

void tuttiReportText(const tuttiSnapshot *s, FILE *out) {
  char when[64];
  timestamp(s->realtime, when, sizeof when);
  if (s->ncomms == 0) fputs("no communicators\n", out);
  for (int i = 0; i < s->ncomms; i++)
    textVerdicts(&s->comms[i], out);
  for (int i = 0; i < s->ncomms; i++) {
    const tuttiCommSnapshot *c = &s->comms[i];
    fprintf(out, "\ncommunicator %s (%016" PRIx64 "), %d ranks, %d of which have told at %s:\n",
            c->name, c->hash, c->nranks, countTold(c), when);
    for (int r = 0; r < c->nranks; r++)
      textRank(c, &c->ranks[r], out);
  }
  fprintf(out, "\ntutti %d.%d.%d, collected in %.2f s\n", TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH,
          s->seconds);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void jsonOp(const tuttiOpFacts *op, FILE *out) {
  const tuttiSignature *sig = &op->sig;
  fprintf(out,
          "{\"seq\": %" PRIu64 ", \"collective\": \"%s\", \"count\": %" PRIu64
          ", \"type\": \"%s\", \"op\": ",
          sig->seq, tuttiCollName(sig->coll), sig->count, tuttiTypeName(sig->type));
  if (sig->redop == 0xffff)
    fputs("null", out);
  else
    fprintf(out, "\"%s\"", tuttiRedOpName(sig->redop));
  fprintf(out, ", \"root\": %d", sig->root);
  if (op->algo < tuttiAlgoCount && op->proto < tuttiProtoCount)
    fprintf(out, ", \"algorithm\": \"%s\", \"protocol\": \"%s\", \"channels\": %u",
            tuttiAlgoNames[op->algo], tuttiProtoNames[op->proto], op->channels);
  if (op->start != 0)
    fprintf(out, ", \"enqueued_ns\": %" PRIu64 ", \"start_ns\": %" PRIu64, op->enqueued, op->start);
  if (op->end != 0) fprintf(out, ", \"end_ns\": %" PRIu64, op->end);
  fputc('}', out);
}

static void jsonWait(const tuttiWaitFacts *w, FILE *out) {
  fprintf(out, "{\"peer\": %d, \"channel\": %d, \"direction\": \"%s\", \"awaited\": %s, \"via\": ",
          w->peer, w->channel, w->sends ? "send" : "receive", w->awaited ? "true" : "false");
  tuttiJsonString(out, w->via);
  fprintf(out, ", \"since_sec\": %.3f, \"messages\": %" PRIu64 ", \"%s\": %" PRIu64 ", \"state\": ",
          w->sinceMs / 1e3, w->written, w->sends ? "acknowledged" : "taken", w->taken);
  tuttiJsonString(out, w->text);
  fputc('}', out);
}

static void jsonLink(const tuttiLinkFacts *l, FILE *out) {
  fprintf(out,
          "{\"peer\": %d, \"channel\": %d, \"direction\": \"%s\", \"gb_per_sec\": %.6f, "
          "\"all_gb_per_sec\": %.6f, \"at_least\": %s, \"via\": ",
          l->peer, l->channel, l->sends ? "send" : "receive", l->rate / 1e6, l->allRate / 1e6,
          l->atLeast ? "true" : "false");
  tuttiJsonString(out, l->via);
  fputs(", \"sender_nic\": ", out);
  tuttiJsonString(out, l->nic[0]);
  fputs(", \"receiver_nic\": ", out);
  tuttiJsonString(out, l->nic[1]);
  fputc('}', out);
}

static void jsonSignals(const tuttiFacts *f, FILE *out) {
  const tuttiSignalFacts *s = &f->signals;
  if (f->awaitsSignals)
    fprintf(out,
            "{\"peer\": %d, \"index\": %" PRIu32 ", \"context\": %" PRIu32 ", \"wanted\": %" PRIu32
            ", \"come\": %" PRIu32 ", \"since_sec\": %.3f}",
            s->peer, s->index, s->context, s->wanted, s->come, s->sinceMs / 1e3);
  else
    fputs("null", out);
}

/* What NCCL has no keys for. */
static void jsonMore(const tuttiFacts *f, FILE *out) {
  fprintf(out,
          "          \"tutti\": {\"phase\": \"%s\", \"started\": %" PRIu64 ", \"ended\": %" PRIu64
          ", \"in_operation_sec\": %.3f, ",
          tuttiPhaseText(f->phase), f->started, f->ended, f->inMs / 1e3);
#define JSON_COUNTER(name, word, help)                                                             \
  fprintf(out, "\"%s\": %" PRIu64 ", ", word, f->counters[tuttiCounter##name]);
  TUTTI_COUNTERS(JSON_COUNTER)
  fputs("\"in\": ", out);
  if (f->inside)
    jsonOp(&(tuttiOpFacts){.sig = f->in, .algo = UINT8_MAX, .proto = UINT8_MAX}, out);
  else
    fputs("null", out);
  fputs(", \"failure\": ", out);
  tuttiJsonString(out, f->failure);
  fputs(", \"last\": ", out);
  if (f->nops > 0)
    jsonOp(&f->ops[0], out);
  else
    fputs("null", out);
  fputs(", \"signals\": ", out);
  jsonSignals(f, out);
  fputs(", \"waits\": [", out);
  for (uint32_t i = 0; i < f->nwaits; i++) {
    if (i > 0) fputs(", ", out);
    jsonWait(&f->waits[i], out);
  }
  fputs("], \"links\": [", out);
  for (uint32_t i = 0; i < f->nlinks; i++) {
    if (i > 0) fputs(", ", out);
    jsonLink(&f->links[i], out);
  }
  fputs("]}\n", out);
}

static void jsonWho(const tuttiRankView *v, FILE *out) {
  int device = v->told ? v->facts.device : -1;
  fprintf(out, "        {\n          \"rank\": %d,\n          \"host\": ", v->who.rank);
  tuttiJsonString(out, v->who.host);
  fprintf(out,
          ",\n          \"pid\": %d,\n          \"cuda_dev\": %d,\n          \"nvml_dev\": %d,\n",
          v->who.pid, device, device);
}

static void jsonRank(const tuttiRankView *v, FILE *out) {
  const tuttiFacts *f = &v->facts;
  jsonWho(v, out);
  fprintf(
      out,
      "          \"status\": {\n            \"init_state\": %d,\n            \"async_error\": %d,\n"
      "            \"finalize_called\": %s,\n            \"destroy_flag\": %s,\n"
      "            \"abort_flag\": %s\n          },\n          \"collective_counts\": {\n",
      f->phase <= tuttiPhaseConnecting ? tuttiInProgress : f->failed, f->failed,
      f->phase == tuttiPhaseFinalizing ? "true" : "false",
      f->phase == tuttiPhaseEnding ? "true" : "false", f->aborted ? "true" : "false");
  for (int i = 0; i < tuttiCollCount; i++)
    fprintf(out, "            \"%s\": %" PRIu64 "%s\n", tuttiCollName(i), f->counts[i],
            i + 1 < tuttiCollCount ? "," : "");
  fputs("          },\n", out);
  jsonMore(f, out);
  fputs("        }", out);
}

static void jsonMissing(const tuttiRankView *v, FILE *out) {
  bool dead = v->answer.answered == TUTTI_ANSWER_REFUSED || v->process == 'X' || v->process == 'Z';
  jsonWho(v, out);
  fprintf(out,
          "          \"status\": {\n            \"unresponsive\": %s,\n            "
          "\"considered_dead\": %s\n          }\n        }",
          dead ? "false" : "true", dead ? "true" : "false");
}

static void jsonRanks(const tuttiCommSnapshot *c, bool told, FILE *out) {
  bool first = true;
  for (int r = 0; r < c->nranks; r++) {
    if ((c->ranks[r].told != 0) != told) continue;
    if (!first) fputs(",\n", out);
    first = false;
    if (told)
      jsonRank(&c->ranks[r], out);
    else
      jsonMissing(&c->ranks[r], out);
  }
  if (!first) fputc('\n', out);
}

static void jsonVerdicts(const tuttiCommSnapshot *c, FILE *out) {
  tuttiFinding findings[TUTTI_FINDINGS + TUTTI_SLOW];
  int n = tuttiFindings(c, findings);
  n += tuttiSlowness(c, findings + n);
  fputs("      \"verdicts\": [", out);
  for (int i = 0; i < n; i++) {
    fprintf(out, "%s\n        {\"kind\": \"%s\", \"text\": ", i > 0 ? "," : "",
            tuttiVerdictWords[findings[i].kind]);
    tuttiJsonString(out, findings[i].text);
    fputc('}', out);
  }
  fputs("\n      ],\n", out);
}

static void jsonComm(const tuttiCommSnapshot *c, FILE *out) {
  int told = countTold(c);
  uint64_t hosts = 0, pids = 0;
  for (int r = 0; r < c->nranks; r++) {
    hosts = hosts * 31 + (c->ranks[r].told ? c->ranks[r].facts.hostId : 0);
    pids = pids * 31 + (uint64_t)c->ranks[r].who.pid;
  }
  fputs("    {\n", out);
  fputs("      \"name\": ", out);
  tuttiJsonString(out, c->name);
  fprintf(out,
          ",\n      \"hash\": \"0x%" PRIx64 "\",\n      \"secondary_hash\": \"0x%" PRIx64
          ":0x%" PRIx64 "\",\n      \"size\": %d,\n      \"ranks_count\": %d,\n"
          "      \"missing_ranks_count\": %d,\n",
          c->hash, hosts, pids, c->nranks, told, c->nranks - told);
  jsonVerdicts(c, out);
  fputs("      \"ranks\": [\n", out);
  jsonRanks(c, true, out);
  fputs("      ],\n      \"missing_ranks\": [\n", out);
  jsonRanks(c, false, out);
  fputs("      ]\n    }", out);
}

void tuttiReportJson(const tuttiSnapshot *s, FILE *out) {
  char when[64];
  int silent = 0;
  timestamp(s->realtime, when, sizeof when);
  fputs("{\n  \"nccl_version\": ", out);
  tuttiJsonString(out, tuttiSettingString(TUTTI_SETTING_NCCL_VERSION));
  fprintf(
      out,
      ",\n  \"tutti_version\": \"%d.%d.%d\",\n"
      "  \"cuda_runtime_version\": 0,\n  \"cuda_driver_version\": 0,\n  \"timestamp\": \"%s\",\n"
      "  \"communicators_count\": %d,\n  \"communicators\": [\n",
      TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH, when, s->ncomms);
  for (int i = 0; i < s->ncomms; i++) {
    jsonComm(&s->comms[i], out);
    fputs(i + 1 < s->ncomms ? ",\n" : "\n", out);
    silent += s->comms[i].nranks - countTold(&s->comms[i]);
  }
  fprintf(out,
          "  ],\n  \"ras\": {\n    \"collection_time_sec\": %.3f,\n    \"timeouts_count\": %d\n  "
          "}\n}\n",
          s->seconds, silent);
}

/* ---- Prometheus ----------------------------------------------------------------------------- */

static void label(const char *value, FILE *out) {
  for (; *value; value++) {
    if (*value == '"' || *value == '\\') fputc('\\', out);
    if (*value != '\n') fputc(*value, out);
  }
}

static void metric(const tuttiCommSnapshot *c, const tuttiFacts *f, const char *name,
                   const char *collective, uint64_t value, FILE *out) {
  fprintf(out, "tutti_%s{communicator=\"", name);
  label(c->name, out);
  fprintf(out, "\",hash=\"%016" PRIx64 "\",rank=\"%d\",host=\"", c->hash, f->rank);
  label(f->host, out);
  if (collective) fprintf(out, "\",collective=\"%s", collective);
  fprintf(out, "\"} %" PRIu64 "\n", value);
}

typedef struct {
  const char *name, *type, *help;
  /* One rank's lines. */
  void (*write)(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out);
} family;

static void writeOperations(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  for (int i = 0; i < tuttiCollCount; i++)
    if (f->counts[i]) metric(c, f, "operations_total", tuttiCollName(i), f->counts[i], out);
}
static void writeBytes(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  for (int i = 0; i < tuttiCollCount; i++)
    if (f->counts[i]) metric(c, f, "bytes_total", tuttiCollName(i), f->bytes[i], out);
}
static void writeStalls(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  metric(c, f, "stalls_total", NULL, f->counters[tuttiCounterStalls], out);
}
static void writeMended(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  metric(c, f, "mended_connections_total", NULL, f->counters[tuttiCounterMended], out);
}
static void writeMemory(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  metric(c, f, "memory_bytes", NULL, f->counters[tuttiCounterMemory], out);
}
static void writeWaiting(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  metric(c, f, "waiting_milliseconds", NULL, f->inMs, out);
}
static void writeFailed(const tuttiCommSnapshot *c, const tuttiFacts *f, FILE *out) {
  metric(c, f, "failed", NULL, f->failed != 0, out);
}

static const family families[] = {
    {"operations_total", "counter", "Operations that the rank has called.", writeOperations},
    {"bytes_total", "counter", "Bytes that these calls were about, count times element size.",
     writeBytes},
    {"stalls_total", "counter", "Tenths of a second in which an operation did not move.",
     writeStalls},
    {"mended_connections_total", "counter",
     "Network connections that were made anew, on other ports if need be.", writeMended},
    {"memory_bytes", "gauge", "Bytes of memory that the communicator holds.", writeMemory},
    {"waiting_milliseconds", "gauge", "Time in the operation that has not ended.", writeWaiting},
    {"failed", "gauge", "1: the communicator has failed.", writeFailed},
};

void tuttiReportPrometheus(const tuttiSnapshot *s, FILE *out) {
  for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
    const family *m = &families[i];
    fprintf(out, "# HELP tutti_%s %s\n# TYPE tutti_%s %s\n", m->name, m->help, m->name, m->type);
    for (int k = 0; k < s->ncomms; k++)
      for (int r = 0; r < s->comms[k].nranks; r++)
        if (s->comms[k].ranks[r].told) m->write(&s->comms[k], &s->comms[k].ranks[r].facts, out);
  }
  fputs("# HELP tutti_ranks Ranks of the communicator, by whether they have answered.\n"
        "# TYPE tutti_ranks gauge\n",
        out);
  for (int k = 0; k < s->ncomms; k++) {
    const tuttiCommSnapshot *c = &s->comms[k];
    for (int told = 0; told < 2; told++) {
      fputs("tutti_ranks{communicator=\"", out);
      label(c->name, out);
      fprintf(out, "\",hash=\"%016" PRIx64 "\",answered=\"%s\"} %d\n", c->hash, told ? "yes" : "no",
              told ? countTold(c) : c->nranks - countTold(c));
    }
  }
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* In front of all, and of each communicator. */
typedef struct {
  char mark[8]; /* FACTS_MARK */
  uint32_t version, viewBytes;
  uint64_t realtime;
  double seconds;
  int32_t ncomms, unused;
} factsHead;
#define FACTS_MARK "tuttifx1"

typedef struct {
  uint64_t hash, key;
  int32_t nranks, asker;
  char name[64];
} commHead;

void tuttiReportFacts(const tuttiSnapshot *s, FILE *out) {
  factsHead head = {.version = TUTTI_VERSION_CODE,
                    .viewBytes = sizeof(tuttiRankView),
                    .realtime = s->realtime,
                    .seconds = s->seconds,
                    .ncomms = s->ncomms};
  memcpy(head.mark, FACTS_MARK, sizeof head.mark);
  fwrite(&head, sizeof head, 1, out);
  for (int i = 0; i < s->ncomms; i++) {
    const tuttiCommSnapshot *c = &s->comms[i];
    commHead comm = {.hash = c->hash, .key = c->key, .nranks = c->nranks, .asker = c->asker};
    memcpy(comm.name, c->name, sizeof comm.name);
    fwrite(&comm, sizeof comm, 1, out);
    fwrite(c->ranks, sizeof(tuttiRankView), (size_t)c->nranks, out);
  }
}

static tuttiCommSnapshot *findComm(tuttiSnapshot *s, const commHead *head) {
  for (int i = 0; i < s->ncomms; i++) {
    tuttiCommSnapshot *c = &s->comms[i];
    bool same = c->hash == head->hash && c->nranks == head->nranks;
    if (same && (c->hash != 0 || c->key == head->key)) return c;
  }
  return NULL;
}

/* A rank of what has come, if it holds together. */
static void takeView(tuttiCommSnapshot *c, int rank, const uint8_t *bytes, tuttiRankView *v) {
  tuttiRankView *parsed = v + 1;
  memcpy(v, bytes, sizeof *v);
  *parsed = (tuttiRankView){.process = v->process < 128 ? v->process : 0};
  tuttiRankState state;
  v->who.host[sizeof v->who.host - 1] = 0;
  for (char *h = v->who.host; *h; h++)
    if ((unsigned char)*h <= ' ' || *h == 0x7f) *h = '?';
  parsed->who = v->who;
  parsed->who.rank = rank;
  bool known = v->answer.answered > TUTTI_ANSWER_NONE &&
               v->answer.answered <= TUTTI_ANSWER_REFUSED &&
               v->answer.bytes <= sizeof v->answer.state;
  bool stateless = v->answer.bytes == 0 || v->told;
  if (known && (stateless || tuttiRankStateParse(v->answer.state, v->answer.bytes, &state)))
    parsed->answer = v->answer;
  if (v->told && tuttiFactsParse(&v->facts, sizeof v->facts, &parsed->facts))
    parsed->told = parsed->facts.rank == rank && parsed->facts.nranks == c->nranks;
  tuttiRankViewMerge(&c->ranks[rank], parsed);
}

/* The communicator at *at, and its ranks; false: these bytes end before it does. */
static bool takeComm(const uint8_t **at, const uint8_t *end, tuttiRankView *room,
                     tuttiSnapshot *s) {
  commHead comm;
  if ((size_t)(end - *at) < sizeof comm) return false;
  memcpy(&comm, *at, sizeof comm);
  *at += sizeof comm;
  if (comm.nranks <= 0 || (size_t)(end - *at) / sizeof(tuttiRankView) < (size_t)comm.nranks)
    return false;
  tuttiCommSnapshot *c = findComm(s, &comm);
  if (!c && tuttiSnapshotAdd(s, comm.hash, comm.key, comm.nranks, &c) != tuttiSuccess) return false;
  snprintf(c->name, sizeof c->name, "%.63s", comm.name);
  for (char *n = c->name; *n; n++)
    if ((unsigned char)*n < ' ' || *n == 0x7f) *n = '?';
  for (int r = 0; r < comm.nranks; r++, *at += sizeof(tuttiRankView))
    takeView(c, r, *at, room);
  return true;
}

bool tuttiReportFactsTake(const void *bytes, size_t size, tuttiSnapshot *s) {
  const uint8_t *at = bytes, *end = at + size;
  factsHead head;
  TUTTI_FREED tuttiRankView *room = NULL; /* what has come, and what holds of it */
  if (size < sizeof head) return false;
  memcpy(&head, at, sizeof head);
  at += sizeof head;
  bool ours = memcmp(head.mark, FACTS_MARK, sizeof head.mark) == 0 &&
              head.version == TUTTI_VERSION_CODE && head.viewBytes == sizeof(tuttiRankView);
  if (!ours || tuttiAlloc((void **)&room, 2, sizeof *room, "a rank's facts", NULL) != tuttiSuccess)
    return false;
  for (int i = 0; i < head.ncomms; i++)
    if (!takeComm(&at, end, room, s)) return false;
  if (head.realtime > s->realtime) s->realtime = head.realtime;
  return at == end;
}
