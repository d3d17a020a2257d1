/* What one rank runs: init, every row, destroy. */
#include <stdlib.h>
#include <unistd.h>

#include "base/os.h"
#include "collectives/signature.h"
#include "perf.h"
#include "tool.h"

#define ROW_SECONDS 0.05
#define LARGE_ROW   ((size_t)1 << 20)
#define GRAPH_CALLS 20

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
  perfDevice device;
  perfBuffers buffers; /* where the library works */
  void *handles[2];    /* of registered buffers */
  perfBuffers host;    /* what is written to them and read from them; the same on host memory */
  void *exchange;      /* (1 + nranks) reports, or as many identities */
  void *exchanged;     /* the same on the host */
  perfOutput output;
  bool outputOpen;
  perfRow *rows; /* [nrows] */
  size_t nrows, begun;
} session;

static double now(void) {
  return (double)tuttiNow() * 1e-9;
}

/* ---- errors --------------------------------------------------------------------------------- */

/* Says on stderr what the library said of a failure. */
static bool succeeded(const session *s, tuttiResult_t result) {
  if (result == tuttiSuccess) return true;
  const char *text = s->library->GetLastError(s->comm);
  return PERF_FAIL("rank %d (pid %d): %s: %s\n", s->place->rank, (int)getpid(),
                   s->library->GetErrorString(result), text[0] != '\0' ? text : "(no details)");
}

/* ---- talking among ranks -------------------------------------------------------------------- */

/* Gathers `size` bytes of each rank into s->exchanged. */
static bool gather(const session *s, const void *mine, size_t size) {
  char *send = s->exchange, *recv = send + size;
  size_t bytes = size * (size_t)s->place->nranks;
  if (!perfDeviceCopy(&s->device, send, mine, size) ||
      !succeeded(s, s->library->AllGather(send, recv, size, tuttiUint8, s->comm, s->device.stream)))
    return false;
  return perfDeviceCopy(&s->device, s->exchanged, recv, bytes);
}

/* The slowest rank's time, everybody's wrong elements, whether anybody stops. Also a barrier. */
static bool agree(const session *s, report mine, report *together) {
  if (!gather(s, &mine, sizeof mine)) return false;
  *together = (report){0};
  for (const report *one = s->exchanged, *end = one + s->place->nranks; one < end; one++) {
    if (one->seconds > together->seconds) together->seconds = one->seconds;
    together->wrong += one->wrong;
    together->stop |= one->stop;
  }
  return true;
}

/* ---- one row -------------------------------------------------------------------------------- */

static bool enqueue(const session *s, const perfCall *call, int n) {
  for (int i = 0; i < n; i++)
    if (!succeeded(s, call->row->collective->run(s->library, call))) return false;
  return true;
}

/* To its end on this rank. */
static bool repeat(const session *s, const perfCall *call, int n) {
  return enqueue(s, call, n) && perfDeviceSync(&s->device);
}

/* Replays instead of calls; *n becomes a multiple of the graph's calls. */
static bool replay(session *s, const perfCall *call, int *n, double *seconds) {
  int launches = (*n + GRAPH_CALLS - 1) / GRAPH_CALLS;
  if (!perfGraphBegin(&s->device)) return false;
  bool captured = enqueue(s, call, GRAPH_CALLS);
  if (!perfGraphEnd(&s->device) || !captured) return false;
  if (!perfGraphRun(&s->device) || !perfDeviceSync(&s->device)) return false;
  double begin = now();
  for (int i = 0; i < launches; i++)
    if (!perfGraphRun(&s->device)) return false;
  if (!perfDeviceSync(&s->device)) return false;
  *n = launches * GRAPH_CALLS;
  *seconds = now() - begin;
  perfGraphFree(&s->device);
  return true;
}

/* Calls before the timing; *fastest is the time of the fastest of them, 0 if there is none. */
static bool warmUp(const session *s, const perfCall *call, double *fastest) {
  int n = s->options->warmup;
  if (n < 0) n = perfRowBytes(call->row) >= LARGE_ROW ? 2 : 5;
  *fastest = 0;
  for (int i = 0; i < n; i++) {
    double begin = now();
    if (!repeat(s, call, 1)) return false;
    double took = now() - begin;
    if (i == 0 || took < *fastest) *fastest = took;
  }
  return true;
}

/* A GPU's driver takes about a thousand launches ahead; then it keeps the caller, and with it every
 * other thread that wants something of that GPU, such as an HCA in software which those launches
 * wait for. A call may be several launches. */
static int iterations(const perfOptions *o, bool cuda, double seconds) {
  int most = cuda ? 250 : 1000;
  if (o->iters > 0) return o->iters;
  if (seconds <= 0) return 20;
  double n = ROW_SECONDS / seconds;
  return n < 4 ? 4 : n > most ? most : (int)n;
}

static bool timeRow(session *s, const perfCall *call, report *last, int *iters) {
  report mine = {.stop = s->outputOpen && s->output.failed};
  if (!warmUp(s, call, &mine.seconds) || !agree(s, mine, last)) return false;
  if (last->stop) return false;
  *iters = iterations(s->options, s->device.cuda, last->seconds);
  double begin = now(), took;
  if (s->options->graph) {
    if (!replay(s, call, iters, &took)) return false;
  } else {
    if (!repeat(s, call, *iters)) return false;
    took = now() - begin;
  }
  *last = (report){.seconds = took / *iters};
  return true;
}

/* Moves what a row uses, guard zones included, between the host and the GPU. */
static bool transfer(const session *s, const perfRow *row, bool toDevice) {
  if (!s->device.cuda) return true;
  size_t bytes = perfRowBytes(row) + 2 * (size_t)PERF_GUARD;
  unsigned char *pairs[][2] = {{s->buffers.recv, s->host.recv}, {s->buffers.send, s->host.send}};
  for (int i = 0; i < (row->inPlace ? 1 : 2); i++) {
    if (!perfDeviceCopy(&s->device, pairs[i][!toDevice], pairs[i][toDevice], bytes)) return false;
  }
  return true;
}

static bool fill(const session *s, const perfRow *row, const perfPattern *pattern) {
  report filled = {0}, together;
  perfPrepare(row, pattern, &s->host);
  if (!transfer(s, row, true)) return false;
  /* What others put must not come before this rank's buffers are filled. */
  return !row->collective->puts || agree(s, filled, &together);
}

/* One more call, on fresh inputs and poisoned outputs; adds to *wrong. */
static bool checkCall(const session *s, const perfCall *call, const perfPattern *pattern,
                      uint64_t *wrong) {
  const perfRow *row = call->row;
  char fault[PERF_FAULT_TEXT];
  if (!fill(s, row, pattern) || !repeat(s, call, 1) || !transfer(s, row, false)) return false;
  uint64_t found = perfVerify(row, pattern, &s->host, fault);
  if (found > 0)
    fprintf(stderr, PERF_COMMAND ": rank %d: %s of %zu %s elements, %s: %s\n", row->rank,
            row->collective->name, row->count, tuttiTypeNames[row->type],
            row->collective->reduces ? tuttiRedOpNames[row->op] : "copied", fault);
  *wrong += found;
  return true;
}

/* No two calls have the same inputs: what an earlier one left behind is wrong. */
static bool checkRow(const session *s, const perfCall *call, perfPattern *pattern,
                     uint64_t *wrong) {
  uint64_t seed = ~pattern->seed;
  *wrong = 0;
  for (int i = 0; i < s->options->checks; i++) {
    pattern->seed = seed - ((uint64_t)i << 32);
    if (!checkCall(s, call, pattern, wrong)) return false;
  }
  return true;
}

static void show(const session *s, const perfRow *row, const char *phase) {
  if (s->outputOpen) perfOutputProgress(&s->output, row, phase);
}

static bool runRow(session *s, const perfRow *row) {
  perfPattern pattern;
  perfCall call = {.row = row,
                   .send = perfSendPointer(row, &s->buffers),
                   .recv = perfRecvPointer(row, &s->buffers),
                   .windowBase = s->buffers.recv,
                   .comm = s->comm,
                   .stream = s->device.stream};
  if (row->collective->puts) call.window = s->handles[0];
  perfResult result = {.row = row};
  report mine, together;
  if (row->collective->puts && (s->library->putSignal == NULL || s->library->waitSignal == NULL))
    return PERF_FAIL("this library has no puts\n");
  perfPatternInit(&pattern, row->type, row->op, row->collective->reduces, row->nranks, s->begun++);
  if (s->options->check) show(s, row, "making inputs");
  if (s->options->check && !fill(s, row, &pattern)) return false;
  show(s, row, "timing");
  if (!timeRow(s, &call, &mine, &result.iters)) return false;
  if (s->options->check) show(s, row, "checking");
  if (s->options->check && !checkRow(s, &call, &pattern, &mine.wrong)) return false;
  if (!agree(s, mine, &together)) return false;
  result.seconds = together.seconds;
  result.wrong = together.wrong;
  if (s->outputOpen) perfOutputRow(&s->output, &result);
  return true;
}

/* ---- all rows ------------------------------------------------------------------------------- */

/* Sizes from --begin to --end. Tiny ones may round to the same number of elements. */
static void listSizes(session *s, perfRow row) {
  const perfOptions *o = s->options;
  size_t before = 0;
  for (size_t bytes = o->begin; bytes <= o->end; bytes *= (size_t)o->factor) {
    row.count = perfRowCount(&row, bytes);
    if (row.count != before) s->rows[s->nrows++] = row;
    before = row.count;
    if (bytes > o->end / (size_t)o->factor) break;
  }
}

static bool selected(const perfOptions *o, const perfRow *row) {
  const perfCollective *c = row->collective;
  bool anyOp = o->op < 0 && c->reduces;
  return (o->collectives >> (c - perfCollectives) & 1) &&
         (o->type < 0 || o->type == (int)row->type) &&
         (anyOp || (int)row->op == (o->op < 0 ? 0 : o->op));
}

static bool listRows(session *s) {
  const perfOptions *o = s->options;
  size_t most = (size_t)perfCollectiveCount * tuttiNumTypes * tuttiNumOps * 64; /* bits of a size */
  s->rows = calloc(most, sizeof *s->rows);
  if (s->rows == NULL) return false;
  for (int c = 0; c < perfCollectiveCount; c++)
    for (int t = 0; t < tuttiNumTypes; t++)
      for (int op = 0; op < tuttiNumOps; op++) {
        perfRow row = {.collective = &perfCollectives[c],
                       .type = (tuttiDataType_t)t,
                       .op = (tuttiRedOp_t)op,
                       .root = o->root,
                       .rank = s->place->rank,
                       .nranks = s->place->nranks,
                       .inPlace = o->inPlace};
        if (selected(o, &row)) listSizes(s, row);
      }
  return true;
}

static bool runAll(session *s) {
  for (const perfRow *row = s->rows; row < s->rows + s->nrows; row++) {
    bool begins = row == s->rows || row->collective != row[-1].collective;
    if (s->outputOpen && begins) perfOutputCollective(&s->output, row->collective);
    if (!runRow(s, row)) return false;
  }
  return true;
}

/* ---- setting up ----------------------------------------------------------------------------- */

/* Makes `memory` known to the library as --buffers says. */
static bool announce(session *s, void *memory, size_t bytes) {
  void **handle = &s->handles[s->handles[0] != NULL];
  if (s->options->kind == perfRegistered)
    return succeeded(s, s->library->CommRegister(s->comm, memory, bytes, handle));
  if (s->library->windowRegister == NULL) return PERF_FAIL("this library has no windows\n");
  return succeeded(s, s->library->windowRegister(s->comm, memory, bytes, (tuttiWindow_t *)handle,
                                                 TUTTI_WIN_COLL_SYMMETRIC));
}

static bool makeBuffer(session *s, size_t bytes, unsigned char **buffer, unsigned char **host) {
  void *memory = NULL;
  if (s->options->kind == perfPlain)
    memory = perfDeviceAlloc(&s->device, bytes);
  else if (!succeeded(s, s->library->MemAlloc(&memory, bytes)))
    return false;
  if (memory == NULL) return false;
  *buffer = *host = memory;
  if (s->device.cuda) *host = s->options->check ? malloc(bytes) : NULL;
  if (s->device.cuda && s->options->check && *host == NULL)
    return PERF_FAIL("no %zu bytes of host memory to check with\n", bytes);
  return s->options->kind == perfPlain || announce(s, memory, bytes);
}

static bool makeBuffers(session *s) {
  size_t most = s->options->end, least = (size_t)s->place->nranks * 8; /* one element per rank */
  most = (most > least ? most : least) + 2 * (size_t)PERF_GUARD;
  if (!makeBuffer(s, most, &s->buffers.recv, &s->host.recv)) return false;
  return s->options->inPlace || makeBuffer(s, most, &s->buffers.send, &s->host.send);
}

static bool join(session *s) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  tuttiUniqueId id = s->place->id;
  if (s->options->device != tuttiDeviceAuto) config.device = s->options->device;
  if (!perfDeviceOpen(&s->device, s->options->device, s->place->localRank)) return false;
  if (s->options->graph && !s->device.cuda)
    return PERF_FAIL("rank %d: --graph needs a GPU, and this is host memory\n", s->place->rank);
  if (s->place->placed && !succeeded(s, s->library->GetUniqueId(&id))) return false;
  tuttiComm_t comm = NULL; /* may be set on a failure, too */
  if (!succeeded(s, s->library->CommInitRankConfig(&comm, s->place->nranks, id, s->place->rank,
                                                   s->library->foreign ? NULL : &config)))
    return false;
  s->comm = comm;
  return true;
}

static bool introduce(session *s) {
  perfIdentity self = {.pid = (int32_t)getpid()};
  int version, device;
  if (!succeeded(s, s->library->CommCuDevice(s->comm, &device)) ||
      !succeeded(s, s->library->GetVersion(&version)))
    return false;
  self.device = device;
  if (gethostname(self.host, sizeof self.host) != 0) self.host[0] = '\0';
  self.host[sizeof self.host - 1] = '\0';
  if (!gather(s, &self, sizeof self)) return false;
  if (s->place->rank == 0) perfOutputHeader(&s->output, version, s->exchanged);
  return true;
}

/* Opens what each rank needs; all ranks go on or none. */
static bool prepare(session *s) {
  report mine = {0}, together;
  size_t n = (size_t)s->place->nranks;
  s->exchange = perfDeviceAlloc(&s->device, (n + 1) * sizeof(perfIdentity));
  s->exchanged = malloc(n * sizeof(perfIdentity));
  if (s->exchange == NULL || s->exchanged == NULL || !listRows(s)) return false;
  if (s->place->rank == 0) {
    s->outputOpen = perfOutputOpen(&s->output, s->options, s->place, s->nrows);
    mine.stop = !s->outputOpen;
  }
  if (!makeBuffers(s)) mine.stop = 1;
  return agree(s, mine, &together) && !together.stop && introduce(s);
}

static bool tearDown(session *s, bool good) {
  bool ended = good;
  for (int i = 0; i < 2 && good; i++) {
    if (s->handles[i] == NULL) continue;
    if (s->options->kind == perfRegistered)
      s->library->CommDeregister(s->comm, s->handles[i]);
    else
      s->library->windowDeregister(s->comm, s->handles[i]);
  }
  if (s->comm != NULL && good) ended = succeeded(s, s->library->CommDestroy(s->comm));
  if (s->comm != NULL && !good) s->library->CommAbort(s->comm);
  unsigned char *buffers[] = {s->buffers.send, s->buffers.recv};
  for (int i = 0; i < 2; i++) {
    if (s->options->kind == perfPlain)
      perfDeviceFree(&s->device, buffers[i]);
    else
      s->library->MemFree(buffers[i]);
  }
  if (s->device.cuda) {
    free(s->host.send);
    free(s->host.recv);
  }
  perfDeviceFree(&s->device, s->exchange);
  free(s->exchanged);
  free(s->rows);
  perfDeviceClose(&s->device);
  return ended;
}

int perfRunRank(const perfLibrary *library, const perfOptions *options, const perfPlace *place) {
  session s = {.library = library, .options = options, .place = place};
  bool good = join(&s) && prepare(&s) && runAll(&s);
  good = tearDown(&s, good);
  if (s.outputOpen) return perfOutputClose(&s.output, good);
  return good ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}
