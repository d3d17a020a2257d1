/* One rail between two hosts: its bytes, its latency, its rate, by calls of the library alone. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "netcheck/netcheck.h"

#define TIMED_SECONDS 0.1
#define TIMED_RUNS    3
#define MOST_MESSAGES 4096
#define ROUND_TRIPS   60
#define WARM_TRIPS    10
#define SMALL         8
/* Elements of the messages that are compared, each both ways: around the sizes of slots. */
#define LARGE ((size_t)1 << 18)
static const size_t checked[] = {1, 1025, LARGE - 1, LARGE, LARGE, LARGE, LARGE, LARGE};

bool netRailFail(netRail *rail, const char *what) {
  const char *text = tuttiGetLastError(rail->comm);
  if (rail->report->failure[0] == '\0')
    snprintf(rail->report->failure, sizeof rail->report->failure, "%s: %.460s", what,
             text[0] ? text : "see what was said on stderr");
  if (rail->comm) (void)tuttiCommAbort(rail->comm);
  rail->comm = NULL;
  return false;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static size_t elements(const netRail *rail) {
  return rail->options->bytes / 4;
}

static bool sendData(netRail *rail, const void *data, size_t count) {
  return tuttiSend(data, count, tuttiUint32, !rail->side, rail->comm, rail->device.stream) ==
         tuttiSuccess;
}

static bool receiveData(netRail *rail, void *data, size_t count) {
  return tuttiRecv(data, count, tuttiUint32, !rail->side, rail->comm, rail->device.stream) ==
         tuttiSuccess;
}

static bool both(netRail *rail, size_t count) {
  if (tuttiGroupStart() != tuttiSuccess) return false;
  bool good = sendData(rail, rail->send, count) && receiveData(rail, rail->recv, count);
  return tuttiGroupEnd() == tuttiSuccess && good;
}

/* ---- patterns -------------------------------------------------------------------------------- */

/* Of what `side` sends in a step: no two rails, directions or steps have the same. */
static perfPattern patternOf(const netRail *rail, int step) {
  perfPattern pattern;
  perfPatternInit(&pattern, tuttiUint32, tuttiSum, false, 2,
                  (uint64_t)rail->number << 16 | (uint64_t)step);
  return pattern;
}

static bool fill(netRail *rail, int step, size_t count) {
  perfPattern pattern = patternOf(rail, step);
  unsigned char *out = rail->device.cuda ? rail->stage : rail->send;
  perfPatternFill(&pattern, rail->side, 0, count, out);
  if (rail->device.cuda && !perfDeviceCopy(&rail->device, rail->send, out, count * 4)) return false;
  memset(rail->stage, PERF_POISON, count * 4);
  return !rail->device.cuda || perfDeviceCopy(&rail->device, rail->recv, rail->stage, count * 4);
}

/* False: it could not be looked at. What is wrong goes into the report. */
static bool compare(netRail *rail, int step, size_t count) {
  perfPattern pattern = patternOf(rail, step);
  netRailReport *report = rail->report;
  if (rail->device.cuda && !perfDeviceCopy(&rail->device, rail->stage, rail->recv, count * 4))
    return false;
  perfMismatch found = perfPatternCompare(&pattern, !rail->side, 0, count, rail->stage);
  if (found.wrong > 0 && report->wrong == 0)
    snprintf(report->fault, sizeof report->fault,
             "of a message of %zu bytes, the one at byte %zu is 0x%08" PRIx64
             " and should be 0x%08" PRIx64,
             count * 4, found.first * 4, found.got, found.want);
  report->wrong += found.wrong;
  return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

bool netRailPrepare(netRail *rail) {
  size_t least = LARGE * 4, bytes = rail->options->bytes > least ? rail->options->bytes : least;
  rail->send = perfDeviceAlloc(&rail->device, bytes);
  rail->recv = perfDeviceAlloc(&rail->device, bytes);
  rail->small = perfDeviceAlloc(&rail->device, SMALL);
  rail->stage = rail->device.cuda ? malloc(bytes) : rail->recv;
  bool good = rail->send && rail->recv && rail->small && rail->stage;
  return good || netRailFail(rail, "no memory for its messages");
}

void netRailClose(netRail *rail) {
  if (rail->opened) (void)perfDeviceEnter(&rail->device);
  if (rail->comm) (void)tuttiCommAbort(rail->comm);
  rail->comm = NULL;
  if (rail->device.cuda) free(rail->stage);
  if (rail->send) perfDeviceFree(&rail->device, rail->send);
  if (rail->recv) perfDeviceFree(&rail->device, rail->recv);
  if (rail->small) perfDeviceFree(&rail->device, rail->small);
  rail->send = rail->recv = rail->small = rail->stage = NULL;
  if (rail->opened) perfDeviceClose(&rail->device);
  rail->opened = false;
}

/* ---- what is tried --------------------------------------------------------------------------- */

/* Of a rate both directions have one of their own. */
enum { STEP_RATE = 100, STEP_TOGETHER = STEP_RATE + 2 };

bool netRailCheck(netRail *rail) {
  for (int i = 0; i < (int)(sizeof checked / sizeof *checked); i++)
    if (!fill(rail, i, checked[i]) || !both(rail, checked[i]) || !perfDeviceSync(&rail->device) ||
        !compare(rail, i, checked[i]))
      return netRailFail(rail, "as its bytes were compared");
  return true;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median: a core that was away once says nothing of the network. */
bool netRailLatency(netRail *rail) {
  double trips[ROUND_TRIPS];
  size_t count = SMALL / 4;
  for (int i = -WARM_TRIPS; i < ROUND_TRIPS; i++) {
    uint64_t begin = tuttiNow();
    bool good = rail->side == 0
                    ? sendData(rail, rail->small, count) && receiveData(rail, rail->small, count)
                    : receiveData(rail, rail->small, count) && sendData(rail, rail->small, count);
    if (!good || !perfDeviceSync(&rail->device))
      return netRailFail(rail, "as its latency was measured");
    if (i >= 0) trips[i] = tuttiMs(begin, tuttiNow()) * 1000;
  }
  qsort(trips, ROUND_TRIPS, sizeof *trips, ascending);
  rail->report->latencyUs = trips[ROUND_TRIPS / 2] / 2;
  return true;
}

/* n messages, and a small one back when all have come. *seconds is the sender's. */
static bool stream(netRail *rail, bool sends, int n, double *seconds) {
  uint64_t begin = tuttiNow();
  bool good = true;
  for (int i = 0; i < n && good; i++)
    good = sends ? sendData(rail, rail->send, elements(rail))
                 : receiveData(rail, rail->recv, elements(rail));
  good = good && (sends ? receiveData(rail, rail->small, SMALL / 4)
                        : sendData(rail, rail->small, SMALL / 4));
  good = good && perfDeviceSync(&rail->device);
  *seconds = tuttiMs(begin, tuttiNow()) / 1000;
  return good;
}

static int messagesIn(double secondsEach) {
  double n = secondsEach > 0 ? TIMED_SECONDS / secondsEach : MOST_MESSAGES;
  return n < 1 ? 1 : n > MOST_MESSAGES ? MOST_MESSAGES : (int)n;
}

/* The sender says how many messages there will be. */
static bool agreeOn(netRail *rail, bool sends, int *n) {
  uint64_t told = (uint64_t)*n;
  bool good = sends ? perfDeviceCopy(&rail->device, rail->small, &told, SMALL) &&
                          sendData(rail, rail->small, SMALL / 4) && perfDeviceSync(&rail->device)
                    : receiveData(rail, rail->small, SMALL / 4) && perfDeviceSync(&rail->device) &&
                          perfDeviceCopy(&rail->device, &told, rail->small, SMALL);
  if (told < 1 || told > MOST_MESSAGES) told = 1; /* it came over what is being tried */
  *n = (int)told;
  return good;
}

/* The fastest of some runs: whatever else cores do can only add to their times. */
bool netRailRate(netRail *rail, bool sends) {
  double seconds, best = 0;
  size_t count = elements(rail);
  int sender = sends ? rail->side : !rail->side;
  bool good = fill(rail, STEP_RATE + sender, count);
  good = good && stream(rail, sends, 1, &seconds); /* makes connections, too */
  for (int run = -1, n = 1; run < TIMED_RUNS && good; run++) {
    good = agreeOn(rail, sends, &n) && stream(rail, sends, n, &seconds);
    if (best == 0 || seconds / n < best) best = seconds / n;
    n = messagesIn(best);
  }
  if (!good) return netRailFail(rail, "as its rate was measured");
  if (sends)
    rail->report->alone = (double)count * 4e-9 / best;
  else
    good = compare(rail, STEP_RATE + sender, count);
  return good || netRailFail(rail, "as its bytes were compared");
}

bool netRailFill(netRail *rail) {
  bool good = perfDeviceEnter(&rail->device) && fill(rail, STEP_TOGETHER, elements(rail));
  return good || netRailFail(rail, "as its messages were made");
}

bool netRailTogether(netRail *rail) {
  size_t count = elements(rail);
  bool good = perfDeviceEnter(&rail->device);
  uint64_t begin = tuttiNow();
  for (int i = 0; i < rail->messages && good; i++)
    good = both(rail, count);
  good = good && perfDeviceSync(&rail->device);
  double seconds = tuttiMs(begin, tuttiNow()) / 1000;
  if (!good) return netRailFail(rail, "while all rails were used");
  rail->report->together = (double)rail->messages * (double)count * 4e-9 / seconds;
  return compare(rail, STEP_TOGETHER, count) || netRailFail(rail, "as its bytes were compared");
}
