/* One rank of a job over real hosts: joins, and either checks every collective or repeats one until
 * something fails. tests/net/run starts it in network namespaces, tests/cluster/run in virtual
 * machines.
 *
 *   hosts check|loop|steady|large|idle|posts|cycles RANK NRANKS FOLDER
 *
 * With TUTTI_COMM_ID unset, rank 0 makes the unique id and passes it on as FOLDER/id. Text goes to
 * stderr; the exit status is 0 if all data was right (check), if the run ended with an error after
 * three good rounds (loop, which then has written its pid to FOLDER/ready.RANK, and which stays
 * until FOLDER/leave is there), if it went well until FOLDER/stop was made (steady, likewise;
 * large, with large messages alone), if waiting took no CPU (idle), if small messages took a
 * write(2) each, the one by which soft-RoCE's driver posts, and no read(2) (posts), or if
 * connections made and dropped 200 times left no RDMA resource behind (cycles). */
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "collective_call.h"
#include "oracle.h"
#include "tutti.h"

namespace {

int rank, nranks;
tuttiComm_t comm;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const char *what, const std::string &text) {
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, text.c_str());
  if (comm) tuttiCommAbort(comm);
  exit(1);
}

void must(tuttiResult_t result, const char *what) {
  if (result != tuttiSuccess)
    fail(what, std::string(tuttiGetErrorString(result)) + ": " + tuttiGetLastError(comm));
}

/* Written whole under another name first, so that a reader never sees half of it. */
void writeFile(const std::string &path, const void *data, size_t bytes) {
  std::string part = path + ".part";
  FILE *f = fopen(part.c_str(), "w");
  if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0 ||
      rename(part.c_str(), path.c_str()) != 0)
    fail("writing", path);
}

tuttiUniqueId uniqueId(const std::string &folder) {
  tuttiUniqueId id;
  std::string path = folder + "/id";
  if (getenv("TUTTI_COMM_ID") || rank == 0) must(tuttiGetUniqueId(&id), "unique id");
  if (getenv("TUTTI_COMM_ID")) return id;
  if (rank == 0) {
    writeFile(path, &id, sizeof id);
    return id;
  }
  for (int tries = 0; tries < 3000; tries++) {
    FILE *f = fopen(path.c_str(), "r");
    bool read = f && fread(&id, sizeof id, 1, f) == 1;
    if (f) fclose(f);
    if (read) return id;
    usleep(10000);
  }
  fail("reading", path);
}

/* ---- check ---------------------------------------------------------------------------------- */

/* Element i that rank r contributes. Sums wrap, as tutti's do. */
uint32_t value(int r, size_t i) {
  return (uint32_t)(r + 1) * 2654435761u + (uint32_t)i * 40503u;
}

uint32_t total(size_t i) {
  return oracle::reduced(nranks, i, tuttiSum, value);
}

/* [0, n) of what rank r contributes. */
std::vector<uint32_t> input(int r, size_t n) {
  std::vector<uint32_t> v(n);
  for (size_t i = 0; i < n; i++)
    v[i] = value(r, i);
  return v;
}

constexpr uint32_t kUntouched = 0xdeadbeef;

struct Output : std::vector<uint32_t> {
  explicit Output(size_t n) : std::vector<uint32_t>(n, kUntouched) {}
  template <class Expected> void expect(const char *what, size_t count, Expected expected) {
    for (size_t i = 0; i < size(); i++)
      if ((*this)[i] != expected(i))
        fail("wrong data",
             std::string(what) + " of " + std::to_string(count) + ", element " + std::to_string(i));
  }
};

void checkCollective(int coll, const char *name, size_t n, int root) {
  const oracle::Call call = {coll, nranks, root, n};
  Output out(oracle::receives(call, rank));
  must(callCollective(call, input(rank, oracle::sends(call, rank)).data(), out.data(), tuttiUint32,
                      tuttiSum, comm, nullptr),
       name);
  out.expect(name, n, [&](size_t i) { return oracle::expected(call, rank, i, tuttiSum, value); });
}

/* To the next rank and from the one before, in one group. */
void checkSendRecv(size_t n) {
  const int next = (rank + 1) % nranks, before = (rank + nranks - 1) % nranks;
  std::vector<uint32_t> in = input(rank, n);
  Output out(n);
  must(tuttiGroupStart(), "GroupStart");
  must(tuttiSend(in.data(), n, tuttiUint32, next, comm, nullptr), "Send");
  must(tuttiRecv(out.data(), n, tuttiUint32, before, comm, nullptr), "Recv");
  must(tuttiGroupEnd(), "Send and Recv");
  out.expect("SendRecv", n, [&](size_t i) { return value(before, i); });
}

/* Everybody writes a block into its place at all others, and waits for theirs. */
void checkPuts(size_t n) {
  std::vector<uint32_t> in = input(rank, n);
  Output window(n * (size_t)nranks);
  tuttiWindow_t win = nullptr;
  must(tuttiCommWindowRegister(comm, window.data(), window.size() * sizeof window[0], &win, 0),
       "WindowRegister");
  const size_t at = (size_t)rank * n * sizeof window[0];
  for (int p = 0; p < nranks; p++)
    must(tuttiPutSignal(in.data(), n, tuttiUint32, p, win, at, 0, 0, 0, comm, nullptr),
         "PutSignal");
  for (int p = 0; p < nranks; p++) {
    tuttiWaitSignalDesc_t desc = {1, p, 0, 0};
    must(tuttiWaitSignal(1, &desc, comm, nullptr), "WaitSignal");
  }
  window.expect("PutSignal", n, [&](size_t i) { return value((int)(i / n), i % n); });
  must(tuttiCommWindowDeregister(comm, win), "WindowDeregister");
}

constexpr std::pair<int, const char *> kCollectives[] = {{tuttiCollAllReduce, "AllReduce"},
                                                         {tuttiCollAllGather, "AllGather"},
                                                         {tuttiCollReduceScatter, "ReduceScatter"},
                                                         {tuttiCollAlltoAll, "AlltoAll"},
                                                         {tuttiCollBroadcast, "Broadcast"},
                                                         {tuttiCollReduce, "Reduce"},
                                                         {tuttiCollGather, "Gather"},
                                                         {tuttiCollScatter, "Scatter"}};

/* Sizes around the borders of ranks, lines (16 words), pages and slots (128 Ki words). */
void check() {
  const size_t ranks = (size_t)nranks;
  for (size_t n : {(size_t)1, ranks - 1, ranks, ranks + 1, (size_t)15, (size_t)17, (size_t)1023,
                   (size_t)1025, (size_t)131071, (size_t)131073, (size_t)300001}) {
    for (auto &[coll, name] : kCollectives)
      checkCollective(coll, name, n, (int)(n % ranks));
    checkSendRecv(n);
    if (n > 0) checkPuts(n);
  }
  must(tuttiCommDestroy(comm), "Destroy");
  comm = nullptr;
}

/* ---- loop ----------------------------------------------------------------------------------- */

void loop(const std::string &folder) {
  const size_t n = 1 << 16;
  for (int round = 0;; round++) {
    Output out(n);
    double begin = now();
    tuttiResult_t result =
        tuttiAllReduce(input(rank, n).data(), out.data(), n, tuttiUint32, tuttiSum, comm, nullptr);
    if (result != tuttiSuccess) {
      fprintf(stderr, "rank %d: round %d ended after %.1f s with code %d: %s\n", rank, round,
              now() - begin, (int)result, tuttiGetLastError(comm));
      /* Its sockets stay until the others have heard, too: who is late would name this rank. */
      for (int i = 0; i < 600 && access((folder + "/leave").c_str(), F_OK) != 0; i++)
        usleep(100000);
      tuttiCommDestroy(comm);
      exit(round < 3);
    }
    out.expect("AllReduce", n, total);
    std::string pid = std::to_string(getpid());
    if (round == 2) writeFile(folder + "/ready." + std::to_string(rank), pid.data(), pid.size());
  }
}

/* ---- steady --------------------------------------------------------------------------------- */

/* Messages of these sizes, in words, by turns, the largest last; word 0 says whether rank 0 has
 * seen the sign to stop. The memory is tutti's own, which a network may read in place. */
void steady(const std::string &folder, const std::vector<size_t> &sizes) {
  void *memory;
  must(tuttiMemAlloc(&memory, sizes.back() * sizeof(uint32_t)), "MemAlloc");
  uint32_t *in = static_cast<uint32_t *>(memory);
  bool stop = false;
  double slowest = 0;
  int round = 0;
  for (; !stop; round++) {
    const size_t n = sizes[(size_t)round % sizes.size()];
    const uint32_t turn = (uint32_t)round;
    for (size_t i = 1; i < n; i++)
      in[i] = value(rank, i) + turn;
    in[0] = rank == 0 && access((folder + "/stop").c_str(), F_OK) == 0;
    Output out(n);
    double begin = now();
    must(tuttiAllReduce(in, out.data(), n, tuttiUint32, tuttiSum, comm, nullptr), "AllReduce");
    if (now() - begin > slowest) slowest = now() - begin;
    stop = out[0] != 0;
    out[0] = 0;
    out.expect("AllReduce", n,
               [&](size_t i) { return i ? total(i) + turn * (uint32_t)nranks : 0; });
    std::string pid = std::to_string(getpid());
    if (round == 2) writeFile(folder + "/ready." + std::to_string(rank), pid.data(), pid.size());
  }
  fprintf(stderr, "rank %d: %d rounds, the slowest took %.2f s\n", rank, round, slowest);
  must(tuttiCommDestroy(comm), "Destroy");
  must(tuttiMemFree(memory), "MemFree");
}

/* ---- idle ----------------------------------------------------------------------------------- */

double cpuSeconds() {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* With connections open and nothing under way no thread works; heartbeats cost next to nothing. */
void idle() {
  for (size_t n : {(size_t)1, (size_t)300001}) {
    Output out(n);
    must(tuttiAllReduce(input(rank, n).data(), out.data(), n, tuttiUint32, tuttiSum, comm, nullptr),
         "AllReduce");
    out.expect("AllReduce", n, total);
  }
  /* The time is the subject. What is still to be handed over takes some in the first. An emulated
   * machine counts as used what its host has taken from it: not three times over. */
  double used = 1;
  for (int i = 0; i < 3 && used > 0.4; i++) {
    used = -cpuSeconds();
    sleep(4);
    used += cpuSeconds();
    fprintf(stderr, "rank %d: idle for 4 s took %.3f s of CPU\n", rank, used);
  }
  if (used > 0.4) fail("idle", "a thread works all the time");
  Output out(1);
  must(tuttiAllReduce(input(rank, 1).data(), out.data(), 1, tuttiUint32, tuttiSum, comm, nullptr),
       "AllReduce");
  out.expect("AllReduce", 1, total);
  must(tuttiCommDestroy(comm), "Destroy");
}

/* ---- posts ---------------------------------------------------------------------------------- */

/* How often all threads of this process have called read(2) and write(2). */
void countCalls(long *reads, long *writes) {
  FILE *f = fopen("/proc/self/io", "r");
  bool read = f && fscanf(f, "rchar: %*d wchar: %*d syscr: %ld syscw: %ld", reads, writes) == 2;
  if (!read || fclose(f) != 0) fail("reading", "/proc/self/io");
}

void posts() {
  const int calls = 1000;
  long reads[2], writes[2];
  for (int i = -100; i < calls; i++) {
    uint32_t mine = (uint32_t)(rank + i), sum = 0;
    if (i == 0) countCalls(&reads[0], &writes[0]);
    must(tuttiAllReduce(&mine, &sum, 1, tuttiUint32, tuttiSum, comm, nullptr), "AllReduce");
    if (sum != (uint32_t)(nranks * i + nranks * (nranks - 1) / 2)) fail("wrong data", "sum");
  }
  countCalls(&reads[1], &writes[1]);
  long r = reads[1] - reads[0], w = writes[1] - writes[0];
  fprintf(stderr, "rank %d: %d calls took %ld writes and %ld reads\n", rank, calls, w, r);
  if (r > calls / 20 || w > calls + calls / 20) fail("posts", "more than one for each message");
  must(tuttiCommDestroy(comm), "Destroy");
}

/* ---- cycles --------------------------------------------------------------------------------- */

/* Counts of what this host's RDMA devices hold. */
std::string resources() {
  std::string text;
  char line[256];
  FILE *f = popen("rdma resource show", "r");
  while (f && fgets(line, sizeof line, f))
    text += line;
  if (!f || pclose(f) != 0) fail("running", "rdma resource show");
  return text;
}

void cycles() {
  std::string before;
  for (int cycle = 0; cycle < 200; cycle++) {
    tuttiComm_t part;
    must(tuttiCommSplit(comm, 0, rank, &part, nullptr), "Split");
    uint32_t mine = (uint32_t)(rank + cycle), sum = 0;
    must(tuttiAllReduce(&mine, &sum, 1, tuttiUint32, tuttiSum, part, nullptr), "AllReduce");
    if (sum != (uint32_t)(nranks * cycle + nranks * (nranks - 1) / 2)) fail("wrong data", "sum");
    if (cycle == 0 && resources() == before) fail("resources", "nothing is in use");
    must(tuttiCommDestroy(part), "Destroy");
    if (cycle == 9) before = resources();
  }
  std::string after = resources();
  if (after != before) fail("resources", "after 10 cycles:\n" + before + "after 200:\n" + after);
  fprintf(stderr, "rank %d: after 200 cycles: %s", rank, after.c_str());
  must(tuttiCommDestroy(comm), "Destroy");
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s check|loop|steady|large|idle|posts|cycles RANK NRANKS FOLDER\n",
            argv[0]);
    return 2;
  }
  rank = atoi(argv[2]);
  nranks = atoi(argv[3]);
  tuttiUniqueId id = uniqueId(argv[4]);
  must(tuttiCommInitRank(&comm, nranks, id, rank), "init");
  if (strcmp(argv[1], "loop") == 0)
    loop(argv[4]);
  else if (strcmp(argv[1], "steady") == 0)
    steady(argv[4], {2, 20, 5000, 1 << 18});
  else if (strcmp(argv[1], "large") == 0)
    steady(argv[4], {1 << 22});
  else if (strcmp(argv[1], "cycles") == 0)
    cycles();
  else if (strcmp(argv[1], "idle") == 0)
    idle();
  else if (strcmp(argv[1], "posts") == 0)
    posts();
  else
    check();
  return 0;
}
