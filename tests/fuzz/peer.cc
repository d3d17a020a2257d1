/* The record of a peer, with handles of NET/Socket or NET/IB. What passes the check is asked for
 * its paths, in both orders, and these are put into words. */
#include "fuzz/fuzz.h"

#include <unistd.h>

#include "base/host.h"
#include "transport/net.h"
#include "transport/socket/endpoint.h"
#include "wireup/paths.h"

static tuttiPeer recordOf(int rank) {
  tuttiPeer p;
  memset(&p, 0, sizeof p);
  p.version = TUTTI_VERSION_CODE;
  p.rank = rank;
  p.nranks = 2;
  p.device = tuttiDeviceHost;
  p.cudaDevice = -1;
  p.pid = getpid();
  p.process = 100 + (uint64_t)rank;
  p.hostId = 200 + (uint64_t)rank;
  p.cores = 4;
  snprintf(p.host, sizeof p.host, "host%d", rank);
  snprintf(p.config, sizeof p.config, "channels 0-0, device 0, net ''");
  snprintf(p.netName, sizeof p.netName, "Socket");
  tuttiSocketHandle handle;
  memset(&handle, 0, sizeof handle);
  handle.addresses.n = 1;
  handle.addresses.a[0].v4.sin_family = AF_INET;
  handle.addresses.a[0].v4.sin_port = htons(4711);
  memcpy(p.net, &handle, sizeof handle);
  return p;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tuttiPeer peers[2] = {recordOf(0), recordOf(1)};
  bool ib = size > 0 && data[0] % 2;
  if (ib)
    for (auto &p : peers)
      snprintf(p.netName, sizeof p.netName, "IB");
  change(&peers[1], data + (size > 0), size - (size > 0));
  if (tuttiPeerCheck(&peers[1], 1, &peers[0]) != tuttiSuccess) {
    CHECK(tuttiErrorText()[0] != '\0');
    return 0;
  }
  tuttiPath paths[2], turned;
  memset(paths, 0, sizeof paths);
  memset(&turned, 0, sizeof turned);
  tuttiPathsFill(peers, 0, 2, paths);
  tuttiTransportSelect(&peers[1], &peers[0], &turned);
  CHECK(turned.transport == paths[1].transport);
  char text[TUTTI_SENTENCE], via[TUTTI_VIA];
  tuttiPathText(&paths[1], &peers[0], &peers[1], text);
  CHECK(strnlen(text, sizeof text) < sizeof text);
  if (!paths[1].transport) return 0;
  tuttiPathVia(&paths[1], &peers[0], &peers[1], via);
  tuttiPathVia(&paths[1], &peers[1], &peers[0], via);
  CHECK(strnlen(via, sizeof via) < sizeof via);
  return 0;
}
