#include "collectives/signature.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "tutti.h"

#define UNKNOWN  "?"
#define NO_REDOP 0xffffu

static const char *const collNames[] = {TUTTI_COLLECTIVES(TUTTI_NAME)};

#define TYPE_NAME(type, name, bytes) [tutti##type] = #name,
const char *const tuttiTypeNames[] = {TUTTI_TYPES(TYPE_NAME)};

#define TYPE_SIZE(type, name, bytes) [tutti##type] = (bytes),
const uint8_t tuttiTypeSizes[] = {TUTTI_TYPES(TYPE_SIZE)};

const char *const tuttiRedOpNames[] = {
    [tuttiSum] = "sum", [tuttiProd] = "prod", [tuttiMax] = "max",
    [tuttiMin] = "min", [tuttiAvg] = "avg",
};

const tuttiCollShape tuttiCollShapes[tuttiCollCount] = {
    [tuttiCollBroadcast] = {.send = {.rootOnly = true}},
    [tuttiCollReduce] = {.recv = {.rootOnly = true}},
    [tuttiCollAllGather] = {.recv = {.perRank = true}},
    [tuttiCollReduceScatter] = {.send = {.perRank = true}},
    [tuttiCollAlltoAll] = {.send = {.perRank = true}, .recv = {.perRank = true}},
    [tuttiCollGather] = {.recv = {.perRank = true, .rootOnly = true}},
    [tuttiCollScatter] = {.send = {.perRank = true, .rootOnly = true}},
};

const char *tuttiCollName(int coll) {
  return coll >= 0 && coll < tuttiCollCount ? collNames[coll] : UNKNOWN;
}

const char *tuttiTypeName(int datatype) {
  return datatype >= 0 && datatype < tuttiNumTypes ? tuttiTypeNames[datatype] : UNKNOWN;
}

const char *tuttiRedOpName(int op) {
  if (op < 0) return UNKNOWN;
  return op < tuttiNumOps ? tuttiRedOpNames[op] : "premulsum";
}

const char *tuttiSignatureText(const tuttiSignature *sig, char *buf, size_t size) {
  char redop[24] = "", root[24] = "";
  if (sig->redop != NO_REDOP) snprintf(redop, sizeof(redop), ", %s", tuttiRedOpName(sig->redop));
  if (sig->root >= 0) snprintf(root, sizeof(root), ", root %" PRId32, sig->root);
  if (sig->coll == tuttiCollSplit) /* moves no elements */
    snprintf(buf, size, "#%" PRIu64 " %s", sig->seq, tuttiCollName(sig->coll));
  else
    snprintf(buf, size, "#%" PRIu64 " %s(count %" PRIu64 ", %s%s%s)", sig->seq,
             tuttiCollName(sig->coll), sig->count, tuttiTypeName(sig->type), redop, root);
  return buf;
}

_Static_assert(sizeof(tuttiSignature) == 24, "travels between hosts: no padding");
