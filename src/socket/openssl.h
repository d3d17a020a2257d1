/* OpenSSL 3 as far as TLS needs it, loaded when encryption is first asked for: the library itself
 * needs libc alone. What is declared here is of its stable ABI. */
#ifndef TUTTI_SOCKET_OPENSSL_H_
#define TUTTI_SOCKET_OPENSSL_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_session_st SSL_SESSION;
typedef struct ssl_cipher_st SSL_CIPHER;
typedef struct ssl_method_st SSL_METHOD;
typedef struct evp_md_st EVP_MD;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;

typedef int (*tuttiSslUse)(SSL *, const EVP_MD *, const unsigned char **, size_t *, SSL_SESSION **);
typedef int (*tuttiSslFind)(SSL *, const unsigned char *, size_t, SSL_SESSION **);
typedef void (*tuttiSslKeyLog)(const SSL *, const char *);

#define TUTTI_OPENSSL(X)                                                                           \
  X(OPENSSL_init_ssl, int, (uint64_t, const void *))                                               \
  X(ERR_clear_error, void, (void))                                                                 \
  X(ERR_peek_error, unsigned long, (void))                                                         \
  X(ERR_reason_error_string, const char *, (unsigned long))                                        \
  X(BIO_meth_new, BIO_METHOD *, (int, const char *))                                               \
  X(BIO_meth_free, void, (BIO_METHOD *))                                                           \
  X(BIO_meth_set_write, int, (BIO_METHOD *, int (*)(BIO *, const char *, int)))                    \
  X(BIO_meth_set_read, int, (BIO_METHOD *, int (*)(BIO *, char *, int)))                           \
  X(BIO_meth_set_ctrl, int, (BIO_METHOD *, long (*)(BIO *, int, long, void *)))                    \
  X(BIO_new, BIO *, (const BIO_METHOD *))                                                          \
  X(BIO_set_data, void, (BIO *, void *))                                                           \
  X(BIO_get_data, void *, (BIO *))                                                                 \
  X(BIO_set_init, void, (BIO *, int))                                                              \
  X(BIO_set_flags, void, (BIO *, int))                                                             \
  X(BIO_clear_flags, void, (BIO *, int))                                                           \
  X(TLS_method, const SSL_METHOD *, (void))                                                        \
  X(SSL_CTX_new, SSL_CTX *, (const SSL_METHOD *))                                                  \
  X(SSL_CTX_free, void, (SSL_CTX *))                                                               \
  X(SSL_CTX_ctrl, long, (SSL_CTX *, int, long, void *))                                            \
  X(SSL_CTX_set_ciphersuites, int, (SSL_CTX *, const char *))                                      \
  X(SSL_CTX_set_num_tickets, int, (SSL_CTX *, size_t))                                             \
  X(SSL_CTX_set_psk_use_session_callback, void, (SSL_CTX *, tuttiSslUse))                          \
  X(SSL_CTX_set_psk_find_session_callback, void, (SSL_CTX *, tuttiSslFind))                        \
  X(SSL_CTX_set_keylog_callback, void, (SSL_CTX *, tuttiSslKeyLog))                                \
  X(SSL_new, SSL *, (SSL_CTX *))                                                                   \
  X(SSL_free, void, (SSL *))                                                                       \
  X(SSL_set_bio, void, (SSL *, BIO *, BIO *))                                                      \
  X(SSL_set_ex_data, int, (SSL *, int, void *))                                                    \
  X(SSL_get_ex_data, void *, (const SSL *, int))                                                   \
  X(SSL_set_verify, void, (SSL *, int, int (*)(int, void *)))                                      \
  X(SSL_set_connect_state, void, (SSL *))                                                          \
  X(SSL_set_accept_state, void, (SSL *))                                                           \
  X(SSL_do_handshake, int, (SSL *))                                                                \
  X(SSL_ctrl, long, (SSL *, int, long, void *))                                                    \
  X(SSL_get_error, int, (const SSL *, int))                                                        \
  X(SSL_read, int, (SSL *, void *, int))                                                           \
  X(SSL_peek, int, (SSL *, void *, int))                                                           \
  X(SSL_write, int, (SSL *, const void *, int))                                                    \
  X(SSL_pending, int, (const SSL *))                                                               \
  X(SSL_shutdown, int, (SSL *))                                                                    \
  X(SSL_SESSION_new, SSL_SESSION *, (void))                                                        \
  X(SSL_SESSION_free, void, (SSL_SESSION *))                                                       \
  X(SSL_SESSION_set1_master_key, int, (SSL_SESSION *, const unsigned char *, size_t))              \
  X(SSL_SESSION_set_cipher, int, (SSL_SESSION *, const SSL_CIPHER *))                              \
  X(SSL_SESSION_set_protocol_version, int, (SSL_SESSION *, int))                                   \
  X(SSL_CIPHER_find, const SSL_CIPHER *, (SSL *, const unsigned char *))                           \
  X(SSL_session_reused, int, (const SSL *))

/* NOLINTNEXTLINE(bugprone-macro-parentheses): these are types */
#define TUTTI_OPENSSL_MEMBER(name, result, arguments) result(*name) arguments;
typedef struct {
  TUTTI_OPENSSL(TUTTI_OPENSSL_MEMBER)
} tuttiOpensslTable;
extern tuttiOpensslTable tuttiOpenssl;

enum {
  TUTTI_SSL_ERROR_SSL = 1,
  TUTTI_SSL_WANT_READ = 2,
  TUTTI_SSL_WANT_WRITE = 3,
  TUTTI_SSL_ERROR_SYSCALL = 5,
  TUTTI_SSL_ZERO_RETURN = 6, /* the peer's close_notify */

  TUTTI_SSL_CTRL_MODE = 33,
  TUTTI_SSL_CTRL_CACHE = 44,
  TUTTI_SSL_CTRL_LEAST_VERSION = 123,
  TUTTI_SSL_CTRL_MOST_VERSION = 124,
  TUTTI_SSL_MODE_RELEASE_BUFFERS = 0x10, /* of connections that are idle */
  TUTTI_SSL_VERIFY_PEER = 1,
  TUTTI_TLS13 = 0x0304,

  TUTTI_BIO_SOURCE_SINK = 0x0400,
  TUTTI_BIO_READ = 0x01,
  TUTTI_BIO_WRITE = 0x02,
  TUTTI_BIO_RETRY = 0x08,
  TUTTI_BIO_CTRL_FLUSH = 11
};

/* Loads it, once. NULL, or why it can't be had and what to do: constant. */
const char *tuttiOpensslLoad(void);

__END_DECLS

#endif
