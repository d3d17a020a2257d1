/* One way to send and receive on a TCP socket, whether it is in the clear or under TLS 1.3. A
 * descriptor that tuttiSecureStart was called for is under TLS until it is closed, by tuttiFdClose;
 * for all others these are send(2) and recv(2), after one branch.
 *
 * Nothing here waits. As with TCP, a call moves as many bytes as it can and returns their number;
 * 0 at the end of the stream; -1 and errno: EAGAIN, or what has ended the connection, of which
 * EBADMSG is TLS's own: what came is not what was sent.
 *
 * - After EAGAIN, or fewer bytes than were offered, the next send begins with the very bytes that
 *   were not taken: a part of them may be on its way already.
 * - One send of at most TUTTI_SECURE_RECORD bytes is one record, and arrives whole or not yet.
 * - A receive that is short of its room has taken all bytes that there were, as before EAGAIN.
 * There may be what poll(2) knows nothing of: bytes if it was not short, or the end:
 * tuttiSecurePending.
 *
 * A socket is used by one thread at a time, and may be handed on. */
#ifndef TUTTI_SOCKET_SECURE_H_
#define TUTTI_SOCKET_SECURE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/atomic.h"
#include "socket/key.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_SECURE_RECORD 16384

/* First byte of a TLS connection: the ClientHello's record is of the handshake. */
#define TUTTI_TLS_FIRST 0x16

/* Puts a connected, non-blocking socket under TLS, of which nothing has gone yet. */
tuttiResult_t tuttiSecureStart(int fd, bool listens, const tuttiTlsKey *key);
/* Goes on with the handshake. 1: it is over, and the peer has the key. 0: not yet; *events (of
 * poll(2)) must come first. Else -errno: EKEYREJECTED of a peer that speaks TLS and has another
 * key, EPROTO of one that speaks something else, or what ended the connection: ECONNRESET if the
 * peer did. */
int tuttiSecureHandshake(int fd, short *events);
/* Of a listener whose handshake is not over: it has answered one that has the key, or repeats what
 * such a one has said to begin with. That was its costly part; what is left is cheap. */
bool tuttiSecureAnswered(int fd);
/* How its packets are made, for the log: "in the clear", "under TLS", "under TLS by the kernel". */
const char *tuttiSecureText(int fd);

/* Some socket of this process is or was under TLS. */
extern tuttiAtomic32 tuttiSecureUsed;
static inline bool tuttiSecureMaybe(void) {
  return __builtin_expect(tuttiLoadRelaxed32(&tuttiSecureUsed) != 0, 0);
}

bool tuttiSecureIsOn(int fd);
/* The calls below when a socket may be under TLS. */
ssize_t tuttiSecureSendSlow(int fd, const struct iovec *pieces, size_t n);
ssize_t tuttiSecureRecvSlow(int fd, const struct iovec *room, size_t n, bool peek);
bool tuttiSecurePendingSlow(int fd);

static inline ssize_t tuttiSecureSend(int fd, const void *data, size_t bytes) {
  const struct iovec piece = {(void *)(uintptr_t)data, bytes};
  return tuttiSecureMaybe() ? tuttiSecureSendSlow(fd, &piece, 1)
                            : send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}
/* Of 1 or more pieces. */
ssize_t tuttiSecureSendPieces(int fd, struct iovec *pieces, size_t n);

static inline ssize_t tuttiSecureRecv(int fd, void *room, size_t bytes) {
  const struct iovec piece = {room, bytes};
  return tuttiSecureMaybe() ? tuttiSecureRecvSlow(fd, &piece, 1, false)
                            : recv(fd, room, bytes, MSG_DONTWAIT);
}
ssize_t tuttiSecureRecvPieces(int fd, struct iovec *room, size_t n);
/* Leaves the bytes where they are; of a socket under TLS it shows at most one record. */
static inline ssize_t tuttiSecurePeek(int fd, void *room, size_t bytes) {
  const struct iovec piece = {room, bytes};
  return tuttiSecureMaybe() ? tuttiSecureRecvSlow(fd, &piece, 1, true)
                            : recv(fd, room, bytes, MSG_PEEK | MSG_DONTWAIT);
}
/* A receive would return bytes that have been taken from the socket, or its end. */
static inline bool tuttiSecurePending(int fd) {
  return tuttiSecureMaybe() && tuttiSecurePendingSlow(fd);
}

__END_DECLS

#endif
