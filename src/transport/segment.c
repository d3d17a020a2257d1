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

/* What a segment begins with. A file that has this and no more has not got its size yet. */
typedef struct {
  uint8_t token[16];
  int32_t owner, nranks;
  /* then, when it has: per rank of the host, in order, whether it has mapped the segment */
  tuttiAtomic32 holders[];
} segmentHeader;

/* Same on all ranks of a host. */
typedef struct {
  size_t nchannels, nreaders;
  size_t descriptors, slotBytes, smallBytes;
  size_t sharedBytes, pairBytes; /* control of one FIFO */
  size_t dataBytes;              /* data of one FIFO */
  size_t controlAt, dataAt;      /* whole pages */
  size_t putsAt, putBytes;       /* of one-sided operations: whole pages, of each reader's FIFO */
  size_t bytes;
} segmentLayout;

/* A segment of up to so many bytes is mapped whole; of a larger one its owner, and the threads that
 * share the mapping, map the control part and windows of the data, each when a FIFO in it is opened
 * first. Windows are many enough that a few FIFOs do not map much, and few enough that all of them,
 * of all ranks of a process, are not more mappings than it may have (vm.max_map_count). A neighbour
 * in another process maps control, shared data and the data of its own FIFOs at once, and needs no
 * descriptor after that. */
#define WHOLE_BYTES  ((size_t)256 << 20)
#define WINDOW_BYTES ((size_t)64 << 20)
#define WINDOWS      48

typedef struct {
  size_t begin, bytes;
  uint8_t *at; /* NULL: not mapped yet; under the lock of its segment */
} segmentWindow;

struct tuttiSegment {
  int owner;
  bool ready; /* what follows down to `pinned` is set; under the house's `making` */
  segmentLayout layout;
  size_t nwindows;
  segmentWindow *windows; /* [nwindows] in order; the first has header and control */
  tuttiPinned pinned;     /* only of a segment that is mapped whole */
  uint8_t token[16];      /* of one made here */
  int fd;                 /* -1 in a neighbour's mapping */
  bool taken;             /* the owner has attached; under the lock */
  size_t counted;         /* bytes on the owner's account */
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

#define PUT_CONTROL tuttiFifoControlBytes(TUTTI_FIFO_DESCRIPTORS, 1)

/* False: all segments together need more address space than there is. */
static bool layOut(const tuttiCommView *v, int nlocal, segmentLayout *out) {
  segmentLayout l = {
      .nchannels = (size_t)v->nchannels, .nreaders = (size_t)nlocal - 1, .slotBytes = v->slotBytes};
  size_t pairs = (l.nchannels + 1) * l.nreaders;
  l.controlAt =
      tuttiPagesUp(sizeof(segmentHeader) + (size_t)nlocal * sizeof(tuttiAtomic32)); /* holders */
  if (v->peers[v->rank].device == tuttiDeviceCuda)
    l.putBytes = tuttiPagesUp(PUT_CONTROL) + tuttiPagesUp(TUTTI_FIFO_DEPTH * l.slotBytes);
  if (v->stagedBytes) { /* nothing that could be given back while the communicator lives */
    l.putsAt = l.controlAt + tuttiPagesUp(v->stagedBytes);
    l.dataAt = l.bytes = l.putsAt + l.nreaders * l.putBytes;
    *out = l;
    return true;
  }
  l.descriptors = TUTTI_FIFO_DESCRIPTORS * (v->oversubscribed ? 4 : 1);
  l.sharedBytes = tuttiFifoControlBytes((uint32_t)l.descriptors, (int)l.nreaders);
  l.pairBytes = tuttiFifoControlBytes((uint32_t)l.descriptors, 1);
  l.putsAt = l.controlAt + tuttiPagesUp(l.nchannels * l.sharedBytes + pairs * l.pairBytes);
  l.dataAt = l.putsAt + l.nreaders * l.putBytes;
  size_t data, all;
  l.smallBytes = v->oversubscribed ? l.slotBytes / 64 / TUTTI_LINE * TUTTI_LINE : 0;
  if (l.smallBytes > TUTTI_SMALL_MAX) l.smallBytes = TUTTI_SMALL_MAX;
  l.dataBytes = tuttiPagesUp(TUTTI_FIFO_DEPTH * l.slotBytes + l.descriptors * l.smallBytes);
  bool fits = l.slotBytes <= ADDRESS_BYTES / TUTTI_FIFO_DEPTH &&
              !__builtin_mul_overflow(l.nchannels + pairs, l.dataBytes, &data) &&
              !__builtin_add_overflow(l.dataAt, data, &l.bytes) &&
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
static tuttiResult_t newSegment(int owner, tuttiSegment **out) {
  /* Not on the account: a reader in this process may hold it longer than the account lives. */
  TUTTI_NEW(*out, 1, "a segment", NULL);
  tuttiSegment *s = *out;
  pthread_mutex_init(&s->lock, NULL);
  s->owner = owner;
  s->fd = -1;
  return tuttiSuccess;
}

/* `DROPPED tuttiSegment *s = NULL;` is freed where its block ends. */
#define DROPPED __attribute__((cleanup(dropSegment)))
static void dropSegment(tuttiSegment **at) {
  tuttiSegment *s = *at;
  if (!s) return;
  tuttiUnpin(&s->pinned);
  for (size_t i = 0; s->windows && i < s->nwindows; i++)
    tuttiUnmap(s->windows[i].at, s->windows[i].bytes, NULL);
  tuttiFree(s->windows);
  tuttiFdClose(&s->fd);
  pthread_mutex_destroy(&s->lock);
  tuttiFree(s);
}

static tuttiResult_t needWindows(tuttiSegment *s, size_t n) {
  TUTTI_NEW(s->windows, n, "windows of a segment", NULL); // NOLINT
  s->nwindows = n;
  return tuttiSuccess;
}

/* What a GPU works on is pinned when it is mapped, never while a graph is being captured. Without
 * FIFOs there is nothing to open. */
static bool mapsWhole(const tuttiCommView *v, const segmentLayout *y) {
  return y->bytes <= WHOLE_BYTES || y->dataBytes == 0 ||
         v->peers[v->rank].device == tuttiDeviceCuda;
}

/* Of the owner, and of all that share its mapping. */
static tuttiResult_t cutWindows(const tuttiCommView *v, tuttiSegment *s) {
  const segmentLayout *y = &s->layout;
  size_t all = y->bytes - y->dataAt, each = all / WINDOWS;
  if (each < WINDOW_BYTES) each = WINDOW_BYTES;
  if (!mapsWhole(v, y)) each = (each + y->dataBytes - 1) / y->dataBytes * y->dataBytes;
  TUTTI_TRY(needWindows(s, mapsWhole(v, y) ? 1 : 1 + (all + each - 1) / each));
  s->windows[0].bytes = mapsWhole(v, y) ? y->bytes : y->dataAt;
  for (size_t i = 1; i < s->nwindows; i++) {
    size_t begin = y->dataAt + (i - 1) * each, left = y->bytes - begin;
    s->windows[i] = (segmentWindow){.begin = begin, .bytes = left < each ? left : each};
  }
  return tuttiSuccess;
}

/* Number of `reader` among the owner's neighbours. */
static size_t readerIndex(const tuttiCommView *v, const tuttiSegment *s, int reader) {
  const int32_t *place = v->local->place;
  return (size_t)(place[reader] - (place[reader] > place[s->owner]));
}

/* Of this rank, a neighbour in another process. */
static tuttiResult_t cutOwnWindows(const tuttiCommView *v, tuttiSegment *s) {
  const segmentLayout *y = &s->layout;
  TUTTI_TRY(needWindows(s, mapsWhole(v, y) ? 1 : 3));
  s->windows[0].bytes = mapsWhole(v, y) ? y->bytes : y->dataAt;
  if (s->nwindows == 1) return tuttiSuccess;
  size_t shared = y->nchannels * y->dataBytes, own = shared + y->dataBytes;
  size_t skipped = shared + readerIndex(v, s, v->rank) * own;
  s->windows[1] = (segmentWindow){.begin = y->dataAt, .bytes = shared};
  s->windows[2] = (segmentWindow){.begin = y->dataAt + skipped, .bytes = own};
  return tuttiSuccess;
}

/* From `fd`, unless it has been. */
static tuttiResult_t mapWindow(const tuttiSegment *s, segmentWindow *w, int fd) {
  char what[80];
  if (w->at) return tuttiSuccess;
  snprintf(what, sizeof what, "the segment of rank %d (TUTTI_BUFFSIZE sets its size)", s->owner);
  return tuttiMapPart((void **)&w->at, w->begin, w->bytes, fd, what, NULL);
}

/* Where the byte at `offset` and the rest of its FIFO's control or data are mapped, from now on at
 * least. */
static tuttiResult_t reach(tuttiSegment *s, size_t offset, uint8_t **out) {
  size_t i = s->nwindows - 1;
  while (s->windows[i].begin > offset)
    i--;
  segmentWindow *w = &s->windows[i];
  TUTTI_LOCKED(&s->lock);
  TUTTI_TRY(mapWindow(s, w, s->fd));
  *out = w->at + (offset - w->begin);
  return tuttiSuccess;
}

static tuttiResult_t pinWhole(const tuttiCommView *v, tuttiSegment *s) {
  const segmentLayout *y = &s->layout;
  if (s->nwindows > 1) return tuttiSuccess;
  return tuttiPin(v->rank, tuttiPeerGpu(&v->peers[v->rank]), s->windows[0].at + y->controlAt,
                  y->bytes - y->controlAt, &s->pinned);
}

/* Pages and heap that the owner of `s` answers for. */
static void countSegment(tuttiCommView *v, tuttiSegment *s) {
  struct stat st;
  if (fstat(s->fd, &st) != 0) return;
  size_t now = sizeof *s + (size_t)st.st_blocks * 512;      /* the unit of st_blocks */
  tuttiFetchAddAcqRel(&v->memory->bytes, now - s->counted); /* wraps when it is less */
  s->counted = now;
}

static const char *nameOf(const tuttiSegment *s, char *buf, size_t size) {
  snprintf(buf, size, "segment of rank %d", s->owner);
  return buf;
}

/* A header, and no size so far. */
static tuttiResult_t createSegment(const tuttiCommView *v, int owner, tuttiSegment **out) {
  DROPPED tuttiSegment *s = NULL;
  char name[40];
  TUTTI_TRY(newSegment(owner, &s));
  TUTTI_TRY(tuttiRandom(s->token, sizeof s->token));
  TUTTI_TRY(tuttiSharedFd(nameOf(s, name, sizeof name), &s->fd));
  tuttiForkCloseAdd(s->fd);
  segmentHeader header = {.owner = owner, .nranks = v->nranks};
  memcpy(header.token, s->token, sizeof header.token);
  if (pwrite(s->fd, &header, sizeof header, 0) != (ssize_t)sizeof header)
    return TUTTI_FAIL(tuttiSystemError,
                      "no memory for the %s: %s; free memory, or raise the limit "
                      "of this container",
                      name, tuttiErrnoText(errno));
  *out = s;
  s = NULL;
  return tuttiSuccess;
}

/* Gives a segment of this process its size, and maps it if it is small. */
static tuttiResult_t makeReady(const tuttiCommView *v, tuttiSegment *s) {
  char name[40];
  if (s->ready) return tuttiSuccess;
  TUTTI_TRY(makeLayout(v, &s->layout));
  TUTTI_TRY(tuttiSharedFdSeal(s->fd, s->layout.bytes, nameOf(s, name, sizeof name)));
  if (!s->windows) TUTTI_TRY(cutWindows(v, s));
  if (s->nwindows == 1) TUTTI_TRY(mapWindow(s, &s->windows[0], s->fd));
  TUTTI_TRY(pinWhole(v, s));
  s->ready = true;
  return tuttiSuccess;
}

/* The segment of a rank of this process. Whoever needs it first makes it, so that nobody waits. */
static tuttiResult_t houseSegment(const tuttiCommView *v, int owner, bool ready,
                                  tuttiSegment **out) {
  tuttiHouse *h = v->local->house;
  TUTTI_LOCKED(&h->making);
  if (!h->segments[owner]) TUTTI_TRY(createSegment(v, owner, &h->segments[owner]));
  if (ready) TUTTI_TRY(makeReady(v, h->segments[owner]));
  *out = h->segments[owner];
  return tuttiSuccess;
}

static tuttiResult_t takeOwn(tuttiCommView *v, tuttiSegment **out) {
  tuttiSegment *s;
  TUTTI_TRY(houseSegment(v, v->rank, true, &s));
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
  tuttiSegment *own;
  if (v->local) return tuttiSuccess;
  TUTTI_NEW(v->local, 1, "the ranks of this host", v->memory);
  v->local->listenFd = -1;
  pthread_mutex_init(&v->local->lock, NULL);
  TUTTI_TRY(enterHouse(v, &v->local->house));
  return houseSegment(v, v->rank, false, &own);
}

tuttiResult_t tuttiSegmentDescribe(const tuttiCommView *v, tuttiPeer *mine) {
  tuttiSegment *s;
  TUTTI_TRY(houseSegment(v, v->rank, false, &s));
  memcpy(mine->segmentToken, s->token, sizeof mine->segmentToken);
  int err = tuttiPeerFdDescribe(s->fd, &mine->segment);
  if (!err) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInternalError, "rank %d can't describe its segment: %s", v->rank,
                    tuttiErrnoText(err));
}

static tuttiResult_t findNeighbours(tuttiCommView *v) {
  tuttiLocal *l = v->local;
  TUTTI_NEW(l->place, v->nranks, "places of the ranks of this host", v->memory);
  TUTTI_NEW(l->theirs, v->nranks, "segments of the ranks of this host", v->memory); // NOLINT
  TUTTI_NEW(l->sends, v->nranks + 1, "readers of a segment", v->memory);
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

void tuttiLocalAlone(tuttiCommView *v) {
  if (v->local && v->local->house) leaveHouse(v->local->house);
  if (v->local) v->local->house = NULL;
}

void tuttiLocalDetach(tuttiCommView *v) {
  tuttiLocal *l = v->local;
  if (!l) return;
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
  tuttiLocalAlone(v);
  pthread_mutex_destroy(&l->lock);
  tuttiFree(l->sends);
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
  off_t hole = s ? (off_t)s->layout.dataAt : 0;
  for (off_t data; s && (data = lseek(s->fd, hole, SEEK_DATA)) >= 0; sum += (size_t)(hole - data))
    hole = lseek(s->fd, data, SEEK_HOLE);
  return sum;
}

void tuttiLocalTrim(tuttiCommView *v) {
  const tuttiSegment *s = v->local ? v->local->mine : NULL;
  if (!s) return;
  fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)s->layout.dataAt,
            (off_t)(s->layout.bytes - s->layout.dataAt));
  tuttiLocalMeasure(v);
}

/* ---- segments of others ---------------------------------------------------------------------- */

int tuttiSegmentFd(const tuttiCommView *v) {
  return v->local->mine->fd;
}

static segmentHeader *headerOf(const tuttiSegment *s) {
  return (segmentHeader *)s->windows[0].at; // NOLINT: a page
}

void *tuttiSegmentMemory(const tuttiCommView *v, int rank) {
  const tuttiSegment *s = rank == v->rank ? v->local->mine : v->local->theirs[rank];
  return s->windows[0].at + s->layout.controlAt;
}

/* Gives the file its size if nobody has, and seals it if nobody has: another rank may be between
 * the two. */
static tuttiResult_t sizeForeign(const tuttiSegment *s, int fd, struct stat *st, int *seals) {
  char name[40];
  bool fresh = (size_t)st->st_size == sizeof(segmentHeader);
  *seals = fcntl(fd, F_GET_SEALS);
  bool sealed = *seals >= 0 && *seals & F_SEAL_SHRINK;
  if (!fresh && (sealed || (size_t)st->st_size != s->layout.bytes)) return tuttiSuccess;
  TUTTI_TRY(tuttiSharedFdSeal(fd, s->layout.bytes, nameOf(s, name, sizeof name)));
  st->st_size = (off_t)s->layout.bytes;
  *seals = fcntl(fd, F_GET_SEALS);
  return tuttiSuccess;
}

/* Fails unless fd is of the segment that the owner's record describes, sized as this rank expects
 * and sealed: nobody may shrink it under its readers, who would get SIGBUS. */
static tuttiResult_t checkForeign(const tuttiCommView *v, const tuttiSegment *s, int fd) {
  const tuttiPeer *peer = &v->peers[s->owner];
  segmentHeader header;
  struct stat st;
  bool known = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
               pread(fd, &header, sizeof header, 0) == (ssize_t)sizeof header &&
               memcmp(header.token, peer->segmentToken, sizeof header.token) == 0 &&
               header.owner == s->owner && header.nranks == v->nranks;
  if (!known)
    return TUTTI_FAIL(tuttiRemoteError,
                      "what rank %d got as the segment of rank %d (host %s, pid %d) is not what "
                      "that rank made: run the same tutti in all ranks",
                      v->rank, s->owner, peer->host, peer->pid);
  int seals;
  TUTTI_TRY(sizeForeign(s, fd, &st, &seals));
  if (seals < 0 || !(seals & F_SEAL_SHRINK))
    return TUTTI_FAIL(tuttiRemoteError,
                      "what rank %d (host %s, pid %d) handed over is not a sealed segment: run "
                      "the same tutti in all ranks",
                      s->owner, peer->host, peer->pid);
  if ((size_t)st.st_size == s->layout.bytes) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "the segment of rank %d (host %s, pid %d) has %lld bytes, that of rank %d "
                    "has %zu: give both the same settings, TUTTI_BUFFSIZE above all",
                    s->owner, peer->host, peer->pid, (long long)st.st_size, v->rank,
                    s->layout.bytes);
}

static tuttiResult_t mapForeign(const tuttiCommView *v, int owner, int fd, tuttiSegment **out) {
  DROPPED tuttiSegment *s = NULL;
  TUTTI_TRY(newSegment(owner, &s));
  TUTTI_TRY(makeLayout(v, &s->layout));
  TUTTI_TRY(checkForeign(v, s, fd));
  TUTTI_TRY(cutOwnWindows(v, s));
  for (size_t i = 0; i < s->nwindows; i++)
    TUTTI_TRY(mapWindow(s, &s->windows[i], fd));
  TUTTI_TRY(pinWhole(v, s));
  tuttiStoreRelease32(&headerOf(s)->holders[v->local->place[v->rank]], 1);
  *out = s;
  s = NULL;
  return tuttiSuccess;
}

bool tuttiSegmentNeighbour(const tuttiCommView *v, int rank) {
  return v->local && v->local->mine && rank >= 0 && rank < v->nranks && rank != v->rank &&
         v->local->place[rank] >= 0;
}

bool tuttiSegmentHas(const tuttiCommView *v, int owner) {
  TUTTI_LOCKED(&v->local->lock);
  return v->local->theirs[owner] != NULL;
}

tuttiResult_t tuttiSegmentTake(tuttiCommView *v, int owner, int fd) {
  DROPPED tuttiSegment *s = NULL;
  TUTTI_TRY(mapForeign(v, owner, fd, &s));
  TUTTI_LOCKED(&v->local->lock);
  if (v->local->theirs[owner]) return tuttiSuccess; /* another thread was faster */
  v->local->theirs[owner] = s;
  s = NULL;
  return tuttiSuccess;
}

bool tuttiSegmentOwed(const tuttiCommView *v, int reader) {
  const tuttiLocal *l = v->local;
  if (!l || !l->mine || l->place[reader] < 0) return false;
  if (!l->sends[reader] && !l->sends[v->nranks]) return false;
  return tuttiLoadAcquire32(&headerOf(l->mine)->holders[l->place[reader]]) == 0;
}

bool tuttiSegmentInProcess(const tuttiPeer *a, const tuttiPeer *b) {
  return a->process == b->process && a->hostId == b->hostId && a->device != tuttiDeviceCuda &&
         b->device != tuttiDeviceCuda;
}

/* ---- FIFOs ----------------------------------------------------------------------------------- */

/* Brings what an endpoint writes to into memory now, where a shortage is an error; at the first
 * message it would be SIGBUS. Kernels before 5.14 can't. */
static tuttiResult_t touch(const tuttiSegment *s, void *at, size_t bytes) {
  size_t before = (uintptr_t)at % tuttiPagesUp(1), size = tuttiPagesUp(before + bytes);
  uint8_t *page = (uint8_t *)at - before;
  if (madvise(page, size, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) return tuttiSuccess;
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
  if (channel == TUTTI_RMA_CHANNEL) return !shared && v->peers[v->rank].device == tuttiDeviceCuda;
  if (v->stagedBytes) return false; /* the segments hold symmetric blocks */
  if (channel == TUTTI_P2P_CHANNEL) return !shared;
  return channel >= 0 && channel < v->nchannels;
}

/* Whether this rank has the segment of the FIFO's writer, or can have it of its process. */
static bool hasSegment(const tuttiCommView *v, int peer, tuttiDirection direction, bool shared) {
  if (shared && direction == TUTTI_SEND) return peer == -1 && v->local && v->local->mine;
  if (!tuttiSegmentNeighbour(v, peer)) return false;
  return direction == TUTTI_SEND || tuttiSegmentHas(v, peer) ||
         tuttiSegmentInProcess(&v->peers[v->rank], &v->peers[peer]);
}

static tuttiResult_t checkOpen(const tuttiCommView *v, int peer, int channel,
                               tuttiDirection direction, bool shared) {
  if (hasChannel(v, channel, shared) && hasSegment(v, peer, direction, shared)) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInternalError,
                    "rank %d has no shared memory for its %s endpoint with rank %d on channel %d "
                    "(%s)",
                    v->rank, direction == TUTTI_SEND ? "send" : "receive", peer, channel,
                    shared ? "shared" : "pair");
}

/* Where FIFOs that `peer` (-1: all) reads or writes are. */
static tuttiResult_t findSegment(const tuttiCommView *v, int peer, tuttiDirection direction,
                                 tuttiSegment **out) {
  tuttiLocal *l = v->local;
  if (direction == TUTTI_SEND) {
    l->sends[peer >= 0 ? peer : v->nranks] = true;
    *out = l->mine;
    return tuttiSuccess;
  }
  pthread_mutex_lock(&l->lock);
  *out = l->theirs[peer];
  pthread_mutex_unlock(&l->lock);
  return *out ? tuttiSuccess : houseSegment(v, peer, true, out);
}

/* Control and data of the FIFO of a channel (the number behind all others for TUTTI_P2P_CHANNEL)
 * and the owner's reader `index`, or of the shared one. */
static tuttiResult_t findFifo(tuttiSegment *s, size_t channel, bool shared, size_t index,
                              tuttiConn *conn) {
  const segmentLayout *y = &s->layout;
  size_t control = channel * y->sharedBytes, data = channel;
  if (!shared) {
    control = y->nchannels * y->sharedBytes + (channel * y->nreaders + index) * y->pairBytes;
    data = y->nchannels + index * (y->nchannels + 1) + channel;
  }
  uint8_t *at;
  TUTTI_TRY(reach(s, y->controlAt + control, &at));
  conn->descriptors = (tuttiSlotDescriptor *)at;
  conn->readers = (tuttiReader *)(conn->descriptors + y->descriptors);
  TUTTI_TRY(reach(s, y->dataAt + data * y->dataBytes, &conn->data));
  conn->small = conn->data + TUTTI_FIFO_DEPTH * y->slotBytes;
  return tuttiSuccess;
}

/* Of messages of one-sided operations, which staged GPUs have as well. */
static tuttiResult_t findPuts(tuttiSegment *s, size_t index, tuttiConn *conn) {
  const segmentLayout *y = &s->layout;
  uint8_t *at;
  TUTTI_TRY(reach(s, y->putsAt + index * y->putBytes, &at));
  conn->descriptors = (tuttiSlotDescriptor *)at;
  conn->ndescriptors = TUTTI_FIFO_DESCRIPTORS;
  conn->readers = (tuttiReader *)(conn->descriptors + conn->ndescriptors);
  conn->data = at + tuttiPagesUp(PUT_CONTROL);
  conn->smallBytes = 0;
  return tuttiSuccess;
}

tuttiResult_t tuttiSegmentOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                               bool shared, tuttiConn *conn) {
  tuttiSegment *s;
  TUTTI_TRY(checkOpen(v, peer, channel, direction, shared));
  TUTTI_TRY(findSegment(v, peer, direction, &s));
  const segmentLayout *y = &s->layout;
  bool all = shared && direction == TUTTI_SEND;
  size_t index = all ? 0 : readerIndex(v, s, direction == TUTTI_RECV ? v->rank : peer);
  tuttiConn made = {.slotBytes = y->slotBytes,
                    .smallBytes = y->smallBytes,
                    .ndescriptors = (uint32_t)y->descriptors,
                    .nreaders = all ? (int)y->nreaders : 1,
                    .peer = peer,
                    .channel = channel,
                    .direction = (uint8_t)direction};
  size_t number = channel == TUTTI_P2P_CHANNEL ? y->nchannels : (size_t)channel;
  TUTTI_TRY(channel == TUTTI_RMA_CHANNEL ? findPuts(s, index, &made)
                                         : findFifo(s, number, shared, index, &made));
  if (shared && !all) made.readers += index;
  TUTTI_TRY(touch(s, made.descriptors, made.ndescriptors * sizeof *made.descriptors));
  TUTTI_TRY(touch(s, made.readers, (size_t)made.nreaders * sizeof *made.readers));
  made.next = resume(&made);
  *conn = made;
  return tuttiSuccess;
}
