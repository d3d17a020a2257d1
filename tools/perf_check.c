/* Fills the buffers of a row and finds what is wrong in them afterwards. */
#include <inttypes.h>
#include <string.h>

#include "device/cpu/reduce.h"
#include "perf.h"

void perfPrepare(const perfRow *row, const perfPattern *pattern, const perfBuffers *buffers) {
  unsigned char *input = row->inPlace ? buffers->recv : buffers->send;
  unsigned char *end = input + perfRowBytes(row) + 2 * (size_t)PERF_GUARD;
  unsigned char *data = (unsigned char *)perfSendPointer(row, buffers);
  size_t bytes = perfSendBytes(row);
  if (bytes == 0) data = input;
  if (!row->inPlace) memset(buffers->recv, PERF_POISON, (size_t)(end - input));
  memset(input, PERF_POISON, (size_t)(data - input));
  perfPatternFill(pattern, row->rank, 0, bytes / (size_t)pattern->type->size, data);
  memset(data + bytes, PERF_POISON, (size_t)(end - data) - bytes);
}

/* ---- faults --------------------------------------------------------------------------------- */

typedef struct {
  const perfRow *row;
  const perfPattern *pattern;
  uint64_t wrong;
  char *text;
} verification;

static void formatElement(const perfType *type, uint64_t bits, char *out, size_t size) {
  int shift = 64 - 8 * type->size;
  tuttiDataType_t number = (tuttiDataType_t)(type - perfTypes);
  if (type->kind == PERF_FLOAT)
    snprintf(out, size, "%.9g (0x%0*" PRIx64 ")", tuttiFloatToDouble(number, &bits), 2 * type->size,
             bits);
  else if (type->kind == PERF_SIGNED)
    snprintf(out, size, "%" PRId64, (int64_t)(bits << shift) >> shift);
  else
    snprintf(out, size, "%" PRIu64, bits);
}

/* Elements of a segment that starts at element `offset` of the named buffer. */
static void noteElements(verification *v, const char *buffer, size_t offset,
                         const perfMismatch *found) {
  if (found->wrong > 0 && v->wrong == 0) {
    char got[64], want[64];
    formatElement(v->pattern->type, found->got, got, sizeof got);
    formatElement(v->pattern->type, found->want, want, sizeof want);
    snprintf(v->text, PERF_FAULT_TEXT, "element %zu of the %s is %s and should be %s",
             offset + found->first, buffer, got, want);
  }
  v->wrong += found->wrong;
}

/* Bytes that must still be poison; `at` is the position of the first one, seen from the data. */
static void notePoison(verification *v, const char *what, const unsigned char *bytes, size_t n,
                       ptrdiff_t at) {
  if (n > 0 && bytes[0] == PERF_POISON && memcmp(bytes, bytes + 1, n - 1) == 0) return;
  for (size_t i = 0; i < n; i++) {
    if (bytes[i] == PERF_POISON) continue;
    if (v->wrong++ == 0)
      snprintf(v->text, PERF_FAULT_TEXT,
               "byte %td of the %s buffer, outside the %s, was overwritten with 0x%02x",
               at + (ptrdiff_t)i, what, what, bytes[i]);
  }
}

/* All of a buffer but the first `bytes` bytes of its data. */
static void verifyAround(verification *v, const char *what, const unsigned char *buffer,
                         size_t bytes) {
  size_t behind = perfRowBytes(v->row) - bytes + PERF_GUARD;
  notePoison(v, what, buffer, PERF_GUARD, -PERF_GUARD);
  notePoison(v, what, buffer + PERF_GUARD + bytes, behind, (ptrdiff_t)bytes);
}

/* ---- verification --------------------------------------------------------------------------- */

static void verifyInput(verification *v, const unsigned char *send) {
  size_t bytes = perfSendBytes(v->row), n = bytes / (size_t)v->pattern->type->size;
  perfMismatch found = perfPatternCompare(v->pattern, v->row->rank, 0, n, send + PERF_GUARD);
  noteElements(v, "input (which must not change)", 0, &found);
  verifyAround(v, "input", send, bytes);
}

/* Whose input chunk `chunk` of the output is a copy of. */
static int sourceOf(const perfRow *row, int chunk) {
  if (row->collective->reduces) return PERF_REDUCED;
  if (row->collective->fromRoot) return row->root;
  if (row->collective->recvsChunks) return chunk;
  return (row->rank + row->nranks - 1) % row->nranks;
}

static void verifyOutput(verification *v, const unsigned char *data) {
  const perfRow *row = v->row;
  int chunks = row->collective->recvsChunks ? row->nranks : 1;
  size_t from = row->collective->sendsChunks ? (size_t)row->rank * row->count : 0;
  for (int c = 0; c < chunks; c++) {
    size_t offset = (size_t)c * row->count;
    const unsigned char *chunk = data + offset * (size_t)v->pattern->type->size;
    perfMismatch found = perfPatternCompare(v->pattern, sourceOf(row, c), from, row->count, chunk);
    noteElements(v, "output", offset, &found);
  }
}

uint64_t perfVerify(const perfRow *row, const perfPattern *pattern, const perfBuffers *buffers,
                    char fault[PERF_FAULT_TEXT]) {
  verification v = {.row = row, .pattern = pattern, .text = fault};
  size_t bytes = perfRecvBytes(row);
  fault[0] = '\0';
  if (bytes > 0) verifyOutput(&v, perfRecvPointer(row, buffers));
  verifyAround(&v, "output", buffers->recv, row->inPlace ? perfRowBytes(row) : bytes);
  if (!row->inPlace) verifyInput(&v, buffers->send);
  return v.wrong;
}
