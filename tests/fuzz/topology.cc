/* Topologies in XML. What is accepted can be used, and comes back the same from what is written. */
#include "fuzz/fuzz.h"

#include "topology/topology.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string text((const char *)data, size);
  tuttiTopology *t = nullptr;
  if (tuttiTopologyParseXml(text.data(), size, "t.xml", &t) != tuttiSuccess) {
    CHECK(t == nullptr && tuttiErrorText()[0] != '\0');
    return 0;
  }
  char buf[256];
  for (int i = 0; i < t->count && i < 64; i++) {
    CHECK(t->nodes[i].parent < i);
    CHECK(tuttiTopologyDistance(t, i, t->count - 1 - i) < TUTTI_DISTANCE_COUNT);
    tuttiTopologyPath(t, t->nodes[i].busId, t->nodes[t->count - 1 - i].busId, buf, sizeof buf);
  }
  tuttiTopologyFree(t);
  return 0;
}
