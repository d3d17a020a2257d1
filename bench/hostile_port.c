/* What clients that mean no good cost a job at its RAS port: two processes sum 8 bytes without end,
 * and by turns such clients have at the port of these processes, or the same clients at a port
 * where a bare process accepts them and no more. So what differs is what tutti does for them, not
 * the cores that clients and kernel use.
 *
 *   bench_hostile_port [--rounds N] [--ms N] [KIND...]
 * KIND: garbage, endless (lines), many (1,000 connections), slow (readers), asks (for the report);
 * all if none is named. A row for each kind: lower quartiles over N rounds (20) of turns of so
 * many ms (300) of the median and the 99th percentile of rank 0's times; the time that the threads
 * took which serve the port, in percent of a core; then both processes' memory and descriptors
 * before, at most, and after. Fails with 1 if a rank does. Linux only.
 *
 * Where there are three cores and more, the clients have the last one alone. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tutti.h"

enum {
  RANKS = 2,
  MANY = 1000,
  FEW = 16,
  MAX_ROUNDS = 100,
  SETTLE_MS = 100,
  LOOK_MS = 50,
  TICK_US = 1000
};
enum { EXACT = 7, BINS = (64 - EXACT + 1) << EXACT }; /* of a histogram: times to 1 in 128 */

typedef enum { GARBAGE, ENDLESS, MANY_OF_THEM, SLOW, ASKS, KINDS } kindOf;
static const char *const kindNames[KINDS] = {"garbage", "endless", "many", "slow", "asks"};

/* Shared by all processes. */
typedef struct {
  tuttiUniqueId id;
  atomic_int haveId, running, stop, measuring;
  _Atomic uint64_t clients; /* what they have begun */
  uint32_t bins[BINS];      /* of rank 0's times in this turn */
} board;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static uint64_t nowNs(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- times ---------------------------------------------------------------------------------- */

static int binOf(uint64_t ns) {
  int octave = ns >> EXACT ? 63 - __builtin_clzll(ns) - EXACT + 1 : 0;
  return octave == 0 ? (int)ns : (octave << EXACT) + (int)((ns >> (octave - 1)) - (1u << EXACT));
}

static double nsOf(int bin) {
  int octave = bin >> EXACT;
  return octave == 0
             ? bin
             : (double)(((uint64_t)(bin & ((1 << EXACT) - 1)) + (1u << EXACT)) << (octave - 1));
}

/* The time, in us, that so many in 1,000 do not exceed. */
static double quantile(const uint32_t *bins, unsigned perMille) {
  uint64_t all = 0, below = 0;
  for (int i = 0; i < BINS; i++)
    all += bins[i];
  for (int i = 0; i < BINS; i++) {
    below += bins[i];
    if (below * 1000 >= all * perMille && below > 0) return nsOf(i) / 1e3;
  }
  return 0;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The lower quartile: other work of the machine makes rounds worse, but not all, and what clients
 * cost they cost in each. */
static double quartile(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, compare);
  return values[n / 4];
}

/* ---- the job -------------------------------------------------------------------------------- */

static void check(tuttiResult_t result, tuttiComm_t comm) {
  if (result == tuttiSuccess) return;
  fprintf(stderr, "%s: %s\n", tuttiGetErrorString(result), tuttiGetLastError(comm));
  _exit(1);
}

static void sumForEver(board *b, int rank) {
  tuttiComm_t comm = NULL;
  if (rank == 0) {
    check(tuttiGetUniqueId(&b->id), NULL);
    atomic_store(&b->haveId, 1);
  }
  while (!atomic_load(&b->haveId))
    usleep(1000);
  check(tuttiCommInitRank(&comm, RANKS, b->id, rank), NULL);
  for (double sum = 0; sum < 1;) { /* rank 0 says when all stop */
    double mine = rank == 0 && atomic_load_explicit(&b->stop, memory_order_relaxed);
    uint64_t begun = nowNs();
    check(tuttiAllReduce(&mine, &sum, 1, tuttiFloat64, tuttiSum, comm, NULL), comm);
    uint64_t took = nowNs() - begun;
    bool counts = rank == 0 && atomic_load_explicit(&b->measuring, memory_order_relaxed);
    if (counts) b->bins[binOf(took)]++;
    if (rank == 0) atomic_store_explicit(&b->running, 1, memory_order_relaxed);
  }
  check(tuttiCommDestroy(comm), NULL);
  _exit(0);
}

typedef struct {
  long kb;
  int files;
} holding;

/* Of both processes. */
static holding look(const pid_t *pids) {
  holding h = {0, 0};
  for (int r = 0; r < RANKS; r++) {
    char path[64], line[128];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pids[r]); /* VmRSS, but exact */
    FILE *f = fopen(path, "r");
    long kb = 0;
    while (f && fgets(line, sizeof line, f))
      if (sscanf(line, "Rss: %ld", &kb) == 1) h.kb += kb;
    if (f) fclose(f);
    snprintf(path, sizeof path, "/proc/%d/fd", pids[r]);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
      h.files += e->d_name[0] != '.';
    if (dir) closedir(dir);
  }
  return h;
}

/* Nanoseconds that the threads of the watches, which serve the port, have run. */
static uint64_t servedNs(const pid_t *pids) {
  uint64_t all = 0;
  for (int r = 0; r < RANKS; r++) {
    char path[96], name[32];
    snprintf(path, sizeof path, "/proc/%d/task", pids[r]);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
      unsigned long long ns = 0;
      snprintf(path, sizeof path, "/proc/%d/task/%.10s/comm", pids[r], e->d_name);
      FILE *f = fopen(path, "r");
      bool watch = f && fscanf(f, "%31s", name) == 1 && strcmp(name, "tutti-watch") == 0;
      if (f) fclose(f);
      snprintf(path, sizeof path, "/proc/%d/task/%.10s/schedstat", pids[r], e->d_name);
      f = watch ? fopen(path, "r") : NULL;
      if (f && fscanf(f, "%llu", &ns) == 1) all += ns;
      if (f) fclose(f);
    }
    if (dir) closedir(dir);
  }
  return all;
}

static holding most(holding a, holding b) {
  return (holding){a.kb > b.kb ? a.kb : b.kb, a.files > b.files ? a.files : b.files};
}

/* ---- the clients ---------------------------------------------------------------------------- */

static struct sockaddr_in addressOf(int port) {
  return (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int callOn(board *b, int port, kindOf kind) {
  struct sockaddr_in at = addressOf(port);
  struct linger reset = {1, 0}; /* no port stays in TIME_WAIT */
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), small = 1;
  if (fd < 0) die("socket");
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  if (kind == SLOW) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  (void)!connect(fd, (struct sockaddr *)&at, sizeof at);
  atomic_fetch_add(&b->clients, 1);
  return fd;
}

/* One move of a client; false: it is to be hung up and to call anew. */
static bool move(kindOf kind, int fd, unsigned tick) {
  static const char ask[] = "verbose status\n";
  char bytes[4096];
  ssize_t n = 0;
  switch (kind) {
  case GARBAGE:
    for (size_t i = 0; i < sizeof bytes; i++)
      bytes[i] = (char)rand();
    n = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    return n < 0 && (errno == EAGAIN || errno == EINPROGRESS);
  case ENDLESS:
    memset(bytes, 'a', sizeof bytes);
    n = send(fd, bytes, 64, MSG_NOSIGNAL);
    break;
  case SLOW:
    n = tick % 64 == 0 ? send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) : 1;
    if (tick % 128 == 127) n = recv(fd, bytes, 1, MSG_DONTWAIT);
    break;
  case ASKS:
    n = tick % 8 == 0 ? send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) : 1;
    if (n > 0) n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    break;
  default:
    n = recv(fd, bytes, 1, MSG_DONTWAIT | MSG_PEEK);
  }
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == ENOTCONN));
}

/* After so many ms a client hangs up by itself, for at the other port nobody says that its line is
 * too long.
 */
static const unsigned stays[KINDS] = {
    [GARBAGE] = 16, [ENDLESS] = 16, [MANY_OF_THEM] = 200, [SLOW] = 256, [ASKS] = 48};

/* At every millisecond each of a few clients makes a move, and of those that were sent away a few
 * come again. */
static void molest(board *b, int port, kindOf kind) {
  static int fds[MANY];
  int n = kind == MANY_OF_THEM ? MANY : kind == SLOW ? 4 * FEW : FEW;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 0; i < n; i++)
    fds[i] = -1;
  for (unsigned tick = 0;; tick++) {
    int calls = 0;
    for (int i = 0; i < n; i++) {
      unsigned at = tick + (unsigned)i;
      if (fds[i] >= 0 && at % stays[kind] != 0 && move(kind, fds[i], at)) continue;
      if (fds[i] >= 0) close(fds[i]);
      fds[i] = calls++ < FEW ? callOn(b, port, kind) : -1;
    }
    usleep(TICK_US);
  }
}

/* The other port: the least that can be done there, so that the kernel has as much to do for the
 * clients as at the job's. It keeps as many of them, and reads nothing. */
static void acceptOnly(int listener) {
  int fds[FEW], next = 0, fd;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 0; i < FEW; i++)
    fds[i] = -1;
  for (;; usleep(TICK_US)) {
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
      if (fds[next] >= 0) close(fds[next]);
      fds[next] = fd;
      next = (next + 1) % FEW;
    }
  }
}

/* ---- turns ---------------------------------------------------------------------------------- */

typedef struct {
  board *b;
  int port, other;   /* that of the job, and one where they are accepted and no more */
  int cores;         /* that this process may use */
  cpu_set_t clients; /* where they run */
  pid_t pids[RANKS];
} stage;

typedef struct {
  double median, slow; /* us */
  double served;       /* percent of a core */
} times;

/* In each turn alike, for that takes time, too. */
static void lookAgain(const stage *s, int ms, holding *peak) {
  for (int i = 0; i < ms; i += LOOK_MS) {
    usleep(1000 * LOOK_MS);
    *peak = most(*peak, look(s->pids));
  }
}

static times turn(const stage *s, kindOf kind, int port, int ms, holding *peak) {
  pid_t clients = fork();
  if (clients < 0) die("fork");
  if (clients == 0) {
    sched_setaffinity(0, sizeof s->clients, &s->clients);
    molest(s->b, port, kind);
  }
  lookAgain(s, SETTLE_MS, peak);
  memset(s->b->bins, 0, sizeof s->b->bins);
  uint64_t began = nowNs(), served = servedNs(s->pids);
  atomic_store(&s->b->measuring, 1);
  lookAgain(s, ms, peak);
  atomic_store(&s->b->measuring, 0);
  served = servedNs(s->pids) - served;
  double percent = 100.0 * (double)served / (double)(nowNs() - began);
  usleep(10000);
  kill(clients, SIGKILL);
  waitpid(clients, NULL, 0);
  return (times){quantile(s->b->bins, 500), quantile(s->b->bins, 990), percent};
}

static void row(const stage *s, kindOf kind, int rounds, int ms) {
  static double with[3][MAX_ROUNDS], without[3][MAX_ROUNDS];
  holding before, after, peak = {0, 0}, unused = {0, 0};
  turn(s, kind, s->port, ms, &unused); /* what is allocated once is there */
  sleep(1);
  before = look(s->pids);
  atomic_store(&s->b->clients, 0);
  uint64_t came = 0;
  for (int i = 0; i < rounds; i++) {
    times t = turn(s, kind, s->other, ms, &unused);
    without[0][i] = t.median;
    without[1][i] = t.slow;
    without[2][i] = t.served;
    uint64_t had = atomic_load(&s->b->clients);
    t = turn(s, kind, s->port, ms, &peak);
    with[0][i] = t.median;
    with[1][i] = t.slow;
    with[2][i] = t.served;
    came += atomic_load(&s->b->clients) - had;
  }
  sleep(1);
  after = look(s->pids);
  double m[4] = {quartile(without[0], rounds), quartile(with[0], rounds),
                 quartile(without[1], rounds), quartile(with[1], rounds)};
  printf("| %s | %llu | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.1f | %.1f | %ld, %ld, %ld | "
         "%d, %d, %d |\n",
         kindNames[kind], (unsigned long long)came, m[0], m[1], m[1] / m[0], m[2], m[3],
         m[3] / m[2], quartile(without[2], rounds), quartile(with[2], rounds), before.kb, peak.kb,
         after.kb, before.files, peak.files, after.files);
  fflush(stdout);
}

/* A port that nobody else has, and its socket, which must stay. */
static int hold(int *port, bool listens) {
  struct sockaddr_in at = addressOf(0);
  socklen_t size = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) != 0 || (listens && listen(fd, FEW) != 0) ||
      getsockname(fd, (struct sockaddr *)&at, &size) != 0)
    die("a port");
  *port = ntohs(at.sin_port);
  return fd;
}

static void startJob(stage *s) {
  char address[64];
  cpu_set_t all, ranks;
  sched_getaffinity(0, sizeof all, &all);
  s->cores = CPU_COUNT(&all);
  ranks = s->clients = all;
  if (s->cores > RANKS) {
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &all))
      last--;
    CPU_CLR(last, &ranks);
    CPU_ZERO(&s->clients);
    CPU_SET(last, &s->clients);
  }
  hold(&s->port, false);
  int other = hold(&s->other, true);
  fcntl(other, F_SETFL, O_NONBLOCK);
  pid_t bare = fork();
  if (bare < 0) die("fork");
  if (bare == 0) {
    sched_setaffinity(0, sizeof s->clients, &s->clients);
    acceptOnly(other);
  }
  snprintf(address, sizeof address, "127.0.0.1:%d", s->port);
  setenv("TUTTI_RAS_ADDR", address, 1);
  for (int r = 0; r < RANKS; r++) {
    s->pids[r] = fork();
    if (s->pids[r] < 0) die("fork");
    if (s->pids[r] > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sched_setaffinity(0, sizeof ranks, &ranks);
    sumForEver(s->b, r);
  }
  while (!atomic_load(&s->b->running)) {
    for (int r = 0; r < RANKS; r++)
      if (waitpid(s->pids[r], NULL, WNOHANG) != 0) exit(1); /* it has said why */
    usleep(10000);
  }
}

static bool areKinds(char **words) {
  for (; *words; words++) {
    int k = 0;
    while (k < KINDS && strcmp(*words, kindNames[k]) != 0)
      k++;
    if (k == KINDS) return false;
  }
  return true;
}

static int option(char ***argv, const char *name, int value) {
  if (!**argv || strcmp(**argv, name) != 0 || !(*argv)[1]) return value;
  value = atoi((*argv)[1]);
  *argv += 2;
  return value;
}

int main(int argc, char **argv) {
  stage s = {0};
  struct rlimit files = {4096, 4096};
  (void)argc;
  argv++;
  int rounds = option(&argv, "--rounds", 20), ms = option(&argv, "--ms", 300), status, failed = 0;
  if (rounds < 1 || rounds > MAX_ROUNDS || ms < 1 || !areKinds(argv)) {
    fprintf(
        stderr,
        "usage: bench_hostile_port [--rounds 1..%d] [--ms N] [garbage endless many slow asks]\n",
        MAX_ROUNDS);
    return 2;
  }
  setrlimit(RLIMIT_NOFILE, &files);
  s.b = mmap(NULL, sizeof *s.b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s.b == MAP_FAILED) die("shared memory");
  startJob(&s);
  printf(
      "8-byte all-reduce of 2 processes on %d cores, times of rank 0 in us; %s, both at the job's "
      "port (with) and at one of a process that accepts them and no more (without); lower "
      "quartiles of %d rounds by "
      "turns of %d ms\n\n",
      s.cores, s.cores > RANKS ? "clients on a core of their own" : "clients on the same cores",
      rounds, ms);
  printf("| clients | calls | median without | with | ratio | p99 without | with | ratio | port "
         "served, "
         "%% of a core, without | with | resident KiB before, most, after | descriptors |\n"
         "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |\n");
  for (int k = 0; k < KINDS; k++) {
    bool named = !*argv;
    for (char **a = argv; *a; a++)
      named |= strcmp(*a, kindNames[k]) == 0;
    if (named) row(&s, (kindOf)k, rounds, ms);
  }
  atomic_store(&s.b->stop, 1); /* the bare process ends with this one */
  for (int r = 0; r < RANKS; r++)
    failed |= waitpid(s.pids[r], &status, 0) < 0 || status != 0;
  return failed;
}
