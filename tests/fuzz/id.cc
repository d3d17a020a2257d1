/* Unique ids, with a checksum that fits. */
#include "fuzz/fuzz.h"

#include "base/os.h"
#include "bootstrap/bootstrap.h"

static tuttiUniqueId validId() {
  tuttiId id;
  memset(&id, 0, sizeof id);
  id.magic = 0x74755549u;
  id.version = TUTTI_VERSION_CODE;
  id.roots.n = 2;
  for (int i = 0; i < 2; i++) {
    id.roots.a[i].v4.sin_family = AF_INET;
    id.roots.a[i].v4.sin_port = htons(4711);
  }
  tuttiUniqueId out;
  memcpy(&out, &id, sizeof out);
  return out;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const tuttiUniqueId valid = validId();
  tuttiUniqueId in = valid;
  tuttiId id, out;
  change(&in, data, size);
  memcpy(&id, &in, sizeof id);
  id.check = 0;
  id.check = tuttiHash(&id, sizeof id);
  memcpy(&in, &id, sizeof in);
  memset(&out, 0x5a, sizeof out);
  if (tuttiIdParse(&in, &out) != tuttiSuccess) {
    CHECK(tuttiErrorText()[0] != '\0');
    return 0;
  }
  CHECK(memcmp(&out, &id, sizeof out) == 0);
  CHECK(tuttiAddressListValid(&out.roots));
  CHECK(out.fixed == 0 || out.fixed == 1);
  CHECK(size > 0 || out.roots.n == 2);
  return 0;
}
