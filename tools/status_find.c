/* Finding and asking the processes of a job: see status.h. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/host.h"
#include "base/os.h"
#include "ras/report.h"
#include "status.h"

#define PROCESSES  1024
#define MOST_BYTES ((size_t)256 << 20) /* of an answer */
#define HELLO_MS   1000                /* for the first word of a process that listens */
#define TRIES      8                   /* at the port */
#define AT_ONCE    128                 /* processes that are being asked */
#define NAME       "tutti.ras."

/* One process that listens. */
typedef struct {
  char name[64]; /* of its socket, without the leading 0 byte */
  int pid;       /* as it is seen from here */
  int fd;        /* while it is being asked; else -1 */
  bool answered, chosen;
} process;

static uint64_t deadlineWithin(uint64_t deadline, int ms) {
  uint64_t own = tuttiDeadline(ms);
  return own < deadline ? own : deadline;
}

static bool waitFor(int fd, short events, uint64_t deadline) {
  struct pollfd p = {.fd = fd, .events = events};
  int n;
  do {
    n = poll(&p, 1, tuttiDeadlinePollMs(deadline));
  } while (n < 0 && errno == EINTR);
  return n > 0;
}

static bool sendAll(int fd, const char *text, uint64_t deadline) {
  size_t bytes = strlen(text), at = 0;
  while (at < bytes) {
    ssize_t n = send(fd, text + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
      at += (size_t)n;
    else if (errno != EAGAIN || !waitFor(fd, POLLOUT, deadline))
      return false;
  }
  return true;
}

/* Reads to the end of the connection, or with `line` to the end of a line. NULL: neither came in
 * time. */
static char *readAnswer(int fd, bool line, uint64_t deadline, size_t *bytes) {
  size_t have = 0, room = 4096;
  char *buf = malloc(room + 1);
  while (buf && have < MOST_BYTES && waitFor(fd, POLLIN, deadline)) {
    ssize_t n = recv(fd, buf + have, line ? 1 : room - have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) break;
    have += (size_t)n;
    buf[have] = 0;
    if (n == 0 || (line && buf[have - 1] == '\n')) {
      *bytes = have;
      return buf;
    }
    if (have < room) continue;
    char *more = realloc(buf, 2 * room + 1);
    if (!more) break;
    buf = more;
    room *= 2;
  }
  free(buf);
  return NULL;
}

/* Says the lines, each but the last of which is answered by one; returns what the last brings. */
static char *converse(int fd, const char *const *lines, uint64_t deadline, size_t *bytes) {
  for (; lines[0]; lines++) {
    bool last = lines[1] == NULL;
    char said[256];
    snprintf(said, sizeof said, "%s\n", lines[0]);
    if (!sendAll(fd, said, deadline)) return NULL;
    char *got = readAnswer(fd, !last, last ? deadline : deadlineWithin(deadline, HELLO_MS), bytes);
    if (last || !got) return got;
    bool refused = strncmp(got, "ERROR", 5) == 0;
    free(got);
    if (refused) return NULL;
  }
  return NULL;
}

/* ---- the processes of this host ------------------------------------------------------------- */

/* The sockets that listen, by the kernel's table: one line each, the name last. */
static int findProcesses(process *found, int max) {
  FILE *table = fopen("/proc/net/unix", "re");
  char line[512];
  int n = 0;
  while (table && n < max && fgets(line, sizeof line, table)) {
    const char *at = strstr(line, "@" NAME);
    unsigned flags = 0;
    bool listens = sscanf(line, "%*s %*s %*s %x", &flags) == 1 && flags & 0x10000;
    if (!at || !listens) continue;
    snprintf(found[n].name, sizeof found[n].name, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    found[n].pid = atoi(at + 1 + strlen(NAME));
    found[n].fd = -1;
    found[n].answered = found[n].chosen = false;
    n++;
  }
  if (table) fclose(table);
  return n;
}

/* A connection to a process that this user may ask; -1: it is none, or refuses. */
static int connectLocal(process *p) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  size_t bytes = strlen(p->name);
  memcpy(name.sun_path + 1, p->name, bytes);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
  struct ucred peer;
  socklen_t size = sizeof peer;
  /* A name in this namespace is free for anybody to take: the kernel says whose it is. */
  if (fd >= 0 && connect(fd, (struct sockaddr *)&name, length) == 0 &&
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
      (peer.uid == geteuid() || geteuid() == 0)) {
    if (peer.pid > 0) p->pid = peer.pid;
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

static bool isStopped(char state) {
  return state == 'T' || state == 't';
}

static bool lacksAny(const tuttiCommSnapshot *c) {
  for (int r = 0; r < c->nranks; r++)
    if (!c->ranks[r].told) return true;
  return false;
}

/* Notes of which communicators of s process i has told: tellers[k] is one of them for comms[k], or
 * -1. By what they are, not by their ranks: a process may have another number and host name here
 * than where it runs, in a container. */
static void note(const tuttiSnapshot *s, const tuttiSnapshot *answer, int i, int *tellers) {
  for (int k = 0; k < s->ncomms && k < PROCESSES; k++) /* the answer may have added some */
    for (int a = 0; tellers[k] < 0 && a < answer->ncomms; a++)
      if (s->comms[k].hash == answer->comms[a].hash && s->comms[k].key == answer->comms[a].key)
        tellers[k] = i;
}

/* Takes the answer of process i to its question, which ends before the deadline. */
static void hear(process *found, int i, uint64_t deadline, tuttiSnapshot *s, int *tellers) {
  process *p = &found[i];
  tuttiSnapshot answer = {0};
  size_t bytes;
  char *got = p->fd >= 0 ? readAnswer(p->fd, false, deadline, &bytes) : NULL;
  p->answered = got && tuttiReportFactsTake(got, bytes, s);
  if (p->answered && tellers && tuttiReportFactsTake(got, bytes, &answer))
    note(s, &answer, i, tellers);
  tuttiSnapshotFree(&answer);
  free(got);
  if (p->fd >= 0) close(p->fd);
  p->fd = -1;
}

/* Asks the chosen ones, many at once: whoever is slow to answer, or waits for others that are,
 * delays nobody else's answer. About themselves, and notes the tellers; with NULL about all ranks
 * of their communicators, which takes as long as the slowest of these. */
static void askChosen(process *found, int n, uint64_t most, tuttiSnapshot *s, int *tellers) {
  for (int from = 0; from < n; from += AT_ONCE) {
    int to = from + AT_ONCE < n ? from + AT_ONCE : n;
    for (int i = from; i < to; i++) {
      if (!found[i].chosen) continue;
      found[i].fd = connectLocal(&found[i]);
      if (found[i].fd >= 0)
        sendAll(found[i].fd, tellers ? "local facts\n" : "facts\n", tuttiDeadline(HELLO_MS));
    }
    uint64_t deadline = tellers ? deadlineWithin(most, HELLO_MS) : most;
    for (int i = from; i < to; i++)
      if (found[i].chosen) hear(found, i, deadline, s, tellers);
  }
}

/* Chooses those of this user that are not stopped; the number of all of his. */
static int chooseOurs(process *found, int n) {
  int ours = 0;
  for (int i = 0; i < n; i++) {
    process *p = &found[i];
    int fd = connectLocal(p);
    if (fd < 0) continue;
    close(fd);
    ours++;
    p->chosen = !isStopped(tuttiProcessState(p->pid));
    if (!p->chosen)
      fprintf(stderr, "tutti status: process %d is stopped (SIGSTOP, or a debugger)\n", p->pid);
  }
  return ours;
}

/* Chooses one of each communicator of which a rank has not told. */
static void chooseTellers(process *found, int n, const tuttiSnapshot *s, const int *tellers) {
  for (int i = 0; i < n; i++)
    found[i].chosen = false;
  for (int k = 0; k < s->ncomms && k < PROCESSES; k++)
    if (tellers[k] >= 0 && lacksAny(&s->comms[k])) found[tellers[k]].chosen = true;
}

/* What the kernel says of processes that have not told. */
static void lookAtProcesses(tuttiSnapshot *s) {
  for (int i = 0; i < s->ncomms; i++) {
    for (int r = 0; r < s->comms[i].nranks; r++) {
      tuttiRankView *v = &s->comms[i].ranks[r];
      bool here = v->who.pid > 0 && strcmp(v->who.host, tuttiHostname()) == 0;
      char state = here && !v->told ? tuttiProcessState(v->who.pid) : 0;
      /* A number that is no process here may be one in another PID namespace. */
      bool gone = state == 'X' && v->answer.answered == TUTTI_ANSWER_REFUSED;
      bool matters = isStopped(state) || gone || state == 'Z';
      v->process = matters && v->answer.answered != TUTTI_ANSWER_LEFT ? (uint32_t)state : 0;
    }
  }
}

/* First what each process knows of itself, which it says at once; then, through one of each
 * communicator, the ranks of other hosts, and what is known of those that say nothing. */
bool tuttiStatusHost(int ms, tuttiSnapshot *s, int *silent) {
  static process found[PROCESSES];
  static int tellers[PROCESSES];
  int n = findProcesses(found, PROCESSES);
  uint64_t from = tuttiNow(), deadline = tuttiDeadline(ms);
  for (int k = 0; k < PROCESSES; k++)
    tellers[k] = -1;
  int ours = chooseOurs(found, n);
  askChosen(found, n, deadline, s, tellers);
  *silent = 0;
  for (int i = 0; i < n; i++)
    *silent += found[i].chosen && !found[i].answered;
  chooseTellers(found, n, s, tellers);
  askChosen(found, n, deadline, s, NULL);
  lookAtProcesses(s);
  s->seconds = tuttiMs(from, tuttiNow()) / 1e3;
  return ours > 0;
}

/* ---- a port --------------------------------------------------------------------------------- */

static int connectPort(const struct addrinfo *all, uint64_t deadline, int *error) {
  for (const struct addrinfo *a = all; a; a = a->ai_next) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    socklen_t size = sizeof *error;
    if (fd < 0) continue;
    *error = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (*error == EINPROGRESS) {
      *error = ETIMEDOUT;
      if (waitFor(fd, POLLOUT, deadline)) getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &size);
    }
    if (*error == 0) return fd;
    close(fd);
  }
  return -1;
}

char *tuttiStatusPort(const char *host, const char *port, const char *const *lines, int ms,
                      size_t *bytes, char *why) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *all = NULL;
  uint64_t deadline = tuttiDeadline(ms);
  int code = getaddrinfo(host, port, &hints, &all), error = 0;
  if (code != 0) {
    snprintf(why, 256, "%s port %s: %s", host, port, gai_strerror(code));
    return NULL;
  }
  char *got = NULL;
  snprintf(why, 256, "%s port %s: nobody there has answered in the protocol of the RAS port", host,
           port);
  for (int i = 0; i < TRIES && !got && tuttiNow() < deadline; i++) {
    int fd = connectPort(all, deadlineWithin(deadline, 2 * HELLO_MS), &error);
    if (fd < 0) {
      snprintf(why, 256, "%s port %s: %s", host, port, tuttiErrnoText(error));
      break;
    }
    got = converse(fd, lines, deadline, bytes);
    close(fd);
  }
  freeaddrinfo(all);
  return got;
}
