/* What the collectives look like from outside, and the buffers of one row of the table. */
#include <string.h>

#include "perf.h"

#define CALL(name, ...)                                                                            \
  static tuttiResult_t run##name(const perfLibrary *library, const perfCall *c) {                  \
    const perfRow *r = c->row;                                                                     \
    return library->name(__VA_ARGS__, c->comm, c->stream);                                         \
  }
CALL(AllReduce, c->send, c->recv, r->count, r->type, r->op)
CALL(Broadcast, c->send, c->recv, r->count, r->type, r->root)
CALL(Reduce, c->send, c->recv, r->count, r->type, r->op, r->root)
CALL(AllGather, c->send, c->recv, r->count, r->type)
CALL(ReduceScatter, c->send, c->recv, r->count, r->type, r->op)
CALL(AlltoAll, c->send, c->recv, r->count, r->type)
CALL(Gather, c->send, c->recv, r->count, r->type, r->root)
CALL(Scatter, c->send, c->recv, r->count, r->type, r->root)

/* To the next rank, from the one before. */
static tuttiResult_t runSendRecv(const perfLibrary *library, const perfCall *c) {
  const perfRow *r = c->row;
  int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
  tuttiResult_t result = library->GroupStart();
  if (result != tuttiSuccess) return result;
  result = library->Send(c->send, r->count, r->type, next, c->comm, c->stream);
  if (result == tuttiSuccess)
    result = library->Recv(c->recv, r->count, r->type, before, c->comm, c->stream);
  tuttiResult_t ended = library->GroupEnd();
  return result != tuttiSuccess ? result : ended;
}

/* Into the window of the next rank, and until the one before has put as much here. */
static tuttiResult_t runPutSignal(const perfLibrary *library, const perfCall *c) {
  const perfRow *r = c->row;
  int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
  size_t offset = (size_t)((const unsigned char *)c->recv - c->windowBase);
  tuttiWaitSignalDesc_t awaited = {.opCnt = 1, .peer = before};
  tuttiResult_t result = library->putSignal(c->send, r->count, r->type, next, c->window, offset, 0,
                                            0, 0, c->comm, c->stream);
  return result == tuttiSuccess ? library->waitSignal(1, &awaited, c->comm, c->stream) : result;
}

/* clang-format off */
const perfCollective perfCollectives[] = {
    /* name, factor, call:                    chunks      | root's alone |
     *                                     in,    out,      in,    out,    reduces, in place, puts */
    {"all_reduce",       2, runAllReduce,     false, false, false, false, true,  true,  false},
    {"broadcast",        0, runBroadcast,     false, false, true,  false, false, true,  false},
    {"reduce",           0, runReduce,        false, false, false, true,  true,  true,  false},
    {"all_gather",       1, runAllGather,     false, true,  false, false, false, true,  false},
    {"reduce_scatter",   1, runReduceScatter, true,  false, false, false, true,  true,  false},
    {"alltoall",         1, runAlltoAll,      true,  true,  false, false, false, false, false},
    {"gather",           1, runGather,        false, true,  false, true,  false, true,  false},
    {"scatter",          1, runScatter,       true,  false, true,  false, false, true,  false},
    {"sendrecv",         0, runSendRecv,      false, false, false, false, false, false, false},
    {"put_signal",       0, runPutSignal,     false, false, false, false, false, false, true},
};
/* clang-format on */

const int perfCollectiveCount = sizeof perfCollectives / sizeof perfCollectives[0];

/* Like strcmp() == 0, but a dash equals an underscore. */
static bool sameName(const char *a, const char *b) {
  for (; *a != '\0' && *b != '\0'; a++, b++)
    if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
  return *a == *b;
}

const perfCollective *perfCollectiveFind(const char *name) {
  for (int i = 0; i < perfCollectiveCount; i++)
    if (sameName(name, perfCollectives[i].name)) return &perfCollectives[i];
  return NULL;
}

double perfBusFactor(const perfCollective *collective, int nranks) {
  if (collective->factorPeers == 0) return 1;
  return (double)collective->factorPeers * (nranks - 1) / nranks;
}

/* ---- the buffers of one row ------------------------------------------------------------------ */

static size_t bytesOf(const perfRow *row, bool chunked) {
  return row->count * (size_t)(chunked ? row->nranks : 1) * (size_t)perfTypes[row->type].size;
}

size_t perfRowBytes(const perfRow *row) {
  return bytesOf(row, row->collective->sendsChunks || row->collective->recvsChunks);
}

size_t perfRowCount(const perfRow *row, size_t bytes) {
  perfRow one = *row;
  one.count = 1;
  size_t count = bytes / perfRowBytes(&one);
  return count > 0 ? count : 1;
}

size_t perfSendBytes(const perfRow *row) {
  if (row->collective->fromRoot && row->rank != row->root) return 0;
  return bytesOf(row, row->collective->sendsChunks);
}

size_t perfRecvBytes(const perfRow *row) {
  if (row->collective->toRoot && row->rank != row->root) return 0;
  return bytesOf(row, row->collective->recvsChunks);
}

/* In place the smaller of input and output is this rank's chunk of the larger one. */
static size_t chunkOffset(const perfRow *row, bool chunked) {
  bool otherChunked = row->collective->sendsChunks || row->collective->recvsChunks;
  if (!row->inPlace || chunked || !otherChunked) return 0;
  return (size_t)row->rank * bytesOf(row, false);
}

const void *perfSendPointer(const perfRow *row, const perfBuffers *buffers) {
  const unsigned char *buffer = row->inPlace ? buffers->recv : buffers->send;
  return buffer + PERF_GUARD + chunkOffset(row, row->collective->sendsChunks);
}

void *perfRecvPointer(const perfRow *row, const perfBuffers *buffers) {
  return buffers->recv + PERF_GUARD + chunkOffset(row, row->collective->recvsChunks);
}
