/* tutti perf as a user runs it. */
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include <pty.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "command.h"
#include "perf.h"
#include "port.h"

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const char *const collectives[] = {"all_reduce",     "broadcast", "reduce", "all_gather",
                                   "reduce_scatter", "alltoall",  "gather", "scatter",
                                   "sendrecv",       "put_signal"};

bool puts(const char *name) {
  return strcmp(name, "put_signal") == 0;
}

std::vector<std::string> lines(const std::string &text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    all.push_back(line);
  return all;
}

/* The rows of a table, in words. */
std::vector<std::vector<std::string>> rows(const std::string &table) {
  std::vector<std::vector<std::string>> all;
  for (auto &line : lines(table)) {
    if (line[0] == '#') continue;
    std::istringstream in(line);
    all.emplace_back();
    for (std::string word; in >> word;)
      all.back().push_back(word);
  }
  return all;
}

/* ---- every collective, type and operation ------------------------------------------------------
 */

class Perf : public testing::TestWithParam<std::tuple<const char *, bool>> {};

TEST_P(Perf, EveryTypeAndOperationIsRight) {
  auto [name, threads] = GetParam();
  for (bool inPlace : {false, true}) {
    if (inPlace && (!strcmp(name, "alltoall") || !strcmp(name, "sendrecv") || puts(name))) continue;
    std::vector<std::string> args = {"perf",     name,      "--ranks", "3",     "--check",
                                     "--dtype",  "all",     "--op",    "all",   "--root",
                                     "1",        "--begin", "48",      "--end", "12K",
                                     "--factor", "256",     "--iters", "2"};
    if (threads) args.push_back("--threads");
    if (inPlace) args.push_back("--in-place");
    if (puts(name)) args.insert(args.end(), {"--buffers", "window"});
    Result r = tutti(args);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    auto table = rows(r.out);
    bool reduces = strstr(name, "reduce") != nullptr;
    EXPECT_EQ(table.size(), 12u * (reduces ? 5 : 1) * 2);
    for (auto &row : table) {
      ASSERT_EQ(row.size(), 9u);
      EXPECT_EQ(row[8], "0");
    }
    EXPECT_THAT(r.out, HasSubstr("# Wrong elements   : 0 (OK)"));
    EXPECT_THAT(r.out, HasSubstr(threads ? "3 ranks (threads)" : "3 ranks (processes)"));
  }
}

INSTANTIATE_TEST_SUITE_P(Tools, Perf,
                         testing::Combine(testing::ValuesIn(collectives), testing::Bool()),
                         [](const auto &info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "Threads" : "Processes");
                         });

TEST(PerfTable, AllMeansAll) {
  Result r = tutti({"perf", "all", "--ranks", "2", "--begin", "1K", "--end", "1K", "--iters", "1"});
  EXPECT_EQ(r.code, 0) << r.err;
  for (auto name : collectives)
    EXPECT_EQ(r.out.find(std::string("\n# ") + name + "\n") == std::string::npos, puts(name));
  EXPECT_EQ(rows(r.out).size(), 9u);
  EXPECT_EQ(rows(r.out)[0][8], "N/A");
}

TEST(PerfTable, AllWithWindowsHasPuts) {
  Result r = tutti({"perf", "all", "--ranks", "2", "--begin", "1K", "--end", "1K", "--iters", "1",
                    "--buffers", "window", "--check"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("\n# put_signal\n"));
  EXPECT_EQ(rows(r.out).size(), 10u);
  r = tutti({"perf", "put_signal", "--ranks", "2"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("put_signal needs --buffers window"));
}

TEST(PerfTable, SeveralAreThoseAndNoOthers) {
  Result r = tutti({"perf", "sendrecv", "all_reduce", "--ranks", "2", "--begin", "1K", "--end",
                    "1K", "--iters", "1"});
  EXPECT_EQ(r.code, 0) << r.err;
  for (auto name : {"all_reduce", "sendrecv"})
    EXPECT_THAT(r.out, HasSubstr(std::string("\n# ") + name + "\n"));
  EXPECT_EQ(rows(r.out).size(), 2u);
}

TEST(PerfTable, ColumnsAreAlignedAndFiguresAgree) {
  Result r = tutti({"perf", "all-reduce", "--ranks", "4", "--begin", "8", "--end", "4M", "--factor",
                    "8", "--iters", "2", "--dtype", "bfloat16", "--op", "max"});
  ASSERT_EQ(r.code, 0) << r.err;
  size_t width = 0;
  for (auto &line : lines(r.out)) {
    if (line.find("size") == std::string::npos && line[0] == '#') continue;
    if (width == 0) width = line.size();
    EXPECT_EQ(line.size(), width) << line;
  }
  auto table = rows(r.out);
  ASSERT_EQ(table.size(), 7u);
  size_t size = 8;
  for (auto &row : table) {
    EXPECT_EQ(row[0], std::to_string(size));
    EXPECT_EQ(row[1], std::to_string(size / 2));
    EXPECT_EQ(row[2] + row[3] + row[4], "bfloat16max-1");
    double algbw = (double)size / std::stod(row[5]) / 1e3;
    EXPECT_NEAR(std::stod(row[6]), algbw, 0.006 + algbw * 0.01);
    EXPECT_NEAR(std::stod(row[7]), algbw * 1.5, 0.006 + algbw * 0.02);
    size *= 8;
  }
  EXPECT_THAT(r.out, ContainsRegex("#   rank    3  host .* pid +[0-9]+  device host"));
  EXPECT_THAT(r.out, HasSubstr("# Avg bus bandwidth: "));
}

TEST(PerfTable, TinySizesRoundToOneElementPerRankOnce) {
  Result r =
      tutti({"perf", "all_gather", "--ranks", "4", "--begin", "1", "--end", "64", "--check"});
  auto table = rows(r.out);
  ASSERT_EQ(table.size(), 3u) << r.out; /* 16 (from 1 to 16), 32 and 64 bytes */
  EXPECT_EQ(table[0][0], "16");
  EXPECT_EQ(table[0][1], "1");
}

TEST(PerfTable, OneRankIsEnough) {
  Result r = tutti({"perf", "all", "--ranks", "1", "--begin", "64", "--end", "4K", "--check"});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST(PerfTable, RanksDefaultToFourWithANote) {
  Result r = tutti({"perf", "all_reduce", "--end", "64"});
  EXPECT_EQ(r.code, 0);
  EXPECT_THAT(r.err, HasSubstr("--ranks is not given; starting 4 ranks"));
  EXPECT_THAT(r.out, HasSubstr("4 ranks"));
}

/* ---- JSON and progress -------------------------------------------------------------------------
 */

const char *const parseRows =
    "import json, sys\n"
    "rows = [json.loads(line) for line in open(sys.argv[1])]\n"
    "assert [r['size'] for r in rows] == [64, 128, 256], rows\n"
    "keys = 'collective size count type redop root time algbw busbw wrong nranks in_place iters "
    "checks '\n"
    "assert set(rows[0]) == set((keys + 'launcher version').split()), rows[0]\n"
    "assert all(r['wrong'] == 0 and r['collective'] == 'reduce' and r['root'] == 1\n"
    "           and r['nranks'] == 2 and r['in_place'] is True and r['time'] > 0 for r in rows)\n";

TEST(PerfJson, LinesHaveTheColumns) {
  if (!installed("python3")) GTEST_SKIP() << "needs python3";
  std::string path = testing::TempDir() + "tutti-perf-" + std::to_string(getpid()) + ".json";
  std::vector<std::string> args = {"perf", "reduce",     "--ranks", "2",       "--begin",
                                   "64",   "--end",      "256",     "--check", "--root",
                                   "1",    "--in-place", "--json"};
  args.push_back(path);
  Result r = tutti(args);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(rows(r.out).size(), 3u) << "the table as well";
  Command parse({"python3", "-c", parseRows, path});
  EXPECT_EQ(parse.wait(), 0) << parse.err();
  args.back() = "-";
  r = tutti(args);
  EXPECT_EQ(r.code, 0) << r.err;
  std::ofstream(path) << r.out;
  Command parseStdout({"python3", "-c", parseRows, path});
  EXPECT_EQ(parseStdout.wait(), 0) << parseStdout.err();
  unlink(path.c_str());
}

TEST(PerfJson, AFileThatCannotBeWrittenIsAFailure) {
  Result r = tutti({"perf", "all_reduce", "--ranks", "2", "--end", "64", "--json", "/nowhere/x"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("cannot write --json /nowhere/x: No such file"));
  r = tutti({"perf", "all_reduce", "--ranks", "2", "--end", "64", "--json", "/dev/full"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("cannot write /dev/full: No space left"));
}

TEST(PerfProgress, OnlyOnATerminal) {
  int master, terminal;
  ASSERT_EQ(openpty(&master, &terminal, nullptr, nullptr, nullptr), 0);
  std::string tty = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(terminal);
  Command c({"sh", "-c", "exec \"$0\" perf all_reduce --ranks 2 --end 64 2>" + tty, TUTTI_COMMAND});
  EXPECT_EQ(c.wait(), 0) << c.err();
  char shown[8192];
  ssize_t n = read(master, shown, sizeof shown);
  ASSERT_GT(n, 0);
  EXPECT_THAT(std::string(shown, n), HasSubstr("0/4 all_reduce float32 8 B"));
  EXPECT_THAT(c.out(), Not(HasSubstr("\r")));
  close(terminal);
  close(master);
  Result piped = tutti({"perf", "all_reduce", "--ranks", "2", "--end", "64"});
  EXPECT_EQ(piped.err, "");
}

/* ---- launchers ---------------------------------------------------------------------------------
 */

TEST(PerfLauncher, OpenMpi) {
  if (!installed("mpirun")) GTEST_SKIP() << "needs Open MPI's mpirun";
  HeldPort held;
  Command c({"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", TUTTI_COMMAND, "perf",
             "all_reduce", "--check", "--begin", "1K", "--end", "4K", "--port",
             std::to_string(held.number())});
  Result r = finished(c);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(rows(r.out).size(), 3u) << r.out;
  EXPECT_THAT(r.out, HasSubstr("3 ranks (Open MPI)"));
}

/* As a launcher would: one process per rank, told its place by variables. */
void launched(const char *name, const std::vector<std::vector<std::string>> &env) {
  std::vector<std::unique_ptr<Command>> ranks;
  for (auto &e : env)
    ranks.push_back(std::make_unique<Command>(
        std::vector<std::string>{TUTTI_COMMAND, "perf", "broadcast", "--check", "--begin", "1K",
                                 "--end", "2K"},
        e));
  for (auto &r : ranks)
    EXPECT_EQ(r->wait(), 0) << name << ": " << r->err();
  EXPECT_THAT(ranks[0]->out(), HasSubstr("2 ranks (" + std::string(name) + ")"));
  EXPECT_EQ(ranks[1]->out(), "") << "only rank 0 prints";
}

/* Where this process would meet the others if a launcher had set these. */
std::string meetingPoint(const std::map<std::string, std::string> &env) {
  for (auto &[name, value] : env)
    setenv(name.c_str(), value.c_str(), 1);
  perfOptions options = {};
  perfPlace place;
  EXPECT_EQ(perfFindPlace(&options, &place), -1);
  std::string at = getenv("TUTTI_COMM_ID") ? getenv("TUTTI_COMM_ID") : "";
  for (auto &[name, value] : env)
    unsetenv(name.c_str());
  unsetenv("TUTTI_COMM_ID");
  return at;
}

/* The port is the one behind torch's own. */
TEST(PerfLauncher, Torchrun) {
  HeldPort held;
  std::string master = "MASTER_PORT=" + std::to_string(held.number() - 1);
  launched("torchrun", {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", master},
                        {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", master}});
}

/* The port follows from the number of the job: of one whose port is free. */
TEST(PerfLauncher, Slurm) {
  std::unique_ptr<HeldPort> held;
  std::string job;
  for (int number = 1; number < 10000 && !(held && held->ok()); number++) {
    job = std::to_string(number);
    std::string at = meetingPoint({{"SLURM_PROCID", "0"},
                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_STEP_NUM_NODES", "1"},
                                   {"SLURM_JOB_ID", job}});
    ASSERT_THAT(at, testing::StartsWith("127.0.0.1:"));
    held = std::make_unique<HeldPort>(atoi(at.c_str() + strlen("127.0.0.1:")));
  }
  ASSERT_TRUE(held->ok());
  job = "SLURM_JOB_ID=" + job;
  launched("Slurm", {{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_NODES=1", job},
                     {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_NODES=1", job}});
}

/* All ranks of a job derive one port, and another job another. */
TEST(PerfLauncher, TheJobTellsWhereItsRanksMeet) {
  auto of = [](const char *rank, const char *job) {
    return meetingPoint({{"OMPI_COMM_WORLD_RANK", rank},
                         {"OMPI_COMM_WORLD_SIZE", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                         {"PMIX_NAMESPACE", job}});
  };
  EXPECT_THAT(of("0", "prterun-1"), testing::StartsWith("127.0.0.1:"));
  EXPECT_EQ(of("0", "prterun-1"), of("2", "prterun-1"));
  EXPECT_NE(of("0", "prterun-1"), of("0", "prterun-2"));
}

/* A process that stands for one that starts ranks, and the sockets that each of them has to it. */
struct Proxy {
  static constexpr int RANKS = 2;
  explicit Proxy(const char *name) {
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {AF_UNIX, {}};
    std::string own = std::string("tutti-test-") + name + std::to_string(getpid());
    own.copy(address.sun_path + 1, sizeof address.sun_path - 1); // abstract
    auto at = (const sockaddr *)&address;
    EXPECT_EQ(bind(listener, at, sizeof address), 0);
    EXPECT_EQ(listen(listener, RANKS), 0);
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int i = 0; i < RANKS; i++)
        connect(socket(AF_UNIX, SOCK_STREAM, 0), at, sizeof address);
      pause();
    }
    for (int &fd : fds)
      fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    close(listener);
  }
  ~Proxy() {
    for (int fd : fds)
      close(fd);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  Proxy(const Proxy &) = delete;
  pid_t pid;
  int fds[RANKS];
};

/* MPICH gives its jobs no names. */
TEST(PerfLauncher, TheProcessThatStartedRanksTellsPmiJobsApart) {
  auto of = [](const std::string &fd, const char *id) {
    return meetingPoint({{"PMI_RANK", "0"},
                         {"PMI_SIZE", "2"},
                         {"MPI_LOCALNRANKS", "2"},
                         {"HYDI_CONTROL_FD", "7"},
                         {"PMI_FD", fd},
                         {"PMI_ID", id}});
  };
  auto at = [&](const Proxy &proxy, int i) { return of(std::to_string(proxy.fds[i]), ""); };
  Proxy a("a"), b("b"), c("c");
  EXPECT_THAT(at(a, 0), testing::StartsWith("127.0.0.1:"));
  EXPECT_EQ(at(a, 0), at(a, 1));
  EXPECT_TRUE(at(a, 0) != at(b, 0) || at(a, 0) != at(c, 0)) << "two may have one port by chance";
  EXPECT_EQ(of(std::to_string(a.fds[0]), "a name"), of("", "a name"));
  /* What is no socket of such a process: the parent tells. */
  std::string parents = of("", ""),
              nowhere = std::to_string(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (auto none : {nowhere.c_str(), "1000000", "x", "-1"})
    EXPECT_EQ(of(none, ""), parents) << none;
  EXPECT_TRUE(parents != at(a, 0) || parents != at(b, 0));
  close(std::stoi(nowhere));
}

/* Each host has a process of its own that starts ranks: it cannot tell where those of all meet. */
TEST(PerfLauncher, PmiOverHostsMeetsAtOnePort) {
  auto of = [](const Proxy &proxy) {
    return meetingPoint({{"PMI_RANK", "0"},
                         {"PMI_SIZE", "4"},
                         {"MPI_LOCALNRANKS", "2"},
                         {"MASTER_ADDR", "10.0.0.1"},
                         {"PMI_FD", std::to_string(proxy.fds[0])}});
  };
  Proxy a("a"), b("b"), c("c");
  EXPECT_EQ(of(a), of(b));
  EXPECT_EQ(of(a), of(c));
}

TEST(PerfLauncher, SlurmOverHostsMeetsAtTheFirst) {
  Result r = tutti({"perf", "broadcast"}, {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
                                           "SLURM_JOB_ID=5", "SLURM_STEP_NUM_NODES=2",
                                           "SLURM_STEP_NODELIST=no.such[03-7,9].host.invalid,b"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("no.such03.host.invalid"));
}

TEST(PerfLauncher, ABatchScriptOfSlurmIsNoRank) {
  Result r = tutti({"perf", "broadcast", "--ranks", "2", "--end", "64"},
                   {"SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=2", "SLURM_JOB_NUM_NODES=1",
                    "SLURM_NODELIST=localhost", "SLURM_JOB_ID=5", "TUTTI_TIMEOUT=20"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("2 ranks (processes)"));
}

TEST(PerfLauncher, PmiWithCommId) {
  HeldPort held;
  std::string id = "TUTTI_COMM_ID=127.0.0.1:" + std::to_string(held.number());
  launched("PMI", {{"PMI_RANK=0", "PMI_SIZE=2", id}, {"PMI_RANK=1", "PMI_SIZE=2", id}});
}

/* A library that is not tutti knows nothing of TUTTI_COMM_ID. */
TEST(PerfLauncher, AnotherLibraryIsToldTheMeetingPointByNcclsName) {
  const char *const names[] = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "TUTTI_COMM_ID",
                               "NCCL_COMM_ID"};
  auto idFor = [&](const char *lib, const char *tuttis, const char *nccls) {
    const char *const values[] = {"0", "2", "2", tuttis, nccls};
    for (int i = 0; i < 5; i++)
      setenv(names[i], values[i], 1);
    perfOptions options = {};
    perfPlace place;
    options.lib = lib;
    options.port = 4455;
    EXPECT_EQ(perfFindPlace(&options, &place), -1);
    std::string both = std::string(getenv(names[3])) + " " + getenv(names[4]);
    for (auto name : names)
      unsetenv(name);
    return both;
  };
  EXPECT_EQ(idFor(nullptr, "", ""), "127.0.0.1:4455 ");
  EXPECT_EQ(idFor("x", "", ""), "127.0.0.1:4455 127.0.0.1:4455");
  EXPECT_EQ(idFor("x", "a:1", ""), "a:1 a:1");
  EXPECT_EQ(idFor("x", "a:1", "b:2"), "a:1 b:2") << "what the user has set stays";
  EXPECT_EQ(idFor("x", "", "b:2"), "b:2 b:2");
}

TEST(PerfLauncher, NoMeetingPointIsSaid) {
  Result r = tutti({"perf", "broadcast"}, {"PMI_RANK=0", "PMI_SIZE=2"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("set TUTTI_COMM_ID=host:port"));
}

TEST(PerfLauncher, ContradictionIsRefused) {
  std::vector<std::string> env = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"};
  Result r = tutti({"perf", "broadcast", "--ranks", "3"}, env);
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("leave --ranks and --threads out"));
  r = tutti({"perf", "broadcast"}, {"RANK=2", "WORLD_SIZE=2"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("which is no rank"));
  /* A shell within a job of one task. */
  r = tutti({"perf", "broadcast", "--ranks", "2", "--end", "64"},
            {"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("2 ranks (processes)"));
}

/* ---- other libraries, buffers, graphs ----------------------------------------------------------
 */

/* On host memory, also where the foreign library would choose a GPU; and with room for the
 * thread-local memory of a second tutti that dlopen(3) brings in. */
Result onHost(std::vector<std::string> args) {
  args.insert(args.begin(), {"perf"});
  args.insert(args.end(), {"--device", "host", "--ranks", "3", "--begin", "64", "--end", "4K"});
  return tutti(args, {"TUTTI_DEVICE=host"});
}

TEST(PerfLibrary, EveryCollectiveOfAnother) {
  for (auto mode : {"--threads", "--check"}) {
    Result r = onHost({"all", "--check", "--factor", "8", "--lib", NCCL_LIBRARY, mode});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(rows(r.out).size(), 9u * 3);
    EXPECT_THAT(r.out, HasSubstr("2.32.3")) << "the version of that library";
    EXPECT_THAT(r.out, HasSubstr("# Wrong elements   : 0 (OK)"));
  }
}

TEST(PerfLibrary, EveryKindOfBuffer) {
  for (auto kind : {"plain", "registered", "window"})
    for (bool foreign : {false, true}) {
      std::vector<std::string> args = {"all_reduce", "--check", "--buffers", kind};
      if (foreign) args.insert(args.end(), {"--lib", NCCL_LIBRARY});
      Result r = onHost(args);
      EXPECT_EQ(r.code, 0) << kind << r.err;
      EXPECT_THAT(r.out, HasSubstr("# Wrong elements   : 0 (OK)")) << kind;
    }
}

/* The dynamic linker tells of each library that it starts, this one's log of the communicator of
 * one rank that makes each copy ask where it is. */
TEST(PerfLibrary, CopiesApartAreOnesOfTheirOwn) {
  for (bool apart : {false, true}) {
    std::vector<std::string> args = {"perf",    "all_reduce", "--check",  "--threads",
                                     "--ranks", "3",          "--device", "host",
                                     "--end",   "1K",         "--lib",    NCCL_LIBRARY};
    if (apart) args.push_back("--apart");
    Result r = tutti(args, {"NCCL_DEBUG=INFO", "LD_DEBUG=libs", "TUTTI_DEVICE=host"});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("# Wrong elements   : 0 (OK)"));
    int copies = 0, alone = 0;
    for (auto &line : lines(r.err)) {
      copies += line.find("calling init: /proc/self/fd/") != std::string::npos;
      alone += line.find(" rank 0 nranks 1 ") != std::string::npos;
    }
    EXPECT_EQ(copies, apart ? 3 : 0);
    EXPECT_EQ(alone, apart ? 3 : 0);
  }
  Result r = tutti({"perf", "all_reduce", "--apart", "--threads", "--ranks", "2"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("--apart needs --lib and --threads"));
  r = tutti({"perf", "all_reduce", "--apart", "--ranks", "2", "--lib", NCCL_LIBRARY});
  EXPECT_EQ(r.code, 2);
}

TEST(PerfLibrary, OnesThatCannotBeUsedAreNamed) {
  Result r = onHost({"all_reduce", "--lib", "/nowhere/libnccl.so"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("cannot load --lib /nowhere/libnccl.so"), HasSubstr("No such file")));
  EXPECT_EQ(lines(r.err).size(), 1u) << r.err;
  r = onHost({"all_reduce", "--lib", "libm.so.6"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("--lib libm.so.6 has no ncclGetVersion"));
  r = onHost({"all_reduce", "--lib", "/proc/self/cmdline"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("cannot load --lib /proc/self/cmdline"));
}

/* Times of calls would pass for those of replays. */
TEST(PerfGraph, NeedsAGpu) {
  for (auto mode : {"--threads", "--check"}) {
    Result r = onHost({"all_reduce", "--graph", mode});
    EXPECT_EQ(r.code, 1);
    EXPECT_THAT(r.err, HasSubstr("rank 0: --graph needs a GPU"));
    EXPECT_EQ(rows(r.out).size(), 0u);
  }
}

/* ---- failures ----------------------------------------------------------------------------------
 */

TEST(PerfFailure, MalformedSettingIsToldOnce) {
  Result r = tutti({"perf", "all_reduce", "--ranks", "2"}, {"TUTTI_TIMEOUT=abc"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, AllOf(HasSubstr("TUTTI_TIMEOUT"), HasSubstr("abc")));
  EXPECT_EQ(lines(r.err).size(), 1u) << r.err;
}

TEST(PerfFailure, ALibraryFailureIsToldByEachRank) {
  for (auto mode : {"--threads", "--check"}) {
    Result r = tutti({"perf", "all_reduce", "--ranks", "2", "--device", "cuda", mode});
    EXPECT_EQ(r.code, 1);
    EXPECT_THAT(r.err, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("CUDA")));
  }
}

TEST(PerfFailure, MemoryThatIsNotThereIsToldInBytes) {
  for (auto mode : {"--threads", "--check"}) {
    Result r = tutti({"perf", "all_reduce", "--ranks", "2", "--device", "host", "--begin",
                      "4194303T", "--end", "4194303T", mode});
    EXPECT_EQ(r.code, 1);
    EXPECT_THAT(r.err, HasSubstr("no 4611684918915768320 bytes of host memory"));
  }
}

/* A library that gets one element of the last rank wrong. */
tuttiResult_t wrongAllReduce(const void *send, void *recv, size_t count, tuttiDataType_t type,
                             tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  tuttiResult_t result = tuttiAllReduce(send, recv, count, type, op, comm, stream);
  int rank;
  if (tuttiCommUserRank(comm, &rank) == tuttiSuccess && rank == 1) ((char *)recv)[3] ^= 64;
  return result;
}

/* What the call before has made. */
tuttiResult_t staleAllReduce(const void *send, void *recv, size_t count, tuttiDataType_t type,
                             tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  static thread_local std::vector<char> before;
  tuttiResult_t result = tuttiAllReduce(send, recv, count, type, op, comm, stream);
  std::vector<char> now((char *)recv, (char *)recv + 4 * count);
  if (before.size() == now.size()) memcpy(recv, before.data(), before.size());
  before = now;
  return result;
}

/* Buffers of another memory would be touched where there is none. */
TEST(PerfOptions, MemoryIsWhatCommunicatorsTake) {
  auto device = [](const char *setting, const char *more) {
    char name[] = "perf", collective[] = "broadcast", word[32];
    snprintf(word, sizeof word, "%s", more);
    char *argv[] = {name, collective, word};
    perfOptions options;
    optind = 0;
    setenv("TUTTI_DEVICE", setting, 1);
    EXPECT_EQ(perfParse(*more ? 3 : 2, argv, &options), -1);
    unsetenv("TUTTI_DEVICE");
    return static_cast<int>(options.device);
  };
  EXPECT_EQ(device("auto", ""), tuttiDeviceAuto);
  EXPECT_EQ(device("host", ""), tuttiDeviceHost);
  EXPECT_EQ(device("cuda", ""), tuttiDeviceCuda);
  EXPECT_EQ(device("cuda", "--device=host"), tuttiDeviceHost);
  EXPECT_EQ(device("tape", ""), tuttiDeviceAuto) << "an init says that it is malformed";
}

/* Of both ranks of a library that sums wrong. */
struct Wrong {
  int code;
  std::string out, err;
};

Wrong sumWrong(std::vector<const char *> words, decltype(&tuttiAllReduce) how = wrongAllReduce) {
  perfLibrary library = perfTutti;
  library.AllReduce = how;
  std::vector<std::string> copies(words.begin(), words.end());
  std::vector<char *> argv;
  for (auto &word : copies)
    argv.push_back(word.data());
  perfOptions options;
  optind = 0;
  EXPECT_EQ(perfParse((int)argv.size(), argv.data(), &options), -1);
  perfPlace place = {0, 2, 0, "threads", false, {}};
  EXPECT_EQ(tuttiGetUniqueId(&place.id), tuttiSuccess);
  perfPlace other = place;
  other.rank = 1;
  int codes[2];
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::thread second([&] { codes[1] = perfRunRank(&library, &options, &other); });
  codes[0] = perfRunRank(&library, &options, &place);
  second.join();
  std::string out = testing::internal::GetCapturedStdout();
  return {codes[0], out, testing::internal::GetCapturedStderr()};
}

TEST(PerfFailure, WrongDataIsCountedAndFails) {
  Wrong w = sumWrong({"perf", "all_reduce", "--check", "--json", "-", "--end=16"});
  EXPECT_EQ(w.code, 1);
  EXPECT_THAT(w.out, AllOf(HasSubstr("\"size\":8,"), HasSubstr("\"wrong\":1,")));
  EXPECT_THAT(w.err, HasSubstr("rank 1: all_reduce of 2 float32 elements, sum: element 0 of the "
                               "output is"));
  EXPECT_THAT(w.err, HasSubstr("2 wrong elements"));
}

TEST(PerfFailure, WrongDataOfEachCheckedCallIsCounted) {
  Wrong w = sumWrong({"perf", "all_reduce", "--check", "--checks=7", "--json", "-", "--end=8"});
  EXPECT_EQ(w.code, 1);
  EXPECT_THAT(w.out, AllOf(HasSubstr("\"wrong\":7,"), HasSubstr("\"checks\":7,")));
}

TEST(PerfFailure, NoTwoCheckedCallsHaveTheSameInputs) {
  Wrong w = sumWrong({"perf", "all_reduce", "--check", "--checks=7", "--json", "-", "--end=8"},
                     staleAllReduce);
  EXPECT_EQ(w.code, 1);
  EXPECT_THAT(w.out, HasSubstr("\"wrong\":28,")) << "2 elements of 2 ranks, 7 times";
}

/* The processes of a run that goes on until it is ended: the ranks' ids from the table's head. */
class Endless {
public:
  Endless()
      : command({TUTTI_COMMAND, "perf", "all_reduce", "--ranks", "4", "--iters", "1000000000",
                 "--begin", "1K", "--end", "1K"}) {
    for (int i = 0; i < 12000 && pids.size() < 4; i++) {
      pids.clear();
      for (auto &line : lines(command.out())) {
        size_t at = line.find(" pid ");
        if (at != std::string::npos) pids.push_back(atoi(line.c_str() + at + 5));
      }
      usleep(10000);
    }
    EXPECT_EQ(pids.size(), 4u) << command.err();
  }
  /* True once none of the ranks is there, not even as a zombie. */
  bool gone() {
    for (int i = 0; i < 3000; i++) {
      if (std::none_of(pids.begin(), pids.end(), [](pid_t p) { return kill(p, 0) == 0; }))
        return true;
      usleep(10000);
    }
    return false;
  }
  Command command;
  std::vector<pid_t> pids;
};

TEST(PerfFailure, AKilledRankIsNamedAndEndsTheOthers) {
  Endless run;
  ASSERT_EQ(run.pids.size(), 4u);
  kill(run.pids[2], SIGKILL);
  EXPECT_EQ(run.command.wait(), 1);
  EXPECT_THAT(run.command.err(),
              HasSubstr("rank 2 (pid " + std::to_string(run.pids[2]) + ") was killed by signal 9"));
  EXPECT_TRUE(run.gone());
}

TEST(PerfFailure, ASignalEndsAllRanksAndTheLauncher) {
  for (int signal : {SIGINT, SIGTERM}) {
    Endless run;
    ASSERT_EQ(run.pids.size(), 4u);
    kill(run.command.pid(), signal);
    EXPECT_EQ(run.command.wait(), 128 + signal);
    EXPECT_TRUE(run.gone());
  }
}

TEST(PerfFailure, ItEndsWhereEndsOfChildrenAreIgnored) {
  Command c({"env", "--ignore-signal=CHLD", TUTTI_COMMAND, "perf", "all_reduce", "--ranks", "2",
             "--end", "64"});
  EXPECT_EQ(c.wait(60), 0) << c.err();
}

TEST(PerfFailure, AStoppedRankIsEndedToo) {
  Endless run;
  ASSERT_EQ(run.pids.size(), 4u);
  kill(run.pids[1], SIGSTOP);
  kill(run.command.pid(), SIGINT);
  EXPECT_EQ(run.command.wait(), 128 + SIGINT);
  EXPECT_TRUE(run.gone());
}

TEST(PerfFailure, RanksDieWithTheirLauncher) {
  Endless run;
  ASSERT_EQ(run.pids.size(), 4u);
  kill(run.command.pid(), SIGKILL);
  run.command.wait();
  EXPECT_TRUE(run.gone());
}

} // namespace
