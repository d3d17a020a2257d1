// Seeded runs of collectives and messages over the software HCA, while something goes wrong: ports,
// devices, frames, completions, registrations (fault_scenario.h). A rank is a process on a host of
// its own.
//
//   fault_runs [--runs N] [--from SEED] [--jobs N] | --seed SEED [--verbose] | --removals
//
// Runs as many seeds, 1 and those after it if not told else, or a single one, which then tells all;
// or lets a device go away at each command that a rank makes.
// Each run ends right, or with an error that names the fault and its place where no way was left;
// nothing hangs and nothing stays behind. Bits that are flipped past all checksums can't be found:
// of these runs only that they end, and by themselves. Exit status 0: all did.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "comm/program.h"
#include "fault_scenario.h"
#include "holdings.h"

namespace {

constexpr int kMaxRanks = 4, kMaxJobs = 64;
constexpr double kLimit = 120; // seconds that a run may take, many times what it does

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- one rank
// -------------------------------------------------------------------------------------

// What ranks tell the driver, in memory that they share.
struct Report {
  std::atomic<int> ended;
  int result, wrong, fds, threads; // of the last two, how many more than before
  char text[1600];
};
struct Meeting {
  tuttiUniqueId id;
  std::atomic<int> made;
  Report reports[kMaxRanks];
};

void tell(Report &report, tuttiResult_t result, const std::string &text) {
  report.result = result;
  snprintf(report.text, sizeof report.text, "%s", text.c_str());
}

// Waits for what threads need to be off the kernel's list, and counts.
void countHoldings(Report &report, int fds, int threads) {
  for (int tries = 0; tries < 100; tries++) {
    report.fds = openFds() - fds;
    report.threads = liveThreads() - threads;
    if (report.fds == 0 && report.threads == 0) return;
    usleep(10000);
  }
}

// Who leaves first would be taken for the fault by ranks that have not heard of it.
void awaitOthers(Meeting *meeting, int n) {
  for (int r = 0; r < n; r++)
    while (!meeting->reports[r].ended)
      usleep(1000);
}

void runRank(const Scenario &s, int r, Meeting *meeting) {
  Report &report = meeting->reports[r];
  std::mt19937 random(s.seed);
  std::vector<Step> program = makeProgram(random, s.ranks, s.steps);
  tuttiComm_t comm = nullptr;
  tuttiResult_t result = tuttiCommInitRank(&comm, s.ranks, meeting->id, r);
  tell(report, result, result == tuttiSuccess ? "" : tuttiGetLastError(nullptr));
  if (result == tuttiSuccess) {
    Program mine(s.ranks, r, comm, "rank");
    result = mine.attempt(program);
    tell(report, result, mine.errorText());
    report.wrong = testing::Test::HasFailure();
  }
  bool right = result == tuttiSuccess && !report.wrong;
  if (right) {
    result = tuttiCommDestroy(comm);
    if (result != tuttiSuccess) tell(report, result, tuttiGetLastError(nullptr));
  }
  report.ended = 1;
  awaitOthers(meeting, s.ranks);
  if (!right && comm) tuttiCommAbort(comm);
}

[[noreturn]] void rankMain(const Scenario &s, int r, Meeting *meeting, int log, bool verbose) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(log, 1);
  dup2(log, 2);
  close(log);
  for (auto &[name, value] : s.settings)
    setenv(name.c_str(), value.c_str(), 1);
  std::string lines = "fabric faults" + std::to_string(getppid()) + "\n" + s.devices +
                      s.faults[static_cast<size_t>(r)];
  std::replace(lines.begin(), lines.end(), '\n', ';');
  setenv("SOFTHCA_MORE", lines.c_str(), 1);
  setenv("TUTTI_HOSTID", ("host" + std::to_string(r)).c_str(), 1);
  setenv("TUTTI_DEBUG", verbose ? "INFO" : "WARN", 1);
  int fds = openFds(), threads = liveThreads();
  if (r == 0) {
    if (tuttiGetUniqueId(&meeting->id) != tuttiSuccess) {
      fprintf(stderr, "%s\n", tuttiGetLastError(nullptr));
      _exit(2);
    }
    meeting->made = 1;
  }
  while (!meeting->made)
    usleep(500);
  runRank(s, r, meeting);
  countHoldings(meeting->reports[r], fds, threads);
  exit(0); // so that what is left of memory shows, too
}

// ---- one run
// --------------------------------------------------------------------------------------

struct Outcome {
  std::vector<std::string> problems;
  bool error = false;
  size_t mended = 0, ports = 0; // lines of the log that say so
  std::string texts, logs;
};

std::string readAll(int fd) {
  std::string all;
  char buf[4096];
  lseek(fd, 0, SEEK_SET);
  for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;)
    all.append(buf, static_cast<size_t>(n));
  return all;
}

size_t occurrences(const std::string &text, const char *what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at++)
    n++;
  return n;
}

class Run {
public:
  Run(const Scenario &scenario, Meeting *shared, bool talks)
      : s(scenario), meeting(shared), verbose(talks) {}

  Outcome go() {
    memset(static_cast<void *>(meeting), 0, sizeof *meeting);
    for (int r = 0; r < s.ranks; r++) {
      logs.push_back(memfd_create("log", MFD_CLOEXEC));
      pid_t pid = fork();
      if (pid < 0) abort();
      if (pid == 0) rankMain(s, r, meeting, logs.back(), verbose);
      pids.push_back(pid);
    }
    await();
    judge();
    for (int fd : logs)
      close(fd);
    return out;
  }

private:
  void problem(const std::string &text) { out.problems.push_back(text); }

  // Ends all if one has ended as none should: the others would wait for it.
  void await() {
    double end = now() + kLimit;
    std::vector<bool> gone(pids.size());
    bool bad = false;
    for (size_t left = pids.size(); left > 0; usleep(2000))
      for (size_t r = 0; r < pids.size(); r++) {
        int status = 0;
        if (gone[r]) continue;
        bool late = now() > end;
        if (bad || late) kill(pids[r], SIGKILL);
        if (waitpid(pids[r], &status, bad || late ? 0 : WNOHANG) == 0) continue;
        gone[r] = true;
        left--;
        if (late) problem("rank " + std::to_string(r) + " hangs");
        if (status && !bad && !late)
          problem("rank " + std::to_string(r) + " ends with status " + std::to_string(status));
        bad |= status != 0;
      }
  }

  // An error must say where the fault is: at which rank, host, and port of which device.
  void judgeError(const std::string &text) {
    const std::string who = "rank " + std::to_string(s.culprit);
    if (s.ending == Ending::Right) problem("a way was left, but: " + text);
    if (s.ending != Ending::Told) return;
    if (text.find(who) == std::string::npos) problem("an error does not name " + who + ": " + text);
    if (text.find(who + " (host ") == std::string::npos)
      problem("an error does not name the host: " + text);
    if (text.find("hca") == std::string::npos) problem("an error names no device: " + text);
  }

  void judge() {
    for (int r = 0; r < s.ranks; r++) {
      const Report &report = meeting->reports[r];
      std::string who = "rank " + std::to_string(r), log = readAll(logs[static_cast<size_t>(r)]);
      out.mended += occurrences(log, "it works again");
      out.ports += occurrences(log, "went down") + occurrences(log, "is up");
      out.logs += "---- " + who + "\n" + log;
      out.texts += who + ": " + (report.result ? report.text : "right") + "\n";
      out.error |= report.result != 0;
      if (report.result) judgeError(report.text);
      if (report.wrong && s.ending != Ending::AnythingBut) problem(who + " has wrong data");
      if (report.fds || report.threads)
        problem(who + " keeps " + std::to_string(report.fds) + " descriptors, " +
                std::to_string(report.threads) + " threads");
    }
  }

  const Scenario &s;
  Meeting *meeting;
  bool verbose;
  std::vector<pid_t> pids;
  std::vector<int> logs;
  Outcome out;
};

// ---- many runs
// ------------------------------------------------------------------------------------

struct Options {
  unsigned runs = 100, from = 1, seed = 0;
  int jobs = 2;
  bool verbose = false, removals = false;
};

struct Counts {
  std::atomic<size_t> next, bad, right, errors, mended, ports;
};

void count(const Outcome &out, Counts *counts) {
  counts->bad += !out.problems.empty();
  counts->right += out.problems.empty() && !out.error;
  counts->errors += out.problems.empty() && out.error;
  counts->mended += out.mended;
  counts->ports += out.ports;
}

void report(const Scenario &s, const Outcome &out, bool all) {
  std::string text = "seed " + std::to_string(s.seed) + ":\n";
  for (const std::string &problem : out.problems)
    text += "FAILED: " + problem + "\n";
  text += s.text + out.texts + out.logs;
  if (!all) text += "again: fault_runs --seed " + std::to_string(s.seed) + "\n";
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
}

// Later and later, until the job has ended before the device goes. Returns how many commands that
// were.
int removeAtEach(int devices, const Options &o, Meeting *meeting, Counts *counts) {
  bool goes = true;
  int command = 0;
  while (goes) {
    Scenario s = removalScenario(devices, ++command);
    Outcome out = Run(s, meeting, o.verbose).go();
    goes = out.logs.find("softhca: hca0 goes away") != std::string::npos;
    count(out, counts);
    counts->next++;
    if (!out.problems.empty() || o.verbose) report(s, out, true);
  }
  return command - 1;
}

[[noreturn]] void work(const Options &o, Counts *counts) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  void *memory =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  for (int devices = 2; o.removals && devices > 0; devices--) {
    int commands = removeAtEach(devices, o, static_cast<Meeting *>(memory), counts);
    printf("%d devices, one of which goes at any of %d commands\n", devices, commands);
    fflush(stdout);
    if (commands < 20) _exit(1); // to open, ask, register, create and join takes more
  }
  if (o.removals) _exit(0);
  for (unsigned i; (i = static_cast<unsigned>(counts->next++)) < o.runs;) {
    Scenario s = ScenarioMaker(o.seed ? o.seed : o.from + i).make();
    Outcome out = Run(s, static_cast<Meeting *>(memory), o.verbose).go();
    count(out, counts);
    if (!out.problems.empty() || o.seed) report(s, out, o.seed);
  }
  _exit(0);
}

// What the software HCA or the library could leave where all processes see it.
size_t sharedMemory() {
  size_t n = 0;
  for (const auto &file : std::filesystem::directory_iterator("/dev/shm"))
    n += file.path().filename().string().rfind("softhca-faults", 0) == 0;
  return n;
}

int usage() {
  fprintf(stderr,
          "usage: fault_runs [--runs N] [--from SEED] [--jobs N] | --seed SEED [--verbose] | "
          "--removals [--verbose]\n");
  return 2;
}

bool read(int argc, char **argv, Options *o) {
  for (int i = 1; i < argc; i++) {
    std::string name = argv[i];
    if (name == "--verbose" || name == "--removals") {
      (name == "--verbose" ? o->verbose : o->removals) = true;
      continue;
    }
    char *end = nullptr;
    long value = ++i < argc ? strtol(argv[i], &end, 10) : 0;
    if (value < 1 || value > 1000000000 || *end) return false;
    if (name == "--runs")
      o->runs = static_cast<unsigned>(value);
    else if (name == "--from")
      o->from = static_cast<unsigned>(value);
    else if (name == "--seed")
      o->seed = static_cast<unsigned>(value);
    else if (name == "--jobs" && value <= kMaxJobs)
      o->jobs = static_cast<int>(value);
    else
      return false;
  }
  if (o->seed || o->removals) o->runs = static_cast<unsigned>(o->jobs = 1);
  return true;
}

} // namespace

int main(int argc, char **argv) {
  Options o;
  if (!read(argc, argv, &o)) return usage();
  void *memory =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  auto *counts = new (memory) Counts{};
  double start = now();
  for (int j = 0; j < o.jobs; j++)
    if (fork() == 0) work(o, counts);
  int failed = 0;
  for (int status; wait(&status) > 0;)
    failed += status != 0;
  printf("%u runs: %zu right, %zu ended with the error they had to, %zu FAILED; %zu connections "
         "mended, %zu times a port went down or up; %.0f s\n",
         o.removals ? static_cast<unsigned>(counts->next) : o.runs, counts->right.load(),
         counts->errors.load(), counts->bad.load(), counts->mended.load(), counts->ports.load(),
         now() - start);
  if (sharedMemory() > 0) printf("FAILED: shared memory is left in /dev/shm\n");
  return failed || counts->bad || sharedMemory() > 0;
}
