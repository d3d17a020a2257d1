#include "base/mac.h"

#include <string.h>

/* ---- SHA-256 (FIPS 180-4) -------------------------------------------------------------------- */

#define BLOCK 64

typedef struct {
  uint32_t state[8];
  uint64_t bytes; /* taken so far; those past the last whole block are in `block` */
  uint8_t block[BLOCK];
} sha256;

static uint32_t rotated(uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

static uint32_t readWord(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void writeWord(uint8_t *p, uint32_t x) {
  for (int i = 0; i < 4; i++)
    p[i] = (uint8_t)(x >> (24 - 8 * i));
}

/* Fractions of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static void compress(uint32_t state[8], const uint8_t block[BLOCK]) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++)
    w[i] = readWord(block + 4 * i);
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] +
           (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
  }
  memcpy(v, state, sizeof(v));
  for (int i = 0; i < 64; i++) {
    uint32_t a = v[0], e = v[4];
    uint32_t sum = v[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                   ((e & v[5]) ^ (~e & v[6])) + constants[i] + w[i];
    uint32_t other = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) +
                     ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof(*v));
    v[4] += sum;
    v[0] = sum + other;
  }
  for (int i = 0; i < 8; i++)
    state[i] += v[i];
}

static void begin(sha256 *s) {
  *s = (sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                          0x1f83d9ab, 0x5be0cd19}};
}

static void take(sha256 *s, const void *data, size_t bytes) {
  const uint8_t *p = data;
  while (bytes > 0) {
    size_t at = s->bytes % BLOCK, part = BLOCK - at < bytes ? BLOCK - at : bytes;
    memcpy(s->block + at, p, part);
    s->bytes += part;
    p += part;
    bytes -= part;
    if (at + part == BLOCK) compress(s->state, s->block);
  }
}

static void end(sha256 *s, uint8_t out[TUTTI_MAC_BYTES]) {
  static const uint8_t padding[BLOCK] = {0x80};
  uint64_t bits = s->bytes * 8;
  uint8_t length[8];
  writeWord(length, (uint32_t)(bits >> 32));
  writeWord(length + 4, (uint32_t)bits);
  size_t at = s->bytes % BLOCK, room = BLOCK - sizeof(length);
  take(s, padding, at < room ? room - at : BLOCK + room - at);
  take(s, length, sizeof(length));
  for (int i = 0; i < 8; i++)
    writeWord(out + 4 * i, s->state[i]);
}

/* ---- HMAC and HKDF --------------------------------------------------------------------------- */

void tuttiMac(const void *key, size_t keyBytes, const tuttiMacPart *pieces, int n,
              uint8_t out[TUTTI_MAC_BYTES]) {
  uint8_t inner[BLOCK] = {0}, outer[BLOCK];
  sha256 s;
  if (keyBytes > BLOCK) {
    begin(&s);
    take(&s, key, keyBytes);
    end(&s, inner);
  } else if (keyBytes > 0) {
    memcpy(inner, key, keyBytes);
  }
  for (int i = 0; i < BLOCK; i++) {
    outer[i] = inner[i] ^ 0x5c;
    inner[i] ^= 0x36;
  }
  begin(&s);
  take(&s, inner, BLOCK);
  for (int i = 0; i < n; i++)
    take(&s, pieces[i].data, pieces[i].bytes);
  end(&s, out);
  begin(&s);
  take(&s, outer, BLOCK);
  take(&s, out, TUTTI_MAC_BYTES);
  end(&s, out);
  explicit_bzero(inner, sizeof(inner));
  explicit_bzero(outer, sizeof(outer));
}

bool tuttiMacSame(const uint8_t a[TUTTI_MAC_BYTES], const uint8_t b[TUTTI_MAC_BYTES]) {
  uint8_t differ = 0;
  for (int i = 0; i < TUTTI_MAC_BYTES; i++)
    differ |= (uint8_t)(a[i] ^ b[i]);
  return differ == 0;
}

void tuttiDerive(tuttiMacPart secret, tuttiMacPart salt, tuttiMacPart info, void *out,
                 size_t bytes) {
  uint8_t key[TUTTI_MAC_BYTES], block[TUTTI_MAC_BYTES];
  uint8_t *at = out;
  tuttiMac(salt.data, salt.bytes, &secret, 1, key);
  for (uint8_t number = 1; bytes > 0; number++) {
    const tuttiMacPart pieces[] = {
        {block, number > 1 ? sizeof(block) : 0}, info, {&number, sizeof(number)}};
    tuttiMac(key, sizeof(key), pieces, 3, block);
    size_t part = bytes < sizeof(block) ? bytes : sizeof(block);
    memcpy(at, block, part);
    at += part;
    bytes -= part;
  }
  explicit_bzero(key, sizeof(key));
  explicit_bzero(block, sizeof(block));
}
