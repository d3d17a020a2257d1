#include "comm/signature.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "tutti.h"

#define UNKNOWN  "?"
#define NO_REDOP 0xffffu

static const char *const collNames[] = {TUTTI_COLLECTIVES(TUTTI_NAME)};

static const char *const typeNames[tuttiNumTypes] = {
    [tuttiInt8] = "int8",
    [tuttiUint8] = "uint8",
    [tuttiInt32] = "int32",
    [tuttiUint32] = "uint32",
    [tuttiInt64] = "int64",
    [tuttiUint64] = "uint64",
    [tuttiFloat16] = "float16",
    [tuttiFloat32] = "float32",
    [tuttiFloat64] = "float64",
    [tuttiBfloat16] = "bfloat16",
    [tuttiFloat8e4m3] = "float8e4m3",
    [tuttiFloat8e5m2] = "float8e5m2",
};

const uint8_t tuttiTypeSizes[tuttiNumTypes] = {
    [tuttiInt8] = 1,    [tuttiUint8] = 1,    [tuttiInt32] = 4,      [tuttiUint32] = 4,
    [tuttiInt64] = 8,   [tuttiUint64] = 8,   [tuttiFloat16] = 2,    [tuttiFloat32] = 4,
    [tuttiFloat64] = 8, [tuttiBfloat16] = 2, [tuttiFloat8e4m3] = 1, [tuttiFloat8e5m2] = 1,
};

static const char *const redOpNames[tuttiNumOps] = {
    [tuttiSum] = "sum", [tuttiProd] = "prod", [tuttiMax] = "max",
    [tuttiMin] = "min", [tuttiAvg] = "avg",
};

const char *tuttiCollName(int coll) {
  return coll >= 0 && coll < tuttiCollCount ? collNames[coll] : UNKNOWN;
}

const char *tuttiTypeName(int datatype) {
  return datatype >= 0 && datatype < tuttiNumTypes ? typeNames[datatype] : UNKNOWN;
}

const char *tuttiRedOpName(int op) {
  if (op < 0) return UNKNOWN;
  return op < tuttiNumOps ? redOpNames[op] : "premulsum";
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
