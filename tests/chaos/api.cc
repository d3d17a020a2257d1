/* Calls every call of tutti.h with random and hostile arguments, from several threads, on
 * communicators in every state: chaos_api [--seed S] [--seconds N] [--threads T]. It fails if a
 * call crashes, hangs, or returns what it never may: a code that is none, or tuttiInternalError.
 * Each thread's calls follow from the seed; how threads meet does not: --threads 1 repeats exactly.
 *
 * What a program may not do is not done: buffers are memory for what their call moves, or NULL, and
 * what a communicator receives into is its own: a call that does not block goes on behind its
 * return. So is the memory of each window, where peers write at any time. */
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tutti.h"

namespace {

constexpr int kHandles = 48, kBytes = 1 << 16, kMostElements = kBytes / 8 / 4;
constexpr double kPatience = 60; /* of a call; with a timeout of 300 ms for each of its waits */

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Handles that all threads draw from: live ones in any state, and dead ones. */
std::atomic<tuttiComm_t> handles[kHandles];
std::atomic<bool> over{false};

/* One thread's draws, and the outputs that calls of an open group still write to. */
class Actor {
public:
  Actor(uint64_t seed, std::atomic<const char *> *inside, std::atomic<double> *since)
      : random(seed), inside(inside), since(since), send(kBytes) {}

  int below(int n) { return (int)(random() % (unsigned)n); }
  bool oneIn(int n) { return below(n) == 0; }
  int hostile() {
    static const int values[] = {-1, INT_MIN, INT_MAX, 1 << 21, 1000, -2, 77};
    return values[below(7)];
  }
  /* 0 to n - 1, or none of these. */
  int number(int n) { return oneIn(6) ? hostile() : below(n); }

  tuttiComm_t comm() {
    receiver = nullptr;
    if (oneIn(30)) return nullptr;
    if (oneIn(30)) return (tuttiComm_t)(uintptr_t)random(); // NOLINT
    receiver = handles[below(kHandles)].load();
    return receiver;
  }
  /* Where a call puts a communicator; NULL now and then. */
  tuttiComm_t *newComm() {
    if (oneIn(25)) return nullptr;
    made.push_back(std::make_unique<tuttiComm_t>(nullptr));
    return made.back().get();
  }
  /* What has been made is everybody's from now on. */
  void publish() {
    for (auto &m : made) {
      if (!*m) continue;
      tuttiComm_t old = handles[below(kHandles)].exchange(*m);
      *m = nullptr;
      if (old) tuttiCommAbort(old);
    }
    made.clear();
  }

  size_t count() { return (size_t)below(oneIn(4) ? kMostElements : 40); }
  /* A count with which nothing may be touched: so it goes with buffers that are NULL. */
  size_t hugeCount() { return oneIn(2) ? SIZE_MAX / (size_t)(1 + below(9)) : (size_t)1 << 40; }
  tuttiDataType_t type() { return (tuttiDataType_t)number(tuttiNumTypes); }
  tuttiRedOp_t op() { return (tuttiRedOp_t)number(tuttiNumOps + 2); }
  int peer() { return number(3); }
  void *in() { return oneIn(20) ? nullptr : send.data(); }
  /* Of the communicator that was drawn last, and of this thread: no other call writes there. */
  void *out() {
    std::vector<char> &own = recv[receiver];
    own.resize(kBytes);
    return oneIn(20) ? nullptr : own.data();
  }
  template <class T> T *maybe(T *p) { return oneIn(15) ? nullptr : p; }

  tuttiConfig_t *config() {
    if (oneIn(3)) return nullptr;
    c = TUTTI_CONFIG_INITIALIZER;
    c.timeoutMs = 300;
    c.blocking = below(2);
    if (oneIn(12)) c.size = (size_t)below(200);
    if (oneIn(12)) c.magic = (unsigned)random();
    if (oneIn(12)) c.blocking = hostile();
    if (oneIn(12)) c.minCTAs = hostile();
    if (oneIn(12)) c.maxCTAs = 1 + below(4);
    if (oneIn(12)) c.trafficClass = hostile();
    if (oneIn(12)) c.netName = "no such network";
    if (oneIn(12)) c.commName = "a name";
    if (oneIn(12)) c.device = number(3);
    if (oneIn(12)) c.numRmaCtx = hostile();
    if (oneIn(12)) c.numRmaSig = hostile();
    return &c;
  }
  tuttiCollConfig_t *collConfig() {
    static const char *const selections[] = {"", "ring", "tree,direct", "nonsense", "^ring", "\1"};
    if (oneIn(4)) return nullptr;
    k = TUTTI_COLL_CONFIG_INITIALIZER;
    k.algSelection = selections[below(6)];
    k.forceAlgSelection = number(2);
    if (oneIn(8)) k.magic = (unsigned)random();
    if (oneIn(8)) k.size = (size_t)below(99);
    if (oneIn(8)) k.minCTAs = hostile();
    if (oneIn(8)) k.maxCTAs = hostile();
    return &k;
  }
  /* One that was made, as one rank of few; or bytes that are no id. */
  tuttiUniqueId id() {
    tuttiUniqueId u = {};
    if (!oneIn(8)) tuttiGetUniqueId(&u);
    if (oneIn(10)) u.internal[below(TUTTI_UNIQUE_ID_BYTES)] ^= (char)(1 << below(8));
    return u;
  }

  void *garbage() { return oneIn(3) ? nullptr : (void *)(uintptr_t)(random() & ~7ull); } // NOLINT
  tuttiWindow_t window() {
    return windows.empty() || oneIn(4) ? (tuttiWindow_t)garbage() : any(windows);
  }
  void *registration() {
    return registrations.empty() || oneIn(4) ? garbage() : any(registrations);
  }
  template <class T> T any(const std::vector<T> &v) { return v[(size_t)below((int)v.size())]; }

  /* Sees that a call ends, and how. */
  void call(const char *name, const std::function<int(Actor &)> &body) {
    since->store(now());
    inside->store(name);
    int result = body(*this);
    inside->store(nullptr);
    calls++;
    if (result >= 0 && result < tuttiNumResults && result != tuttiInternalError) return;
    fprintf(stderr, "chaos_api: %s returned %d: %s\n", name, result, tuttiGetLastError(nullptr));
    _exit(1);
  }

  std::mt19937_64 random;
  std::atomic<const char *> *inside;
  std::atomic<double> *since;
  std::vector<char> send;
  tuttiComm_t receiver = nullptr; /* NULL: the one that was drawn last is none */
  std::map<tuttiComm_t, std::vector<char>> recv;
  std::vector<std::unique_ptr<tuttiComm_t>> made;
  std::vector<tuttiWindow_t> windows;
  std::vector<std::unique_ptr<char[]>> exposed; /* of all windows that there were */
  std::vector<void *> registrations, memory;
  tuttiConfig_t c;
  tuttiCollConfig_t k;
  int depth = 0; /* of the thread's groups, as far as is known */
  uint64_t calls = 0;
};

struct Call {
  const char *name;
  std::function<int(Actor &)> body;
};

/* Of a collective: its buffers and count, which fit each other. */
#define BUFFERS(a)                                                                                 \
  tuttiComm_t comm = (a).comm();                                                                   \
  bool huge = (a).oneIn(12);                                                                       \
  void *in = huge ? nullptr : (a).in(), *out = huge ? nullptr : (a).out();                         \
  size_t count = huge ? (a).hugeCount() : (a).count()
#define CALL(function, ...)                                                                        \
  Call {                                                                                           \
#function, [](Actor & a) -> int { return function(__VA_ARGS__); }                              \
  }
#define MOVE(function, ...)                                                                        \
  Call {                                                                                           \
#function, [](Actor & a) -> int {                                                              \
      BUFFERS(a);                                                                                  \
      (void)in;                                                                                    \
      (void)out;                                                                                   \
      return function(__VA_ARGS__, comm, nullptr);                                             \
    }   \
  }
#define MOVE_CONFIG(function, ...)                                                                 \
  Call {                                                                                           \
#function, [](Actor & a) -> int {                                                              \
      BUFFERS(a);                                                                                  \
      return function(__VA_ARGS__, comm, nullptr, a.collConfig());                             \
    }   \
  }

/* ---- communicators -------------------------------------------------------------------------- */

/* All ranks of a new one, so that some communicators are of use. */
int makePair(Actor &a) {
  if (a.depth > 0) return tuttiSuccess;
  tuttiUniqueId id;
  tuttiComm_t comms[2] = {};
  tuttiResult_t results[2];
  if (tuttiGetUniqueId(&id) != tuttiSuccess) return tuttiSystemError;
  auto init = [&](int r) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.timeoutMs = 300;
    results[r] = tuttiCommInitRankConfig(&comms[r], 2, id, r, &config);
  };
  std::thread other([&] { init(1); });
  init(0);
  other.join();
  for (int r = 0; r < 2; r++)
    if (results[r] == tuttiSuccess) a.made.push_back(std::make_unique<tuttiComm_t>(comms[r]));
  return results[0] == tuttiSuccess ? results[1] : results[0];
}

int initConfig(Actor &a) {
  tuttiConfig_t *config = a.config();
  int nranks = a.oneIn(3) ? a.number(3) : 1, rank = a.oneIn(4) ? a.number(3) : 0;
  return tuttiCommInitRankConfig(a.newComm(), nranks, a.id(), rank, config);
}

int initScalable(Actor &a) {
  tuttiUniqueId ids[2] = {a.id(), a.id()};
  int nids = a.oneIn(8) ? -1 : a.below(3);
  return tuttiCommInitRankScalable(a.newComm(), a.oneIn(4) ? -1 : 1 + a.below(2), a.number(2), nids,
                                   a.maybe(ids), a.config());
}

int initAll(Actor &a) {
  if (a.depth > 0) return tuttiSuccess; /* its array would have to outlive this */
  tuttiComm_t comms[3] = {};
  int devices[] = {0, a.number(2), 2}, n = a.oneIn(6) ? -a.below(4) : 1 + a.below(2);
  int result = tuttiCommInitAll(a.maybe(comms), n, a.oneIn(2) ? nullptr : devices);
  for (tuttiComm_t comm : comms)
    if (comm) a.made.push_back(std::make_unique<tuttiComm_t>(comm));
  return result;
}

int shrink(Actor &a) {
  int list[] = {a.number(2), a.number(2)}, flags = a.oneIn(8) ? a.hostile() : a.below(2);
  int n = a.oneIn(8) ? -1 : a.below(3);
  return tuttiCommShrink(a.comm(), a.maybe(list), n, a.newComm(), a.config(), flags);
}

int grow(Actor &a) {
  tuttiUniqueId id = a.id();
  return tuttiCommGrow(a.oneIn(4) ? nullptr : a.comm(), a.oneIn(5) ? a.hostile() % 4 : a.below(4),
                       a.maybe(&id), a.oneIn(2) ? -1 : a.number(3), a.newComm(), a.config());
}

const std::vector<Call> &communicators() {
  static tuttiCommProperties_t wrong = {};
  static const std::vector<Call> calls = {
      {"makePair", makePair},
      {"makePair", makePair},
      {"tuttiCommInitRankConfig", initConfig},
      {"tuttiCommInitRankScalable", initScalable},
      {"tuttiCommInitAll", initAll},
      {"tuttiCommShrink", shrink},
      {"tuttiCommGrow", grow},
      CALL(tuttiCommInitRank, a.newComm(), 1, a.id(), a.number(1)),
      CALL(tuttiCommSplit, a.comm(), a.number(2), a.below(5), a.newComm(), a.config()),
      CALL(tuttiCommRevoke, a.comm(), a.oneIn(4) ? a.hostile() : 0),
      CALL(tuttiCommFinalize, a.comm()),
      CALL(tuttiCommDestroy, a.comm()),
      CALL(tuttiCommAbort, a.comm()),
      CALL(tuttiCommSuspend, a.comm(), a.oneIn(4) ? a.hostile() : TUTTI_SUSPEND_MEM),
      CALL(tuttiCommResume, a.comm()),
      {"tuttiCommGetAsyncError",
       [](Actor &a) -> int {
         tuttiResult_t state = tuttiSuccess;
         int result = tuttiCommGetAsyncError(a.comm(), a.maybe(&state));
         return result == tuttiSuccess ? state : result;
       }},
      {"tuttiCommQueryProperties",
       [](Actor &a) -> int {
         tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
         if (a.oneIn(6)) p.size = (size_t)a.below(60);
         return tuttiCommQueryProperties(a.comm(), a.oneIn(9) ? &wrong : a.maybe(&p));
       }},
      {"tuttiCommCount and its like",
       [](Actor &a) -> int {
         int n;
         uint64_t value;
         size_t bytes;
         tuttiUniqueId id;
         switch (a.below(6)) {
         case 0:
           return tuttiCommCount(a.comm(), a.maybe(&n));
         case 1:
           return tuttiCommCuDevice(a.comm(), a.maybe(&n));
         case 2:
           return tuttiCommUserRank(a.comm(), a.maybe(&n));
         case 3:
           return tuttiCommMemUsed(a.comm(), a.maybe(&bytes));
         case 4:
           return tuttiCommMemStats(a.comm(), (tuttiCommMemStat_t)a.number(4), a.maybe(&value));
         default:
           return tuttiCommGetUniqueId(a.comm(), a.maybe(&id));
         }
       }},
      {"tuttiGetLastError",
       [](Actor &a) -> int { return strlen(tuttiGetLastError(a.comm())) < 4096 ? 0 : -1; }},
  };
  return calls;
}

/* ---- operations ----------------------------------------------------------------------------- */

const std::vector<Call> &operations() {
  static const std::vector<Call> calls = {
      MOVE(tuttiAllReduce, in, out, count, a.type(), a.op()),
      MOVE(tuttiBroadcast, in, out, count, a.type(), a.peer()),
      MOVE(tuttiBcast, out, count, a.type(), a.peer()),
      MOVE(tuttiReduce, in, out, count, a.type(), a.op(), a.peer()),
      MOVE(tuttiAllGather, in, out, count, a.type()),
      MOVE(tuttiReduceScatter, in, out, count, a.type(), a.op()),
      MOVE(tuttiAlltoAll, in, out, count, a.type()),
      MOVE(tuttiGather, in, out, count, a.type(), a.peer()),
      MOVE(tuttiScatter, in, out, count, a.type(), a.peer()),
      MOVE(tuttiSend, in, count, a.type(), a.peer()),
      MOVE(tuttiRecv, out, count, a.type(), a.peer()),
      MOVE_CONFIG(tuttiAllReduceConfig, in, out, count, a.type(), a.op()),
      MOVE_CONFIG(tuttiBroadcastConfig, in, out, count, a.type(), a.peer()),
      MOVE_CONFIG(tuttiReduceConfig, in, out, count, a.type(), a.op(), a.peer()),
      MOVE_CONFIG(tuttiAllGatherConfig, in, out, count, a.type()),
      MOVE_CONFIG(tuttiReduceScatterConfig, in, out, count, a.type(), a.op()),
      MOVE_CONFIG(tuttiAlltoAllConfig, in, out, count, a.type()),
      MOVE_CONFIG(tuttiGatherConfig, in, out, count, a.type(), a.peer()),
      MOVE_CONFIG(tuttiScatterConfig, in, out, count, a.type(), a.peer()),
      CALL(tuttiPutSignal, a.in(), a.count(), a.type(), a.peer(), a.window(), (size_t)a.number(99),
           a.number(2), a.number(2), a.oneIn(8) ? 1u : 0u, a.comm(), nullptr),
      CALL(tuttiSignal, a.peer(), a.number(2), a.number(2), a.oneIn(8) ? 1u : 0u, a.comm(),
           nullptr),
      {"tuttiWaitSignal",
       [](Actor &a) -> int {
         tuttiWaitSignalDesc_t d[] = {{a.number(2), a.peer(), a.number(2), a.number(2)}, {}};
         return tuttiWaitSignal(a.oneIn(6) ? -3 : a.below(3), a.maybe(d), a.comm(), nullptr);
       }},
      {"tuttiRedOpCreatePreMulSum",
       [](Actor &a) -> int {
         tuttiRedOp_t op;
         double scalar = 2;
         return tuttiRedOpCreatePreMulSum(a.maybe(&op), a.maybe(&scalar), a.type(),
                                          (tuttiScalarResidence_t)(a.oneIn(6) ? a.hostile() : 1),
                                          a.comm());
       }},
      CALL(tuttiRedOpDestroy, a.op(), a.comm()),
  };
  return calls;
}

/* ---- memory, groups, parameters ------------------------------------------------------------- */

int registerMemory(Actor &a) {
  void *handle = nullptr;
  int result = tuttiCommRegister(a.comm(), a.in(), a.oneIn(6) ? SIZE_MAX : (size_t)a.below(kBytes),
                                 a.maybe(&handle));
  if (result == tuttiSuccess && handle) a.registrations.push_back(handle);
  return result;
}

int registerWindow(Actor &a) {
  static thread_local tuttiWindow_t window; /* a group writes it at its end */
  int flags = a.oneIn(5) ? a.hostile() : a.below(4);
  size_t bytes = (size_t)a.below(kBytes), size = a.oneIn(6) ? SIZE_MAX : bytes;
  a.exposed.push_back(std::make_unique<char[]>(bytes));
  void *at = a.oneIn(20) ? nullptr : a.exposed.back().get();
  int result = tuttiCommWindowRegister(a.comm(), at, size, a.maybe(&window), flags);
  if (result == tuttiSuccess && a.depth == 0 && window) a.windows.push_back(window);
  return result;
}

int allocate(Actor &a) {
  void *p = nullptr;
  static const size_t sizes[] = {0, 1, 4096, 100000, SIZE_MAX, SIZE_MAX - 4095, (size_t)1 << 60};
  int result = tuttiMemAlloc(a.maybe(&p), sizes[a.below(7)]);
  if (p) a.memory.push_back(p);
  return result;
}

int release(Actor &a) {
  if (a.memory.empty()) return tuttiMemFree(nullptr);
  void *p = a.memory.back();
  a.memory.pop_back();
  return tuttiMemFree(p);
}

int endGroup(Actor &a) {
  a.depth -= a.depth > 0;
  return tuttiGroupEnd();
}

int simulate(Actor &a) {
  tuttiSimInfo_t info = TUTTI_SIM_INFO_INITIALIZER;
  if (a.oneIn(5)) info.magic = 1;
  if (a.oneIn(5)) info.size = (size_t)a.below(40);
  tuttiSimInfo_t *p = a.maybe(&info);
  a.depth -= a.depth > 0;
  return tuttiGroupSimulateEnd(p);
}

int parameter(Actor &a) {
  static const char *const keys[] = {"TUTTI_ALGO", "NCCL_DEBUG",      "TUTTI_TIMEOUT", "", "PATH",
                                     "TUTTI_",     "NCCL_BUFFSIZE\n", "TUTTI_COMM_ID"};
  const char *key = a.maybe(keys[a.below(8)]), *text = nullptr, **table = nullptr;
  char out[64];
  int length, size = a.number(64), n;
  int64_t wide;
  tuttiParamHandle_t h = nullptr;
  (void)tuttiParamBind(&h, key);
  if (a.oneIn(12)) h = (tuttiParamHandle_t)a.garbage();
  switch (a.below(8)) {
  case 0:
    return tuttiParamBind(a.maybe(&h), key);
  case 1:
    return tuttiParamGetStr(h, a.maybe(&text));
  case 2:
    return tuttiParamGet(h, a.maybe(out), size > 64 ? 64 : size, a.maybe(&length));
  case 3:
    return tuttiParamGetParameter(key, a.maybe(&text), a.maybe(&length));
  case 4:
    return tuttiParamGetAllParameterKeys(a.maybe(&table), a.maybe(&n));
  case 5:
    return tuttiParamGetI64(h, a.maybe(&wide));
  case 6: {
    int (*const narrow[])(tuttiParamHandle_t, void *) = {
        [](tuttiParamHandle_t p, void *o) -> int { return tuttiParamGetI8(p, (int8_t *)o); },
        [](tuttiParamHandle_t p, void *o) -> int { return tuttiParamGetI16(p, (int16_t *)o); },
        [](tuttiParamHandle_t p, void *o) -> int { return tuttiParamGetI32(p, (int32_t *)o); },
        [](tuttiParamHandle_t p, void *o) -> int { return tuttiParamGetU8(p, (uint8_t *)o); },
        [](tuttiParamHandle_t p, void *o) -> int { return tuttiParamGetU16(p, (uint16_t *)o); },
        [](tuttiParamHandle_t p, void *o) -> int { return tuttiParamGetU32(p, (uint32_t *)o); },
        [](tuttiParamHandle_t p, void *o) -> int { return tuttiParamGetU64(p, (uint64_t *)o); }};
    return narrow[a.below(7)](h, a.maybe((void *)&wide));
  }
  default:
    tuttiParamDumpAll();
    return tuttiSuccess;
  }
}

const std::vector<Call> &others() {
  static const std::vector<Call> calls = {
      {"tuttiCommRegister", registerMemory},
      CALL(tuttiCommDeregister, a.comm(), a.registration()),
      {"tuttiCommWindowRegister", registerWindow},
      CALL(tuttiCommWindowDeregister, a.comm(), a.window()),
      {"tuttiWinGetUserPtr",
       [](Actor &a) -> int {
         void *p;
         return tuttiWinGetUserPtr(a.comm(), a.window(), a.maybe(&p));
       }},
      {"tuttiWinGetComm",
       [](Actor &a) -> int {
         tuttiComm_t comm;
         return tuttiWinGetComm(a.window(), a.maybe(&comm));
       }},
      {"tuttiWinGetPeerPtr",
       [](Actor &a) -> int {
         void *p;
         return tuttiWinGetPeerPtr(a.window(), (size_t)a.number(9), a.number(3), a.maybe(&p));
       }},
      {"tuttiDevCommCreate", /* refused on host memory */
       [](Actor &a) -> int {
         tuttiDevComm_t made;
         return tuttiDevCommCreate(a.comm(), (size_t)a.number(999), 1, a.maybe(&made));
       }},
      CALL(tuttiDevCommDestroy, a.comm(), a.window()),
      {"tuttiMemAlloc", allocate},
      {"tuttiMemFree", release},
      {"tuttiGroupStart",
       [](Actor &a) -> int {
         a.depth++;
         return tuttiGroupStart();
       }},
      {"tuttiGroupEnd", endGroup},
      {"tuttiGroupEnd", endGroup},
      {"tuttiGroupSimulateEnd", simulate},
      {"tuttiParam", parameter},
      {"tuttiGetErrorString",
       [](Actor &a) -> int { return tuttiGetErrorString((tuttiResult_t)a.hostile())[0] ? 0 : -1; }},
      {"tuttiGetVersion",
       [](Actor &a) -> int {
         int v;
         return tuttiGetVersion(a.maybe(&v));
       }},
  };
  return calls;
}

/* ---- threads -------------------------------------------------------------------------------- */

void act(Actor &a) {
  while (!over) {
    const std::vector<Call> &calls = a.oneIn(3)   ? communicators()
                                     : a.oneIn(3) ? others()
                                                  : operations();
    const Call &call = calls[(size_t)a.below((int)calls.size())];
    a.call(call.name, call.body);
    if (a.depth > 0 && a.oneIn(6)) a.call("tuttiGroupEnd", endGroup);
    if (a.depth == 0) a.call("publish", [](Actor &b) { return b.publish(), 0; });
  }
  while (a.depth > 0)
    a.call("tuttiGroupEnd", endGroup);
  a.call("publish", [](Actor &b) { return b.publish(), 0; });
  while (!a.memory.empty())
    a.call("tuttiMemFree", release);
}

struct Options {
  uint64_t seed = 1;
  double seconds = 4;
  int threads = 4;
};

bool parse(int argc, char **argv, Options *o) {
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string option = argv[i];
    if (option == "--seed")
      o->seed = strtoull(argv[i + 1], nullptr, 10);
    else if (option == "--seconds")
      o->seconds = strtod(argv[i + 1], nullptr);
    else if (option == "--threads")
      o->threads = atoi(argv[i + 1]);
    else
      return false;
  }
  return argc % 2 == 1 && o->threads > 0;
}

} // namespace

int main(int argc, char **argv) {
  Options o;
  if (!parse(argc, argv, &o)) {
    fprintf(stderr, "usage: %s [--seed S] [--seconds N] [--threads T]\n", argv[0]);
    return 2;
  }
  setenv("TUTTI_TIMEOUT", "0.3", 1);
  setenv("TUTTI_SOCKET_IFNAME", "=lo", 1);
  std::vector<std::atomic<const char *>> inside((size_t)o.threads);
  std::vector<std::atomic<double>> since((size_t)o.threads);
  std::vector<std::unique_ptr<Actor>> actors;
  std::vector<std::thread> threads;
  std::atomic<int> running{o.threads};
  double end = now() + o.seconds;
  for (int t = 0; t < o.threads; t++)
    actors.push_back(std::make_unique<Actor>(o.seed * 1000 + (uint64_t)t, &inside[(size_t)t],
                                             &since[(size_t)t]));
  for (auto &actor : actors)
    threads.emplace_back([&] {
      act(*actor);
      running--;
    });
  while (running > 0) {
    usleep(5000);
    over = now() >= end;
    for (size_t t = 0; t < inside.size(); t++) {
      const char *name = inside[t];
      if (!name || now() - since[t] < kPatience) continue;
      fprintf(stderr, "chaos_api: seed %llu: %s hangs\n", (unsigned long long)o.seed, name);
      abort();
    }
  }
  uint64_t calls = 0;
  for (size_t t = 0; t < threads.size(); t++) {
    threads[t].join();
    calls += actors[t]->calls;
  }
  for (auto &handle : handles)
    if (handle.load()) tuttiCommAbort(handle.load());
  printf("%llu calls of %d threads, seed %llu\n", (unsigned long long)calls, o.threads,
         (unsigned long long)o.seed);
  return 0;
}
