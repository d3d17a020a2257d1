/* TLS 1.3 by OpenSSL, with a pre-shared key and an exchange by Diffie-Hellman (psk_dhe_ke), no
 * certificates, one cipher, no tickets. Which descriptors are under it stands in a table beside
 * them, so that whoever sends and receives has a descriptor and no more.
 *
 * OpenSSL reads one record at a time and nothing beyond it, so between records poll(2) tells the
 * truth. What it encrypts is first copied: it may have to be sent again after EAGAIN, and must then
 * be the same bytes at the same place. */
#include "socket/secure.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "socket/ktls.h"
#include "socket/openssl.h"

typedef struct {
  int fd;
  SSL *ssl;
  uint8_t psk[32];
  bool listens, open; /* open: the handshake is over */
  bool dead;          /* receiving has failed, or OpenSSL, which is not to be called again */
  bool cut;           /* a send has failed; what came before can still be read */
  bool kernelSends, kernelReceives;
  bool answered;       /* a listener: keys are made, so the peer's first message showed the key */
  bool heard, foreign; /* something has come; and it was no record of TLS */
  bool ended;          /* the peer's FIN has come, or what says that nothing follows */
  int error;           /* errno of the last system call, 0 */
  size_t owed;         /* bytes of `record` that are encrypted but not all sent */
  uint8_t traffic[2][32];              /* secrets of client and server, during the handshake */
  uint8_t record[TUTTI_SECURE_RECORD]; /* what is to be encrypted */
} session;

/* As with the table of descriptors that forked children close (base/os.c), pages of it that no
 * descriptor touches cost nothing. */
#define MOST_FDS (1 << 20)
static tuttiAtomic64 sessions[MOST_FDS];
static tuttiAtomic32 sessionsEnd; /* all are below */
tuttiAtomic32 tuttiSecureUsed;

/* Types of records: change_cipher_spec, alert, handshake, application_data. */
enum { RECORD_FIRST = 20, RECORD_LAST = 23 };
static const uint8_t identity[] = {'t', 'u', 't', 't', 'i'}; /* the key is known by the listener */
static const uint8_t cipher[2] = {0x13, 0x01};               /* TLS_AES_128_GCM_SHA256 */

static session *sessionOf(int fd) {
  return fd >= 0 && fd < MOST_FDS ? (session *)(uintptr_t)tuttiLoadAcquire(&sessions[fd]) : NULL;
}

bool tuttiSecureIsOn(int fd) {
  return tuttiSecureMaybe() && sessionOf(fd) != NULL;
}

/* ---- below OpenSSL -------------------------------------------------------------------------- */

static int keepResult(BIO *bio, session *s, ssize_t n, int want) {
  s->error = n < 0 ? errno : 0;
  tuttiOpenssl.BIO_clear_flags(bio, TUTTI_BIO_READ | TUTTI_BIO_WRITE | TUTTI_BIO_RETRY);
  if (s->error == EAGAIN || s->error == EINTR)
    tuttiOpenssl.BIO_set_flags(bio, want | TUTTI_BIO_RETRY);
  return (int)n;
}

static int bioWrite(BIO *bio, const char *data, int bytes) {
  session *s = tuttiOpenssl.BIO_get_data(bio);
  ssize_t n = send(s->fd, data, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  return keepResult(bio, s, n, TUTTI_BIO_WRITE);
}

static int bioRead(BIO *bio, char *room, int bytes) {
  session *s = tuttiOpenssl.BIO_get_data(bio);
  ssize_t n = recv(s->fd, room, (size_t)bytes, MSG_DONTWAIT);
  s->ended |= n == 0;
  if (n > 0 && !s->heard) s->foreign = room[0] < RECORD_FIRST || room[0] > RECORD_LAST;
  s->heard |= n > 0;
  return keepResult(bio, s, n, TUTTI_BIO_READ);
}

static long bioCtrl(BIO *bio, int command, long number, void *pointer) {
  (void)bio, (void)number, (void)pointer;
  return command == TUTTI_BIO_CTRL_FLUSH;
}

/* ---- the key -------------------------------------------------------------------------------- */

static SSL_SESSION *keySession(SSL *ssl) {
  const session *s = tuttiOpenssl.SSL_get_ex_data(ssl, 0);
  SSL_SESSION *made = tuttiOpenssl.SSL_SESSION_new();
  const SSL_CIPHER *found = tuttiOpenssl.SSL_CIPHER_find(ssl, cipher);
  if (made && found && tuttiOpenssl.SSL_SESSION_set1_master_key(made, s->psk, sizeof s->psk) &&
      tuttiOpenssl.SSL_SESSION_set_cipher(made, found) &&
      tuttiOpenssl.SSL_SESSION_set_protocol_version(made, TUTTI_TLS13))
    return made;
  if (made) tuttiOpenssl.SSL_SESSION_free(made);
  return NULL;
}

static int useKey(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *bytes,
                  SSL_SESSION **out) {
  (void)md; /* of the one cipher that there is */
  *id = identity;
  *bytes = sizeof identity;
  *out = keySession(ssl);
  return *out != NULL;
}

static int findKey(SSL *ssl, const unsigned char *id, size_t bytes, SSL_SESSION **out) {
  bool ours = bytes == sizeof identity && memcmp(id, identity, bytes) == 0;
  *out = ours ? keySession(ssl) : NULL;
  return !ours || *out != NULL;
}

static bool readHex(const char *text, uint8_t out[32]) {
  for (int i = 0; i < 32; i++, text += 2) {
    unsigned byte;
    if (sscanf(text, "%2x", &byte) != 1) return false;
    out[i] = (uint8_t)byte;
  }
  return true;
}

/* OpenSSL tells secrets as programs that look into captures read them: "<label> <client's random,
 * 64 digits> <secret>". Of these the kernel gets its keys. */
static void takeSecret(const SSL *ssl, const char *line) {
  session *s = tuttiOpenssl.SSL_get_ex_data(ssl, 0);
  static const char *const labels[2] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
  for (int i = 0; i < 2; i++) {
    size_t label = strlen(labels[i]), at = label + 64 + 1;
    if (strncmp(line, labels[i], label) != 0 || strlen(line) != at + 64) continue;
    if (!readHex(line + at, s->traffic[i])) explicit_bzero(s->traffic[i], 32);
    s->answered = s->listens;
  }
}

/* ---- what all connections share ------------------------------------------------------------- */

static struct {
  pthread_once_t once;
  SSL_CTX *context; /* NULL: not to be had */
  BIO_METHOD *socket;
} shared = {.once = PTHREAD_ONCE_INIT};

static bool setUp(SSL_CTX *context) {
  const tuttiOpensslTable *o = &tuttiOpenssl;
  o->SSL_CTX_set_psk_use_session_callback(context, useKey);
  o->SSL_CTX_set_psk_find_session_callback(context, findKey);
  o->SSL_CTX_set_keylog_callback(context, takeSecret);
  o->SSL_CTX_ctrl(context, TUTTI_SSL_CTRL_CACHE, 0, NULL);
  o->SSL_CTX_ctrl(context, TUTTI_SSL_CTRL_MODE, TUTTI_SSL_MODE_RELEASE_BUFFERS, NULL);
  return o->SSL_CTX_ctrl(context, TUTTI_SSL_CTRL_LEAST_VERSION, TUTTI_TLS13, NULL) == 1 &&
         o->SSL_CTX_ctrl(context, TUTTI_SSL_CTRL_MOST_VERSION, TUTTI_TLS13, NULL) == 1 &&
         o->SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
         o->SSL_CTX_set_num_tickets(context, 0) == 1;
}

/* A child of fork has the memory, but none of the connections. */
static void forget(void) {
  uint32_t end = tuttiLoadAcquire32(&sessionsEnd);
  for (uint32_t fd = 0; fd < end; fd++)
    if (tuttiLoadRelaxed(&sessions[fd]) != 0) tuttiStoreRelaxed(&sessions[fd], 0);
}

static void endSession(int fd);

static void makeShared(void) {
  const tuttiOpensslTable *o = &tuttiOpenssl;
  shared.socket = o->BIO_meth_new(TUTTI_BIO_SOURCE_SINK | 127, "tutti socket");
  if (!shared.socket || !o->BIO_meth_set_write(shared.socket, bioWrite) ||
      !o->BIO_meth_set_read(shared.socket, bioRead) ||
      !o->BIO_meth_set_ctrl(shared.socket, bioCtrl))
    return;
  SSL_CTX *context = o->SSL_CTX_new(o->TLS_method());
  if (context && !setUp(context)) {
    o->SSL_CTX_free(context);
    context = NULL;
  }
  shared.context = context;
  pthread_atfork(NULL, NULL, forget);
  tuttiFdOnClose(endSession);
}

/* What OpenSSL says went wrong in this thread. */
static const char *reason(void) {
  const char *text = tuttiOpenssl.ERR_reason_error_string(tuttiOpenssl.ERR_peek_error());
  return text ? text : "no reason given";
}

/* ---- a connection's life -------------------------------------------------------------------- */

static void freeSession(session *s) {
  if (s->ssl) tuttiOpenssl.SSL_free(s->ssl); /* its BIO too */
  explicit_bzero(s, sizeof *s);
  tuttiFree(s);
}

/* The descriptor is about to be closed: says so, if that can be said without waiting. */
static void endSession(int fd) {
  session *s = sessionOf(fd);
  if (!s) return;
  tuttiStoreRelease(&sessions[fd], 0);
  tuttiOpenssl.ERR_clear_error();
  if (s->kernelSends)
    tuttiKtlsSayClose(fd);
  else if (s->open && !s->dead && !s->cut && s->owed == 0)
    tuttiOpenssl.SSL_shutdown(s->ssl);
  tuttiOpenssl.ERR_clear_error();
  freeSession(s);
}

static tuttiResult_t connectBio(session *s) {
  BIO *bio = tuttiOpenssl.BIO_new(shared.socket);
  if (bio) {
    tuttiOpenssl.BIO_set_data(bio, s);
    tuttiOpenssl.BIO_set_init(bio, 1);
    s->ssl = tuttiOpenssl.SSL_new(shared.context);
  }
  if (!bio || !s->ssl || tuttiOpenssl.SSL_set_ex_data(s->ssl, 0, s) != 1)
    return TUTTI_FAIL(tuttiSystemError, "OpenSSL has no memory for a connection: %s", reason());
  tuttiOpenssl.SSL_set_bio(s->ssl, bio, bio);
  if (s->listens) {
    tuttiOpenssl.SSL_set_accept_state(s->ssl);
  } else {
    tuttiOpenssl.SSL_set_connect_state(s->ssl);
    tuttiOpenssl.SSL_set_verify(s->ssl, TUTTI_SSL_VERIFY_PEER, NULL); /* no certificate will do */
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiSecureStart(int fd, bool listens, const tuttiTlsKey *key) {
  const char *missing = tuttiOpensslLoad();
  if (missing) return TUTTI_FAIL(tuttiSystemError, "cannot encrypt: %s", missing);
  pthread_once(&shared.once, makeShared);
  if (!shared.context)
    return TUTTI_FAIL(tuttiSystemError,
                      "cannot encrypt: OpenSSL refuses TLS 1.3 with TLS_AES_128_GCM_SHA256 (%s); "
                      "see the policy in its openssl.cnf",
                      reason());
  if (fd < 0 || fd >= MOST_FDS)
    return TUTTI_FAIL(tuttiSystemError, "descriptor %d is too high for TLS: the most is %d", fd,
                      MOST_FDS - 1);
  session *s;
  TUTTI_TRY(tuttiAlloc((void **)&s, 1, sizeof *s, "a TLS connection", NULL));
  s->fd = fd;
  s->listens = listens;
  memcpy(s->psk, key->psk, sizeof s->psk);
  tuttiResult_t result = connectBio(s);
  if (result != tuttiSuccess) {
    freeSession(s);
    return result;
  }
  uint32_t end;
  while ((end = tuttiLoadAcquire32(&sessionsEnd)) <= (uint32_t)fd &&
         !tuttiCompareExchange32(&sessionsEnd, end, (uint32_t)fd + 1)) {
  }
  tuttiStoreRelease32(&tuttiSecureUsed, 1);
  tuttiStoreRelease(&sessions[fd], (uintptr_t)s);
  return tuttiSuccess;
}

/* ---- handshake ------------------------------------------------------------------------------ */

/* The kernel takes over what it can: nothing has gone under the traffic keys yet. */
static void giveToKernel(session *s) {
  tuttiTrafficKey key;
  static const uint8_t none[32];
  bool known = memcmp(s->traffic[0], none, 32) != 0 && memcmp(s->traffic[1], none, 32) != 0;
  if (!known || tuttiSettingInt(TUTTI_SETTING_KTLS_DISABLE) || !tuttiKtlsAttach(s->fd)) return;
  tuttiTrafficKeyOf(s->traffic[s->listens], &key);
  s->kernelSends = tuttiKtlsStart(s->fd, true, &key);
  tuttiTrafficKeyOf(s->traffic[!s->listens], &key);
  s->kernelReceives = tuttiKtlsStart(s->fd, false, &key);
  explicit_bzero(&key, sizeof key);
}

static void finishHandshake(session *s) {
  giveToKernel(s);
  for (int i = 0; i < 2; i++)
    explicit_bzero(s->traffic[i], sizeof s->traffic[i]);
  explicit_bzero(s->psk, sizeof s->psk);
  s->open = true;
}

/* The errno of a handshake that has failed, by what was heard. */
static int handshakeError(const session *s) {
  if (s->foreign) return EPROTO;
  if (s->ended) return ECONNRESET;
  return s->error ? s->error : EKEYREJECTED;
}

int tuttiSecureHandshake(int fd, short *events) {
  session *s = sessionOf(fd);
  if (!s) return -EBADF;
  if (s->open) return 1;
  if (s->dead) return -EPROTO;
  tuttiOpenssl.ERR_clear_error();
  int done = tuttiOpenssl.SSL_do_handshake(s->ssl);
  int why = done == 1 ? 0 : tuttiOpenssl.SSL_get_error(s->ssl, done);
  if (why == TUTTI_SSL_WANT_READ || why == TUTTI_SSL_WANT_WRITE) {
    *events = why == TUTTI_SSL_WANT_READ ? POLLIN : POLLOUT;
    return 0;
  }
  if (done == 1 && tuttiOpenssl.SSL_session_reused(s->ssl)) {
    finishHandshake(s);
    return 1;
  }
  int error = done == 1 ? EKEYREJECTED : handshakeError(s); /* 1: without the key */
  TUTTI_TRACE(NET, "a TLS handshake failed: %s (%s)", tuttiErrnoText(error), reason());
  s->dead = true;
  tuttiOpenssl.ERR_clear_error();
  return -error;
}

bool tuttiSecureAnswered(int fd) {
  const session *s = sessionOf(fd);
  return s && s->answered;
}

const char *tuttiSecureText(int fd) {
  const session *s = tuttiSecureMaybe() ? sessionOf(fd) : NULL;
  if (!s) return "in the clear";
  return s->kernelSends && s->kernelReceives ? "under TLS by the kernel" : "under TLS";
}

/* ---- sending -------------------------------------------------------------------------------- */

static ssize_t plainSend(int fd, const struct iovec *pieces, size_t n) {
  if (n == 1) /* cheaper, and it is what a small message needs */
    return send(fd, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
  const struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)pieces, .msg_iovlen = n};
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Copies what lies behind the first `skip` bytes into one record; returns how much that is. */
static size_t fillRecord(session *s, const struct iovec *pieces, size_t n, size_t skip) {
  size_t filled = 0;
  for (size_t i = 0; i < n && filled < sizeof s->record; i++) {
    size_t bytes = pieces[i].iov_len, skipped = skip < bytes ? skip : bytes;
    skip -= skipped;
    bytes -= skipped;
    if (bytes > sizeof s->record - filled) bytes = sizeof s->record - filled;
    if (bytes > 0) memcpy(s->record + filled, (const uint8_t *)pieces[i].iov_base + skipped, bytes);
    filled += bytes;
  }
  return filled;
}

/* errno of an operation that did not succeed; EAGAIN also if OpenSSL waits for the other direction,
 * which this use of it never asks for. 0: the end of the stream, whether the peer has said that it
 * closes or not: TCP alone would not tell either. */
static int operationError(session *s, int result, bool sending) {
  int why = tuttiOpenssl.SSL_get_error(s->ssl, result);
  if (why == TUTTI_SSL_WANT_READ || why == TUTTI_SSL_WANT_WRITE) return EAGAIN;
  s->ended |= why == TUTTI_SSL_ZERO_RETURN;
  s->dead |= why == TUTTI_SSL_ERROR_SSL || (why == TUTTI_SSL_ERROR_SYSCALL && !sending);
  tuttiOpenssl.ERR_clear_error();
  if (s->ended && !sending) return 0;
  if (s->error == 0) s->error = why == TUTTI_SSL_ERROR_SYSCALL ? ECONNRESET : EBADMSG;
  return s->error;
}

static ssize_t sendRecords(session *s, const struct iovec *pieces, size_t n) {
  size_t sent = 0, bytes, offered = 0;
  for (size_t i = 0; i < n; i++)
    offered += pieces[i].iov_len;
  if (s->owed > offered) {
    errno = EINVAL; /* the caller has forgotten what it offered before */
    return -1;
  }
  tuttiOpenssl.ERR_clear_error();
  while ((bytes = s->owed > 0 ? s->owed : fillRecord(s, pieces, n, sent)) > 0) {
    int took = tuttiOpenssl.SSL_write(s->ssl, s->record, (int)bytes);
    if (took > 0) {
      s->owed = 0;
      sent += (size_t)took;
      continue;
    }
    int error = operationError(s, took, true);
    s->owed = error == EAGAIN ? bytes : 0;
    s->cut = error != EAGAIN;
    if (sent > 0) break;
    errno = error;
    return -1;
  }
  return (ssize_t)sent;
}

/* What the kernel says of a connection that it has ended: EINVAL or EMSGSIZE is a header that it
 * takes for nonsense. What was forged it tells only once. */
static int kernelError(session *s, int error) {
  if (error == EINVAL || error == EMSGSIZE) error = EBADMSG;
  if (error != EBADMSG) return error;
  s->dead = true;
  return s->error = error;
}

/* errno of a connection that is over; 0: it is not, as far as this side knows. */
static int overError(int fd) {
  struct pollfd over = {.fd = fd}; /* POLLHUP and POLLERR need no asking */
  int error = 0;
  socklen_t bytes = sizeof error;
  if (poll(&over, 1, 0) <= 0) return 0;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error != 0 ? error : EPIPE;
}

/* On a connection that is over the kernel says that it has sent, unless an error is still to be
 * told. Whoever waits for an answer to that would make no other call, and so never hear. It is
 * asked after the send: before it, a connection that ends meanwhile would go unseen. */
static ssize_t kernelSend(session *s, const struct iovec *pieces, size_t n) {
  ssize_t sent = plainSend(s->fd, pieces, n);
  int error = sent < 0 ? errno : overError(s->fd);
  if (error == 0) return sent;
  errno = kernelError(s, error);
  return -1;
}

ssize_t tuttiSecureSendSlow(int fd, const struct iovec *pieces, size_t n) {
  session *s = sessionOf(fd);
  if (!s) return plainSend(fd, pieces, n);
  if (s->kernelSends) return kernelSend(s, pieces, n);
  if (s->open && !s->dead && !s->cut) return sendRecords(s, pieces, n);
  errno = s->open ? EPIPE : ENOTCONN;
  return -1;
}

ssize_t tuttiSecureSendPieces(int fd, struct iovec *pieces, size_t n) {
  return tuttiSecureMaybe() ? tuttiSecureSendSlow(fd, pieces, n) : plainSend(fd, pieces, n);
}

/* ---- receiving ------------------------------------------------------------------------------ */

static ssize_t plainRecv(int fd, const struct iovec *room, size_t n, int flags) {
  if (n == 1) return recv(fd, room->iov_base, room->iov_len, flags | MSG_DONTWAIT); /* cheaper */
  struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)room, .msg_iovlen = n};
  return recvmsg(fd, &message, flags | MSG_DONTWAIT);
}

/* Reads records until there is no more room, or none. *error: of the call that ended that. */
static size_t readInto(session *s, uint8_t *room, size_t bytes, int *error) {
  size_t got = 0;
  while (got < bytes && *error < 0) {
    size_t left = bytes - got < INT32_MAX ? bytes - got : INT32_MAX;
    int n = tuttiOpenssl.SSL_read(s->ssl, room + got, (int)left);
    if (n > 0)
      got += (size_t)n;
    else
      *error = operationError(s, n, false);
  }
  return got;
}

static ssize_t readRecords(session *s, const struct iovec *room, size_t n) {
  size_t got = 0;
  int error = -1; /* none */
  tuttiOpenssl.ERR_clear_error();
  for (size_t i = 0; i < n && error < 0; i++)
    got += readInto(s, room[i].iov_base, room[i].iov_len, &error);
  if (got > 0 || error <= 0) return (ssize_t)got;
  errno = error;
  return -1;
}

static ssize_t peekRecord(session *s, const struct iovec *room) {
  tuttiOpenssl.ERR_clear_error();
  int n = tuttiOpenssl.SSL_peek(s->ssl, room->iov_base, (int)room->iov_len);
  int error = n > 0 ? 0 : operationError(s, n, false);
  if (n > 0 || error == 0) return n > 0 ? n : 0;
  errno = error;
  return -1;
}

static ssize_t kernelRecv(session *s, const struct iovec *room, size_t n, bool peek) {
  ssize_t got = s->ended ? 0 : plainRecv(s->fd, room, n, peek ? MSG_PEEK : 0);
  if (got < 0 && errno == EIO) got = tuttiKtlsTakeControl(s->fd);
  s->ended = got == 0;
  if (got < 0) errno = kernelError(s, errno);
  return got;
}

ssize_t tuttiSecureRecvSlow(int fd, const struct iovec *room, size_t n, bool peek) {
  session *s = sessionOf(fd);
  if (!s) return plainRecv(fd, room, n, peek ? MSG_PEEK : 0);
  if (!s->open) {
    errno = ENOTCONN;
    return -1;
  }
  if (s->dead) { /* as it was told before */
    errno = s->error;
    return s->ended ? 0 : -1;
  }
  if (s->kernelReceives) return kernelRecv(s, room, n, peek);
  return peek ? peekRecord(s, room) : readRecords(s, room, n);
}

ssize_t tuttiSecureRecvPieces(int fd, struct iovec *room, size_t n) {
  return tuttiSecureMaybe() ? tuttiSecureRecvSlow(fd, room, n, false) : plainRecv(fd, room, n, 0);
}

bool tuttiSecurePendingSlow(int fd) {
  session *s = sessionOf(fd);
  if (!s || !s->open) return false;
  return s->dead || s->ended || (!s->kernelReceives && tuttiOpenssl.SSL_pending(s->ssl) > 0);
}
