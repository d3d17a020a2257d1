/* Texts of settings that have a grammar of their own: which algorithms and protocols, which
 * interfaces, what is logged, and the numbers of PCI devices. The first byte says which. */
#include "fuzz/fuzz.h"

#include "base/log.h"
#include "collectives/selection.h"
#include "socket/socket.h"
#include "topology/topology.h"

static void select(const char *text, const tuttiSelectionWords *words) {
  tuttiSelection selection;
  memset(&selection, 0xff, sizeof selection);
  if (tuttiSelectionParse("TUTTI_ALGO", text, words, &selection) != tuttiSuccess) {
    CHECK(strstr(tuttiErrorText(), "TUTTI_ALGO") != nullptr);
    return;
  }
  for (uint32_t mask : selection.of)
    CHECK(mask >> words->nhas == 0);
}

/* The name up to a '|', the family behind it. */
static void choose(const std::string &text) {
  tuttiFoundInterface found[4];
  tuttiInterface out[TUTTI_MAX_INTERFACES];
  int n = -1;
  memset(found, 0, sizeof found);
  const char *const names[] = {"lo", "eth0", "docker0", "ib0"};
  for (int i = 0; i < 4; i++) {
    snprintf(found[i].at.name, sizeof found[i].at.name, "%s", names[i]);
    found[i].flags = IFF_UP | IFF_RUNNING | (i == 0 ? (unsigned)IFF_LOOPBACK : 0);
    found[i].at.address.sa.sa_family = i == 3 ? AF_INET6 : AF_INET;
  }
  size_t bar = text.find('|');
  std::string name = text.substr(0, bar), family = bar < text.size() ? text.substr(bar + 1) : "";
  if (tuttiInterfacesChoose(found, 4, name.c_str(), family.c_str(), out, TUTTI_MAX_INTERFACES,
                            &n) == tuttiSuccess) {
    CHECK(n >= 1 && n <= TUTTI_MAX_INTERFACES);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  std::string text((const char *)data + 1, size - 1);
  uint64_t bus;
  switch (data[0] % 5) {
  case 0:
    select(text.c_str(), &tuttiAlgoWords);
    break;
  case 1:
    select(text.c_str(), &tuttiProtoWords);
    break;
  case 2:
    choose(text);
    break;
  case 3:
    (void)tuttiLogCheckLevel(text.c_str());
    (void)tuttiLogCheckSubsystems(text.c_str());
    break;
  default:
    (void)tuttiBusIdParse(text.c_str(), &bus);
  }
  return 0;
}
