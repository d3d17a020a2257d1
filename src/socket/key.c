#include "socket/key.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/mac.h"
#include "base/os.h"
#include "base/settings.h"
#include "socket/openssl.h"

static struct {
  pthread_mutex_t lock;
  size_t bytes; /* 0: none was set */
  uint8_t key[TUTTI_KEY_MOST];
} given = {.lock = PTHREAD_MUTEX_INITIALIZER};

static tuttiResult_t readFile(const char *path, uint8_t key[TUTTI_KEY_MOST], size_t *bytes) {
  char why[TUTTI_WHY];
  struct stat st;
  size_t size;
  TUTTI_CLOSED int fd = tuttiOpenRegular(path, TUTTI_KEY_MOST, &size, why);
  if (fd < 0) return TUTTI_FAIL(tuttiInvalidArgument, "TUTTI_PSK_FILE=%s%s", path, why);
  ssize_t got = tuttiReadAll(fd, key, size);
  if (got < 0 || fstat(fd, &st) != 0)
    return TUTTI_FAIL(tuttiSystemError, "cannot read TUTTI_PSK_FILE=%s: %s", path,
                      tuttiErrnoText(errno));
  while (got > 0 && isspace(key[got - 1]))
    got--;
  if (got < TUTTI_KEY_LEAST)
    return TUTTI_FAIL(
        tuttiInvalidArgument,
        "TUTTI_PSK_FILE=%s holds %zd bytes; a key has %d to %d, as random as those of "
        "`head -c 32 /dev/urandom | base64`",
        path, got, TUTTI_KEY_LEAST, TUTTI_KEY_MOST);
  if (st.st_mode & S_IRWXO)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "TUTTI_PSK_FILE=%s is open to every user of this host (mode %04o), and so no "
                      "secret: chmod 600",
                      path, (unsigned)st.st_mode & 07777u);
  *bytes = (size_t)got;
  return tuttiSuccess;
}

tuttiResult_t tuttiKeyRead(uint8_t key[TUTTI_KEY_MOST], size_t *bytes) {
  const char *path = tuttiSettingString(TUTTI_SETTING_PSK_FILE);
  pthread_mutex_lock(&given.lock);
  *bytes = given.bytes;
  memcpy(key, given.key, given.bytes);
  pthread_mutex_unlock(&given.lock);
  return *bytes > 0 || path[0] == '\0' ? tuttiSuccess : readFile(path, key, bytes);
}

tuttiResult_t tuttiKeySet(const char *psk) {
  size_t bytes = psk ? strnlen(psk, TUTTI_KEY_MOST + 1) : 0;
  if (psk && (bytes < TUTTI_KEY_LEAST || bytes > TUTTI_KEY_MOST))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "a key has %d to %d bytes, as random as those of "
                      "`head -c 32 /dev/urandom | base64`; this one has %s%zu",
                      TUTTI_KEY_LEAST, TUTTI_KEY_MOST, bytes > TUTTI_KEY_MOST ? "more than " : "",
                      bytes > TUTTI_KEY_MOST ? (size_t)TUTTI_KEY_MOST : bytes);
  if (!psk && tuttiSettingInt(TUTTI_SETTING_ENCRYPT))
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "no encryption is wanted here, but TUTTI_ENCRYPT=1 asks for it; "
                      "unset that, or give a key");
  if (psk && tuttiOpensslLoad())
    return TUTTI_FAIL(tuttiSystemError, "cannot encrypt: %s", tuttiOpensslLoad());
  TUTTI_LOCKED(&given.lock);
  explicit_bzero(given.key, sizeof given.key);
  given.bytes = bytes;
  if (psk) memcpy(given.key, psk, bytes);
  return tuttiSuccess;
}

static bool isGiven(void) {
  TUTTI_LOCKED(&given.lock);
  return given.bytes > 0;
}

tuttiResult_t tuttiTlsKeyMake(const uint8_t secret[16], tuttiTlsKey *out) {
  uint8_t key[TUTTI_KEY_MOST];
  size_t bytes;
  *out = (tuttiTlsKey){.on = false};
  if (!isGiven() && !tuttiSettingInt(TUTTI_SETTING_ENCRYPT)) return tuttiSuccess;
  if (tuttiOpensslLoad())
    return TUTTI_FAIL(tuttiSystemError, "cannot encrypt, as %s asks: %s",
                      isGiven() ? "tuttiSetEncryption" : "TUTTI_ENCRYPT=1", tuttiOpensslLoad());
  TUTTI_TRY(tuttiKeyRead(key, &bytes));
  if (bytes == 0)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "TUTTI_ENCRYPT=1 needs a key: set TUTTI_PSK_FILE to a file that holds one, "
                      "the same for all ranks (`head -c 32 /dev/urandom | base64`)");
  out->on = true;
  tuttiDerive((tuttiMacPart){key, bytes}, (tuttiMacPart){secret, 16},
              (tuttiMacPart){"tutti tls id", 12}, out->psk, sizeof out->psk);
  explicit_bzero(key, sizeof key);
  return tuttiSuccess;
}

void tuttiTlsKeyNext(const tuttiTlsKey *from, const uint8_t secret[16], tuttiTlsKey *out) {
  tuttiTlsKey next = {.on = from->on};
  if (from->on)
    tuttiDerive((tuttiMacPart){from->psk, sizeof from->psk}, (tuttiMacPart){secret, 16},
                (tuttiMacPart){"tutti tls communicator", 22}, next.psk, sizeof next.psk);
  *out = next;
}
