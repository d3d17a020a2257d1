/* What one rank runs: init, every row, destroy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"
#include "tool.h"

#define ROW_SECONDS 0.05
#define LARGE_ROW   ((size_t)1 << 20)

/* What ranks tell each other before and after a row. */
typedef struct {
  double seconds;
  uint64_t wrong;
  uint64_t stop; /* this rank can go no further and has said why */
} report;

typedef struct {
  const perfLibrary *library;
  const perfOptions *options;
  const perfPlace *place;
  tuttiComm_t comm;
  perfBuffers buffers;
  void *exchange; /* (1 + nranks) reports, or as many identities */
  perfOutput output;
  bool outputOpen;
  uint64_t rows; /* begun; seeds the patterns */
} session;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- errors -----------------------------------------------------------------------------------
 */

/* Says on stderr what the library said. Always false. */
static bool failed(const session *s, tuttiResult_t result) {
  const char *text = s->library->GetLastError(s->comm);
  fprintf(stderr, PERF_COMMAND ": rank %d (pid %d): %s: %s\n", s->place->rank, (int)getpid(),
          s->library->GetErrorString(result), text[0] != '\0' ? text : "(no details)");
  return false;
}

static bool succeeded(const session *s, tuttiResult_t result) {
  return result == tuttiSuccess || failed(s, result);
}

/* ---- talking among ranks ----------------------------------------------------------------------
 */

/* Gathers `size` bytes of each rank; the result lies in s->exchange. */
static bool gather(const session *s, const void *mine, size_t size, const void **all) {
  char *send = s->exchange, *recv = send + size;
  memcpy(send, mine, size);
  if (!succeeded(s, s->library->AllGather(send, recv, size, tuttiUint8, s->comm, NULL)))
    return false;
  *all = recv;
  return true;
}

/* The slowest rank's time, everybody's wrong elements, and whether anybody stops. Also a barrier.
 */
static bool agree(const session *s, report mine, report *together) {
  const void *gathered;
  if (!gather(s, &mine, sizeof mine, &gathered)) return false;
  *together = (report){0};
  for (int r = 0; r < s->place->nranks; r++) {
    report one;
    memcpy(&one, (const char *)gathered + (size_t)r * sizeof one, sizeof one);
    if (one.seconds > together->seconds) together->seconds = one.seconds;
    together->wrong += one.wrong;
    together->stop |= one.stop;
  }
  return true;
}

/* ---- one row ----------------------------------------------------------------------------------
 */

static bool repeat(const session *s, const perfCall *call, const perfRow *row, int n) {
  for (int i = 0; i < n; i++)
    if (!succeeded(s, row->collective->run(s->library, call))) return false;
  return true;
}

/* Calls before the timing; *fastest is the time of the fastest of them, 0 if there is none. */
static bool warmUp(const session *s, const perfCall *call, const perfRow *row, double *fastest) {
  int n = s->options->warmup;
  if (n < 0) n = perfRowBytes(row) >= LARGE_ROW ? 2 : 5;
  *fastest = 0;
  for (int i = 0; i < n; i++) {
    double begin = now();
    if (!repeat(s, call, row, 1)) return false;
    double took = now() - begin;
    if (i == 0 || took < *fastest) *fastest = took;
  }
  return true;
}

static int iterations(const perfOptions *o, double seconds) {
  if (o->iters > 0) return o->iters;
  if (seconds <= 0) return 20;
  double n = ROW_SECONDS / seconds;
  return n < 4 ? 4 : n > 1000 ? 1000 : (int)n;
}

static bool timeRow(session *s, const perfCall *call, const perfRow *row, report *last,
                    int *iters) {
  report mine = {.stop = s->outputOpen && s->output.failed};
  if (!warmUp(s, call, row, &mine.seconds) || !agree(s, mine, last)) return false;
  if (last->stop) return false;
  *iters = iterations(s->options, last->seconds);
  double begin = now();
  if (!repeat(s, call, row, *iters)) return false;
  *last = (report){.seconds = (now() - begin) / *iters};
  return true;
}

/* One more call, on fresh inputs and poisoned outputs. */
static bool checkRow(const session *s, const perfCall *call, const perfRow *row,
                     perfPattern *pattern, uint64_t *wrong) {
  char fault[PERF_FAULT_TEXT];
  pattern->seed = ~pattern->seed;
  perfPrepare(row, pattern, &s->buffers);
  if (!repeat(s, call, row, 1)) return false;
  *wrong = perfVerify(row, pattern, &s->buffers, fault);
  if (*wrong > 0)
    fprintf(stderr, PERF_COMMAND ": rank %d: %s of %zu %s elements, %s: %s\n", row->rank,
            row->collective->name, row->count, perfTypes[row->type].name,
            row->collective->reduces ? perfOpNames[row->op] : "copied", fault);
  return true;
}

static bool runRow(session *s, const perfRow *row) {
  perfPattern pattern;
  perfCall call = {.send = perfSendPointer(row, &s->buffers),
                   .recv = perfRecvPointer(row, &s->buffers),
                   .count = row->count,
                   .type = row->type,
                   .op = row->op,
                   .root = row->root,
                   .rank = row->rank,
                   .nranks = row->nranks,
                   .comm = s->comm};
  perfResult result = {.row = row, .checked = s->options->check};
  report mine, together;
  if (s->outputOpen) perfOutputProgress(&s->output, row);
  perfPatternInit(&pattern, row->type, row->op, row->collective->reduces, row->nranks, s->rows++);
  perfPrepare(row, &pattern, &s->buffers);
  if (!timeRow(s, &call, row, &mine, &result.iters)) return false;
  if (s->options->check && !checkRow(s, &call, row, &pattern, &mine.wrong)) return false;
  if (!agree(s, mine, &together)) return false;
  result.seconds = together.seconds;
  result.wrong = together.wrong;
  if (s->outputOpen) perfOutputRow(&s->output, &result);
  return true;
}

/* ---- all rows ---------------------------------------------------------------------------------
 */

/* Calls visit(s, row) for every size; stops when it returns false. */
static bool forSizes(session *s, perfRow row, bool (*visit)(session *, const perfRow *)) {
  const perfOptions *o = s->options;
  size_t before = 0;
  for (size_t bytes = o->begin; bytes <= o->end; bytes *= (size_t)o->factor) {
    row.count = perfRowCount(row.collective, row.type, row.nranks, bytes);
    if (row.count != before && !visit(s, &row)) return false; /* tiny sizes may round to one */
    before = row.count;
    if (bytes > o->end / (size_t)o->factor) break;
  }
  return true;
}

static bool forTypes(session *s, const perfCollective *collective,
                     bool (*visit)(session *, const perfRow *)) {
  const perfOptions *o = s->options;
  perfRow row = {.collective = collective,
                 .root = o->root,
                 .rank = s->place->rank,
                 .nranks = s->place->nranks,
                 .inPlace = o->inPlace};
  int lastOp = collective->reduces && o->op < 0 ? tuttiNumOps - 1 : 0;
  for (int t = o->type < 0 ? 0 : o->type; t <= (o->type < 0 ? tuttiNumTypes - 1 : o->type); t++) {
    for (int op = 0; op <= lastOp; op++) {
      row.type = (tuttiDataType_t)t;
      row.op = (tuttiRedOp_t)(o->op < 0 ? op : o->op);
      if (!forSizes(s, row, visit)) return false;
    }
  }
  return true;
}

static bool selected(const perfOptions *o, const perfCollective *collective) {
  if (o->collective != NULL) return o->collective == collective;
  return collective->inPlace || !o->inPlace;
}

static bool countRow(session *s, const perfRow *row) {
  (void)row;
  s->output.rows++;
  return true;
}

static bool runAll(session *s) {
  for (int c = 0; c < perfCollectiveCount; c++) {
    if (!selected(s->options, &perfCollectives[c])) continue;
    if (s->outputOpen) perfOutputCollective(&s->output, &perfCollectives[c]);
    if (!forTypes(s, &perfCollectives[c], runRow)) return false;
  }
  return true;
}

static size_t countRows(session *s) {
  s->output.rows = 0;
  for (int c = 0; c < perfCollectiveCount; c++)
    if (selected(s->options, &perfCollectives[c])) forTypes(s, &perfCollectives[c], countRow);
  return s->output.rows;
}

/* ---- setting up -------------------------------------------------------------------------------
 */

static bool makeBuffer(session *s, size_t capacity, perfBuffer *buffer) {
  void *memory;
  if (!succeeded(s, s->library->MemAlloc(&memory, capacity + 2 * (size_t)PERF_GUARD))) return false;
  buffer->base = memory;
  buffer->capacity = capacity;
  return true;
}

static bool makeBuffers(session *s) {
  size_t n = (size_t)s->place->nranks, most = s->options->end;
  size_t least = n * 8; /* one element per rank */
  if (most < least) most = least;
  if (!makeBuffer(s, most, &s->buffers.recv)) return false;
  return s->options->inPlace || makeBuffer(s, most, &s->buffers.send);
}

static bool join(session *s) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  tuttiUniqueId id = s->place->id;
  if (s->options->device != tuttiDeviceAuto) config.device = (int)s->options->device;
  if (!s->place->hasId && !succeeded(s, s->library->GetUniqueId(&id))) return false;
  tuttiResult_t result =
      s->library->CommInitRankConfig(&s->comm, s->place->nranks, id, s->place->rank, &config);
  if (result == tuttiSuccess) return true;
  s->comm = NULL;
  return failed(s, result);
}

static bool introduce(session *s) {
  perfIdentity self = {.pid = (int32_t)getpid()};
  int version, device;
  const void *ranks;
  if (!succeeded(s, s->library->CommCuDevice(s->comm, &device)) ||
      !succeeded(s, s->library->GetVersion(&version)))
    return false;
  self.device = device;
  if (gethostname(self.host, sizeof self.host) != 0) self.host[0] = '\0';
  self.host[sizeof self.host - 1] = '\0';
  if (!gather(s, &self, sizeof self, &ranks)) return false;
  if (s->place->rank == 0) perfOutputHeader(&s->output, version, ranks);
  return true;
}

/* Opens what each rank needs; all ranks go on or none. */
static bool prepare(session *s) {
  report mine = {0}, together;
  size_t n = (size_t)s->place->nranks;
  if (!succeeded(s, s->library->MemAlloc(&s->exchange, (n + 1) * sizeof(perfIdentity))))
    return false;
  if (s->place->rank == 0) {
    size_t rows = countRows(s);
    s->outputOpen = perfOutputOpen(&s->output, s->options, s->place, rows);
    mine.stop = !s->outputOpen;
  }
  if (!makeBuffers(s)) mine.stop = 1;
  return agree(s, mine, &together) && !together.stop && introduce(s);
}

static bool tearDown(session *s, bool good) {
  s->library->MemFree(s->exchange);
  s->library->MemFree(s->buffers.send.base);
  s->library->MemFree(s->buffers.recv.base);
  if (s->comm == NULL) return good;
  if (good) return succeeded(s, s->library->CommDestroy(s->comm));
  s->library->CommAbort(s->comm);
  return false;
}

int perfRunRank(const perfLibrary *library, const perfOptions *options, const perfPlace *place) {
  session s = {.library = library, .options = options, .place = place};
  bool good = join(&s) && prepare(&s) && runAll(&s);
  good = tearDown(&s, good);
  if (s.outputOpen) return perfOutputClose(&s.output, good);
  return good ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}
