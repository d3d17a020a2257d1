/* Rings and trees in XML, of 5 ranks on 2 hosts. What is accepted can be walked. */
#include "fuzz/fuzz.h"

#include "collectives/graph.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const uint64_t hosts[] = {5, 5, 9, 5, 9};
  std::string text((const char *)data, size);
  tuttiGraph *g = nullptr;
  if (tuttiGraphParseXml(text.data(), size, "g.xml", hosts, 5, &g) != tuttiSuccess) {
    CHECK(g == nullptr && tuttiErrorText()[0] != '\0');
    return 0;
  }
  for (int i = 0; i < g->nchannels * g->nranks * g->nranks; i++) {
    tuttiSchedule s;
    int root = i % g->nranks, rank = i / g->nranks % g->nranks;
    tuttiGraphTree(g, i / g->nranks / g->nranks, root, rank, &s);
    CHECK((s.parent < 0) == (rank == root));
    CHECK(s.nchildren >= 0 && s.nchildren <= TUTTI_MAX_FAN);
  }
  tuttiGraphFree(g);
  return 0;
}
