/* Stores that go past the caches, where the CPU has them: memory is not read only to be written
 * over, no other core's cache has to give a line away first, and what else is in the caches stays
 * there. */
#ifndef TUTTI_BASE_STREAM_H_
#define TUTTI_BASE_STREAM_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TUTTI_STREAM_BYTES 16 /* of one such store, and its alignment */

/* memcpy(3). Others see it in any order until tuttiStreamEnd. */
static inline void tuttiStreamBytes(void *to, const void *from, size_t bytes) {
#if defined(__x86_64__)
  uint8_t *out = (uint8_t *)to;
  const uint8_t *in = (const uint8_t *)from;
  size_t at = -(uintptr_t)to & (TUTTI_STREAM_BYTES - 1);
  if (at > bytes) at = bytes;
  memcpy(out, in, at);
  for (; at + TUTTI_STREAM_BYTES <= bytes; at += TUTTI_STREAM_BYTES)
    _mm_stream_si128((__m128i *)(void *)(out + at), _mm_loadu_si128((const void *)(in + at)));
  memcpy(out + at, in + at, bytes - at);
#else
  memcpy(to, from, bytes);
#endif
}

/* What was streamed is seen before whatever this thread stores from here on. */
static inline void tuttiStreamEnd(void) {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

#endif
