// A rank of NET/IB whose payloads lie in GPU memory that no CPU may touch, the stand-in's, and
// messages as its kernels would write and read them.
#pragma once

#include <sched.h>

#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/os.h"
#include "base/settings.h"
#include "proxy/proxy.h"
#include "standin.h"
#include "transport/ib/wire.h"
#include "transport/net.h"

constexpr size_t kSlot = 65536;
constexpr uint64_t kLongNs = 60000000000; // of every wait; never expected to pass

// A setting for the rest of this process.
inline void set(const char *name, const char *value) {
  setenv(name, value, 1);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess) << tuttiErrorText();
}

constexpr uint64_t kGpu = UINT64_C(0xfffe) << 24 | 0x180000, kNic = kGpu + 0x800000;

// A host whose GPU and software HCA are on two sockets.
inline const tuttiTopology *acrossSockets() {
  static tuttiNode nodes[7];
  static tuttiTopology t;
  const struct {
    tuttiNodeKind kind;
    int parent;
    const char *name;
    uint64_t busId;
  } made[] = {{tuttiNodeSystem, -1, "host", 0},       {tuttiNodeNuma, 0, "numa0", 0},
              {tuttiNodeHostBridge, 1, "fffe:17", 0}, {tuttiNodeGpu, 2, "fffe:18:00.0", kGpu},
              {tuttiNodeNuma, 0, "numa1", 0},         {tuttiNodeHostBridge, 4, "fffe:97", 0},
              {tuttiNodeNic, 5, "softhca0", kNic}};
  for (int i = 0; i < 7; i++) {
    nodes[i].kind = made[i].kind;
    nodes[i].parent = made[i].parent;
    nodes[i].busId = made[i].busId;
    nodes[i].numa = -1;
    snprintf(nodes[i].name, sizeof nodes[i].name, "%s", made[i].name);
  }
  t.nodes = nodes;
  t.count = t.capacity = 7;
  return &t;
}
inline const tuttiTopology *topology = nullptr; // of ranks from now on, if not this host's

struct Rank {
  tuttiCommView view{};
  std::vector<tuttiPeer> peers;
  std::vector<tuttiPath> paths;
  tuttiAtomic32 failed{};
  tuttiMemAccount memory{};
  std::mutex lock;
  std::string error;

  static void fail(void *self, tuttiResult_t, const char *text) {
    Rank *r = static_cast<Rank *>(self);
    std::lock_guard<std::mutex> guard(r->lock);
    r->error = text;
    tuttiStoreRelease32(&r->failed, 1);
  }
  tuttiPeer &mine() { return peers[static_cast<size_t>(view.rank)]; }
  // As rank `rank` of so many, each on a host of its own.
  tuttiResult_t prepare(int rank, bool onGpu, size_t slotBytes = kSlot, int nranks = 2) {
    peers.resize(static_cast<size_t>(nranks));
    paths.resize(static_cast<size_t>(nranks));
    view.rank = rank;
    view.nranks = nranks;
    view.commHash = 0x1234abcd;
    view.peers = peers.data();
    view.paths = paths.data();
    view.nchannels = 4;
    view.slotBytes = slotBytes;
    view.timeoutMs = 60000;
    view.failed = &failed;
    view.memory = &memory;
    view.netName = "IB";
    view.gdr = view.dmabuf = true;
    EXPECT_EQ(tuttiTopologyHost(true, &view.topology), tuttiSuccess) << tuttiErrorText();
    if (topology) view.topology = topology;
    tuttiPeer &p = mine();
    p.busId = kGpu;
    p.rank = rank;
    p.nranks = nranks;
    p.pid = getpid();
    p.hostId = 100 + static_cast<uint64_t>(rank);
    p.device = onGpu ? tuttiDeviceCuda : tuttiDeviceHost;
    p.cudaDevice = onGpu ? 0 : -1;
    snprintf(p.host, sizeof p.host, "host%d", rank);
    EXPECT_EQ(tuttiProxyCreate(&view.proxy, fail, this), tuttiSuccess) << tuttiErrorText();
    return tuttiTransportNet.prepare(&view, &p);
  }
  // Takes the other's record, and makes the path as src/wireup does.
  void meet(const tuttiPeer &other) {
    auto peer = static_cast<size_t>(other.rank);
    peers[peer] = other;
    tuttiTransportSelect(&mine(), &peers[peer], &paths[peer]);
  }
  tuttiGdr answer(int port = 0, bool read = false) {
    tuttiIbHandle h;
    memcpy(&h, mine().net, sizeof h);
    return static_cast<tuttiGdr>(read ? h.ports[port].gdrRead : h.ports[port].gdr);
  }
  tuttiConn open(int channel, tuttiDirection direction) {
    return open(1 - view.rank, channel, direction);
  }
  tuttiConn open(int peer, int channel, tuttiDirection direction) {
    tuttiConn c{};
    EXPECT_EQ(tuttiTransportNet.open(&view, peer, channel, direction, false, &c), tuttiSuccess)
        << tuttiErrorText();
    return c;
  }
  // Runs the loop until the connection is ready.
  bool await(tuttiConn &c) {
    tuttiProxyEnter(view.proxy);
    uint64_t end = tuttiNow() + kLongNs;
    while (!tuttiConnReady(&c) && !tuttiLoadAcquire32(&failed) && tuttiNow() < end)
      if (!tuttiProxyRun(view.proxy)) sched_yield();
    tuttiProxyLeave(view.proxy);
    return tuttiConnReady(&c);
  }
  ~Rank() {
    tuttiTransportNet.detach(&view);
    tuttiProxyDestroy(view.proxy);
  }
};

inline uint8_t byteOf(uint64_t message, size_t i) {
  return static_cast<uint8_t>(message * 131 + i * 7 + (i >> 8) * 31 + 5);
}

// As a kernel would: the payload by the GPU, then the descriptor.
inline void publish(Rank &r, tuttiConn &c, size_t bytes) {
  std::vector<uint8_t> payload(bytes);
  for (size_t i = 0; i < bytes; i++)
    payload[i] = byteOf(c.next, i);
  tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
  slot->bytes = static_cast<uint32_t>(bytes);
  slot->where = bytes <= TUTTI_INLINE_MAX ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
  slot->sig = tuttiSignature{};
  if (slot->where == TUTTI_WHERE_INLINE)
    memcpy(slot->inlined, payload.data(), bytes);
  else
    cuMemcpyHtoD_v2(pointerOf(tuttiConnData(&c, bytes)), payload.data(), bytes);
  tuttiConnAdvance(&c);
  tuttiProxyKick(r.view.proxy);
}

// Whether the message that is there has the right bytes; leaves others in its slot.
inline bool take(Rank &r, tuttiConn &c, size_t bytes) {
  std::vector<uint8_t> payload(bytes), other(bytes, 0xee);
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
  bool right = slot->bytes == bytes;
  if (slot->where == TUTTI_WHERE_INLINE) {
    memcpy(payload.data(), slot->inlined, bytes);
  } else {
    cuPointer at = pointerOf(tuttiConnData(&c, bytes));
    cuMemcpyDtoH_v2(payload.data(), at, bytes);
    cuMemcpyHtoD_v2(at, other.data(), bytes);
  }
  for (size_t i = 0; i < bytes; i++)
    right &= payload[i] == byteOf(c.next, i);
  tuttiConnAdvance(&c);
  tuttiProxyKick(r.view.proxy);
  return right;
}
