#include "device/cpu/reduce.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/atomic.h"
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

/* memcpy(3) past the caches: memory is not read only to be written over, and what else is in the
 * caches stays there. Whatever is stored later is seen later, as with ordinary stores. */
static void streamBytes(void *to, const void *from, size_t bytes) {
#if defined(__x86_64__)
  uint8_t *out = (uint8_t *)to;
  const uint8_t *in = (const uint8_t *)from;
  size_t at = -(uintptr_t)to & (sizeof(__m128i) - 1);
  if (at > bytes) at = bytes;
  memcpy(out, in, at);
  for (; at + sizeof(__m128i) <= bytes; at += sizeof(__m128i))
    _mm_stream_si128((__m128i *)(void *)(out + at), _mm_loadu_si128((const void *)(in + at)));
  memcpy(out + at, in + at, bytes - at);
  _mm_sfence();
#else
  memcpy(to, from, bytes);
#endif
}

static void copyBytes(const void *in, void *const *out, int nout, size_t bytes) {
  if (nout == 1 && out[0] != in) memcpy(out[0], in, bytes);
  for (size_t at = 0; nout > 1 && at < bytes; at += COPY_BLOCK) {
    size_t n = bytes - at < COPY_BLOCK ? bytes - at : COPY_BLOCK;
    for (int j = 0; j < nout; j++) {
      if (out[j] != in) memcpy((uint8_t *)out[j] + at, (const uint8_t *)in + at, n);
    }
  }
}

void tuttiReduceCopy(const tuttiReduceArgs *args) {
  if (args->nout == 0) return;
  size_t bytes = args->count * tuttiTypeSize(args->type);
  bool copy = args->nin == 1 && args->premul == 0 && args->divide <= 1;
  if (copy && args->streams && args->nout == 1 && args->out[0] != args->in[0])
    streamBytes(args->out[0], args->in[0], bytes);
  else if (copy)
    copyBytes(args->in[0], args->out, args->nout, bytes);
  else
    chosenLevel()->reduce[args->type](args);
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
