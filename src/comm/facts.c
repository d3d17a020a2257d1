#include "comm/facts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "base/ticks.h"
#include "comm/failure.h"
#include "comm/record.h"
#include "ras/report.h"
#include "ras/verdict.h"
#include "transport/net.h"

/* An executor tells what it waits for ten times a second: what is older is over. */
#define WAITS_MS  1000
#define REPORT_MS 1500

/* ---- this rank ------------------------------------------------------------------------------ */

static tuttiPhase phaseOf(const tuttiCommunicator *c) {
  if (tuttiLoadAcquire32(&c->ending)) return tuttiPhaseEnding;
  switch (tuttiLoadAcquire32(&c->state)) {
  case tuttiCommUsable:
    return tuttiPhaseUsable;
  case tuttiCommFinalizing:
    return tuttiPhaseFinalizing;
  case tuttiCommSuspended:
    return tuttiPhaseSuspended;
  default:
    return tuttiLoadAcquire32(&c->told.met) ? tuttiPhaseConnecting : tuttiPhaseJoining;
  }
}

/* Notes how long the record has stood where it stands; called twice a second at least. */
static void lookAtRecord(tuttiCommunicator *c) {
  TUTTI_LOCKED(&c->told.lock);
  uint64_t started = tuttiLoadAcquire(&c->record.started);
  int phase = (int)phaseOf(c);
  if (started != c->told.started || c->told.startedSince == 0) c->told.startedSince = tuttiNow();
  if (phase != c->told.phase || c->told.phaseSince == 0) c->told.phaseSince = tuttiNow();
  c->told.started = started;
  c->told.phase = phase;
}

/* What is wrong with this rank's network, which is there as long as the paths are known. */
static void fillTrouble(tuttiCommunicator *c, tuttiRankState *state) {
  tuttiNetTrouble trouble;
  TUTTI_LOCKED(&c->told.lock);
  if (tuttiLoadAcquire32(&c->told.met) != TUTTI_PATHS_KNOWN) return;
  tuttiNetTroubleOf(&c->view, &trouble);
  state->portsDown = trouble.down;
  state->broken = trouble.broken;
  memcpy(state->port, trouble.port, sizeof state->port);
}

void tuttiCommFillState(tuttiCommunicator *c, tuttiRankState *out) {
  tuttiRecordState(&c->record, out);
  out->offer = tuttiLoadAcquire(&c->offer);
  fillTrouble(c, out);
}

size_t tuttiCommTellState(void *comm, void *out) {
  tuttiCommunicator *c = comm;
  tuttiRankState state;
  (void)tuttiCommFailureSeen(c); /* a suspicion may have come true though this rank calls nothing */
  lookAtRecord(c);
  tuttiCommFillState(c, &state);
  memcpy(out, &state, sizeof state);
  return sizeof state;
}

static const char *viaOf(const tuttiCommunicator *c, int peer) {
  if (peer < 0) peer = (c->rank + 1) % c->nranks;
  return c->wireup.paths[peer].via ?: "?";
}

static tuttiWaitFacts *addWait(const tuttiCommunicator *c, tuttiFacts *f, int peer, int channel) {
  if (f->nwaits == TUTTI_FACTS_WAITS) return NULL;
  tuttiWaitFacts *w = &f->waits[f->nwaits++];
  *w = (tuttiWaitFacts){.peer = peer, .channel = (int16_t)channel};
  snprintf(w->via, sizeof w->via, "%s", viaOf(c, peer));
  return w;
}

/* What it is in. The host's executor is in the newest operation of the record; kernels run behind
 * their launch, which is the record's end of an operation, and tell what they wait in. */
static void fillInside(const tuttiCommunicator *c, tuttiFacts *f, bool kernelWaits) {
  f->inside = kernelWaits || (f->started > f->ended && f->nops > 0);
  if (f->inside) f->in = kernelWaits ? c->told.in : f->ops[0].sig;
}

/* What the proxy has of an endpoint: into the wait for it, or one of its own if it is busy. */
static void addEndpoint(const tuttiCommunicator *c, tuttiFacts *f, const tuttiProxyFacts *p) {
  tuttiWaitFacts *w = NULL;
  for (uint32_t i = 0; i < f->nwaits && !w; i++) {
    tuttiWaitFacts *at = &f->waits[i];
    if (at->peer == p->peer && at->channel == p->channel && at->sends == p->sends) w = at;
  }
  if (!w && p->busy) w = addWait(c, f, p->peer, p->channel);
  if (!w) return;
  w->sends = p->sends;
  w->written = p->written;
  w->taken = p->taken;
  memcpy(w->text, p->text, sizeof w->text);
}

/* What is measured comes before what is not, then what is slow. */
static bool linkBefore(const tuttiLinkFacts *a, const tuttiLinkFacts *b) {
  if (a->atLeast != b->atLeast) return b->atLeast;
  return a->allRate < b->allRate;
}

/* Keeps the first ones, in their order, one for each peer and direction. */
static void addLink(const tuttiCommunicator *c, tuttiFacts *f, const tuttiProxyFacts *p) {
  tuttiLinkFacts link = {.peer = p->peer,
                         .channel = (int16_t)p->channel,
                         .sends = p->sends,
                         .atLeast = p->atLeast,
                         .rate = p->rate,
                         .allRate = p->allRate};
  if (p->rate == 0) return;
  snprintf(link.via, sizeof link.via, "%s", viaOf(c, p->peer));
  memcpy(link.nic, p->nic, sizeof link.nic);
  uint32_t at = 0, last; /* where it goes, and what gives way to it */
  while (at < f->nlinks && linkBefore(&f->links[at], &link))
    at++;
  for (last = 0; last < f->nlinks; last++)
    if (f->links[last].peer == link.peer && f->links[last].sends == link.sends) break;
  if (last < at || at == TUTTI_FACTS_LINKS) return;
  if (last == f->nlinks && last < TUTTI_FACTS_LINKS) f->nlinks++;
  if (last == TUTTI_FACTS_LINKS) last--;
  memmove(&f->links[at + 1], &f->links[at], (last - at) * sizeof link);
  f->links[at] = link;
}

/* Under told.lock. */
static void fillSignals(const tuttiCommunicator *c, tuttiFacts *f, uint64_t now) {
  f->awaitsSignals = c->told.signalsAt && now - c->told.signalsAt < WAITS_MS * TUTTI_MS;
  if (!f->awaitsSignals) return;
  f->signals = c->told.signals;
  f->signals.sinceMs += (uint32_t)((now - c->told.signalsAt) / TUTTI_MS);
}

static void fillWaits(tuttiCommunicator *c, tuttiFacts *f) {
  tuttiProxyFacts ends[TUTTI_CHANNELS];
  uint64_t now = tuttiNow();
  TUTTI_LOCKED(&c->told.lock); /* the proxies are there as long as the paths are known */
  bool fresh = c->told.waitsAt && now - c->told.waitsAt < WAITS_MS * TUTTI_MS;
  bool kernelWaits = fresh && c->device->kind == tuttiDeviceCuda;
  fillInside(c, f, kernelWaits);
  fillSignals(c, f, now);
  if (kernelWaits || (f->inside && fresh && c->told.waitsOf == f->started)) {
    f->nwaits = c->told.nwaits;
    memcpy(f->waits, c->told.waits, f->nwaits * sizeof *f->waits);
    for (uint32_t i = 0; i < f->nwaits; i++)
      f->waits[i].sinceMs = (uint32_t)((now - c->told.since[i]) / TUTTI_MS);
  }
  if (tuttiLoadAcquire32(&c->told.met) != TUTTI_PATHS_KNOWN) return;
  const tuttiCommView *v = &c->view;
  tuttiProxy *proxies[] = {v->proxy, v->receiver};
  for (int p = 0; p < 2 && v->net; p++) {
    int n = proxies[p] ? tuttiProxyTell(proxies[p], ends, TUTTI_CHANNELS) : 0;
    for (int i = 0; i < n; i++) {
      addEndpoint(c, f, &ends[i]);
      addLink(c, f, &ends[i]);
    }
  }
}

static uint64_t realtime(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Since when it has been in what it is in; 0: in nothing. */
static uint32_t inMs(const tuttiFacts *f, uint64_t since, uint64_t now) {
  if (!f->inside) return 0;
  bool running = f->started > f->ended; /* else a kernel waits, which tells since when itself */
  uint64_t ms = running ? (now - since) / TUTTI_MS : 0;
  uint64_t start = f->nops > 0 ? f->ops[0].start : 0;
  if (running && start != 0 && start < now) ms = (now - start) / TUTTI_MS;
  for (uint32_t i = 0; i < f->nwaits; i++)
    if (f->waits[i].awaited && f->waits[i].sinceMs > ms) ms = f->waits[i].sinceMs;
  return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

static void fillFacts(void *comm, tuttiFacts *out) {
  tuttiCommunicator *c = comm;
  memset(out, 0, sizeof *out);
  lookAtRecord(c);
  uint64_t now = tuttiNow(); /* after all that was noted */
  uint32_t met = tuttiLoadAcquire32(&c->told.met);
  out->version = TUTTI_VERSION_CODE;
  out->rank = c->rank;
  out->nranks = c->nranks;
  out->pid = (int32_t)getpid();
  out->device = met ? c->wireup.peers[c->rank].cudaDevice : -1;
  uint64_t startedSince;
  {
    TUTTI_LOCKED(&c->told.lock);
    startedSince = c->told.startedSince;
    out->phase = c->told.phase;
    out->phaseMs = (uint32_t)((now - c->told.phaseSince) / TUTTI_MS);
  }
  out->hash = met ? c->bootstrap->hash : 0;
  out->key = c->told.key;
  out->now = now;
  out->realtime = realtime();
  out->hostId = met ? c->wireup.peers[c->rank].hostId : 0;
  out->aborted = tuttiLoadAcquire32(&c->ending) != 0;
  out->offer = tuttiLoadAcquire(&c->offer);
  snprintf(out->name, sizeof out->name, "%s", met ? c->options.name : "");
  snprintf(out->host, sizeof out->host, "%s", tuttiHostname());
  {
    TUTTI_LOCKED(&c->failureLock);
    out->failed = (int32_t)tuttiLoadRelaxed32(&c->failed);
    if (out->failed) snprintf(out->failure, sizeof out->failure, "%.630s", c->failure);
  }
  tuttiRecordFacts(&c->record, out);
  out->counters[tuttiCounterStalls] = tuttiLoadRelaxed(&c->told.stalls);
  out->counters[tuttiCounterMended] = tuttiLoadRelaxed(&c->view.mended);
  out->counters[tuttiCounterMemory] = tuttiLoadRelaxed(&c->memory.bytes);
  fillWaits(c, out);
  out->inMs = inMs(out, startedSince, now);
}

size_t tuttiCommTellReport(void *comm, void *out) {
  fillFacts(comm, out); /* aligned as any memory that holds a report is */
  return sizeof(tuttiFacts);
}

static void nameMember(void *comm, int rank, tuttiWho *out) {
  const tuttiPeer *peer = &((const tuttiCommunicator *)comm)->wireup.peers[rank];
  out->rank = rank;
  out->pid = peer->pid;
  snprintf(out->host, sizeof out->host, "%s", peer->host);
}

void tuttiCommAppear(tuttiCommunicator *c, const tuttiUniqueId *ids) {
  c->told.key = tuttiHash(ids, sizeof *ids);
  tuttiTicksStart();
  c->record.traces = tuttiSettingInt(TUTTI_SETTING_TRACE) != 0;
  c->told.source = (tuttiRasSource){
      .ctx = c, .rank = c->rank, .nranks = c->nranks, .facts = fillFacts, .member = nameMember};
  tuttiRasEnter(&c->told.source);
}

void tuttiCommMet(tuttiCommunicator *c) {
  tuttiStoreRelease32(&c->told.met, 1);
  tuttiRasMeet(&c->told.source, c->watch);
}

void tuttiCommDisappear(tuttiCommunicator *c) {
  pthread_mutex_lock(&c->told.lock); /* the watch goes on asking for a while */
  if (tuttiLoadAcquire32(&c->told.met)) tuttiStoreRelease32(&c->told.met, 1);
  pthread_mutex_unlock(&c->told.lock);
  tuttiRasLeave(&c->told.source);
}

/* ---- waits ---------------------------------------------------------------------------------- */

/* Of the executor's thread, whose connections these are. */
static void describeWait(const tuttiCommunicator *c, const tuttiConn *conn, tuttiWaitFacts *w) {
  bool sends = conn->direction == TUTTI_SEND;
  bool come = !sends && tuttiLoadAcquire(&tuttiConnDescriptor(conn)->seq) == conn->next + 1;
  *w = (tuttiWaitFacts){.peer = conn->peer,
                        .channel = (int16_t)conn->channel,
                        .sends = sends,
                        .awaited = 1,
                        .written = conn->next + (come ? 1 : 0),
                        .taken = sends ? tuttiConnCredit(conn) : conn->next};
  snprintf(w->via, sizeof w->via, "%s", viaOf(c, conn->peer));
}

void tuttiCommWaits(void *comm, const tuttiAwaited *list, int n) {
  tuttiCommunicator *c = comm;
  TUTTI_LOCKED(&c->told.lock);
  c->told.nwaits = 0;
  c->told.waitsAt = tuttiNow();
  c->told.waitsOf = tuttiLoadRelaxed(&c->record.started);
  for (int i = 0; i < n && i < TUTTI_FACTS_WAITS; i++) {
    describeWait(c, list[i].conn, &c->told.waits[i]);
    c->told.since[i] = list[i].since;
    c->told.nwaits++;
  }
}

void tuttiCommStalls(tuttiCommunicator *c, const tuttiSignature *in, int peer, uint64_t waitedMs) {
  uint64_t now = tuttiNow();
  tuttiStoreRelaxed(&c->told.stalls, tuttiLoadRelaxed(&c->told.stalls) + 1);
  TUTTI_LOCKED(&c->told.lock);
  if (c->told.waitsAt && now - c->told.waitsAt < WAITS_MS * TUTTI_MS / 2) return;
  c->told.waitsAt = now;
  c->told.waitsOf = tuttiLoadAcquire(&c->record.started);
  c->told.in = *in;
  c->told.nwaits = 1;
  c->told.waits[0] = (tuttiWaitFacts){.peer = peer, .channel = -1, .awaited = 1};
  snprintf(c->told.waits[0].via, sizeof c->told.waits[0].via, "%s", viaOf(c, peer));
  c->told.since[0] = waitedMs == TUTTI_DISAGREES ? now : now - waitedMs * TUTTI_MS;
}

void tuttiCommAwaitsSignals(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d, uint64_t come,
                            uint64_t waitedMs) {
  TUTTI_LOCKED(&c->told.lock);
  c->told.signalsAt = tuttiNow();
  c->told.signals = (tuttiSignalFacts){.peer = d->peer,
                                       .index = (uint32_t)d->sigIdx,
                                       .context = (uint32_t)d->ctx,
                                       .wanted = (uint32_t)d->opCnt,
                                       .come = (uint32_t)come,
                                       .sinceMs = (uint32_t)waitedMs};
}

void tuttiCommAwaitsNone(tuttiCommunicator *c) {
  TUTTI_LOCKED(&c->told.lock);
  c->told.signalsAt = 0;
}

/* The connection to be told of: one that is waited for, if it has something to say. */
static const tuttiWaitFacts *chooseWait(const tuttiFacts *f, int peer) {
  const tuttiWaitFacts *chosen = NULL;
  for (uint32_t i = 0; i < f->nwaits; i++) {
    const tuttiWaitFacts *w = &f->waits[i];
    bool tells = w->text[0] && (peer < 0 || w->peer == peer);
    if (tells && (!chosen || (w->awaited && !chosen->awaited))) chosen = w;
  }
  return chosen;
}

const char *tuttiCommPathText(tuttiCommunicator *c, int peer, char *buf, size_t size) {
  char who[160], wait[400];
  TUTTI_FREED tuttiFacts *f = NULL;
  buf[0] = 0;
  if (tuttiAlloc((void **)&f, 1, sizeof *f, "facts of a rank", NULL) != tuttiSuccess) {
    tuttiErrorClear(); /* it would only have said more */
    return buf;
  }
  fillFacts(c, f);
  const tuttiWaitFacts *w = chooseWait(f, peer);
  if (!w) return buf;
  tuttiWaitText(w, wait, sizeof wait);
  snprintf(buf, size, "%s %s", tuttiCommRankText(c, c->rank, who, sizeof who), wait);
  return buf;
}

/* ---- the hang report ------------------------------------------------------------------------ */

/* Line by line, as the log is written; a line of nothing ends no part of it. */
static void logReport(char *text) {
  for (char *line = text, *end; *line; line = end) {
    end = line + strcspn(line, "\n");
    if (*end) *end++ = 0;
    TUTTI_WARN(COLL, "hang report: %s", line);
  }
}

static void writeReport(const char *path, const char *text) {
  TUTTI_CLOSED int fd =
      open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
  if (fd < 0 || write(fd, text, strlen(text)) < 0)
    TUTTI_WARN(COLL, "TUTTI_HANG_REPORT: cannot write %s: %s", path, tuttiErrnoText(errno));
}

static tuttiResult_t gatherReport(tuttiCommunicator *c, char **text) {
  tuttiSnapshot s = {0};
  tuttiInquiry *q = NULL;
  uint64_t from = tuttiNow();
  TUTTI_TRY(tuttiInquiryStart(c->watch, REPORT_MS, &q));
  tuttiInquiryRun(q);
  tuttiResult_t result = tuttiRasCollect(&c->told.source, q, &s);
  tuttiInquiryClose(q);
  s.seconds = tuttiMs(from, tuttiNow()) / 1e3;
  s.realtime = realtime();
  if (result == tuttiSuccess) *text = tuttiReportMake(&s, tuttiReportText);
  tuttiSnapshotFree(&s);
  return result;
}

void tuttiCommTellHang(tuttiCommunicator *c, uint64_t waitedMs) {
  char *text = NULL;
  if (c->told.hangTold || !c->watch) return;
  c->told.hangTold = true;
  if (gatherReport(c, &text) != tuttiSuccess || !text) return;
  const char *path = tuttiSettingString(TUTTI_SETTING_HANG_REPORT);
  if (*path) writeReport(path, text);
  TUTTI_WARN(COLL, "rank %d has waited %.1f s; this is what the ranks are at%s%s", c->rank,
             (double)waitedMs / 1e3, *path ? ", also in " : "", path);
  logReport(text);
  free(text);
}

/* ---- the record ------------------------------------------------------------------------------ */

tuttiResult_t tuttiCommWriteRecord(tuttiCommunicator *c, const char *path) {
  tuttiSnapshot s = {.realtime = realtime()};
  tuttiResult_t result = tuttiRasCollect(&c->told.source, NULL, &s);
  if (result == tuttiSuccess)
    result = tuttiReportSave(&s, path, "the argument path of tuttiCommDump");
  tuttiSnapshotFree(&s);
  return result;
}
