#include "device/cpu/reduce.h"

#include <math.h>
#include <string.h>

#include "base/atomic.h"
#include "base/stream.h"
#include "collectives/signature.h"
#include "device/cpu/reduce_level.h"

/* A copy to several outputs goes in blocks that stay in the first-level cache between them. */
#define COPY_BLOCK 16384

const tuttiReduceLevel *const tuttiReduceLevels[] = {
#if defined(__x86_64__)
    &tuttiReduceAvx512,
    &tuttiReduceAvx2,
#endif
    &tuttiReduceBase,
    NULL,
};

static const tuttiReduceLevel *chosenLevel(void) {
  static tuttiAtomic32 chosen; /* index + 1; threads that race find the same */
  uint32_t index = tuttiLoadAcquire32(&chosen);
  if (index == 0) {
    while (tuttiReduceLevels[index + 1] && !tuttiReduceLevels[index]->supported())
      index++;
    tuttiStoreRelease32(&chosen, ++index);
  }
  return tuttiReduceLevels[index - 1];
}

static void copyBytes(const tuttiReduceArgs *a, size_t bytes) {
  const uint8_t *in = (const uint8_t *)a->in[0];
  size_t block = a->nout == 1 ? bytes : COPY_BLOCK;
  for (size_t at = 0; at < bytes; at += block) {
    size_t n = bytes - at < block ? bytes - at : block;
    for (int j = 0; j < a->nout; j++) {
      uint8_t *out = (uint8_t *)a->out[j] + at;
      if (a->out[j] == a->in[0]) continue;
      if (j < a->nout - a->nstreams)
        memcpy(out, in + at, n);
      else
        tuttiStreamBytes(out, in + at, n);
    }
  }
}

void tuttiReduceCopy(const tuttiReduceArgs *args) {
  if (args->nout == 0) return;
  size_t bytes = args->count * tuttiTypeSize(args->type);
  bool copy = args->nin == 1 && args->premul == 0 && args->divide <= 1;
  if (copy)
    copyBytes(args, bytes);
  else
    chosenLevel()->reduce[args->type](args);
  if (args->nstreams > 0) tuttiStreamEnd();
}

/* A small float format: value = mantissa * 2^(exponent - bias), as in IEEE 754. */
typedef struct {
  int mantissaBits, bias;
  uint32_t infinity; /* codes above it are NaN; without infinities the greatest number's code */
  uint32_t overflow; /* code of what is too large */
  uint32_t nan, sign;
} smallFloat;

static const smallFloat smallFloats[tuttiNumTypes] = {
    [tuttiFloat16] = {10, 15, 0x7c00, 0x7c00, 0x7e00, 0x8000},
    [tuttiBfloat16] = {7, 127, 0x7f80, 0x7f80, 0x7fc0, 0x8000},
    [tuttiFloat8e4m3] = {3, 7, 0x7e, 0x7f, 0x7f, 0x80},
    [tuttiFloat8e5m2] = {2, 15, 0x7c, 0x7c, 0x7e, 0x80},
};

static double smallToDouble(const smallFloat *f, uint32_t code) {
  uint32_t magnitude = code & (f->sign - 1);
  int exponent = (int)(magnitude >> f->mantissaBits);
  double mantissa = magnitude & ((1u << f->mantissaBits) - 1);
  double value;
  if (magnitude > f->infinity)
    value = NAN;
  else if (magnitude == f->infinity && f->infinity == f->overflow)
    value = INFINITY;
  else if (exponent == 0)
    value = ldexp(mantissa, 1 - f->bias - f->mantissaBits);
  else
    value = ldexp(mantissa + (1 << f->mantissaBits), exponent - f->bias - f->mantissaBits);
  return code & f->sign ? -value : value;
}

static uint32_t smallFromDouble(const smallFloat *f, double value) {
  if (isnan(value)) return f->nan;
  uint32_t sign = signbit(value) ? f->sign : 0;
  int exponent = ilogb(value); /* extreme for 0 and infinity */
  if (exponent > f->bias + 1) return sign | f->overflow;
  if (exponent < 1 - f->bias) exponent = 1 - f->bias;
  /* In units of the last place; the carry into the next exponent comes out right by itself. */
  double units = nearbyint(ldexp(fabs(value), f->mantissaBits - exponent));
  uint32_t code = (uint32_t)((exponent + f->bias - 1) << f->mantissaBits) + (uint32_t)units;
  return sign | (code < f->overflow ? code : f->overflow);
}

double tuttiFloatToDouble(tuttiDataType_t type, const void *element) {
  double value;
  float single;
  uint32_t code = 0; /* its first bytes are the low ones */
  if (type == tuttiFloat64) {
    memcpy(&value, element, sizeof value);
    return value;
  }
  if (type == tuttiFloat32) {
    memcpy(&single, element, sizeof single);
    return (double)single;
  }
  memcpy(&code, element, tuttiTypeSize(type));
  return smallToDouble(&smallFloats[type], code);
}

void tuttiFloatFromDouble(tuttiDataType_t type, double value, void *element) {
  if (type == tuttiFloat64) {
    memcpy(element, &value, sizeof value);
  } else if (type == tuttiFloat32) {
    float single = (float)value;
    memcpy(element, &single, sizeof single);
  } else {
    uint32_t code = smallFromDouble(&smallFloats[type], value);
    memcpy(element, &code, tuttiTypeSize(type));
  }
}
