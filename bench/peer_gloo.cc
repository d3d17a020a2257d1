/* gloo over TCP, its one transport between processes; ranks meet in the folder that GLOO_STORE
 * names. */
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "peer.h"

namespace {

std::shared_ptr<gloo::rendezvous::Context> context;

/* Its calls differ in how they are told their buffers. */
template <typename Options> Options rooted() {
  Options options(context);
  options.setRoot(0);
  return options;
}

/* gloo's inputs are not const, and it does not write to them. */
void call(peerCollective collective, float *send, float *recv, size_t n) {
  size_t all = n * (size_t)context->size;
  bool root = context->rank == 0;
  void (*sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
  switch (collective) {
  case peerAllReduce: {
    gloo::AllreduceOptions o(context);
    o.setInput(send, n);
    o.setOutput(recv, n);
    o.setReduceFunction(sum);
    return gloo::allreduce(o);
  }
  case peerBroadcast: {
    auto o = rooted<gloo::BroadcastOptions>();
    o.setOutput(recv, n);
    return gloo::broadcast(o);
  }
  case peerAllGather: {
    gloo::AllgatherOptions o(context);
    o.setInput(send, n);
    o.setOutput(recv, all);
    return gloo::allgather(o);
  }
  case peerAllToAll: {
    gloo::AlltoallOptions o(context);
    o.setInput(send, all);
    o.setOutput(recv, all);
    return gloo::alltoall(o);
  }
  case peerReduce: {
    auto o = rooted<gloo::ReduceOptions>();
    o.setInput(send, n);
    o.setOutput(recv, n);
    o.setReduceFunction(sum);
    return gloo::reduce(o);
  }
  case peerGather: {
    auto o = rooted<gloo::GatherOptions>();
    o.setInput(send, n);
    if (root) o.setOutput(recv, all);
    return gloo::gather(o);
  }
  case peerScatter: {
    auto o = rooted<gloo::ScatterOptions>();
    std::vector<float *> blocks;
    for (int r = 0; root && r < context->size; r++)
      blocks.push_back(send + (size_t)r * n);
    if (root) o.setInputs(blocks, n);
    o.setOutput(recv, n);
    return gloo::scatter(o);
  }
  case peerBarrier: {
    gloo::BarrierOptions o(context);
    return gloo::barrier(o);
  }
  case peerReduceScatter:
  case peerCollectives:
    break;
  }
  fprintf(stderr, "gloo has no such collective\n");
  exit(3);
}

} // namespace

void peerStart(int *rank, int *nranks) {
  const char *store = getenv("GLOO_STORE");
  if (!store) {
    fprintf(stderr, "GLOO_STORE is not set: a folder of its own for each run\n");
    exit(2);
  }
  *rank = peerPlace("OMPI_COMM_WORLD_RANK", "PMI_RANK");
  *nranks = peerPlace("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore files(store);
  context = std::make_shared<gloo::rendezvous::Context>(*rank, *nranks);
  context->connectFullMesh(files, device);
}

void peerCall(peerCollective collective, const float *send, float *recv, size_t count) {
  call(collective, const_cast<float *>(send), recv, count);
}

double peerMax(double value) {
  double most = value;
  gloo::AllreduceOptions o(context);
  o.setOutput(&most, 1);
  o.setReduceFunction(
      [](void *to, const void *a, const void *b, size_t n) { gloo::max<double>(to, a, b, n); });
  gloo::allreduce(o);
  return most;
}

void peerStop(void) {
  context.reset();
}
