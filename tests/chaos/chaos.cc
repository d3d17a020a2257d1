/* Runs seeded jobs in which one rank is killed, and checks what the survivors say: that all of them
 * end, with the data right until then, and that their texts name the rank, host and pid that died.
 * chaos --seeds N [--first S] [--verbose]; a seed that fails is run again by --first S --seeds 1.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "job.h"

using namespace chaos;

namespace {

constexpr double kPatience = 25; /* far beyond what anything takes; below the jobs' timeout */

struct Count {
  int jobs = 0, texts = 0, innocent = 0, unnamed = 0, rootless = 0, late = 0, hangs = 0, wrong = 0;
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
        runProcess(plan, shared, i);
      }
      pids.push_back(pid);
    }
    double dead = killVictim(), end = dead + kPatience;
    while (now() < end && !allEnded())
      usleep(500);
    bool hangs = !allEnded();
    __atomic_store_n(&shared->over, 1, __ATOMIC_RELEASE);
    usleep(1000);
    bool good = judge(dead, hangs, count, verbose);
    for (size_t i = 0; i < pids.size(); i++) {
      if ((int)i == plan.victim) continue;
      kill(pids[i], SIGKILL);
      waitpid(pids[i], nullptr, 0);
    }
    return good;
  }

private:
  Report &report(int i) { return shared->reports[i]; }

  /* Returns when it is dead. */
  double killVictim() {
    Report &victim = report(plan.victim);
    double end = now() + kPatience, soon = now() + 1;
    int least = plan.killStep == 0 ? 3 : 0; /* seated, as far as an init goes */
    int status;
    while (now() < end && plan.killSends == 0 &&
           (__atomic_load_n(&victim.stage, __ATOMIC_ACQUIRE) <= plan.killStep ||
            (__atomic_load_n(&victim.sends, __ATOMIC_ACQUIRE) < least &&
             __atomic_load_n(&victim.stage, __ATOMIC_ACQUIRE) == plan.killStep + 1)))
      usleep(50);
    if (plan.killSends == 0) {
      usleep((useconds_t)plan.killMicros);
    } else { /* it may come through the step with fewer, and then dies in a later one, or not */
      while (now() < soon && waitpid(pids[plan.victim], &status, WNOHANG) == 0)
        usleep(100);
    }
    kill(pids[plan.victim], SIGKILL);
    waitpid(pids[plan.victim], &status, 0);
    return now();
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
    for (int i = 0; i < plan.nprocesses; i++)
      if (i != plan.victim && !atomicSet(report(i).ended) && !isIdle(i)) return false;
    return true;
  }

  bool judge(double dead, bool hangs, Count *count, bool verbose) {
    bool good = true;
    count->jobs++;
    for (int i = 0; i < plan.nprocesses; i++) {
      Report &r = report(i);
      if (i == plan.victim) continue;
      if (r.wrong) {
        count->wrong++;
        good = tell(i, "has wrong data");
      }
      if (hangs && !atomicSet(r.ended) && !isIdle(i)) {
        count->hangs++;
        good = tell(i, "hangs");
      }
      if (atomicSet(r.result)) good &= judgeText(i, dead, count);
    }
    if (verbose || !good) printf("%s\n", plan.text().c_str());
    for (int i = 0; (verbose || !good) && i < plan.nprocesses; i++)
      printf("  process %d (pid %d) step %d result %d after %.3f s: %s\n", i, pids[i],
             report(i).step, report(i).result, report(i).at - dead, report(i).text);
    fflush(stdout);
    return good;
  }

  bool tell(int i, const char *what) {
    printf("seed %llu: process %d %s\n", (unsigned long long)plan.seed, i, what);
    return false;
  }

  bool judgeText(int i, double dead, Count *count) {
    const Report &r = report(i), &victim = report(plan.victim);
    char here[256] = "";
    int rank;
    std::string host;
    pid_t pid;
    count->texts++;
    count->slowest = std::max(count->slowest, r.at - dead);
    if (r.at - dead > 2) {
      count->late++;
      tell(i, "was told after more than 2 s");
    }
    if (!firstNamed(r.text, &rank, &host, &pid)) {
      /* Nobody has told this rank yet where its root is. */
      if (strstr(r.text, "the root of the unique id")) {
        count->rootless++;
        return true;
      }
      count->unnamed++;
      return tell(i, "names nobody");
    }
    gethostname(here, sizeof here - 1);
    bool knows = rank < 0 && strstr(r.text, "the process that made the unique id");
    count->rootless += knows;
    for (int k = 0; k < victim.nranks; k++)
      knows |= victim.ranks[k] == rank;
    if (pid == pids[plan.victim] && host == here && knows) return true;
    count->innocent++;
    return tell(i, "blames an innocent one");
  }

  const Plan &plan;
  Shared *shared;
  std::vector<pid_t> pids;
};

} // namespace

int main(int argc, char **argv) {
  uint64_t first = 1, seeds = 60;
  bool verbose = false;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc)
      seeds = strtoull(argv[++i], nullptr, 10);
    else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc)
      first = strtoull(argv[++i], nullptr, 10);
    else if (strcmp(argv[i], "--verbose") == 0)
      verbose = true;
    else {
      fprintf(stderr, "usage: %s [--seeds N] [--first S] [--verbose]\n", argv[0]);
      return 2;
    }
  }
  Count count;
  int bad = 0;
  double start = now();
  for (uint64_t seed = first; seed < first + seeds; seed++) {
    Plan plan(seed);
    bad += !Job(plan).run(&count, verbose);
  }
  printf(
      "%d jobs in %.1f s, %d bad: %d texts, %d blame an innocent rank, %d name nobody, %d know "
      "the root's process or address alone; %d told after more than 2 s (the last after %.2f s); "
      "%d hang, %d with wrong data\n",
      count.jobs, now() - start, bad, count.texts, count.innocent, count.unnamed, count.rootless,
      count.late, count.slowest, count.hangs, count.wrong);
  return bad ? 1 : 0;
}
