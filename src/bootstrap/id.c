#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/host.h"
#include "base/mac.h"
#include "base/os.h"
#include "base/settings.h"
#include "bootstrap/rendezvous.h"
#include "socket/key.h"

#define ID_MAGIC 0x74755549u

_Static_assert(sizeof(tuttiId) == TUTTI_UNIQUE_ID_BYTES, "an id is all of a unique id");

static uint64_t idCheck(const tuttiId *id) {
  tuttiId copy = *id;
  copy.check = 0;
  return tuttiHash(&copy, sizeof(copy));
}

static void seal(tuttiId *id, tuttiUniqueId *out) {
  id->magic = ID_MAGIC;
  id->version = TUTTI_VERSION_CODE;
  id->check = idCheck(id);
  memcpy(out, id, sizeof(*id));
}

uint64_t tuttiIdHash(uint64_t before, const uint8_t secret[16]) {
  uint8_t mac[TUTTI_MAC_BYTES];
  uint64_t hash;
  const tuttiMacPart pieces[] = {{"tutti name", 10}, {&before, sizeof(before)}};
  tuttiMac(secret, 16, pieces, 2, mac);
  memcpy(&hash, mac, sizeof(hash));
  return hash;
}

/* An id without roots for a communicator's offspring. */
static void derive(const uint8_t parent[16], uint64_t purpose, tuttiId *id) {
  struct {
    char what[16];
    uint64_t purpose;
  } info = {"tutti offspring", purpose};
  memset(id, 0, sizeof(*id));
  tuttiDerive((tuttiMacPart){parent, 16}, (tuttiMacPart){NULL, 0},
              (tuttiMacPart){&info, sizeof(info)}, id->secret, sizeof(id->secret));
}

/* The same in every process and version, whatever the host's name resolves to there. Without a key
 * it keeps strangers apart, not attackers out: the name is no secret. */
static void deriveFixed(const char *commId, const uint8_t *key, size_t bytes, uint8_t secret[16]) {
  tuttiDerive((tuttiMacPart){key, bytes}, (tuttiMacPart){"TUTTI_COMM_ID", 13},
              (tuttiMacPart){commId, strlen(commId)}, secret, 16);
}

bool tuttiIdOpenSecret(uint8_t secret[16]) {
  const char *commId = tuttiSettingString(TUTTI_SETTING_COMM_ID);
  if (commId[0] == '\0') return false;
  deriveFixed(commId, NULL, 0, secret);
  return true;
}

static tuttiResult_t createFixed(const char *commId, tuttiUniqueId *out) {
  tuttiId id;
  uint8_t key[TUTTI_KEY_MOST];
  size_t bytes;
  memset(&id, 0, sizeof(id));
  TUTTI_TRY(tuttiKeyRead(key, &bytes));
  id.keyed = bytes > 0;
  deriveFixed(commId, key, bytes, id.secret);
  explicit_bzero(key, sizeof(key));
  if (tuttiAddressParse(commId, &id.roots.a[0]) != tuttiSuccess)
    return TUTTI_FAIL(tuttiInvalidArgument, "TUTTI_COMM_ID: %.900s", tuttiErrorText());
  id.roots.n = id.fixed = 1;
  seal(&id, out);
  return tuttiSuccess;
}

/* Starts the root of an id that has its secret, in the process of that rank. */
static tuttiResult_t serve(tuttiId *id, const tuttiInterface *found, int n, int rank,
                           tuttiUniqueId *out) {
  tuttiListener listener;
  TUTTI_TRY(tuttiListenAny(found, n, &id->roots, &listener));
  TUTTI_TRY(tuttiRootStart(listener, &id->roots.a[0], id->secret, false, rank));
  id->pid = getpid();
  id->pidSpace = tuttiPidSpace();
  seal(id, out);
  return tuttiSuccess;
}

tuttiResult_t tuttiIdCreate(int rank, tuttiUniqueId *out) {
  const char *commId = tuttiSettingString(TUTTI_SETTING_COMM_ID);
  if (commId[0] != '\0') return createFixed(commId, out);
  tuttiId id;
  memset(&id, 0, sizeof(id));
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int n;
  TUTTI_TRY(tuttiInterfaces(interfaces, TUTTI_MAX_INTERFACES, &n));
  TUTTI_TRY(tuttiRandom(id.secret, sizeof(id.secret)));
  return serve(&id, interfaces, n, rank, out);
}

tuttiResult_t tuttiIdOffer(const tuttiBootstrap *b, uint64_t purpose, tuttiUniqueId *out,
                           uint16_t *port) {
  tuttiId id;
  derive(b->secret, purpose, &id);
  TUTTI_TRY(serve(&id, b->interfaces, b->ninterfaces, 0, out));
  *port = id.roots.a[0].v4.sin_port;
  return tuttiSuccess;
}

void tuttiIdFollow(const tuttiBootstrap *b, int leader, uint64_t purpose, uint16_t port,
                   tuttiUniqueId *out) {
  tuttiId id;
  derive(b->secret, purpose, &id);
  id.roots = b->listeners[leader];
  for (int i = 0; i < id.roots.n; i++)
    id.roots.a[i].v4.sin_port = port;
  seal(&id, out);
}

void tuttiIdCancel(const tuttiUniqueId *id, tuttiResult_t why) {
  tuttiId parsed;
  memcpy(&parsed, id, sizeof(parsed));
  tuttiRootCancel(parsed.secret, why);
}

tuttiResult_t tuttiIdParse(const tuttiUniqueId *in, tuttiId *out) {
  static const tuttiUniqueId zero;
  const char *remedy = "pass the bytes that tuttiGetUniqueId wrote, unchanged, to every rank";
  tuttiId id;
  memcpy(&id, in, sizeof(id));
  if (memcmp(in, &zero, sizeof(zero)) == 0)
    return TUTTI_FAIL(tuttiInvalidArgument, "the unique id is all zero: was it ever received? %s",
                      remedy);
  if (id.magic != ID_MAGIC)
    return TUTTI_FAIL(tuttiInvalidArgument, "the unique id was not made by tuttiGetUniqueId: %s",
                      remedy);
  if (id.version != TUTTI_VERSION_CODE)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "the unique id was made by tutti %u.%u.%u, this rank runs %d.%d.%d (%s): "
                      "start all ranks with one version of the library",
                      id.version / 10000, id.version / 100 % 100, id.version % 100, TUTTI_MAJOR,
                      TUTTI_MINOR, TUTTI_PATCH, tuttiLibraryPath());
  if (id.check != idCheck(&id))
    return TUTTI_FAIL(tuttiInvalidArgument, "the unique id was damaged or cut short: %s", remedy);
  if ((id.fixed != 0 && id.fixed != 1) || (id.keyed != 0 && id.keyed != id.fixed) || id.pid < 0 ||
      (id.fixed && id.pid != 0) || !tuttiAddressListValid(&id.roots))
    return TUTTI_FAIL(tuttiInvalidArgument, "the unique id holds no usable address: %s", remedy);
  *out = id;
  return tuttiSuccess;
}

const char *tuttiIdRootText(const tuttiId *id, char *buf, size_t size) {
  char at[80], pid[32] = "";
  if (id->pid > 0) snprintf(pid, sizeof pid, "pid %d, ", id->pid);
  snprintf(buf, size, "%s (%sat %s)",
           id->fixed ? "the rendezvous of TUTTI_COMM_ID" : "the process that made the unique id",
           pid, tuttiAddressText(&id->roots.a[0], at, sizeof at));
  return buf;
}

bool tuttiIdRootGone(const tuttiId *id) {
  return id->pid > 0 && id->pidSpace != 0 && id->pidSpace == tuttiPidSpace() &&
         tuttiProcessGone(id->pid);
}
