/* HMAC-SHA-256 and HKDF: how ranks prove that they know a secret without saying it, and how one
 * secret becomes others. Why not by a library: docs/architecture.md. */
#ifndef TUTTI_BASE_MAC_H_
#define TUTTI_BASE_MAC_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

#define TUTTI_MAC_BYTES 32

/* A message is what its pieces say one after the other. Where their sizes are not constant, one of
 * them tells these. */
typedef struct {
  const void *data;
  size_t bytes;
} tuttiMacPart;

/* HMAC-SHA-256 (RFC 2104); a key of any size. */
void tuttiMac(const void *key, size_t keyBytes, const tuttiMacPart *pieces, int n,
              uint8_t out[TUTTI_MAC_BYTES]);
/* Takes as long for a wrong one as for the right one. */
bool tuttiMacSame(const uint8_t a[TUTTI_MAC_BYTES], const uint8_t b[TUTTI_MAC_BYTES]);
/* HKDF-SHA-256 (RFC 5869): `bytes`, at most 255 * TUTTI_MAC_BYTES, for one purpose, `info`, which
 * tell nothing about the secret nor about those for other purposes. */
void tuttiDerive(tuttiMacPart secret, tuttiMacPart salt, tuttiMacPart info, void *out,
                 size_t bytes);

__END_DECLS

#endif
