/* Random programs over random hosts: some ranks are threads of one process, some processes of one
 * host, some on other "hosts", in uneven numbers, so that one communicator uses every transport. */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "comm/harness.h"
#include "comm/program.h"

namespace {

struct Process {
  int host, firstRank, ranks;
};

/* In memory shared with all processes of a test. */
struct Meeting {
  tuttiUniqueId id;
  int ready;
};

[[noreturn]] void processMain(const Process &p, int n, const std::string &name, Meeting *meeting,
                              const std::vector<Step> &program) {
  alarm(120); /* whatever happens, no process is left */
  setenv("TUTTI_HOSTID", ("host" + std::to_string(p.host)).c_str(), 1);
  setenv("TUTTI_TIMEOUT", "60", 1);
  if (p.firstRank == 0) {
    if (tuttiGetUniqueId(&meeting->id) != tuttiSuccess) _exit(2);
    __atomic_store_n(&meeting->ready, 1, __ATOMIC_RELEASE);
  }
  while (!__atomic_load_n(&meeting->ready, __ATOMIC_ACQUIRE))
    usleep(1000);
  onThreads(p.ranks, [&](int i) {
    int r = p.firstRank + i;
    tuttiComm_t comm = nullptr;
    EXPECT_EQ(tuttiCommInitRank(&comm, n, meeting->id, r), tuttiSuccess)
        << name << tuttiGetLastError(nullptr);
    if (!comm) return;
    Program(n, r, comm, name).run(program);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess) << name << tuttiGetLastError(nullptr);
  });
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

class Hosts : public testing::TestWithParam<int> {};

TEST_P(Hosts, RandomProgram) {
  std::mt19937 random((unsigned)GetParam());
  std::vector<Process> processes;
  int n = 0;
  std::string name = "seed " + std::to_string(GetParam()) + " hosts";
  for (int host = 0, hosts = 1 + (int)(random() % 3); host < hosts; host++)
    for (int k = 1 + (int)(random() % 2); k > 0; k--) {
      int ranks = 1 + (int)(random() % 2);
      processes.push_back({host, n, ranks});
      name += " " + std::to_string(host) + ":" + std::to_string(ranks);
      n += ranks;
    }
  name += " ";
  std::vector<Step> program = makeProgram(random, n, 30);
  const char *algos[] = {"", "Ring", "Hierarchical", "Tree", "Doubling", "Direct"};
  Settings scope(std::map<std::string, std::string>{
      {"TUTTI_ALGO", algos[random() % std::size(algos)]}, {"TUTTI_BUFFSIZE", "8192"}});
  auto *meeting = (Meeting *)mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(meeting, MAP_FAILED);
  std::vector<pid_t> pids;
  for (auto &p : processes) {
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) processMain(p, n, name, meeting, program);
    pids.push_back(pid);
  }
  for (pid_t pid : pids) {
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << name << "status " << status;
  }
  munmap(meeting, sizeof(Meeting));
}

INSTANTIATE_TEST_SUITE_P(Seeds, Hosts, testing::Range(1, 21));

} // namespace
