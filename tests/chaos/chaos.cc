/* Runs seeded jobs, in each of which a fault strikes one process, and checks that all others end,
 * with the data right until then; that what is said names the rank, host and pid it should; and
 * that nothing is left of a job that came through.
 *
 *     chaos [--seeds N] [--first S] [--kind kill,stop,...] [--net Socket|IB] [--jobs N]
 *         [--patience SECONDS] [--report FILE [--commit C]] [--verbose]
 *
 * What has not ended by the patience (25 s, more on emulated hosts) hangs. A third of the seeds is
 * over sockets, all others over shared memory, unless --net says what all go over. A seed that
 * fails is run again by --kind K --first S --seeds 1, and the same --net.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <thread>

#include "job.h"

using namespace chaos;

namespace {

double patience = 25; /* s: far beyond what anything takes; below the jobs' timeout */

/* Of the jobs of one kind of fault. */
struct Count {
  int jobs = 0, bad = 0, through = 0, texts = 0;
  int innocent = 0, unnamed = 0, rootless = 0, neighbours = 0, late = 0;
  int hangs = 0, wrong = 0, crashes = 0, needless = 0, left = 0;
  double slowest = 0;
};

bool atomicSet(const int &flag) {
  return __atomic_load_n(&flag, __ATOMIC_ACQUIRE) != 0;
}

/* The first process that a text speaks of, as "rank 3 (host a, pid 17)"; rank -1: only the process.
 */
bool firstNamed(const char *text, int *rank, std::string *host, pid_t *pid) {
  const char *at = strstr(text, "(host ");
  if (!at) return false;
  char name[256] = "";
  if (sscanf(at, "(host %255[^,], pid %d)", name, pid) != 2) return false;
  *host = name;
  *rank = -1;
  const char *begin = at;
  while (begin > text && begin[-1] != 'k' && at - begin < 12)
    begin--;
  if (begin - text >= 4 && strncmp(begin - 4, "rank", 4) == 0) sscanf(begin, " %d", rank);
  return true;
}

constexpr char kMaker[] = "the process that made the unique id";

/* "missing ranks: 0-2, 5 of 8 never came": is `rank` among them? */
bool isMissing(const char *text, int rank) {
  const char *at = strstr(text, "missing ranks: ");
  int first, last, length;
  for (at = at ? at + 15 : ""; sscanf(at, "%d%n", &first, &length) == 1;) {
    at += length;
    last = first;
    if (sscanf(at, "-%d%n", &last, &length) == 1) at += length;
    if (rank >= first && rank <= last) return true;
    if (*at != ',') return false;
    at++;
  }
  return false;
}

class Job {
public:
  explicit Job(const Plan &plan) : plan(plan) {
    void *p =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    shared = new (p) Shared();
  }
  ~Job() { munmap(shared, sizeof(Shared)); }

  /* False: something is not as it must be, and has been told. */
  bool run(Count *count, bool verbose) {
    for (int i = 0; i < plan.nprocesses; i++) {
      pid_t pid = fork();
      if (pid < 0) abort();
      if (pid == 0) {
        shared->reports[i].pid = getpid();
        while (!atomicSet(shared->go))
          usleep(50);
        runProcess(plan, shared, i);
      }
      pids.push_back(shared->pids[i] = pid);
    }
    __atomic_store_n(&shared->go, 1, __ATOMIC_RELEASE);
    double at = strikeVictim(), end = at + patience;
    while (now() < end && !allEnded())
      usleep(500);
    bool hangs = !allEnded();
    __atomic_store_n(&shared->over, 1, __ATOMIC_RELEASE);
    usleep(1000);
    bool good = judge(at, hangs, count, verbose);
    for (size_t i = 0; i < pids.size(); i++) {
      if (pids[i] <= 0) continue;
      kill(pids[i], SIGKILL);
      waitpid(pids[i], nullptr, 0);
    }
    return good;
  }

private:
  Report &report(int i) { return shared->reports[i]; }
  FaultKind kind() const { return plan.fault.kind; }
  bool isStop() const { return kind() == kStop || kind() == kFreeze; }
  /* It is told what it should be, and has no say. */
  bool isOut(int i) const { return i == plan.victim && (kind() == kKill || kind() == kFreeze); }

  /* The victim is where the plan wants it, or struck there, or is not going to be. It is never
   * struck before it has come to its init: of a rank that never came, nobody can know that it died.
   */
  void awaitStage() {
    Report &victim = report(plan.victim);
    double end = now() + patience;
    int least = plan.killStep == 0 ? seatedSend() : 0;
    while (now() < end && !atomicSet(victim.ended) && !atomicSet(shared->strike.struck) &&
           (__atomic_load_n(&victim.stage, __ATOMIC_ACQUIRE) <= plan.killStep ||
            (__atomic_load_n(&victim.sends, __ATOMIC_ACQUIRE) < least &&
             __atomic_load_n(&victim.stage, __ATOMIC_ACQUIRE) == plan.killStep + 1)))
      usleep(50);
  }

  /* Returns when the victim is struck, and what lasts is over; the moment of the strike. */
  double strikeVictim() {
    awaitStage();
    double soon = now() + 1;
    if (plan.killSends == 0) {
      usleep((useconds_t)plan.killMicros);
    } else { /* it may come through the step with fewer, and is struck in a later one, or not */
      while (now() < soon && !atomicSet(shared->strike.struck))
        usleep(100);
    }
    pid_t victim = pids[plan.victim];
    if (kind() == kKill) {
      kill(victim, SIGKILL);
      waitpid(victim, nullptr, 0);
      pids[plan.victim] = 0;
      return now();
    }
    if (isStop()) {
      if (mayStrike(&shared->strike)) kill(victim, SIGSTOP);
      waitpid(victim, nullptr, WUNTRACED);
    } else {
      __atomic_store_n(&shared->strike.fire, 1, __ATOMIC_RELEASE);
      while (now() < soon + 1 && !atomicSet(shared->strike.struck))
        usleep(100);
    }
    double at = now();
    if (kind() == kFreeze) return at;
    usleep((useconds_t)(isHarmless(kind()) ? plan.fault.ms : 100) * 1000);
    if (kind() == kStop) kill(victim, SIGCONT);
    __atomic_store_n(&shared->calm, 1, __ATOMIC_RELEASE);
    return at;
  }

  /* Who waits for an id that nobody makes any more has nothing to end. */
  bool isIdle(int i) {
    int stage = __atomic_load_n(&report(i).stage, __ATOMIC_ACQUIRE);
    for (size_t s = 0; s < plan.steps.size(); s++)
      if (plan.steps[s].joins == i && stage <= (int)s + 1 && !atomicSet(shared->made[s]))
        return true;
    return plan.steps[0].kind == kInit && i < plan.first && stage == 1 &&
           !atomicSet(shared->made[0]);
  }
  bool allEnded() {
    int status;
    for (int i = 0; i < plan.nprocesses; i++)
      if (pids[i] > 0 && waitpid(pids[i], &status, WNOHANG) > 0) {
        crashed |= 1u << i;
        pids[i] = 0;
      }
    for (int i = 0; i < plan.nprocesses; i++)
      if (!isOut(i) && !(crashed >> i & 1) && !atomicSet(report(i).ended) && !isIdle(i))
        return false;
    return true;
  }

  bool judge(double at, bool hangs, Count *count, bool verbose) {
    bool good = true, through = true;
    count->jobs++;
    for (int i = 0; i < plan.nprocesses; i++) {
      if (isOut(i)) continue;
      good &= judgeProcess(i, hangs, count);
      if (!atomicSet(report(i).result)) continue;
      through = false;
      good &= judgeText(i, at, count);
    }
    count->through += through && !hangs;
    count->bad += !good;
    if (verbose || !good) printf("%s\n", plan.text().c_str());
    for (int i = 0; (verbose || !good) && i < plan.nprocesses; i++)
      printf("  process %d (pid %d) step %d result %d after %.3f s: %s\n", i, report(i).pid,
             report(i).step, report(i).result, report(i).result ? report(i).at - at : 0,
             report(i).text);
    fflush(stdout);
    return good;
  }

  bool judgeProcess(int i, bool hangs, Count *count) {
    const Report &r = report(i);
    bool good = true;
    /* What is changed on the way of data, nothing on that way can know (docs/security.md). Faults
     * fall on TCP, so that data of NET/IB are never on it. */
    if (r.wrong && !(kind() == kCorrupt && plan.network == "Socket")) {
      count->wrong++;
      good = tell(i, "has wrong data");
    }
    if (crashed >> i & 1) {
      count->crashes++;
      good = tell(i, "has ended by itself");
    } else if (hangs && !atomicSet(r.ended) && !isIdle(i)) {
      count->hangs++;
      good = tell(i, "hangs");
    }
    if (r.left > 0) {
      count->left++;
      good = tell(i, ("keeps descriptors of " + std::string(r.kept)).c_str());
    }
    return good;
  }

  bool tell(int i, const char *what) {
    printf("seed %llu: process %d %s\n", (unsigned long long)plan.seed, i, what);
    return false;
  }

  /* Until when a rank must know. */
  double limit() const { return kind() == kFreeze ? timeoutOf(kFreeze) + 4 : 2; }

  bool judgeText(int i, double at, Count *count) {
    const Report &r = report(i);
    count->texts++;
    if (kind() == kCorrupt) return true; /* it may be anybody's, or garbage */
    count->slowest = std::max(count->slowest, r.at - at);
    if (isHarmless(kind())) {
      count->needless++;
      return tell(i, "fails, though all goes on");
    }
    bool good = true;
    if (r.at - at > limit()) {
      count->late++;
      good = tell(i, "was told too late");
    }
    if (kind() == kFreeze && strstr(r.text, " died")) {
      count->innocent++;
      return tell(i, "takes one that is stopped for dead");
    }
    return judgeCulprit(i, count) && good;
  }

  /* Is it the victim, or with a connection that was cut, either of its ends? */
  bool isCulprit(pid_t pid, int rank, const char *text, Count *count) {
    int process =
        (int)(std::find(shared->pids, shared->pids + plan.nprocesses, pid) - shared->pids);
    bool cut = kind() == kCut && pid > 0 && pid == shared->strike.peer;
    if (process == plan.nprocesses || (process != plan.victim && !cut)) return false;
    bool knows = rank < 0 && strstr(text, kMaker);
    count->rootless += knows;
    for (int k = 0; k < report(process).nranks; k++)
      knows |= report(process).ranks[k] == rank;
    return knows;
  }

  /* Is the victim named as far as a unique id tells of it: by its process, or by its address, as a
   * rank that follows a shrink has it? */
  bool isMaker(const char *text, Count *count) {
    const char *at = strstr(text, kMaker);
    pid_t pid;
    if (!at) return false;
    if (sscanf(at + strlen(kMaker), " (pid %d, at ", &pid) == 1)
      return isCulprit(pid, -1, text, count);
    count->rootless++;
    return true;
  }

  /* One of those who were told gives the communicator up, which is that one's choice; and whoever
   * waits for one that is stopped learns at its deadline who has not come. */
  bool isAfterwards(const Report &told) {
    const Report &victim = report(plan.victim);
    const char *text = told.text;
    std::string stopped = ", pid " + std::to_string(victim.pid) + ") does not answer";
    bool of = strstr(text, "aborted the communicator") || strstr(text, stopped.c_str());
    for (int k = 0; k < told.nranks; k++)
      of |= isMissing(text, told.victims[k]);
    /* It says first which rank could not, then to which. */
    const char *to = strstr(text, "cannot connect to rank ");
    std::string host;
    int rank;
    pid_t pid;
    of |= to && firstNamed(to, &rank, &host, &pid) && pid == victim.pid;
    /* Who was to lead a shrink has failed before, of what befell the victim. */
    bool leads =
        strstr(text, "did not call tuttiCommShrink") && firstNamed(text, &rank, &host, &pid);
    for (int i = 0; leads && i < plan.nprocesses; i++)
      of |= report(i).pid == pid && atomicSet(report(i).result);
    return of;
  }

  bool judgeCulprit(int i, Count *count) {
    const Report &r = report(i);
    if (kind() != kKill && isAfterwards(r)) return true;
    /* In an init a rank knows how far its neighbours came, and nobody asks who is stopped. */
    if (kind() == kFreeze && strstr(r.text, "until the deadline")) {
      count->neighbours++;
      return true;
    }
    char here[256] = "";
    int rank;
    std::string host;
    pid_t pid;
    if (!firstNamed(r.text, &rank, &host, &pid)) {
      /* Its root has not said yet which host and rank that is. */
      if (isMaker(r.text, count)) return true;
      count->unnamed++;
      return tell(i, "names nobody");
    }
    gethostname(here, sizeof here - 1);
    if (host == here && isCulprit(pid, rank, r.text, count)) return true;
    count->innocent++;
    return tell(i, "blames an innocent one");
  }

  const Plan &plan;
  Shared *shared;
  std::vector<pid_t> pids; /* 0: it is no more */
  unsigned crashed = 0;
};

constexpr int kMaxJobs = 256;

struct Options {
  uint64_t first = 1, seeds = 60;
  int jobs = 1; /* at a time */
  bool verbose = false;
  std::vector<FaultKind> kinds;
  std::string net; /* of all jobs; "": as the seed wants it */
  std::string report, commit = "unknown", command = "chaos";
};

/* Adds the kinds of a list "kill,stop"; false: one is none. */
bool addKinds(const std::string &list, std::vector<FaultKind> *kinds) {
  size_t at = 0;
  while (at <= list.size()) {
    std::string name = list.substr(at, list.find(',', at) - at);
    int k = 0;
    while (k < kFaultKinds && name != nameOf((FaultKind)k) && name != "all")
      k++;
    if (k == kFaultKinds) return false;
    for (int i = k; i < (name == "all" ? (int)kFaultKinds : k + 1); i++)
      kinds->push_back((FaultKind)i);
    at += name.size() + 1;
  }
  return true;
}

bool parse(int argc, char **argv, Options *o) {
  for (int i = 1; i < argc; i++) {
    std::string option = argv[i];
    o->command += " " + option;
    if (option == "--verbose") {
      o->verbose = true;
      continue;
    }
    if (i + 1 == argc) return false;
    std::string value = argv[++i];
    o->command += " " + value;
    if (option == "--seeds")
      o->seeds = strtoull(value.c_str(), nullptr, 10);
    else if (option == "--first")
      o->first = strtoull(value.c_str(), nullptr, 10);
    else if (option == "--jobs")
      o->jobs = atoi(value.c_str());
    else if (option == "--patience")
      patience = atof(value.c_str());
    else if (option == "--report")
      o->report = value;
    else if (option == "--commit")
      o->commit = value;
    else if (option == "--net" && (value == "Socket" || value == "IB"))
      o->net = value;
    else if (option != "--kind" || !addKinds(value, &o->kinds))
      return false;
  }
  if (o->kinds.empty()) o->kinds = {kKill};
  return o->seeds > 0 && o->jobs > 0 && o->jobs <= kMaxJobs && o->kinds.size() <= kFaultKinds;
}

void printTable(FILE *f, const Options &o, const std::vector<Count> &counts) {
  fprintf(f, "| fault | jobs | bad | came through | texts | blame an innocent rank | name nobody | "
             "know the root's process or address alone | know neighbours alone | late | last after "
             "s | hang | wrong data | "
             "crash | fail needlessly | descriptors left |\n| --- |");
  for (int i = 0; i < 15; i++)
    fprintf(f, " ---: |");
  fprintf(f, "\n");
  for (size_t k = 0; k < counts.size(); k++) {
    const Count &c = counts[k];
    fprintf(
        f, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %.2f | %d | %d | %d | %d | %d |\n",
        nameOf(o.kinds[k]), c.jobs, c.bad, c.through, c.texts, c.innocent, c.unnamed, c.rootless,
        c.neighbours, c.late, c.slowest, c.hangs, c.wrong, c.crashes, c.needless, c.left);
  }
}

/* In the manner of the other pages of bench/results. */
bool writeReport(const Options &o, const std::vector<Count> &counts, double seconds) {
  FILE *f = fopen(o.report.c_str(), "w");
  char date[32] = "";
  time_t t = time(nullptr);
  if (!f) return false;
  strftime(date, sizeof date, "%Y-%m-%d", gmtime(&t));
  fprintf(f, "# Jobs that a fault strikes\n\n- date: %s, commit: %s\n- command: %s\n", date,
          o.commit.c_str(), o.command.c_str());
  fprintf(f, "- seeds %llu to %llu of each kind, %.0f s on %u cores\n\n",
          (unsigned long long)o.first, (unsigned long long)(o.first + o.seeds - 1), seconds,
          std::thread::hardware_concurrency());
  printTable(f, o, counts);
  return fclose(f) == 0;
}

/* Of all who run jobs, in memory that they share. */
struct Counts {
  uint64_t next = 0; /* of the jobs, kind after kind; atomic */
  Count of[kMaxJobs][kFaultKinds];
};

/* Runs jobs while there are any, each next one by whoever has ended his; all of one kind come
 * before the next. */
void runJobs(const Options &o, Counts *counts, int self) {
  for (;;) {
    uint64_t n = __atomic_fetch_add(&counts->next, 1, __ATOMIC_RELAXED), kind = n / o.seeds;
    if (kind >= o.kinds.size()) return;
    Plan plan(o.first + n % o.seeds, o.kinds[kind], o.net);
    Job(plan).run(&counts->of[self][kind], o.verbose);
  }
}

/* As many at a time as --jobs says: each of them by a process, as a job's own are its children.
 * False: one of these has not come to its end. */
bool runAll(const Options &o, Counts *counts) {
  if (o.jobs == 1) {
    runJobs(o, counts, 0);
    return true;
  }
  std::vector<pid_t> runners;
  for (int i = 0; i < o.jobs; i++) {
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
      runJobs(o, counts, i);
      fflush(stdout);
      _exit(0);
    }
    runners.push_back(pid);
  }
  bool good = true;
  for (pid_t pid : runners) {
    int status = 0;
    waitpid(pid, &status, 0);
    good &= status == 0;
  }
  return good;
}

void add(Count *sum, const Count &c) {
  sum->jobs += c.jobs, sum->bad += c.bad, sum->through += c.through, sum->texts += c.texts;
  sum->innocent += c.innocent, sum->unnamed += c.unnamed, sum->rootless += c.rootless;
  sum->neighbours += c.neighbours, sum->late += c.late, sum->hangs += c.hangs;
  sum->wrong += c.wrong, sum->crashes += c.crashes, sum->needless += c.needless;
  sum->left += c.left;
  sum->slowest = std::max(sum->slowest, c.slowest);
}

} // namespace

int main(int argc, char **argv) {
  Options o;
  if (!parse(argc, argv, &o)) {
    fprintf(stderr,
            "usage: %s [--seeds N] [--first S] [--kind all|kill,stop,freeze,cut,delay,drop,reorder,"
            "corrupt] [--net Socket|IB] [--jobs N] [--report FILE [--commit C]] [--verbose]\n",
            argv[0]);
    return 2;
  }
  setvbuf(stdout, nullptr, _IOFBF, 1 << 16); /* what is said of a job stays together */
  void *p =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) abort();
  Counts *all = new (p) Counts();
  double start = now();
  bool ended = runAll(o, all);
  std::vector<Count> counts(o.kinds.size());
  int bad = !ended;
  for (size_t k = 0; k < counts.size(); k++) {
    for (int i = 0; i < o.jobs; i++)
      add(&counts[k], all->of[i][k]);
    bad += counts[k].bad;
  }
  printTable(stdout, o, counts);
  printf("%d bad in %.1f s\n", bad, now() - start);
  if (!o.report.empty() && !writeReport(o, counts, now() - start)) {
    perror(o.report.c_str());
    return 2;
  }
  return bad ? 1 : 0;
}
