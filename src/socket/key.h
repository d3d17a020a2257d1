/* The key that all processes of a job have beside their unique ids, and whether they encrypt with
 * it. */
#ifndef TUTTI_SOCKET_KEY_H_
#define TUTTI_SOCKET_KEY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

/* Bytes of a key. */
#define TUTTI_KEY_LEAST 16
#define TUTTI_KEY_MOST  4096

/* Of tuttiSetEncryption, or of TUTTI_PSK_FILE without white space at its end; *bytes is 0 if there
 * is none. */
tuttiResult_t tuttiKeyRead(uint8_t key[TUTTI_KEY_MOST], size_t *bytes);
/* As tuttiSetEncryption, which checks nothing itself. */
tuttiResult_t tuttiKeySet(const char *psk);

/* What both ends of encrypted connections must have, for one secret. */
typedef struct {
  bool on; /* false: connections are in the clear */
  uint8_t psk[32];
} tuttiTlsKey;

/* That for the secret of an id: of the key of this process, if it is to encrypt. Fails, and never
 * goes on in the clear, if it is but can't. */
tuttiResult_t tuttiTlsKeyMake(const uint8_t secret[16], tuttiTlsKey *out);
/* That for another secret, of those who have this one; on as this one is. */
void tuttiTlsKeyNext(const tuttiTlsKey *from, const uint8_t secret[16], tuttiTlsKey *out);

__END_DECLS

#endif
