/* Kernel TLS (Documentation/networking/tls.rst of the kernel): a socket whose handshake is over is
 * given the keys, and from then on plain send(2) and recv(2) carry records. */
#ifndef TUTTI_SOCKET_KTLS_H_
#define TUTTI_SOCKET_KTLS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

__BEGIN_DECLS

/* What TLS_AES_128_GCM_SHA256 encrypts one direction with, from its traffic secret (RFC 8446,
 * 7.3). */
typedef struct {
  uint8_t key[16], iv[12];
} tuttiTrafficKey;
void tuttiTrafficKeyOf(const uint8_t secret[32], tuttiTrafficKey *out);

/* Makes the kernel ready for a socket; false if it can't. */
bool tuttiKtlsAttach(int fd);
/* Lets it encrypt what is sent from now on, or decrypt what is received; no record under that key
 * has gone yet. False if it can't: then nothing has changed. */
bool tuttiKtlsStart(int fd, bool send, const tuttiTrafficKey *key);
/* After a receive that failed with EIO: takes the record that is no data. 0: the peer's
 * close_notify; else -1 and errno. */
ssize_t tuttiKtlsTakeControl(int fd);
/* Tells the peer that nothing follows. */
void tuttiKtlsSayClose(int fd);

__END_DECLS

#endif
