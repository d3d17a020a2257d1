/* What comes over a data connection: a slot descriptor, NET/IB's handshake; the hello before them,
 * as of one who knows the secret; and what a rank says of itself to those who ask. */
#include "fuzz/fuzz.h"

#include "transport/ib/wire.h"
extern "C" { /* it is for the library alone, and does not say so itself */
#include "comm/record.h"
}
#include "transport/socket/endpoint.h"

static void takeDescriptor(const uint8_t *data, size_t size) {
  tuttiSlotDescriptor d;
  memset(&d, 0, sizeof d);
  d.seq.v = 5;
  d.where = TUTTI_WHERE_INLINE;
  d.bytes = 8;
  change(&d, data, size);
  for (bool windows : {false, true}) {
    if (tuttiSocketDescriptorCheck(&d, 4, 4096, windows) != nullptr) continue;
    CHECK(d.bytes <= 4096);
    CHECK(d.where != TUTTI_WHERE_INLINE || d.bytes <= sizeof d.inlined);
    CHECK(d.where != TUTTI_WHERE_WINDOW || windows);
  }
}

static void takeHandshake(const uint8_t *data, size_t size) {
  tuttiIbHandshake offer, answer;
  memset(&offer, 0, sizeof offer);
  offer.magic = TUTTI_IB_MAGIC;
  offer.kind = TUTTI_IB_OFFER;
  offer.epoch = 1;
  offer.nqps = 2;
  offer.control = offer.data = 1 << 20;
  offer.slotBytes = 4096;
  offer.qps[0].qpn = offer.qps[1].qpn = 17;
  answer = offer;
  answer.kind = TUTTI_IB_ANSWER;
  change(&answer, data, size);
  tuttiIbHandshake heard = answer;
  const int nports[2] = {2, 2};
  if (tuttiIbHandshakeCheck(&answer, 4096, nports, &offer) == nullptr) {
    CHECK(answer.nqps == offer.nqps && answer.slotBytes == 4096);
  }
  heard.kind = TUTTI_IB_OFFER;
  if (tuttiIbHandshakeCheck(&heard, 4096, nports, nullptr) == nullptr) {
    CHECK(heard.nqps >= 0 && heard.nqps <= TUTTI_IB_QUEUE_PAIRS);
  }
}

static void takeHello(const uint8_t *data, size_t size) {
  tuttiCommView view;
  tuttiNetHello hello;
  memset(&view, 0, sizeof view);
  memset(&hello, 0, sizeof hello);
  view.rank = 1;
  view.nranks = 3;
  view.commHash = 42;
  tuttiHelloFill(&hello.head, 42, tuttiHelloNet, 0, 1, 3);
  hello.parts = 1;
  change(&hello, data, size);
  char name[96];
  tuttiHelloName(&hello.head, name, sizeof name);
  for (const char *c = name; *c; c++)
    CHECK(*c >= ' ' && *c <= '~');
  if (tuttiSocketHelloCheck(&view, &hello) != nullptr) return;
  CHECK(hello.head.from == 0 || hello.head.from == 2);
  CHECK(hello.channel >= 0 && hello.channel < TUTTI_CHANNELS);
  CHECK(hello.part >= 0 && hello.part < hello.parts && hello.parts <= TUTTI_SOCKET_PARTS);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  std::string exact((const char *)data + 1, size - 1);
  const uint8_t *bytes = (const uint8_t *)exact.data();
  tuttiRankState state;
  switch (data[0] % 4) {
  case 0:
    takeDescriptor(bytes, exact.size());
    break;
  case 1:
    takeHandshake(bytes, exact.size());
    break;
  case 2:
    takeHello(bytes, exact.size());
    break;
  case 3:
    (void)tuttiRankStateParse(bytes, exact.size(), &state);
    break;
  }
  return 0;
}
