#include "socket/ktls.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mac.h"

#ifndef SOL_TLS
#define SOL_TLS 282
#endif
#ifndef TCP_ULP
#define TCP_ULP 31
#endif

enum { RECORD_ALERT = 21, ALERT_WARNING = 1, ALERT_CLOSE_NOTIFY = 0 };

/* HKDF-Expand-Label (RFC 8446, 7.1) without a context, of at most one block. */
static void expand(const uint8_t secret[32], const char *label, uint8_t *out, size_t bytes) {
  uint8_t block[TUTTI_MAC_BYTES], text = (uint8_t)(6 + strlen(label));
  const uint8_t size[2] = {0, (uint8_t)bytes}, end[2] = {0, 1}; /* no context; block 1 */
  const tuttiMacPart info[] = {
      {size, 2}, {&text, 1}, {"tls13 ", 6}, {label, strlen(label)}, {end, 2}};
  tuttiMac(secret, 32, info, 5, block);
  memcpy(out, block, bytes);
  explicit_bzero(block, sizeof block);
}

void tuttiTrafficKeyOf(const uint8_t secret[32], tuttiTrafficKey *out) {
  expand(secret, "key", out->key, sizeof out->key);
  expand(secret, "iv", out->iv, sizeof out->iv);
}

bool tuttiKtlsAttach(int fd) {
  return setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls" - 1) == 0;
}

bool tuttiKtlsStart(int fd, bool send, const tuttiTrafficKey *key) {
  struct tls12_crypto_info_aes_gcm_128 info = {
      .info = {.version = TLS_1_3_VERSION, .cipher_type = TLS_CIPHER_AES_GCM_128}};
  memcpy(info.key, key->key, sizeof info.key);
  memcpy(info.salt, key->iv, sizeof info.salt);
  memcpy(info.iv, key->iv + sizeof info.salt, sizeof info.iv);
  bool started = setsockopt(fd, SOL_TLS, send ? TLS_TX : TLS_RX, &info, sizeof info) == 0;
  explicit_bzero(&info, sizeof info);
  return started;
}

ssize_t tuttiKtlsTakeControl(int fd) {
  uint8_t record[64], kind = 0;
  union {
    struct cmsghdr head;
    uint8_t room[CMSG_SPACE(sizeof kind)];
  } control;
  struct iovec iov = {record, sizeof record};
  struct msghdr message = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control.room,
                           .msg_controllen = sizeof control.room};
  ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
  if (n < 0) return -1;
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  if (head && head->cmsg_level == SOL_TLS && head->cmsg_type == TLS_GET_RECORD_TYPE)
    memcpy(&kind, CMSG_DATA(head), sizeof kind);
  if (kind == RECORD_ALERT && n == 2 && record[1] == ALERT_CLOSE_NOTIFY) return 0;
  errno = EBADMSG; /* other alerts too: the peer could not decrypt */
  return -1;
}

void tuttiKtlsSayClose(int fd) {
  uint8_t alert[2] = {ALERT_WARNING, ALERT_CLOSE_NOTIFY};
  union {
    struct cmsghdr head;
    uint8_t room[CMSG_SPACE(sizeof(uint8_t))];
  } control = {.head = {.cmsg_level = SOL_TLS,
                        .cmsg_type = TLS_SET_RECORD_TYPE,
                        .cmsg_len = CMSG_LEN(sizeof(uint8_t))}};
  struct iovec iov = {alert, sizeof alert};
  struct msghdr message = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control.room,
                           .msg_controllen = sizeof control.room};
  *CMSG_DATA(&control.head) = RECORD_ALERT;
  (void)sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}
