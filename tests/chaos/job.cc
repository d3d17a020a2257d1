#include "job.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>

namespace chaos {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char *nameOf(Kind kind) {
  static const char *const names[] = {"init", "all-reduce", "split", "shrink", "grow", "loop"};
  return names[kind];
}

int seatedSend() {
  const char *encrypt = getenv("TUTTI_ENCRYPT");
  bool encrypts = encrypt && *encrypt && strcmp(encrypt, "0") != 0;
  return encrypts ? 5 : 3;
}

int timeoutOf(FaultKind kind) {
  return kind == kFreeze || kind == kCorrupt ? 6 : 60;
}

/* ---- the plan ------------------------------------------------------------------------------- */

Plan::Plan(uint64_t seed, FaultKind kind, const std::string &net) : seed(seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 1);
  auto below = [&](int n) { return (int)(random() % (unsigned)n); };
  first = nprocesses = 3 + below(4);
  if (below(3) == 0) network = "Socket";
  if (!net.empty()) network = net; /* a seed is the same job over any */
  std::vector<int> members(first);
  for (int i = 0; i < first; i++)
    members[i] = i;
  steps.push_back({kInit, -1, -1, 0});
  victim = below(first);
  int length = 2 + below(3);
  for (int s = 0; s < length; s++) {
    Step step{(Kind)(kAllReduce + below(4)), -1, -1, (uint32_t)random()};
    if (step.kind == kShrink) {
      step.excluded = members[below((int)members.size())];
      if (step.excluded == victim || members.size() < 3) step.kind = kAllReduce;
    }
    if (step.kind == kShrink)
      members.erase(std::find(members.begin(), members.end(), step.excluded));
    if (step.kind == kGrow) members.push_back(step.joins = nprocesses++);
    steps.push_back(step);
  }
  steps.push_back({kLoop, -1, -1, 0});
  killStep = below((int)steps.size());
  killSends = below(2) ? (killStep == 0 ? seatedSend() : 1) + below(killStep == 0 ? 4 : 12) : 0;
  killMicros = below(4) == 0 ? below(20000) : below(2000);
  aborts = (uint32_t)random();
  /* Last, so that a seed is the same job whatever strikes it. */
  fault = {kind, 5 + below(below(3) == 0 ? 1200 : 300), (uint32_t)random()};
  if (kind == kFreeze && killStep == 0)
    killStep = 1; /* in an init there is nobody yet who could ask it */
}

std::string Plan::text() const {
  std::string all = "seed " + std::to_string(seed) + ": " + std::to_string(first) + " ranks over " +
                    (network.empty() ? "shared memory" : "NET/" + network) + ":";
  for (const Step &step : steps)
    all += std::string(" ") + nameOf(step.kind);
  all += "; process " + std::to_string(victim) + " " + nameOf(fault.kind) + " in step " +
         std::to_string(killStep) + " (" + nameOf(steps[killStep].kind) + ")";
  all += killSends ? " at send " + std::to_string(killSends)
                   : " after " + std::to_string(killMicros) + " us";
  bool lasts = isHarmless(fault.kind);
  return all + (lasts ? " for " + std::to_string(fault.ms) + " ms" : "");
}

/* ---- a process ------------------------------------------------------------------------------ */

namespace {

/* A communicator and the processes that are its ranks. */
struct World {
  tuttiComm_t comm = nullptr;
  std::vector<int> members;
  int rankOf(int process) const {
    auto at = std::find(members.begin(), members.end(), process);
    return at == members.end() ? -1 : (int)(at - members.begin());
  }
};

class Process {
public:
  Process(const Plan &plan, Shared *shared, int self)
      : plan(plan), shared(shared), mine(shared->reports[self]), self(self) {}

  void run() {
    for (int i = 0; i < plan.first; i++)
      world.members.push_back(i);
    for (size_t s = 0; s < plan.steps.size() && !out; s++) {
      number = (int)s;
      begin();
      tuttiResult_t result = step(plan.steps[s]);
      if (result == tuttiSuccess) continue;
      fail(result);
      return;
    }
  }
  /* It has destroyed all that it had. */
  bool hasLeft() const { return !out && !mine.result; }

private:
  bool inWorld() const { return world.rankOf(self) >= 0; }

  void begin() {
    __atomic_store_n(&mine.sends, 0, __ATOMIC_RELEASE);
    if (self == plan.victim && number == plan.killStep) strikeAtSend(plan.killSends);
    __atomic_store_n(&mine.stage, number + 1, __ATOMIC_RELEASE);
  }
  /* Before a call that makes this one: how it knows itself, and the victim, which may not come. */
  void willBe(const World &next) {
    mine.victims[mine.nranks] = next.rankOf(plan.victim);
    mine.ranks[mine.nranks++] = next.rankOf(self);
  }

  void fail(tuttiResult_t result) {
    mine.at = now();
    mine.step = number;
    snprintf(mine.text, sizeof mine.text, "%s", tuttiGetLastError(nullptr));
    /* Who goes on at once must not hide the cause from the others. Where nobody has died, they
     * would wait for this rank in the parent else. */
    if ((plan.aborts >> self & 1 || plan.fault.kind != kKill) && world.comm)
      tuttiCommAbort(world.comm);
    __atomic_store_n(&mine.result, (int)result, __ATOMIC_RELEASE);
  }

  tuttiUniqueId id(bool makes) {
    if (makes) {
      tuttiResult_t result = tuttiGetUniqueId(&shared->ids[number]);
      if (result != tuttiSuccess) fail(result);
      __atomic_store_n(&shared->made[number], result == tuttiSuccess, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&shared->made[number], __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&shared->over, __ATOMIC_ACQUIRE))
      usleep(200);
    return shared->ids[number];
  }

  tuttiResult_t step(const Step &s) {
    switch (s.kind) {
    case kInit:
      return init();
    case kAllReduce:
      return inWorld() ? check(world, 1 + (int)(s.colors % 3000)) : tuttiSuccess;
    case kSplit:
      return inWorld() ? split(s) : tuttiSuccess;
    case kShrink:
      return shrink(s);
    case kGrow:
      return grow(s);
    default:
      return inWorld() ? loop() : tuttiSuccess;
    }
  }

  tuttiResult_t init() {
    if (!inWorld()) return tuttiSuccess;
    tuttiUniqueId use = id(self == 0);
    willBe(world);
    return tuttiCommInitRank(&world.comm, plan.first, use, self);
  }

  /* An all-reduce of what tells ranks and elements apart. */
  tuttiResult_t check(const World &w, int count) {
    int n = (int)w.members.size(), r = w.rankOf(self);
    std::vector<int32_t> in(count), out(count, -1);
    for (int i = 0; i < count; i++)
      in[i] = i + 7 * r + number;
    tuttiResult_t result =
        tuttiAllReduce(in.data(), out.data(), count, tuttiInt32, tuttiSum, w.comm, nullptr);
    for (int i = 0; i < count && result == tuttiSuccess; i++)
      if (out[i] != n * (i + number) + 7 * n * (n - 1) / 2) mine.wrong = 1;
    return result;
  }

  tuttiResult_t split(const Step &s) {
    World part;
    uint32_t color = s.colors >> self & 1;
    for (int m : world.members)
      if ((s.colors >> m & 1) == color) part.members.push_back(m);
    willBe(part);
    tuttiResult_t result = tuttiCommSplit(world.comm, (int)color, 0, &part.comm, nullptr);
    if (result == tuttiSuccess) result = check(part, 100);
    if (result == tuttiSuccess) result = tuttiCommDestroy(part.comm);
    return result;
  }

  tuttiResult_t shrink(const Step &s) {
    World less;
    int excluded = world.rankOf(s.excluded);
    for (int m : world.members)
      if (m != s.excluded) less.members.push_back(m);
    out = self == s.excluded;
    if (out) return tuttiSuccess;
    if (!inWorld()) {
      world.members = less.members;
      return tuttiSuccess;
    }
    willBe(less);
    tuttiResult_t result =
        tuttiCommShrink(world.comm, &excluded, 1, &less.comm, nullptr, TUTTI_SHRINK_DEFAULT);
    return result == tuttiSuccess ? moveTo(less) : result;
  }

  tuttiResult_t grow(const Step &s) {
    World more = world;
    more.members.push_back(s.joins);
    more.comm = nullptr;
    int n = (int)more.members.size();
    tuttiResult_t result;
    if (self == s.joins) {
      tuttiUniqueId use = id(false);
      if (__atomic_load_n(&shared->over, __ATOMIC_ACQUIRE)) out = true;
      if (out) return tuttiSuccess;
      willBe(more);
      result = tuttiCommGrow(nullptr, n, &use, n - 1, &more.comm, nullptr);
    } else {
      if (!inWorld()) {
        world.members = more.members;
        return tuttiSuccess;
      }
      tuttiUniqueId use;
      bool leads = world.rankOf(self) == 0;
      if (leads) use = id(true);
      willBe(more);
      result = tuttiCommGrow(world.comm, n, leads ? &use : nullptr, -1, &more.comm, nullptr);
    }
    return result == tuttiSuccess ? moveTo(more) : result;
  }

  tuttiResult_t moveTo(const World &next) {
    tuttiComm_t before = world.comm;
    world = next;
    tuttiResult_t result = check(world, 10);
    if (result == tuttiSuccess && before) result = tuttiCommDestroy(before);
    return result;
  }

  /* Until something fails, or the fault is over and nothing has: of that all hear in one round. */
  tuttiResult_t loop() {
    int32_t calm = 0, all = 0;
    tuttiResult_t result = tuttiSuccess;
    while (result == tuttiSuccess && all == 0) {
      result = check(world, 64);
      calm = __atomic_load_n(&shared->calm, __ATOMIC_ACQUIRE);
      if (result == tuttiSuccess)
        result = tuttiAllReduce(&calm, &all, 1, tuttiInt32, tuttiSum, world.comm, nullptr);
    }
    return result == tuttiSuccess ? leave() : result;
  }

  tuttiResult_t leave() {
    landAll();
    tuttiResult_t result = tuttiCommDestroy(world.comm);
    world.comm = nullptr;
    return result;
  }

  const Plan &plan;
  Shared *shared;
  Report &mine;
  int self, number = 0;
  bool out = false; /* it takes part in nothing any more */
  World world;
};

} // namespace

/* What the descriptors of this process are of, "socket:[17]" say, but for the one that looks. */
static std::multiset<std::string> descriptors() {
  std::multiset<std::string> all;
  std::error_code gone;
  for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    auto of = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && of.string().find("/fd") == std::string::npos) all.insert(of.string());
  }
  return all;
}

/* Notes those that stay and were not there before; a root lets go of its own a moment after the
 * last rank. */
static void awaitDescriptors(const std::multiset<std::string> &before, Report *report) {
  std::vector<std::string> more;
  for (int i = 0; i < 2000; i++) {
    auto all = descriptors();
    more.clear();
    std::set_difference(all.begin(), all.end(), before.begin(), before.end(),
                        std::back_inserter(more));
    if (more.empty()) break;
    usleep(1000);
  }
  report->left = (int)more.size();
  std::string kept;
  for (auto &of : more)
    kept += (kept.empty() ? "" : ", ") + of;
  snprintf(report->kept, sizeof report->kept, "%s", kept.c_str());
}

void runProcess(const Plan &plan, Shared *shared, int self) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Report &mine = shared->reports[self];
  countSends(&mine.sends, seatedSend() - 1);
  if (self == plan.victim) armFault(plan.fault, &shared->strike, shared->pids, plan.nprocesses);
  setenv("TUTTI_TIMEOUT", std::to_string(timeoutOf(plan.fault.kind)).c_str(), 1);
  setenv("TUTTI_SOCKET_IFNAME", "=lo", 1);
  if (!plan.network.empty()) {
    setenv("TUTTI_NET", plan.network.c_str(), 1);
    setenv("TUTTI_SHM_DISABLE", "1", 1);
    setenv("TUTTI_P2P_DISABLE", "1", 1);
  }
  auto before = descriptors();
  Process process(plan, shared, self);
  process.run();
  if (process.hasLeft()) awaitDescriptors(before, &mine);
  __atomic_store_n(&mine.ended, 1, __ATOMIC_RELEASE);
  /* Who is late with the news would take this one's end for the fault. */
  while (!__atomic_load_n(&shared->over, __ATOMIC_ACQUIRE))
    usleep(500);
  _exit(0);
}

} // namespace chaos
