/* Handles of communicators. A handle is a slot number and a generation, so a destroyed one is told
 * from a live one without touching memory that may be gone, and is never mistaken for a later one.
 * Each slot counts the calls that are inside, and closes before its communicator is freed.
 *
 * The regular of a communicator, a thread that has made its last calls, is not counted: it says in
 * its own record that it is inside, and then looks whether it is the regular still and the slot
 * open. Whoever closes the slot, or takes the regular's place, first does that and then looks at
 * the record. A fence in two halves is between store and load on both sides: base/fence.h. */
#include "comm/handle.h"

#include "base/backoff.h"
#include "base/fence.h"
#include "base/os.h"
#include "comm/communicator.h"
#include "comm/presence.h"

#define SLOT_BITS  14
#define SLOT_COUNT (1u << SLOT_BITS)
#define OPEN_BIT   (1u << 31)
/* Odd, so that all slots come; more than the two cache lines that travel together. */
#define SLOT_STRIDE 9

/* state: generation << 32 | OPEN_BIT | calls inside. A free slot has neither bit nor calls. */
typedef struct {
  tuttiAtomic64 state;
  tuttiCommunicator *comm;
  tuttiAtomic64 regular; /* address of its tuttiPresence, or 0; written by who occupies */
  tuttiAtomic32 rank;    /* stays when the communicator is gone */
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
  tuttiFenceAsk();
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

/* ---- the regular ----------------------------------------------------------------------------- */

tuttiCommunicator *tuttiHandleEnterRegular(tuttiComm_t handle, const char *call) {
  tuttiPresence *own = tuttiPresenceOwn;
  uint64_t bits = (uint64_t)(uintptr_t)handle;
  Slot *slot = &slots[bits % SLOT_COUNT];
  if (!own || tuttiLoadRelaxed(&slot->regular) != (uintptr_t)own) return NULL;
  if (tuttiLoadRelaxed(&own->inside) != 0 || tuttiForked()) return NULL;
  tuttiStoreRelaxed(&own->inside, bits);
  tuttiFenceLight();
  uint64_t open = (bits >> SLOT_BITS) << 32 | OPEN_BIT;
  if (tuttiLoadAcquire(&slot->regular) != (uintptr_t)own ||
      (tuttiLoadAcquire(&slot->state) & ~(uint64_t)(OPEN_BIT - 1)) != open) {
    tuttiStoreRelease(&own->inside, 0);
    return NULL;
  }
  tuttiCommunicator *c = slot->comm;
  tuttiErrorScope(call, c->options.name, c->rank, c->nranks);
  return c;
}

void tuttiHandleLeaveRegular(void) {
  tuttiErrorScope(NULL, NULL, 0, 0);
  tuttiStoreRelease(&tuttiPresenceOwn->inside, 0);
}

/* Is a thread inside as the regular, of that record? Its calls end before what follows a false. */
static bool isInside(const tuttiCommunicator *c, uint64_t regular) {
  const tuttiPresence *p = (const tuttiPresence *)(uintptr_t)regular; // NOLINT
  return p && tuttiLoadAcquire(&p->inside) == (uint64_t)(uintptr_t)c->handle;
}

static bool isOwn(uint64_t regular) {
  return regular == (uintptr_t)tuttiPresenceOwn;
}

/* ---- one thread at a time -------------------------------------------------------------------- */

/* In tuttiCommunicator.busy, beside the thread: it has not looked for the regular yet. */
#define LOOKING TUTTI_THREAD_LIMIT

static tuttiResult_t refuse(const tuttiCommunicator *c, uint32_t thread) {
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "thread %u is inside a call of communicator %s, which one thread may use at a "
                    "time; order the calls or make a communicator per thread",
                    thread, c->options.name);
}

/* Takes c->busy for a moment, in which nobody occupies it nor becomes the regular; false: `*owner`
 * occupies it, which may be this thread. */
static bool beginLooking(tuttiCommunicator *c, uint32_t *owner) {
  uint32_t self = tuttiThreadSelf();
  while (!tuttiCompareExchange32(&c->busy, 0, self | LOOKING)) {
    *owner = tuttiLoadAcquire32(&c->busy);
    if (*owner != 0 && !(*owner & LOOKING)) return false;
    tuttiCpuRelax(); /* it may give way to the regular, perhaps to this thread */
  }
  return true;
}

/* Sends the regular away, if that is another thread; *inside: it was in a call and remains what it
 * is. */
static void dismiss(tuttiCommunicator *c, uint32_t *inside) {
  tuttiAtomic64 *regular = &slotOf(c)->regular;
  uint64_t other = tuttiLoadAcquire(regular);
  if (other == 0 || isOwn(other)) return;
  tuttiStoreRelaxed(regular, 0);
  tuttiFenceHeavy();
  if (!isInside(c, other)) return;
  *inside = tuttiLoadAcquire32(&((const tuttiPresence *)(uintptr_t)other)->thread); // NOLINT
  tuttiStoreRelease(regular, other);
}

tuttiResult_t tuttiCommOccupy(tuttiCommunicator *c) {
  uint32_t self = tuttiThreadSelf(), owner = 0, inside = 0;
  if (!beginLooking(c, &owner)) return owner == self ? tuttiSuccess : refuse(c, owner);
  dismiss(c, &inside);
  if (inside != 0) {
    tuttiStoreRelease32(&c->busy, 0);
    return refuse(c, inside);
  }
  c->calls = c->user == self ? c->calls + 1 : 1;
  c->user = self;
  tuttiStoreRelease32(&c->busy, self);
  return tuttiSuccess;
}

bool tuttiCommOccupied(const tuttiCommunicator *c) {
  return tuttiLoadRelaxed32(&c->busy) == tuttiThreadSelf();
}

bool tuttiCommInUse(tuttiCommunicator *c) {
  uint32_t owner;
  if (!beginLooking(c, &owner)) return true;
  uint64_t regular = tuttiLoadAcquire(&slotOf(c)->regular);
  if (regular != 0 && !isOwn(regular)) tuttiFenceHeavy();
  bool inside = isInside(c, regular);
  tuttiStoreRelease32(&c->busy, 0);
  return inside;
}

/* Non-blocking calls only queue, and so may come from several threads. */
static void welcome(tuttiCommunicator *c) {
  Slot *slot = slotOf(c);
  if (c->calls < TUTTI_REGULAR_CALLS || !c->options.blocking) return;
  if (tuttiLoadRelaxed(&slot->regular) != 0 || !tuttiFenceWorks()) return;
  tuttiStoreRelease(&slot->regular, (uintptr_t)tuttiPresenceTake());
  c->calls = 0; /* where all records are taken, they are not looked through in each call */
}

void tuttiCommVacate(tuttiCommunicator *c) {
  /* Once per communicator: later calls of a group's end find it vacated. */
  if (!tuttiCommOccupied(c)) return;
  welcome(c);
  tuttiStoreRelease32(&c->busy, 0);
}

/* ---- the end --------------------------------------------------------------------------------- */

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
  uint64_t regular = tuttiLoadAcquire(&slot->regular); /* nobody is left who would change it */
  if (regular == 0 || isOwn(regular)) return true;
  tuttiFenceHeavy();
  while (isInside(c, regular))
    tuttiBackoffPause(&pause);
  return true;
}

void tuttiHandleFree(tuttiCommunicator *c) {
  Slot *slot = slotOf(c);
  slot->comm = NULL;
  tuttiStoreRelaxed(&slot->regular, 0);
  tuttiErrorScope(NULL, NULL, 0, 0);
  tuttiStoreRelease(&slot->state, (uint64_t)generationOf(tuttiLoadRelaxed(&slot->state)) << 32);
}
