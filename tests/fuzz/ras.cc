/* What clients of the RAS port say, what a rank or `tutti status` is told, and the dumps that are
 * read again. */
#include "fuzz/fuzz.h"

#include <cstdlib>

#include "ras/protocol.h"
#include "ras/report.h"
#include "ras/verdict.h"

/* As the server takes it: a buffer that fills up, lines that are taken out of it. */
static void takeLines(const uint8_t *data, size_t size) {
  char in[TUTTI_RAS_LINE], answer[TUTTI_RAS_LINE + 64];
  size_t have = 0, at = 0;
  tuttiRasRequest request = {};
  while (at < size) {
    size_t n = size - at < sizeof in - have ? size - at : sizeof in - have;
    memcpy(in + have, data + at, n);
    have += n;
    at += n;
    int used;
    while ((used = tuttiRasLineFind(in, have)) > 0) {
      CHECK((size_t)used <= have && strlen(in) < (size_t)used);
      tuttiRasLineTake(in, &request, answer);
      size_t length = strlen(answer);
      CHECK(length < sizeof answer && (length == 0 || answer[length - 1] == '\n'));
      CHECK(request.wish >= tuttiRasNothing && request.wish <= tuttiRasEnd);
      CHECK(request.format >= tuttiRasText && request.format <= tuttiRasFacts);
      CHECK(request.timeoutMs >= 0 && request.timeoutMs <= TUTTI_RAS_LONGEST * 1000);
      have -= (size_t)used;
      memmove(in, in + used, have);
    }
    if (used < 0) return;
  }
}

/* A snapshot of two ranks, as facts or as a dump, in which some bytes are others. */
static void takeFacts(const uint8_t *data, size_t size, bool dumped) {
  tuttiSnapshot s = {}, back = {};
  tuttiCommSnapshot *c;
  CHECK(tuttiSnapshotAdd(&s, 42, 1, 2, &c) == tuttiSuccess);
  for (int r = 0; r < 2; r++) {
    tuttiRankView *v = &c->ranks[r];
    v->told = 1;
    v->answer.answered = TUTTI_ANSWER_OWN;
    v->facts.version = TUTTI_VERSION_CODE;
    v->facts.rank = r;
    v->facts.nranks = 2;
    v->facts.hash = 42;
    v->facts.started = 9;
    v->facts.nops = 8;
    v->facts.nwaits = 2;
    v->facts.inMs = 1000;
  }
  size_t bytes;
  char *told = tuttiReportMakeSized(&s, dumped ? tuttiReportDump : tuttiReportFacts, &bytes);
  CHECK(told);
  std::string changed(told, bytes);
  free(told);
  for (size_t i = 0; i + 4 <= size; i += 4) {
    size_t at = (size_t)(data[i] | data[i + 1] << 8 | data[i + 2] << 16) % bytes;
    changed[at] = (char)data[i + 3];
  }
  if (size % 4 == 3) changed.resize(changed.size() * data[size - 1] / 256);
  bool taken = dumped ? tuttiReportDumpTake(changed.data(), changed.size(), &back)
                      : tuttiReportFactsTake(changed.data(), changed.size(), &back);
  CHECK(taken || size > 0);
  for (auto write : {tuttiReportText, tuttiReportJson, tuttiReportPrometheus, tuttiReportTrace})
    free(tuttiReportMake(&back, write));
  tuttiSnapshotFree(&back);
  tuttiSnapshotFree(&s);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  std::string exact((const char *)data + 1, size - 1);
  if (data[0] % 2)
    takeLines((const uint8_t *)exact.data(), exact.size());
  else
    takeFacts((const uint8_t *)exact.data(), exact.size(), data[0] % 4);
  return 0;
}
