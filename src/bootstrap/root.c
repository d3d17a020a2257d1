/* The root: a thread that gathers the check-ins of its slice, tells each rank who follows it, and
 * ends. It waits on everything at once, so no connection, slow or hostile, holds it up. */
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/seat.h"

/* How long a failed root tells latecomers why. */
#define LINGER_MS   30000
#define GIVEN_UP_MS 2000 /* those who have the id are on their way */
/* Longer than the last rank's deadline: none of them can be waiting any more. */
#define SLACK_MS 1000
/* An answer is on its way so long, at most. */
#define ANSWER_MS 1000
/* How long a fixed root waits for its port. */
#define BIND_MS 30000

_Static_assert(sizeof(tuttiCheckIn) <= TUTTI_HELLO_MAX, "a guest's buffer fits");
_Static_assert(sizeof(tuttiNeighbour) <= TUTTI_ERROR_TEXT, "a reply carries a peer");

typedef struct {
  int fd; /* -1: not here yet, or done */
  tuttiCheckIn in;
  bool asked; /* what keeps the missing ones, and has not answered */
} member;

typedef struct root {
  struct root *next; /* list of this process's roots */
  tuttiListener listener;
  int epollFd, cancelFd;
  tuttiResult_t givenUp; /* by listLock: why whoever made its id will not come; text below */
  char givenUpText[TUTTI_ERROR_TEXT];
  bool lingers; /* nobody knows who else has the id: until the deadline */
  bool fixed;
  pid_t process; /* a forked child has a copy of the list, without the thread and its fds */
  uint8_t secret[16], openSecret[16];
  bool keyed; /* TUTTI_COMM_ID, and there is a key */
  tuttiTlsKey tls;
  char shown[80];
  char stray[TUTTI_ERROR_TEXT]; /* of one with another key or none: may be of a missing rank */
  tuttiLogRate strays;
  uint64_t deadline, latest; /* latest: of the deadlines that ranks bring */
  tuttiRootName name;
  bool met; /* all were here, and know who is next: now they are watched until they are done */
  tuttiCheckIn first; /* its nranks, nroots, root and hash are what all must have */
  int firstRank, count;
  int expected, joined;            /* count, and 1 for the bridge when there are several roots */
  member *members;                 /* [expected]; the bridge is last */
  int asked;                       /* members; -1: nobody was asked what keeps the missing ones */
  char missing[500];               /* these, when that was asked */
  char kept[TUTTI_ERROR_TEXT + 1]; /* by what, as one has answered; "": not known */
  tuttiResult_t failure;
  uint64_t dead;  /* the process whose death that is; 0: it is none, or not told which */
  int told;       /* who was told of the failure, or needs not be */
  bool ownerTold; /* so was rank 0, whose init has started a fixed root */
  tuttiGreeter greeter;
} root;

static pthread_mutex_t listLock = PTHREAD_MUTEX_INITIALIZER;
static root *list;
static tuttiAtomic32 toldOpen; /* that a root lets anybody in */

/* ---- failing -------------------------------------------------------------------------------- */

/* Told last: it may exit at once, and this thread with it. */
static bool ownProcess(const member *m) {
  const tuttiHello *h = &m->in.peer.hello;
  return h->pid == getpid() && strncmp(h->host, tuttiHostname(), sizeof h->host) == 0;
}

static tuttiSession sessionOf(const root *r, const tuttiCheckIn *in) {
  tuttiSession session = {.secret = r->secret};
  memcpy(session.hello, in->peer.hello.mac, sizeof(session.hello));
  return session;
}

static void countTold(root *r, const tuttiCheckIn *in) {
  r->told++;
  r->ownerTold |= in->peer.hello.from == 0;
}

static void tellFailure(const root *r, int fd, const tuttiSession *session, tuttiResult_t code) {
  const char *text = r->greeter.refuseText;
  if (r->dead) tuttiReplySend(fd, session, tuttiReplyDead, 0, &r->dead, sizeof r->dead, NULL);
  tuttiReplySend(fd, session, tuttiReplyFailed, code, text, strlen(text), NULL);
}

/* Tells this thread's last error to all who are here, and keeps it for those who come. */
static void failAll(root *r, tuttiResult_t code) {
  if (r->failure != tuttiSuccess) return;
  r->failure = code;
  tuttiGreeter *g = &r->greeter;
  g->refuseCode = code;
  snprintf(g->refuseText, sizeof(g->refuseText), "%s", tuttiErrorText());
  for (int own = 0; own < 2; own++)
    for (int i = 0; i < r->expected; i++) {
      member *m = &r->members[i];
      if (m->fd < 0 || ownProcess(m) != (own == 1)) continue;
      tuttiSession session = sessionOf(r, &m->in);
      tellFailure(r, m->fd, &session, code);
      tuttiFdClose(&m->fd);
      countTold(r, &m->in);
    }
  r->deadline = tuttiDeadline(LINGER_MS);
}

/* "0-2, 5, 7": those who are not here. The bridge is the rank after the slice. */
static void listMissing(const root *r, char *buf, size_t size) {
  int nranks = r->first.peer.hello.nranks;
  buf[0] = '\0';
  for (int i = 0; i < r->expected; i++) {
    int begin = i;
    if (r->members[i].fd >= 0) continue;
    while (i + 1 < r->expected && r->firstRank + i + 1 != nranks && r->members[i + 1].fd < 0)
      i++;
    tuttiAppend(buf, size, "%s%d", buf[0] ? ", " : "", (r->firstRank + begin) % nranks);
    if (i > begin) tuttiAppend(buf, size, "-%d", r->firstRank + i);
  }
  if (strlen(buf) + 1 == size) memcpy(buf + size - sizeof("..."), "...", sizeof("..."));
}

static void failMissing(root *r) {
  if (!r->missing[0]) listMissing(r, r->missing, sizeof r->missing);
  failAll(r,
          TUTTI_FAIL(tuttiTimeout,
                     "missing ranks: %s of %d never came to the rendezvous at %s (host %s, pid %d) "
                     "before the deadline%s%s%s%s",
                     r->missing, r->first.peer.hello.nranks, r->shown, tuttiHostname(),
                     (int)getpid(), r->kept[0] ? ": " : "",
                     r->kept[0] ? r->kept
                                : "; see whether they were started, got this unique id and can "
                                  "reach that address, or raise TUTTI_TIMEOUT",
                     r->stray[0] ? ". Somebody else came: " : "", r->stray));
}

/* Whoever is here and has kin is to be asked. Returns how long that takes, at most, in ms; 0: there
 * is nobody. */
static uint32_t chooseKin(root *r) {
  int longest = 0;
  r->asked = 0;
  for (int i = 0; i < r->expected; i++) {
    member *m = &r->members[i];
    m->asked = m->fd >= 0 && m->in.askMs > 0;
    r->asked += m->asked;
    if (m->asked && m->in.askMs > longest) longest = m->in.askMs;
  }
  return (uint32_t)longest;
}

static void sayMissing(const root *r, const tuttiMissing *missing) {
  for (int i = 0; i < r->expected; i++) {
    const member *m = &r->members[i];
    tuttiSession session = sessionOf(r, &m->in);
    if (m->fd >= 0)
      tuttiReplySend(m->fd, &session, tuttiReplyMissing, 0, missing, sizeof *missing, NULL);
  }
}

/* The first of those who are not here. */
static void fillMissing(const root *r, tuttiMissing *missing) {
  for (int i = 0; i < r->expected && missing->n < TUTTI_KIN_RANKS; i++)
    if (r->members[i].fd < 0)
      missing->ranks[missing->n++] = (r->firstRank + i) % r->first.peer.hello.nranks;
}

/* Asks those who have kin about the missing ranks, and tells all others that it waits for the
 * answer; none is left in doubt for longer than the slowest of those may take. False: there is
 * nobody to ask, or it was done before. */
static bool askKin(root *r) {
  tuttiMissing missing = {0};
  if (r->asked >= 0) return false;
  listMissing(r, r->missing, sizeof r->missing);
  missing.graceMs = chooseKin(r) + ANSWER_MS;
  if (r->asked == 0) return false;
  fillMissing(r, &missing);
  r->deadline = tuttiDeadline(missing.graceMs);
  sayMissing(r, &missing);
  return true;
}

/* Whoever doubts is told who is missing. */
static void tellMissing(const root *r, const member *m) {
  tuttiMissing missing = {0};
  tuttiSession session = sessionOf(r, &m->in);
  fillMissing(r, &missing);
  if (missing.n > 0 && !r->met)
    tuttiReplySend(m->fd, &session, tuttiReplyMissing, 0, &missing, sizeof missing, NULL);
}

/* Waits no longer where one knows, or none of those who were asked. False: it was not asked. */
static bool hearKin(root *r, member *m, const char *text) {
  if (!m->asked || r->met) return false;
  m->asked = false;
  r->asked--;
  snprintf(r->kept, sizeof r->kept, "%s", text);
  if (r->kept[0] || r->asked == 0) r->deadline = tuttiNow();
  return true;
}

static const char *nameOf(const tuttiCheckIn *in, char *buf, size_t size) {
  return tuttiHelloName(&in->peer.hello, buf, size);
}

static void otherVersion(void *ctx) {
  root *r = ctx;
  if (r->failure != tuttiSuccess) return;
  failAll(r, TUTTI_FAIL(r->greeter.refuseCode, "%s", r->greeter.refuseText));
}

/* ---- check-ins ------------------------------------------------------------------------------ */

/* What the sender says of itself. */
static bool isKnownKind(const tuttiCheckIn *in) {
  if (in->encrypts < tuttiEncryptsNot || in->encrypts > tuttiEncryptsOtherwise) return false;
  if (in->keyed != 0 && in->keyed != 1) return false;
  return in->askMs >= 0 && in->askMs <= TUTTI_KIN_MS;
}

/* Numbers within their bounds, and addresses where the rank can be met. */
static bool isWellFormed(const tuttiCheckIn *in) {
  const tuttiHello *h = &in->peer.hello;
  if (h->kind != tuttiHelloCheckIn || h->to != -1) return false;
  if (h->nranks < 2 || h->nranks > TUTTI_MAX_RANKS) return false;
  if (h->from < 0 || h->from >= h->nranks) return false;
  if (in->nroots < 1 || in->nroots > h->nranks) return false;
  if (in->root < 0 || in->root >= in->nroots) return false;
  return isKnownKind(in) && tuttiAddressListValid(&in->peer.listeners);
}

/* Whether the root that the rank asks for is the one of its slice; of a bridge, which is the first
 * rank of a slice, the one of the slice before. */
static bool isAtItsRoot(const tuttiCheckIn *in) {
  const tuttiHello *h = &in->peer.hello;
  int own = tuttiRootOfRank(h->from, in->nroots, h->nranks);
  if (in->bridge == 0) return in->root == own;
  if (in->bridge != 1 || in->nroots == 1) return false;
  return (in->root + 1) % in->nroots == own &&
         h->from == tuttiFirstOfRoot(own, in->nroots, h->nranks);
}

/* A well-formed check-in of a rank that believes to belong here. */
static tuttiVerdict checkShape(void *ctx, const void *hello) {
  root *r = ctx;
  tuttiCheckIn in;
  memcpy(&in, hello, sizeof(in));
  if (r->failure != tuttiSuccess) {
    countTold(r, &in);
    return TUTTI_GUEST_REFUSE;
  }
  return isWellFormed(&in) && isAtItsRoot(&in) ? TUTTI_GUEST_ACCEPT : TUTTI_GUEST_DROP;
}

/* The first to come says how many are to come. */
static tuttiResult_t openSlice(root *r, const tuttiCheckIn *in) {
  int nranks = in->peer.hello.nranks;
  int first = tuttiFirstOfRoot(in->root, in->nroots, nranks);
  int count = tuttiFirstOfRoot(in->root + 1, in->nroots, nranks) - first;
  int expected = count + (in->nroots > 1);
  TUTTI_NEW(r->members, expected, "check-ins of a root", NULL);
  for (int i = 0; i < expected; i++)
    r->members[i].fd = -1;
  r->first = *in;
  r->firstRank = first;
  r->count = count;
  r->expected = expected;
  r->deadline = TUTTI_NO_DEADLINE; /* but for what the ranks bring: heedDeadline */
  return tuttiSuccess;
}

/* The root must speak before a rank's own deadline ends its waiting. */
static void heedDeadline(root *r, uint64_t remainingMs) {
  uint64_t end = remainingMs > INT32_MAX ? TUTTI_NO_DEADLINE : tuttiDeadline((int64_t)remainingMs);
  if (end > r->latest) r->latest = end;
  if (remainingMs > INT32_MAX) return;
  uint64_t margin = remainingMs / 10 < 1000 ? remainingMs / 10 : 1000;
  uint64_t deadline = tuttiNow() + (remainingMs - margin) * TUTTI_MS;
  if (deadline < r->deadline) r->deadline = deadline;
}

/* tuttiSuccess if `in` and those already here can be of one communicator. */
static tuttiResult_t checkAgreement(const root *r, const tuttiCheckIn *in) {
  char a[128], b[128];
  const tuttiHello *h = &in->peer.hello, *first = &r->first.peer.hello;
  if (h->nranks != first->nranks)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "%s was given nranks %d, but %s was given nranks %d; all ranks of a "
                      "communicator must be given the same nranks",
                      nameOf(&r->first, a, sizeof(a)), first->nranks, nameOf(in, b, sizeof(b)),
                      h->nranks);
  if (h->hash != first->hash || in->nroots != r->first.nroots || in->root != r->first.root)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "%s and %s were given different lists of unique ids; all ranks must be given "
                      "the same ids in the same order",
                      nameOf(&r->first, a, sizeof(a)), nameOf(in, b, sizeof(b)));
  const member *m = &r->members[in->bridge ? r->count : h->from - r->firstRank];
  if (m->fd < 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "two processes came as one rank: %s and %s; give each process its own rank",
                    nameOf(&m->in, a, sizeof(a)), nameOf(in, b, sizeof(b)));
}

/* Whose process the root is in, or another whose way of encrypting is the same. */
static const char *nameOwn(const root *r, char *buf, size_t size) {
  const member *seated = NULL;
  if (r->fixed) {
    snprintf(buf, size, "rank 0 (host %s, pid %d)", tuttiHostname(), (int)getpid());
    return buf;
  }
  for (int i = 0; i < r->expected && !seated; i++)
    if (r->members[i].fd >= 0) seated = &r->members[i];
  if (seated) return nameOf(&seated->in, buf, size);
  snprintf(buf, size, "the process that made the unique id (host %s, pid %d)", tuttiHostname(),
           (int)getpid());
  return buf;
}

/* As nameOf; one who explains himself does not say his host. */
static const char *nameFrom(const tuttiCheckIn *in, const tuttiAddress *from, char *buf,
                            size_t size) {
  char at[80];
  tuttiCheckIn named = *in;
  if (named.peer.hello.host[0] == '\0' && tuttiAddressValid(from))
    snprintf(named.peer.hello.host, sizeof(named.peer.hello.host), "%.63s",
             tuttiAddressText(from, at, sizeof(at)));
  return nameOf(&named, buf, size);
}

static tuttiAddress addressOf(int fd) {
  tuttiAddress from;
  socklen_t length = sizeof(from);
  memset(&from, 0, sizeof(from));
  if (getpeername(fd, &from.sa, &length) != 0) from.sa.sa_family = AF_UNSPEC;
  return from;
}

/* Fails if the ranks do not encrypt alike; *strayed: this one has only missed its handshake. */
static tuttiResult_t checkCover(const root *r, const tuttiCheckIn *in, int fd, bool *strayed) {
  char theirs[128], ours[160];
  bool covered = tuttiSecureIsOn(fd), encrypts = in->encrypts != tuttiEncryptsNot;
  *strayed = r->tls.on && !covered && in->encrypts == tuttiEncryptsYes;
  if (*strayed || (covered == r->tls.on && encrypts == covered)) return tuttiSuccess;
  tuttiAddress from = addressOf(fd);
  nameFrom(in, &from, theirs, sizeof(theirs));
  nameOwn(r, ours, sizeof(ours));
  if (encrypts && r->tls.on)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "%s encrypts with another key than %s: give all ranks of a job the same one "
                      "(TUTTI_PSK_FILE, tuttiSetEncryption)",
                      theirs, ours);
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "%s encrypts its connections, but %s does not: TUTTI_ENCRYPT=1 with "
                    "TUTTI_PSK_FILE, or tuttiSetEncryption, is for all ranks of a job or for none",
                    encrypts ? theirs : ours, encrypts ? ours : theirs);
}

#define KEYS_FOR_ALL "a key (TUTTI_PSK_FILE) is for all ranks of a job, the same one, or for none"

/* One with another key, or none, has come to a root of TUTTI_COMM_ID that has one. It is told, and
 * so is the log; others hear of it at most when they fail anyway: whoever knows the address could
 * end the init of a job that has a key to keep him from that. One with this key has only been
 * dropped before. */
static bool judgeStray(void *ctx, const void *hello, const tuttiAddress *from,
                       char text[TUTTI_ERROR_TEXT]) {
  root *r = ctx;
  char theirs[128], ours[160];
  tuttiCheckIn in;
  memcpy(&in, hello, sizeof(in));
  if (!isWellFormed(&in)) return false;
  if (in.keyed && in.peer.hello.hash == tuttiIdHash(0, r->secret)) return false;
  snprintf(text, TUTTI_ERROR_TEXT,
           in.keyed ? "%s has another key than %s: " KEYS_FOR_ALL
                    : "%s has no key, but %s has one: " KEYS_FOR_ALL,
           nameFrom(&in, from, theirs, sizeof(theirs)), nameOwn(r, ours, sizeof(ours)));
  memcpy(r->stray, text, sizeof(r->stray));
  if (tuttiLogCount(&r->strays) > 0)
    TUTTI_WARN(BOOTSTRAP, "refused at %s: %s; for a minute there will be no more lines about this",
               r->shown, text);
  return true;
}

/* Fails if one with a key has come to a root without. */
static tuttiResult_t checkKey(const root *r, const tuttiCheckIn *in, int fd) {
  char theirs[128], ours[160];
  tuttiAddress from = addressOf(fd);
  if (r->keyed || !in->keyed) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage, "%s has a key, but %s has none: " KEYS_FOR_ALL,
                    nameFrom(in, &from, theirs, sizeof(theirs)), nameOwn(r, ours, sizeof(ours)));
}

static void introduce(const root *r, const member *m) {
  tuttiSession session = sessionOf(r, &m->in);
  tuttiReplySend(m->fd, &session, tuttiReplyRoot, 0, &r->name, sizeof r->name, NULL);
}

/* Whose process this is may be known by now: those who came before are told then. */
static void introduceAll(root *r, const member *newcomer) {
  bool known = r->name.rank >= 0 || !ownProcess(newcomer);
  if (!known) r->name.rank = newcomer->in.peer.hello.from;
  for (int i = 0; i < r->expected && !known; i++)
    if (r->members[i].fd >= 0 && &r->members[i] != newcomer) introduce(r, &r->members[i]);
  introduce(r, newcomer);
}

/* A host that has gone does not hold the root for ever. */
static void keepAlive(int fd) {
  int on = 1, idle = 10;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
}

/* Takes the fd if it succeeds. */
static tuttiResult_t seat(root *r, const tuttiCheckIn *in, int fd) {
  bool strayed;
  tuttiResult_t alike = checkCover(r, in, fd, &strayed);
  if (strayed) {
    tuttiFdClose(&fd);
    return tuttiSuccess;
  }
  if (alike == tuttiSuccess) alike = checkKey(r, in, fd);
  if (r->expected == 0) TUTTI_TRY(openSlice(r, in));
  if (alike != tuttiSuccess) return alike; /* now it is known how many are to hear of it */
  TUTTI_TRY(checkAgreement(r, in));
  int index = in->bridge ? r->count : in->peer.hello.from - r->firstRank;
  /* By edges: half a message is looked at when there is more. */
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET,
                              .data.u32 = (uint32_t)index};
  if (epoll_ctl(r->epollFd, EPOLL_CTL_ADD, fd, &event) != 0)
    return TUTTI_FAIL(tuttiSystemError, "epoll_ctl for a check-in: %s", tuttiErrnoText(errno));
  r->members[index].in = *in;
  r->members[index].fd = fd;
  r->joined++;
  keepAlive(fd);
  introduceAll(r, &r->members[index]);
  heedDeadline(r, in->remainingMs);
  return tuttiSuccess;
}

static void welcome(void *ctx, const void *hello, int fd) {
  root *r = ctx;
  tuttiCheckIn in;
  memcpy(&in, hello, sizeof(in));
  tuttiResult_t result = r->failure;
  if (result == tuttiSuccess) {
    result = seat(r, &in, fd);
    if (result == tuttiSuccess) return;
    failAll(r, result);
  }
  tuttiSession session = sessionOf(r, &in);
  tellFailure(r, fd, &session, result);
  countTold(r, &in);
  tuttiFdClose(&fd);
}

/* Its process is gone: whoever gives up says so first. */
static void failDead(root *r, const member *m) {
  char name[128], ranks[500], awaited[600] = "";
  listMissing(r, ranks, sizeof(ranks));
  if (r->failure == tuttiSuccess) r->dead = m->in.process;
  if (!r->met && ranks[0]) snprintf(awaited, sizeof awaited, " while ranks %s were awaited", ranks);
  failAll(r, TUTTI_FAIL(tuttiRemoteError,
                        "%s died: its connection to the rendezvous closed without a word%s "
                        "(killed, crashed, or exited before its init had ended). Remedy: see the "
                        "log of that process, and the kernel log of its host for its out-of-memory "
                        "killer",
                        nameOf(&m->in, name, sizeof(name)), awaited));
}

/* It goes to logs. */
static void makePrintable(char *text) {
  for (char *p = text; *p; p++)
    if ((unsigned char)*p < ' ') *p = ' ';
}

/* A rank asks who is missing, or answers what it was asked about them. */
static bool hearOfMissing(root *r, member *m, int32_t kind, char *text) {
  if (kind == tuttiReplyWho) {
    tellMissing(r, m);
    return true;
  }
  makePrintable(text);
  return hearKin(r, m, text);
}

/* A rank says why it gives up, or that it is done, or what it was asked, or its connection ends.
 * True: there may be more to hear. */
static bool hearMember(root *r, member *m) {
  tuttiReply head;
  char text[TUTTI_ERROR_TEXT + 1], name[128];
  tuttiSession session = sessionOf(r, &m->in);
  int took = m->fd >= 0 ? tuttiMessageTake(m->fd, &session, &head, text) : 0;
  if (took == 0) return false;
  if (took > 0 && (head.kind == tuttiReplyWho || head.kind == tuttiReplyMissing))
    return hearOfMissing(r, m, head.kind, text);
  if (took > 0 && head.kind == tuttiReplyDone && r->met) {
    tuttiFdClose(&m->fd);
    r->told++;
  } else if (took > 0 && head.kind == tuttiReplyFailed && text[0]) {
    makePrintable(text);
    bool known = head.code > tuttiSuccess && head.code < tuttiNumResults;
    failAll(r, tuttiErrorAdopt(known ? (tuttiResult_t)head.code : tuttiRemoteError, text));
  } else if (took == -1) {
    failDead(r, m);
  } else {
    failAll(r, TUTTI_FAIL(tuttiRemoteError,
                          "what %s said to the rendezvous is not its own; see what changes it",
                          nameOf(&m->in, name, sizeof(name))));
  }
  return false;
}

/* Who leaves after the deadline does so because of those who are missing. */
static void hearMembers(root *r) {
  struct epoll_event event;
  while (r->failure == tuttiSuccess && tuttiNow() < r->deadline &&
         epoll_wait(r->epollFd, &event, 1, 0) > 0)
    while (hearMember(r, &r->members[event.data.u32]))
      ;
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Everybody is here. The listener closes first: whoever connects from now on, on a fixed address,
 * means the next communicator and must not be left in this one's queue. */
static void tellNext(root *r) {
  r->met = true;
  r->deadline = r->latest < TUTTI_NO_DEADLINE - SLACK_MS * TUTTI_MS
                    ? r->latest + SLACK_MS * TUTTI_MS
                    : TUTTI_NO_DEADLINE;
  tuttiGreeterClose(&r->greeter);
  tuttiListenerClose(&r->listener);
  for (int i = 0; i < r->count; i++) {
    const tuttiNeighbour *next = &r->members[(i + 1) % r->expected].in.peer;
    tuttiSession session = sessionOf(r, &r->members[i].in);
    tuttiReplySend(r->members[i].fd, &session, tuttiReplyNext, 0, next, sizeof(*next), NULL);
  }
}

/* While ranks are awaited. Who comes after the deadline, while it is asked about, comes too late:
 * the others have no time left for what is to follow. True when there is nothing left to do. */
static bool gather(root *r, bool late) {
  if (r->expected == 0) return late;
  if (r->joined == r->expected && r->asked < 0) {
    tellNext(r);
    return false;
  }
  if (!late || askKin(r)) return false;
  failMissing(r);
  return true;
}

/* True when there is nothing left to do. */
static bool rootStep(root *r) {
  tuttiResult_t result = r->met ? tuttiSuccess : tuttiGreeterStep(&r->greeter);
  if (result != tuttiSuccess) {
    failAll(r, result);
    return true;
  }
  hearMembers(r);
  bool late = tuttiNow() >= r->deadline;
  /* A fixed address is soon wanted for another communicator. */
  if (r->failure != tuttiSuccess)
    return late || (!r->lingers && (r->fixed ? r->ownerTold : r->told >= r->expected));
  if (r->met) return r->told == r->expected || late;
  return gather(r, late);
}

static void rootFree(root *r) {
  tuttiGreeterClose(&r->greeter);
  for (int i = 0; i < r->expected; i++)
    tuttiFdClose(&r->members[i].fd);
  tuttiFree(r->members);
  tuttiListenerClose(&r->listener);
  tuttiFdClose(&r->epollFd);
  tuttiFdClose(&r->cancelFd);
  tuttiFree(r);
}

static void leaveList(root *r) {
  TUTTI_LOCKED(&listLock);
  TUTTI_UNLINK(list, r);
}

/* Whoever made the id has cancelled it. If he has failed after he gave it to others, these hear
 * why, also those who come within a moment. True: the root ends. */
static bool cancelled(root *r) {
  eventfd_t times;
  TUTTI_LOCKED(&listLock);
  if (r->givenUp == tuttiSuccess) return true;
  eventfd_read(r->cancelFd, &times);
  failAll(r, tuttiErrorAdopt(r->givenUp, r->givenUpText));
  r->deadline = tuttiDeadline(GIVEN_UP_MS);
  r->lingers = true;
  return false;
}

static void *rootMain(void *arg) {
  root *r = arg;
  tuttiWait wait = {.deadline = TUTTI_NO_DEADLINE};
  while (!rootStep(r)) {
    struct pollfd fds[] = {{.fd = r->greeter.epollFd, .events = POLLIN},
                           {.fd = r->failure ? -1 : r->epollFd, .events = POLLIN},
                           {.fd = r->cancelFd, .events = POLLIN}};
    uint64_t until = r->met ? TUTTI_NO_DEADLINE : tuttiGreeterNext(&r->greeter);
    if (r->deadline < until) until = r->deadline;
    int ready;
    if (tuttiPollSlice(fds, 3, "ranks", wait, until, &ready) != tuttiSuccess) break;
    if (fds[2].revents && cancelled(r)) break;
  }
  leaveList(r);
  rootFree(r);
  return NULL;
}

static tuttiResult_t startThread(root *r) {
  pthread_t thread;
  pthread_mutex_lock(&listLock);
  TUTTI_LINK(list, r);
  pthread_mutex_unlock(&listLock);
  tuttiResult_t result = tuttiThreadStart(&thread, "tutti-root", rootMain, r);
  if (result == tuttiSuccess)
    pthread_detach(thread);
  else
    leaveList(r);
  return result;
}

tuttiResult_t tuttiRootStart(tuttiListener listener, const tuttiAddress *shown,
                             const uint8_t secret[16], bool fixed, int rank) {
  root *r;
  tuttiTlsKey tls;
  tuttiResult_t result = tuttiTlsKeyMake(secret, &tls);
  if (result == tuttiSuccess) result = tuttiAlloc((void **)&r, 1, sizeof *r, "a root", NULL);
  if (result != tuttiSuccess) {
    tuttiListenerClose(&listener);
    return result;
  }
  r->listener = listener;
  r->fixed = fixed;
  r->asked = -1;
  r->process = getpid();
  memcpy(r->secret, secret, sizeof(r->secret));
  r->tls = tls;
  r->greeter = (tuttiGreeter){.listener = &r->listener,
                              .what = "the root of a unique id",
                              .helloBytes = sizeof(tuttiCheckIn),
                              .nguests = TUTTI_GUESTS,
                              .secret = r->secret,
                              .tls = &r->tls,
                              .clearToo = true, /* to tell all ranks: see checkCover */
                              .ctx = r,
                              .check = checkShape,
                              .welcome = welcome,
                              .otherVersion = otherVersion,
                              .epollFd = -1};
  if (fixed && tuttiIdOpenSecret(r->openSecret)) {
    r->keyed = memcmp(r->openSecret, secret, sizeof(r->openSecret)) != 0;
    r->greeter.openSecret = r->keyed ? r->openSecret : NULL;
    r->greeter.stray = judgeStray;
  }
  tuttiAddressText(shown, r->shown, sizeof(r->shown));
  r->name = (tuttiRootName){.rank = rank, .pid = getpid()};
  snprintf(r->name.host, sizeof r->name.host, "%s", tuttiHostname());
  r->deadline = tuttiDeadline(tuttiSettingInt(TUTTI_SETTING_TIMEOUT));
  r->epollFd = epoll_create1(EPOLL_CLOEXEC);
  r->cancelFd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int err = errno;
  if (r->epollFd >= 0) tuttiForkCloseAdd(r->epollFd);
  if (r->cancelFd >= 0) tuttiForkCloseAdd(r->cancelFd);
  result = r->epollFd < 0 || r->cancelFd < 0
               ? TUTTI_FAIL_SOCKET(tuttiSystemError, err, "no file descriptor for a root")
               : tuttiGreeterOpen(&r->greeter, NULL);
  if (result == tuttiSuccess) result = startThread(r);
  if (result != tuttiSuccess) rootFree(r);
  return result;
}

/* Is it a name that means loopback here, as /etc/hosts may have it of the host itself? Others know
 * that name by another address. */
static bool isOwnName(const tuttiAddress *a) {
  const char *name = tuttiSettingString(TUTTI_SETTING_COMM_ID);
  bool loopback = a->sa.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr)
                                              : ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
  bool literal = name[0] == '[' || name[strspn(name, "0123456789.")] == ':';
  return loopback && name[0] != '\0' && !literal && strncmp(name, "localhost", 9) != 0;
}

tuttiResult_t tuttiRootStartFixed(const tuttiId *id, tuttiWait wait) {
  tuttiAddress address = id->roots.a[0];
  char at[80];
  if (!id->keyed && tuttiCompareExchange32(&toldOpen, 0, 1))
    TUTTI_WARN(
        BOOTSTRAP,
        "TUTTI_COMM_ID without TUTTI_PSK_FILE: whoever reaches %s may come in a rank's place",
        tuttiAddressText(&address, at, sizeof(at)));
  if (isOwnName(&address))
    address = (tuttiAddress){.v6 = {.sin6_family = AF_INET6, .sin6_port = address.v4.sin_port}};
  uint64_t end = tuttiDeadline(BIND_MS);
  if (wait.deadline < end) end = wait.deadline;
  int fd, ready;
  while (tuttiListenNow(&address, &fd) == EADDRINUSE && tuttiNow() < end)
    TUTTI_TRY(tuttiPollSlice(NULL, 0, "the port of TUTTI_COMM_ID", wait, tuttiNow() + 20 * TUTTI_MS,
                             &ready));
  if (fd < 0) TUTTI_TRY(tuttiListen(&address, &fd));
  return tuttiRootStart(tuttiListenerOf(fd), &id->roots.a[0], id->secret, true, 0);
}

void tuttiRootCancel(const uint8_t secret[16], tuttiResult_t why) {
  TUTTI_LOCKED(&listLock);
  for (root *r = list; r; r = r->next)
    if (r->process == getpid() && memcmp(r->secret, secret, sizeof(r->secret)) == 0) {
      r->givenUp = why;
      snprintf(r->givenUpText, sizeof(r->givenUpText), "%s", tuttiErrorText());
      eventfd_write(r->cancelFd, 1);
    }
}
