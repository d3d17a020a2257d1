/* What the collectives look like from outside, and the buffers of one row of the table. */
#include <string.h>

#include "perf.h"

static tuttiResult_t runAllReduce(const perfLibrary *library, const perfCall *c) {
  return library->AllReduce(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}

static tuttiResult_t runBroadcast(const perfLibrary *library, const perfCall *c) {
  return library->Broadcast(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static tuttiResult_t runReduce(const perfLibrary *library, const perfCall *c) {
  return library->Reduce(c->send, c->recv, c->count, c->type, c->op, c->root, c->comm, c->stream);
}

static tuttiResult_t runAllGather(const perfLibrary *library, const perfCall *c) {
  return library->AllGather(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

static tuttiResult_t runReduceScatter(const perfLibrary *library, const perfCall *c) {
  return library->ReduceScatter(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}

static tuttiResult_t runAlltoAll(const perfLibrary *library, const perfCall *c) {
  return library->AlltoAll(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

static tuttiResult_t runGather(const perfLibrary *library, const perfCall *c) {
  return library->Gather(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static tuttiResult_t runScatter(const perfLibrary *library, const perfCall *c) {
  return library->Scatter(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

/* To the next rank, from the one before. */
static tuttiResult_t runSendRecv(const perfLibrary *library, const perfCall *c) {
  int next = (c->rank + 1) % c->nranks, before = (c->rank + c->nranks - 1) % c->nranks;
  tuttiResult_t result = library->GroupStart();
  if (result != tuttiSuccess) return result;
  result = library->Send(c->send, c->count, c->type, next, c->comm, c->stream);
  if (result == tuttiSuccess)
    result = library->Recv(c->recv, c->count, c->type, before, c->comm, c->stream);
  tuttiResult_t ended = library->GroupEnd();
  return result != tuttiSuccess ? result : ended;
}

const perfCollective perfCollectives[] = {
    {.name = "all_reduce", .reduces = true, .inPlace = true, .factorPeers = 2, .run = runAllReduce},
    {.name = "broadcast", .fromRoot = true, .inPlace = true, .run = runBroadcast},
    {.name = "reduce", .toRoot = true, .reduces = true, .inPlace = true, .run = runReduce},
    {.name = "all_gather",
     .recvsChunks = true,
     .inPlace = true,
     .factorPeers = 1,
     .run = runAllGather},
    {.name = "reduce_scatter",
     .sendsChunks = true,
     .reduces = true,
     .inPlace = true,
     .factorPeers = 1,
     .run = runReduceScatter},
    {.name = "alltoall",
     .sendsChunks = true,
     .recvsChunks = true,
     .factorPeers = 1,
     .run = runAlltoAll},
    {.name = "gather",
     .recvsChunks = true,
     .toRoot = true,
     .inPlace = true,
     .factorPeers = 1,
     .run = runGather},
    {.name = "scatter",
     .sendsChunks = true,
     .fromRoot = true,
     .inPlace = true,
     .factorPeers = 1,
     .run = runScatter},
    {.name = "sendrecv", .run = runSendRecv},
};

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

static size_t chunksOf(bool chunked, int nranks) {
  return chunked ? (size_t)nranks : 1;
}

size_t perfRowCount(const perfCollective *c, tuttiDataType_t type, int nranks, size_t bytes) {
  size_t chunks = chunksOf(c->sendsChunks || c->recvsChunks, nranks);
  size_t count = bytes / (chunks * (size_t)perfTypes[type].size);
  return count > 0 ? count : 1;
}

static size_t bytesOf(const perfRow *row, bool chunked) {
  return row->count * chunksOf(chunked, row->nranks) * (size_t)perfTypes[row->type].size;
}

size_t perfRowBytes(const perfRow *row) {
  return bytesOf(row, row->collective->sendsChunks || row->collective->recvsChunks);
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
  return (size_t)row->rank * row->count * (size_t)perfTypes[row->type].size;
}

const void *perfSendPointer(const perfRow *row, const perfBuffers *buffers) {
  const perfBuffer *buffer = row->inPlace ? &buffers->recv : &buffers->send;
  return buffer->base + PERF_GUARD + chunkOffset(row, row->collective->sendsChunks);
}

void *perfRecvPointer(const perfRow *row, const perfBuffers *buffers) {
  return buffers->recv.base + PERF_GUARD + chunkOffset(row, row->collective->recvsChunks);
}
