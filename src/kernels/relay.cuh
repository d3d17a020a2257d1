/* A put by messages, and a wait for signals, of either kind. One thread block writes into the slots
 * of a connection as a CPU would (transport/rma_message.h). The tests run all of it on a CPU. */
#ifndef TUTTI_KERNELS_RELAY_CUH_
#define TUTTI_KERNELS_RELAY_CUH_

#include "kernels/allpairs_block.cuh"
#include "kernels/copy.cuh"
#include "kernels/onesided.h"

namespace {

/* Failed looks at host memory, each a way over PCIe, between two words to the proxies. */
constexpr uint32_t kBusyLooks = 32;

/* Tells the host now and then of a wait that is long. */
class LongWait {
public:
  /* After some looks in vain: whether the wait is to be given up. */
  __device__ __noinline__ bool over(tuttiKernelStatus *status, uint32_t counter, uint32_t wanted,
                                    uint32_t come) {
    if (loadRelaxedSys32(&status->abort)) return true;
    uint64_t now = nanoseconds();
    if (since == 0) since = told = now;
    if (now - told < kReportNs) return false;
    told = now;
    uint64_t waitedMs = (now - since) / 1000000;
    storePairVolatile(
        &status->late[tuttiSignalLateAt(counter)],
        {tuttiSignalWait(counter, (uint32_t)waitedMs), (uint64_t)come << 32 | wanted});
    return false;
  }

private:
  uint64_t since = 0, told = 0;
};

/* One end of a connection, as the threads of a block share it; the first alone waits and tells. */
struct Relay {
  uint64_t number, credit; /* of the next message; messages that were taken at the last look */
  bool gone;               /* waiting was given up */
};

__device__ tuttiSlotDescriptor *descriptorOf(const tuttiRingTreeEndpoint &e, const Relay &r) {
  return e.descriptors + (r.number & (e.ndescriptors - 1));
}
/* As tuttiConnData. */
__device__ uint8_t *slotOf(const tuttiRingTreeEndpoint &e, const Relay &r, uint32_t bytes) {
  if (bytes <= e.smallBytes) return e.small + (r.number & (e.ndescriptors - 1)) * e.smallBytes;
  return e.data + r.number % TUTTI_FIFO_DEPTH * e.slotBytes;
}

/* All threads; true: less than `depth` messages are under way. */
__device__ bool awaitRoom(const tuttiRelayArgs &args, Relay &r, uint32_t depth) {
  const tuttiRingTreeEndpoint &e = *args.endpoint;
  if (threadIdx.x == 0) {
    LongWait wait;
    for (uint32_t looks = 1; r.number >= r.credit + depth && !r.gone; looks++) {
      r.credit = loadAcquireSys(&e.reader->credit.v);
      if (looks % kBusyLooks == 0) storeRelaxedSys(&args.status->busy, nanoseconds());
      if (looks % kLooks == 0) r.gone = wait.over(args.status, args.counter, 0, 0);
    }
  }
  __syncthreads();
  return !r.gone;
}

/* All threads, when they have written the data. */
__device__ void publish(const tuttiRelayArgs &args, Relay &r, uint32_t bytes, bool inlined) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  tuttiSlotDescriptor *d = descriptorOf(*args.endpoint, r);
  tuttiSignature sig = {};
  sig.count = bytes;
  sig.root = -1;
  sig.coll = tuttiCollSendRecv;
  sig.type = tuttiUint8;
  d->addr = 0;
  d->bytes = bytes;
  d->where = inlined ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
  d->sig = sig;
  fenceSys();
  storeRelaxedSys(&d->seq.v, ++r.number);
}

/* The first thread; a put that has begun needs no other kernel to end. False: given up. */
__device__ bool takeEndpoint(const tuttiRelayArgs &args) {
  LongWait wait;
  for (uint32_t looks = 1; atomicCAS(args.guard, 0, 1) != 0; looks++) {
    if (looks % kBusyLooks == 0) storeRelaxedSys(&args.status->busy, nanoseconds());
    if (looks % kLooks == 0 && wait.over(args.status, args.counter, 0, 0)) return false;
  }
  fenceSys();
  return true;
}
__device__ void giveEndpoint(const tuttiRelayArgs &args, const Relay &r) {
  volatile tuttiRingTreeEndpoint *e = args.endpoint;
  e->next = r.number;
  e->credit = r.credit;
  fenceSys();
  atomicExch(args.guard, 0);
}

/* [at, at + bytes) of the put. */
__device__ bool relayPiece(const tuttiRelayArgs &args, Relay &r, uint64_t at, uint32_t bytes) {
  const tuttiRingTreeEndpoint &e = *args.endpoint;
  bool inlined = bytes <= TUTTI_RELAY_INLINE;
  bool small = inlined || bytes <= e.smallBytes;
  if (!awaitRoom(args, r, small ? e.ndescriptors : TUTTI_FIFO_DEPTH)) return false;
  uint8_t *head = descriptorOf(e, r)->inlined;
  if (threadIdx.x == 0) {
    tuttiRmaTarget target = args.target;
    target.header.offset += at;
    target.header.bytes = bytes;
    target.header.last = at + bytes == args.bytes;
    target.to += at;
    if (inlined)
      *(tuttiRmaHeader *)head = target.header;
    else
      *(tuttiRmaTarget *)head = target;
  }
  copyBytes(inlined ? head + sizeof(tuttiRmaHeader) : slotOf(e, r, bytes), args.from + at, bytes);
  publish(args, r, bytes + (inlined ? sizeof(tuttiRmaHeader) : 0), inlined);
  return true;
}

/* The thread block. */
__device__ void relayPut(const tuttiRelayArgs &args, Relay &r) {
  tuttiRingTreeEndpoint &e = *args.endpoint;
  if (threadIdx.x == 0) {
    storeRelaxedSys(&args.status->busy, nanoseconds());
    r.gone = !takeEndpoint(args);
    r.number = *(volatile uint64_t *)&e.next;
    r.credit = *(volatile uint64_t *)&e.credit;
  }
  __syncthreads();
  if (r.gone) return;
  uint64_t at = 0, piece;
  do {
    piece = args.bytes - at < e.slotBytes ? args.bytes - at : e.slotBytes;
    if (!relayPiece(args, r, at, (uint32_t)piece)) return;
    at += piece;
  } while (at < args.bytes);
  if (threadIdx.x != 0) return;
  giveEndpoint(args, r);
  storeRelaxedSys(&args.status->busy, nanoseconds());
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* One lane: until those that it has taken have come, `before` of others ahead of them. */
__device__ void awaitTaken(const tuttiAwaitArgs &args, uint64_t before) {
  uint32_t counter = args.of[threadIdx.x].counter, wanted = args.of[threadIdx.x].count;
  bool isRelayed = args.of[threadIdx.x].isRelayed;
  const uint64_t *arrived = isRelayed ? args.relayed : args.arrived;
  LongWait wait;
  for (uint32_t looks = 1;; looks++) {
    uint64_t come = loadAcquireSys(arrived + counter);
    if (come >= before + wanted) return;
    if (isRelayed && looks % kBusyLooks == 1) storeRelaxedSys(&args.status->busy, nanoseconds());
    if (looks % kLooks != 0) continue;
    if (wait.over(args.status, counter, wanted, (uint32_t)(come > before ? come - before : 0)))
      return;
  }
}

/* Signals are taken before they have come: those behind what earlier waits have taken, of other
 * streams too. That has been done when it is known that kernels before have ended. */
__device__ void awaitSignals(const tuttiAwaitArgs &args) {
  bool waits = threadIdx.x < args.n && args.of[threadIdx.x].count > 0;
  uint64_t before = 0;
  if (waits)
    before = atomicAdd((unsigned long long *)args.taken + args.of[threadIdx.x].counter,
                       args.of[threadIdx.x].count);
  followEarly();
  if (waits) awaitTaken(args, before);
  if (!args.ended) return;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd((unsigned long long *)args.ended, 1);
}

} // namespace

#endif
