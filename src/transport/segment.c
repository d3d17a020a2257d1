#include "transport/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/os.h"
#include "base/pinned.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* All segments of a host, mapped together, must leave room in a 47-bit address space. */
#define ADDRESS_BYTES ((size_t)1 << 45)

/* Same on all ranks of a host. */
typedef struct {
  size_t nchannels, nreaders;
  size_t descriptors, slotBytes, smallBytes;
  size_t sharedBytes, pairBytes; /* control of one FIFO */
  size_t dataBytes;              /* data of one FIFO */
  size_t controlBytes;           /* of all FIFOs; the data follows */
  size_t bytes;
} segmentLayout;

/* A segment of up to so many bytes is mapped whole; of a larger one, the control part and windows
 * of the data, each when a FIFO in it is opened first. Windows are many enough that a few FIFOs do
 * not map much, and few enough that all of them, of all ranks of a process, are not more mappings
 * than it may have (vm.max_map_count). */
#define WHOLE_BYTES  ((size_t)256 << 20)
#define WINDOW_BYTES ((size_t)64 << 20)
#define WINDOWS      48

struct tuttiSegment {
  int owner;
  segmentLayout layout;
  size_t windowBytes; /* of data; 0: one window is the whole segment */
  size_t nwindows;    /* that of the control part included */
  uint8_t **windows;  /* [nwindows] NULL: not mapped yet; under the lock */
  tuttiPinned pinned; /* only of a segment that is mapped whole */
  int fd;             /* -1 in a neighbour's mapping of a whole one */
  bool taken;         /* the owner has attached; under the lock */
  size_t counted;     /* bytes on the owner's account */
  pthread_mutex_t lock;
};

/* The ranks of one communicator in this process, from their prepare to their detach. They find
 * each other's segments here, one mapping for all of them. A segment stays as long as any of them:
 * messages outlive their writer's detach. */
struct tuttiHouse {
  uint64_t commHash;
  uint8_t secret[16];
  int ranks;               /* that hold it; under `lock` */
  tuttiHouse *next;        /* likewise */
  pthread_mutex_t making;  /* of segments */
  tuttiSegment **segments; /* [nranks] of those that anyone has asked for; under `making` */
  int nranks;
};

/* One for each communicator with ranks on host memory in this process. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tuttiHouse *houses;

/* False: all segments together need more address space than there is. */
static bool layOut(const tuttiCommView *v, int nlocal, segmentLayout *out) {
  segmentLayout l = {
      .nchannels = (size_t)v->nchannels, .nreaders = (size_t)nlocal - 1, .slotBytes = v->slotBytes};
  size_t pairs = (l.nchannels + 1) * l.nreaders;
  if (v->stagedBytes) { /* nothing that could be given back while the communicator lives */
    *out = (segmentLayout){.controlBytes = v->stagedBytes, .bytes = v->stagedBytes};
    return true;
  }
  l.descriptors = TUTTI_FIFO_DESCRIPTORS * (v->oversubscribed ? 4 : 1);
  l.sharedBytes = tuttiFifoControlBytes((uint32_t)l.descriptors, (int)l.nreaders);
  l.pairBytes = tuttiFifoControlBytes((uint32_t)l.descriptors, 1);
  l.controlBytes = tuttiPagesUp(l.nchannels * l.sharedBytes + pairs * l.pairBytes);
  size_t data, all;
  l.smallBytes = v->oversubscribed ? l.slotBytes / 64 / TUTTI_LINE * TUTTI_LINE : 0;
  if (l.smallBytes > TUTTI_SMALL_MAX) l.smallBytes = TUTTI_SMALL_MAX;
  l.dataBytes = tuttiPagesUp(TUTTI_FIFO_DEPTH * l.slotBytes + l.descriptors * l.smallBytes);
  bool fits = l.slotBytes <= ADDRESS_BYTES / TUTTI_FIFO_DEPTH &&
              !__builtin_mul_overflow(l.nchannels + pairs, l.dataBytes, &data) &&
              !__builtin_add_overflow(l.controlBytes, data, &l.bytes) &&
              !__builtin_mul_overflow(l.bytes, l.nreaders + 1, &all) && all <= ADDRESS_BYTES;
  *out = l;
  return fits;
}

size_t tuttiLocalBytes(const tuttiCommView *v, int nlocal) {
  segmentLayout l;
  return nlocal < 2 ? 0 : layOut(v, nlocal, &l) ? l.bytes : ADDRESS_BYTES;
}

static tuttiResult_t makeLayout(const tuttiCommView *v, segmentLayout *out) {
  if (v->nchannels < 1 || v->nchannels > TUTTI_MAX_CHANNELS || v->slotBytes == 0 ||
      v->slotBytes % TUTTI_LINE != 0)
    return TUTTI_FAIL(tuttiInternalError,
                      "rank %d can't lay out a segment of %d channels and slots "
                      "of %zu bytes",
                      v->rank, v->nchannels, v->slotBytes);
  if (!layOut(v, v->local->nlocal, out))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "%zu ranks of host %s, each with %zu channels of %zu bytes to each other, "
                      "need more address space than there is: lower TUTTI_BUFFSIZE or "
                      "TUTTI_MAX_NCHANNELS",
                      out->nreaders + 1, v->peers[v->rank].host, out->nchannels + 1,
                      (size_t)TUTTI_FIFO_DEPTH * out->slotBytes);
  return tuttiSuccess;
}

/* ---- one segment ---------------------------------------------------------------------------- */

/* To be freed also when it fails. */
static tuttiResult_t newSegment(const tuttiCommView *v, int owner, tuttiSegment **out) {
  /* Not on the account: a reader in this process may hold it longer than the account lives. */
  TUTTI_NEW(*out, 1, "a segment", NULL);
  tuttiSegment *s = *out;
  pthread_mutex_init(&s->lock, NULL);
  s->owner = owner;
  s->fd = -1;
  s->nwindows = 1;
  TUTTI_TRY(makeLayout(v, &s->layout));
  const segmentLayout *y = &s->layout;
  /* What a GPU works on is pinned at attach, never while a graph is being captured. Without FIFOs
   * there is nothing to open. */
  bool whole =
      y->bytes <= WHOLE_BYTES || y->dataBytes == 0 || v->peers[v->rank].device == tuttiDeviceCuda;
  if (!whole) {
    size_t data = y->bytes - y->controlBytes, window = data / WINDOWS;
    if (window < WINDOW_BYTES) window = WINDOW_BYTES;
    s->windowBytes = (window + y->dataBytes - 1) / y->dataBytes * y->dataBytes;
    s->nwindows = 1 + (data + s->windowBytes - 1) / s->windowBytes;
  }
  TUTTI_NEW(s->windows, s->nwindows, "windows of a segment", NULL); // NOLINT
  return tuttiSuccess;
}

static size_t windowBegin(const tuttiSegment *s, size_t window) {
  return window == 0 ? 0 : s->layout.controlBytes + (window - 1) * s->windowBytes;
}

static size_t windowSize(const tuttiSegment *s, size_t window) {
  if (s->windowBytes == 0) return s->layout.bytes;
  if (window == 0) return s->layout.controlBytes;
  size_t left = s->layout.bytes - windowBegin(s, window);
  return left < s->windowBytes ? left : s->windowBytes;
}

/* Where the byte at `offset` and the rest of its FIFO's control or data are mapped, from `fd` if
 * they have not been. */
static tuttiResult_t reach(tuttiSegment *s, size_t offset, int fd, uint8_t **out) {
  size_t window = 0, control = s->layout.controlBytes;
  if (s->windowBytes && offset >= control) window = 1 + (offset - control) / s->windowBytes;
  size_t begin = windowBegin(s, window);
  char what[80];
  snprintf(what, sizeof what, "the segment of rank %d (TUTTI_BUFFSIZE sets its size)", s->owner);
  TUTTI_LOCKED(&s->lock);
  if (!s->windows[window])
    TUTTI_TRY(
        tuttiMapPart((void **)&s->windows[window], begin, windowSize(s, window), fd, what, NULL));
  *out = s->windows[window] + (offset - begin);
  return tuttiSuccess;
}

/* Maps at once what is not mapped in windows. */
static tuttiResult_t mapWhole(const tuttiCommView *v, tuttiSegment *s, int fd) {
  uint8_t *memory;
  if (s->windowBytes) return tuttiSuccess;
  TUTTI_TRY(reach(s, 0, fd, &memory));
  return tuttiPin(v->rank, tuttiPeerGpu(&v->peers[v->rank]), memory, s->layout.bytes, &s->pinned);
}

/* `DROPPED tuttiSegment *s = NULL;` is freed where its block ends. */
#define DROPPED __attribute__((cleanup(dropSegment)))
static void dropSegment(tuttiSegment **at) {
  tuttiSegment *s = *at;
  if (!s) return;
  tuttiUnpin(&s->pinned);
  for (size_t i = 0; s->windows && i < s->nwindows; i++)
    tuttiUnmap(s->windows[i], windowSize(s, i), NULL);
  tuttiFree(s->windows);
  tuttiFdClose(&s->fd);
  pthread_mutex_destroy(&s->lock);
  tuttiFree(s);
}

/* Pages and heap that the owner of `s` answers for. */
static void countSegment(tuttiCommView *v, tuttiSegment *s) {
  struct stat st;
  if (fstat(s->fd, &st) != 0) return;
  size_t now = sizeof *s + (size_t)st.st_blocks * 512;      /* the unit of st_blocks */
  tuttiFetchAddAcqRel(&v->memory->bytes, now - s->counted); /* wraps when it is less */
  s->counted = now;
}

static tuttiResult_t createSegment(const tuttiCommView *v, int owner, tuttiSegment **out) {
  DROPPED tuttiSegment *s = NULL;
  TUTTI_TRY(newSegment(v, owner, &s));
  char what[40];
  snprintf(what, sizeof what, "segment of rank %d", owner);
  TUTTI_TRY(tuttiSharedFd(s->layout.bytes, what, &s->fd));
  tuttiForkCloseAdd(s->fd);
  TUTTI_TRY(mapWhole(v, s, s->fd));
  *out = s;
  s = NULL;
  return tuttiSuccess;
}

/* The segment of a rank of this process. Whoever needs it first makes it, so that nobody waits. */
static tuttiResult_t houseSegment(const tuttiCommView *v, int owner, tuttiSegment **out) {
  tuttiHouse *h = v->local->house;
  TUTTI_LOCKED(&h->making);
  if (!h->segments[owner]) TUTTI_TRY(createSegment(v, owner, &h->segments[owner]));
  *out = h->segments[owner];
  return tuttiSuccess;
}

static tuttiResult_t takeOwn(tuttiCommView *v, tuttiSegment **out) {
  tuttiSegment *s;
  TUTTI_TRY(houseSegment(v, v->rank, &s));
  TUTTI_LOCKED(&s->lock);
  if (s->taken)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "rank %d of this communicator is in process %d twice: give every rank a "
                      "number of its own",
                      v->rank, (int)getpid());
  s->taken = true;
  countSegment(v, s);
  *out = s;
  return tuttiSuccess;
}

/* ---- the ranks of this process --------------------------------------------------------------- */

static bool livesIn(const tuttiHouse *h, const tuttiCommView *v) {
  return h->commHash == v->commHash && h->nranks == v->nranks &&
         memcmp(h->secret, v->secret, sizeof h->secret) == 0;
}

static tuttiResult_t enterHouse(const tuttiCommView *v, tuttiHouse **out) {
  TUTTI_LOCKED(&lock);
  tuttiHouse *h = houses;
  while (h && !livesIn(h, v))
    h = h->next;
  if (!h) {
    TUTTI_FRESH(tuttiHouse, made, 1, "the ranks of this process", NULL);
    TUTTI_FREED tuttiSegment **segments = NULL;
    TUTTI_NEW(segments, v->nranks, "segments of this process", NULL); // NOLINT
    made->segments = segments;
    segments = NULL;
    made->commHash = v->commHash;
    memcpy(made->secret, v->secret, sizeof made->secret);
    made->nranks = v->nranks;
    pthread_mutex_init(&made->making, NULL);
    TUTTI_LINK(houses, made);
    h = made;
    made = NULL;
  }
  h->ranks++;
  *out = h;
  return tuttiSuccess;
}

static void leaveHouse(tuttiHouse *h) {
  pthread_mutex_lock(&lock);
  bool last = --h->ranks == 0;
  if (last) TUTTI_UNLINK(houses, h);
  pthread_mutex_unlock(&lock);
  if (!last) return;
  for (int r = 0; r < h->nranks; r++)
    dropSegment(&h->segments[r]);
  pthread_mutex_destroy(&h->making);
  tuttiFree(h->segments);
  tuttiFree(h);
}

/* ---- the ranks of this host ------------------------------------------------------------------ */

tuttiResult_t tuttiLocalPrepare(tuttiCommView *v) {
  if (v->local) return tuttiSuccess;
  TUTTI_NEW(v->local, 1, "the ranks of this host", v->memory);
  v->local->listenFd = -1;
  return enterHouse(v, &v->local->house);
}

static tuttiResult_t findNeighbours(tuttiCommView *v) {
  tuttiLocal *l = v->local;
  TUTTI_NEW(l->place, v->nranks, "places of the ranks of this host", v->memory);
  TUTTI_NEW(l->theirs, v->nranks, "segments of the ranks of this host", v->memory); // NOLINT
  l->nlocal = 0;
  for (int r = 0; r < v->nranks; r++)
    l->place[r] = v->peers[r].hostId == v->peers[v->rank].hostId ? l->nlocal++ : -1;
  return tuttiSuccess;
}

tuttiResult_t tuttiLocalAttach(tuttiCommView *v) {
  if (v->local && v->local->mine) return tuttiSuccess;
  TUTTI_TRY(tuttiLocalPrepare(v));
  TUTTI_TRY(findNeighbours(v));
  return takeOwn(v, &v->local->mine);
}

void tuttiLocalDetach(tuttiCommView *v) {
  tuttiLocal *l = v->local;
  if (!l) return;
  tuttiFdClose(&l->listenFd);
  if (l->theirs)
    for (int r = 0; r < v->nranks; r++)
      dropSegment(&l->theirs[r]);
  if (l->mine) {
    pthread_mutex_lock(&l->mine->lock);
    tuttiFetchAddAcqRel(&v->memory->bytes, -(uint64_t)l->mine->counted);
    l->mine->counted = 0;
    l->mine->taken = false;
    pthread_mutex_unlock(&l->mine->lock);
  }
  if (l->house) leaveHouse(l->house);
  tuttiFree(l->theirs);
  tuttiFree(l->place);
  tuttiFree(l);
  v->local = NULL;
}

void tuttiLocalMeasure(tuttiCommView *v) {
  if (v->local && v->local->mine) countSegment(v, v->local->mine);
}

size_t tuttiLocalSlotBytes(const tuttiCommView *v) {
  const tuttiSegment *s = v->local ? v->local->mine : NULL;
  size_t sum = 0;
  off_t hole = s ? (off_t)s->layout.controlBytes : 0;
  for (off_t data; s && (data = lseek(s->fd, hole, SEEK_DATA)) >= 0; sum += (size_t)(hole - data))
    hole = lseek(s->fd, data, SEEK_HOLE);
  return sum;
}

void tuttiLocalTrim(tuttiCommView *v) {
  const tuttiSegment *s = v->local ? v->local->mine : NULL;
  if (!s) return;
  fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)s->layout.controlBytes,
            (off_t)(s->layout.bytes - s->layout.controlBytes));
  tuttiLocalMeasure(v);
}

const char *tuttiLocalNames(const tuttiCommView *v, const int32_t *ranks, int n, char *buf,
                            size_t size) {
  buf[0] = '\0';
  for (int i = 0; i < n; i++) {
    const tuttiPeer *p = &v->peers[ranks[i]];
    char name[TUTTI_HOSTNAME + 64];
    snprintf(name, sizeof name, "%srank %d (host %s, pid %d)", i ? ", " : "", ranks[i], p->host,
             p->pid);
    /* Room for ", and 2147483647 more". */
    bool fits = strlen(buf) + strlen(name) + 24 <= size;
    if (!fits) snprintf(name, sizeof name, "%sand %d more", i ? ", " : "", n - i);
    tuttiAppend(buf, size, "%s", name);
    if (!fits) break;
  }
  return buf;
}

/* ---- segments of others ---------------------------------------------------------------------- */

int tuttiSegmentFd(const tuttiCommView *v) {
  return v->local->mine->fd;
}

void *tuttiSegmentMemory(const tuttiCommView *v, int rank) {
  return (rank == v->rank ? v->local->mine : v->local->theirs[rank])->windows[0];
}

static tuttiResult_t mapSegment(const tuttiCommView *v, int owner, int fd, tuttiSegment **out) {
  const tuttiPeer *peer = &v->peers[owner];
  DROPPED tuttiSegment *s = NULL;
  struct stat st;
  TUTTI_TRY(newSegment(v, owner, &s));
  int seals = fcntl(fd, F_GET_SEALS);
  /* Nobody may shrink a segment under its readers, who would get SIGBUS. */
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) != 0)
    return TUTTI_FAIL(tuttiRemoteError,
                      "what rank %d (host %s, pid %d) handed over is not a sealed segment: run "
                      "the same tutti in all ranks",
                      owner, peer->host, peer->pid);
  if (st.st_size < 0 || (size_t)st.st_size != s->layout.bytes)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "the segment of rank %d (host %s, pid %d) has %lld bytes, that of rank %d "
                      "has %zu: give both the same settings, TUTTI_BUFFSIZE above all",
                      owner, peer->host, peer->pid, (long long)st.st_size, v->rank,
                      s->layout.bytes);
  if (s->windowBytes) {
    s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (s->fd < 0)
      return TUTTI_FAIL(tuttiSystemError,
                        "rank %d can't keep the segment of rank %d open: %s; raise the limit of "
                        "open files (ulimit -n)",
                        v->rank, owner, tuttiErrnoText(errno));
    tuttiForkCloseAdd(s->fd);
  }
  TUTTI_TRY(mapWhole(v, s, fd));
  *out = s;
  s = NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiSegmentTake(tuttiCommView *v, int owner, int fd) {
  if (v->local->theirs[owner])
    return TUTTI_FAIL(tuttiInternalError, "rank %d has the segment of rank %d already", v->rank,
                      owner);
  return mapSegment(v, owner, fd, &v->local->theirs[owner]);
}

bool tuttiSegmentInProcess(const tuttiPeer *a, const tuttiPeer *b) {
  return a->process == b->process && a->hostId == b->hostId && a->device != tuttiDeviceCuda &&
         b->device != tuttiDeviceCuda;
}

/* ---- FIFOs ----------------------------------------------------------------------------------- */

/* Brings the descriptors of a FIFO into memory now, where a shortage is an error; at the first
 * message it would be SIGBUS. Kernels before 5.14 can't. */
static tuttiResult_t touch(const tuttiSegment *s, uint8_t *at, size_t bytes) {
  size_t before = (uintptr_t)at % tuttiPagesUp(1), size = tuttiPagesUp(before + bytes);
  if (madvise(at - before, size, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError,
                    "no memory for %zu bytes of shared memory in the segment of rank %d: %s; free "
                    "memory, or raise the limit of this container or of vm.overcommit_memory",
                    size, s->owner, tuttiErrnoText(errno));
}

/* The number of this endpoint's next message: 0, or where an endpoint that was closed had got to.
 */
static uint64_t resume(const tuttiConn *c) {
  if (c->direction == TUTTI_RECV) return tuttiLoadAcquire(&c->readers[0].credit);
  uint64_t next = 0;
  for (unsigned i = 0; i < c->ndescriptors; i++) {
    uint64_t seq = tuttiLoadAcquire(&c->descriptors[i].seq);
    if (seq > next) next = seq;
  }
  return next;
}

static bool hasChannel(const tuttiCommView *v, int channel, bool shared) {
  if (v->stagedBytes) return false; /* the segments hold symmetric blocks */
  if (channel == TUTTI_P2P_CHANNEL) return !shared;
  return channel >= 0 && channel < v->nchannels;
}

/* Whether there is, or can be, a segment of the FIFO's writer here that the two share. */
static bool hasSegment(const tuttiCommView *v, int peer, tuttiDirection direction) {
  const tuttiLocal *l = v->local;
  if (peer < 0 || peer >= v->nranks || peer == v->rank || l->place[peer] < 0) return false;
  return direction == TUTTI_SEND || l->theirs[peer] ||
         tuttiSegmentInProcess(&v->peers[v->rank], &v->peers[peer]);
}

static tuttiResult_t checkOpen(const tuttiCommView *v, int peer, int channel,
                               tuttiDirection direction, bool shared) {
  const tuttiLocal *l = v->local;
  bool toAll = shared && direction == TUTTI_SEND;
  if (l && l->mine && hasChannel(v, channel, shared) &&
      (toAll ? peer == -1 : hasSegment(v, peer, direction)))
    return tuttiSuccess;
  return TUTTI_FAIL(tuttiInternalError,
                    "rank %d has no shared memory for its %s endpoint with rank %d on channel %d "
                    "(%s)",
                    v->rank, direction == TUTTI_SEND ? "send" : "receive", peer, channel,
                    shared ? "shared" : "pair");
}

tuttiResult_t tuttiSegmentOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                               bool shared, tuttiConn *conn) {
  TUTTI_TRY(checkOpen(v, peer, channel, direction, shared));
  const tuttiLocal *l = v->local;
  tuttiSegment *s = direction == TUTTI_SEND ? l->mine : l->theirs[peer];
  if (!s) TUTTI_TRY(houseSegment(v, peer, &s));
  const segmentLayout *y = &s->layout;
  int reader = direction == TUTTI_RECV ? v->rank : peer;
  /* The reader's number among those of the owner's neighbours; 0 if all read. */
  size_t place = reader >= 0 ? (size_t)l->place[reader] : 0;
  size_t index = place - (place > (size_t)l->place[s->owner]);
  size_t c = channel == TUTTI_P2P_CHANNEL ? y->nchannels : (size_t)channel;
  size_t pair = c * y->nreaders + index, fifo = shared ? c : y->nchannels + pair;
  size_t begin = shared ? c * y->sharedBytes : y->nchannels * y->sharedBytes + pair * y->pairBytes;
  uint8_t *control, *data;
  TUTTI_TRY(reach(s, begin, s->fd, &control));
  TUTTI_TRY(reach(s, y->controlBytes + fifo * y->dataBytes, s->fd, &data));
  TUTTI_TRY(touch(s, control, shared ? y->sharedBytes : y->pairBytes));

  tuttiConn made = {.descriptors = (tuttiSlotDescriptor *)control,
                    .data = data,
                    .slotBytes = y->slotBytes,
                    .smallBytes = y->smallBytes,
                    .ndescriptors = (uint32_t)y->descriptors,
                    .nreaders = shared && direction == TUTTI_SEND ? (int)y->nreaders : 1,
                    .peer = peer,
                    .channel = channel,
                    .direction = (uint8_t)direction};
  made.readers = (tuttiReader *)(made.descriptors + made.ndescriptors);
  made.small = made.data + TUTTI_FIFO_DEPTH * y->slotBytes;
  if (shared && direction == TUTTI_RECV) made.readers += index;
  made.next = resume(&made);
  *conn = made;
  return tuttiSuccess;
}
