/* Handles of communicators. A handle is a slot number and a generation, so a destroyed one is told
 * from a live one without touching memory that may be gone, and is never mistaken for a later one.
 * Each slot counts the calls that are inside, and closes before its communicator is freed. */
#include "comm/handle.h"

#include "base/os.h"
#include "comm/communicator.h"

#define SLOT_BITS  14
#define SLOT_COUNT (1u << SLOT_BITS)
#define OPEN_BIT   (1u << 31)
/* Odd, so that all slots come; more than the two cache lines that travel together. */
#define SLOT_STRIDE 9

/* state: generation << 32 | OPEN_BIT | calls inside. A free slot has neither bit nor calls. */
typedef struct {
  tuttiAtomic64 state;
  tuttiCommunicator *comm;
  tuttiAtomic32 rank; /* stays when the communicator is gone */
} Slot;

static Slot slots[SLOT_COUNT];
static tuttiAtomic64 nextSlot;
static pthread_mutex_t createLock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t generationOf(uint64_t state) {
  return (uint32_t)(state >> 32);
}

tuttiResult_t tuttiHandleCreate(tuttiCommunicator *c) {
  TUTTI_LOCKED(&createLock);
  tuttiForkForbid();
  for (uint32_t tried = 0; tried < SLOT_COUNT; tried++) {
    /* Every slot in turn, neighbours not in one cache line: each call writes to its slot. */
    uint32_t i = (uint32_t)(tuttiFetchAddAcqRel(&nextSlot, SLOT_STRIDE) % SLOT_COUNT);
    uint64_t state = tuttiLoadAcquire(&slots[i].state);
    if ((uint32_t)state != 0) continue; /* open, or calls are still leaving */
    uint32_t generation = generationOf(state) + 1;
    slots[i].comm = c;
    /* The generation first: whoever sees the new rank sees that it is of another. */
    tuttiStoreRelease(&slots[i].state, (uint64_t)generation << 32);
    tuttiStoreRelease32(&slots[i].rank, (uint32_t)c->rank);
    c->handle = (tuttiComm_t)(uintptr_t)((uint64_t)generation << SLOT_BITS | i); // NOLINT
    tuttiStoreRelease(&slots[i].state, (uint64_t)generation << 32 | OPEN_BIT);
    return tuttiSuccess;
  }
  return TUTTI_FAIL(tuttiSystemError,
                    "this process holds %u communicators, which is the limit; destroy some",
                    SLOT_COUNT);
}

tuttiResult_t tuttiCallEnter(const char *call) {
  tuttiErrorScope(call, NULL, 0, 0);
  if (!tuttiForked()) return tuttiSuccess;
  return TUTTI_FAIL(
      tuttiInvalidUsage,
      "this process was forked from one that uses tutti; a forked child may only exit "
      "or exec a new program");
}

/* One more call inside; false if the slot holds no live communicator of that generation. */
static bool hold(Slot *slot, uint64_t generation) {
  for (;;) {
    uint64_t state = tuttiLoadAcquire(&slot->state);
    if (generationOf(state) != generation || !(state & OPEN_BIT)) return false;
    if (tuttiCompareExchange(&slot->state, state, state + 1)) return true;
  }
}

tuttiResult_t tuttiHandleEnter(tuttiComm_t handle, const char *call, tuttiCommunicator **out) {
  uint64_t bits = (uint64_t)(uintptr_t)handle;
  Slot *slot = &slots[bits % SLOT_COUNT];
  if (!tuttiForked() && hold(slot, bits >> SLOT_BITS)) {
    tuttiCommunicator *c = slot->comm;
    *out = c;
    /* Its init may be about to name it. */
    bool named = tuttiLoadAcquire32(&c->state) != tuttiCommStarting;
    tuttiErrorScope(call, named ? c->options.name : NULL, c->rank, c->nranks);
    return tuttiSuccess;
  }
  TUTTI_TRY(tuttiCallEnter(call));
  if (handle == NULL)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument comm is NULL; pass a communicator made by "
                                            "tuttiCommInitRank");
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument comm (%p) is no live communicator: it was destroyed or aborted, "
                    "or never made",
                    (void *)handle);
}

bool tuttiHandleLives(tuttiComm_t handle) {
  uint64_t bits = (uint64_t)(uintptr_t)handle;
  uint64_t state = tuttiLoadAcquire(&slots[bits % SLOT_COUNT].state);
  return generationOf(state) == bits >> SLOT_BITS && state & OPEN_BIT;
}

int tuttiHandleRank(tuttiComm_t handle) {
  uint64_t bits = (uint64_t)(uintptr_t)handle, generation = bits >> SLOT_BITS;
  const Slot *slot = &slots[bits % SLOT_COUNT];
  int rank = (int)tuttiLoadAcquire32(&slot->rank);
  return generation > 0 && generationOf(tuttiLoadAcquire(&slot->state)) == generation ? rank : -1;
}

static Slot *slotOf(const tuttiCommunicator *c) {
  return &slots[(uint64_t)(uintptr_t)c->handle % SLOT_COUNT];
}

void tuttiHandleLeave(tuttiCommunicator *c) {
  tuttiErrorScope(NULL, NULL, 0, 0);
  tuttiFetchAddAcqRel(&slotOf(c)->state, (uint64_t)-1);
}

bool tuttiHandleRetire(tuttiCommunicator *c) {
  Slot *slot = slotOf(c);
  for (;;) {
    uint64_t state = tuttiLoadAcquire(&slot->state);
    if (!(state & OPEN_BIT)) return false; /* another thread got here first */
    if (tuttiCompareExchange(&slot->state, state, state & ~(uint64_t)OPEN_BIT)) break;
  }
  tuttiBackoff pause = {0};
  while ((uint32_t)tuttiLoadAcquire(&slot->state) != 1)
    tuttiBackoffPause(&pause);
  return true;
}

void tuttiHandleFree(tuttiCommunicator *c) {
  Slot *slot = slotOf(c);
  slot->comm = NULL;
  tuttiErrorScope(NULL, NULL, 0, 0);
  tuttiStoreRelease(&slot->state, (uint64_t)generationOf(tuttiLoadRelaxed(&slot->state)) << 32);
}
