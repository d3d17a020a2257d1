/* The command as a user sees it: help, bad arguments, exit codes, tutti env. */
#include <fcntl.h>

#include "command.h"
#include "device/cpu/sanitized.h"
#include "topology/sysfs_tree.h"

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Command, HelpIsEverywhere) {
  const std::vector<std::vector<std::string>> asks = {{"--help"},         {"-h"},
                                                      {"help"},           {"perf", "--help"},
                                                      {"perf", "-h"},     {"env", "--help"},
                                                      {"topo", "--help"}, {"help", "perf"},
                                                      {"help", "env"},    {"help", "topo"},
                                                      {"run", "--help"},  {"version", "--help"},
                                                      {"help", "version"}};
  for (auto &ask : asks) {
    Result r = tutti(ask);
    EXPECT_EQ(r.code, 0) << ask[0];
    EXPECT_THAT(r.out, StartsWith("Usage: tutti")) << ask[0];
    EXPECT_EQ(r.err, "") << ask[0];
  }
}

TEST(Command, Version) {
  for (auto ask : {"version", "--version"}) {
    Result r = tutti({ask});
    EXPECT_EQ(r.code, 0);
    EXPECT_THAT(r.out, ContainsRegex("^tutti [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
  }
}

struct Bad {
  std::vector<std::string> args;
  const char *says;
};

TEST(Command, BadArgumentsAreNamedWithARemedy) {
  const Bad bad[] = {
      {{}, "a command is missing"},
      {{"pref"}, "unknown command 'pref'; did you mean 'perf'?"},
      {{"xyzzy"}, "unknown command 'xyzzy'"},
      {{"help", "pref"}, "did you mean 'perf'?"},
      {{"env", "--jsn"}, "unknown option --jsn; did you mean --json?"},
      {{"env", "--json", "--markdown"}, "exclude each other"},
      {{"env", "x"}, "unexpected argument 'x'"},
      {{"run"}, "a command to run is missing"},
      {{"run", "--"}, "a command to run is missing"},
      {{"run", "--fast", "true"}, "unknown option '--fast'"},
      {{"perf"}, "which collective?"},
      {{"perf", "allreduec"}, "did you mean 'all_reduce'?"},
      {{"perf", "all_reduce", "twice"}, "unknown collective 'twice'"},
      {{"perf", "all_reduce", "--rnks", "4"}, "unknown option --rnks; did you mean --ranks?"},
      {{"perf", "all_reduce", "-q"}, "unknown option -q"},
      {{"perf", "all_reduce", "--ranks"}, "option --ranks needs a value"},
      {{"perf", "all_reduce", "--check=1"}, "option --check takes no value"},
      {{"perf", "all_reduce", "--ranks", "0"}, "--ranks is '0'"},
      {{"perf", "all_reduce", "--ranks", "99999999999"}, "must be a number from 1 to 16384"},
      {{"perf", "all_reduce", "--begin", "8Q"}, "--begin is '8Q'"},
      {{"perf", "all_reduce", "--begin", "2K", "--end", "1K"}, "--begin (2048 bytes) is above"},
      {{"perf", "all_reduce", "--factor", "1"}, "--factor is '1'"},
      {{"perf", "all_reduce", "--dtype", "flot32"}, "did you mean 'float32'?"},
      {{"perf", "all_reduce", "--op", "som"}, "did you mean 'sum'?"},
      {{"perf", "all_reduce", "--device", "cud"}, "did you mean 'cuda'?"},
      {{"perf", "broadcast", "--root", "4", "--ranks", "4"}, "--root 4 is not one of the 4 ranks"},
      {{"perf", "broadcast", "--root", "-1"}, "--root is '-1'"},
      {{"perf", "all_reduce", "--iters", "-1"}, "--iters is '-1'"},
      {{"perf", "all_reduce", "--port", "65536"}, "--port is '65536'"},
      {{"perf", "alltoall", "--in-place"}, "alltoall has no in-place form"},
      {{"perf", "all_reduce", "--buffers", "windw"},
       "unknown --buffers 'windw'; did you mean 'window'?"},
      {{"perf", "all_reduce", "--buffers", "all"}, "unknown --buffers 'all'"},
      {{"perf", "all_reduce", "--buffers"}, "option --buffers needs a value"},
      {{"perf", "all_reduce", "--lib"}, "option --lib needs a value"},
      {{"perf", "all_reduce", "--graph=1"}, "option --graph takes no value"},
  };
  for (auto &b : bad) {
    Result r = tutti(b.args);
    EXPECT_EQ(r.code, 2) << b.says << r.err;
    EXPECT_THAT(r.err, HasSubstr(b.says));
    EXPECT_EQ(r.out, "") << b.says;
  }
}

TEST(Command, FullDiskIsAFailure) {
  int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const std::vector<std::vector<std::string>> all = {
      {"--help"},
      {"version"},
      {"env"},
      {"env", "--json"},
      {"perf", "--help"},
      {"perf", "all_reduce", "--ranks", "2", "--end", "1K"},
      {"perf", "all_reduce", "--ranks", "2", "--end", "1K", "--json", "-"}};
  for (auto args : all) {
    args.insert(args.begin(), TUTTI_COMMAND);
    Command c(args, {}, full);
    Result r = finished(c);
    EXPECT_EQ(r.code, 1) << args.back();
    EXPECT_THAT(r.err, AllOf(HasSubstr("cannot write"), HasSubstr("No space left"))) << args.back();
  }
  close(full);
}

/* ---- tutti env --------------------------------------------------------------------------------
 */

TEST(Env, ShowsValueOriginAndDefault) {
  Result r = tutti({"env"}, {"TUTTI_TIMEOUT=1.5", "NCCL_NSOCKS_PERTHREAD=4", "TUTTI_ALGO=Ring"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, ContainsRegex("TUTTI_TIMEOUT +1.500 +TUTTI_TIMEOUT +600 +Deadline"));
  EXPECT_THAT(r.out, ContainsRegex("TUTTI_SOCKET_NSOCKS +4 +NCCL_NSOCKS_PERTHREAD +1 +Sockets"));
  EXPECT_THAT(r.out, ContainsRegex("TUTTI_ALGO +Ring +TUTTI_ALGO +.unset. +Algorithms"));
  EXPECT_THAT(r.out, ContainsRegex("TUTTI_BUFFSIZE +4M +default +4M +Bytes"));
}

TEST(Env, MalformedSettingIsNamed) {
  Result r = tutti({"env"}, {"TUTTI_TIMEOUT=abc"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, AllOf(HasSubstr("TUTTI_TIMEOUT"), HasSubstr("abc")));
  EXPECT_EQ(r.out, "");
}

TEST(Env, MarkdownDoesNotDependOnTheEnvironment) {
  Result plain = tutti({"env", "--markdown"});
  Result set = tutti({"env", "--markdown"}, {"TUTTI_TIMEOUT=7", "TUTTI_BUFFSIZE=abc"});
  EXPECT_EQ(plain.code, 0);
  EXPECT_EQ(plain.out, set.out);
  EXPECT_THAT(plain.out, StartsWith("# Settings\n"));
  EXPECT_THAT(plain.out,
              HasSubstr("| `TUTTI_TIMEOUT` | seconds, 0 to 864000 | `600` | | Deadline"));
}

TEST(Env, JsonIsValid) {
  if (!installed("python3")) GTEST_SKIP() << "needs python3";
  Result r = tutti({"env", "--json"}, {"TUTTI_TOPO_DUMP_FILE=a\"b\\c\n\xff"});
  ASSERT_EQ(r.code, 0) << r.err;
  Command parse({"python3", "-c",
                 "import json, sys\n"
                 "rows = [json.loads(line) for line in sys.argv[1].splitlines()]\n"
                 "file = [r for r in rows if r['name'] == 'TUTTI_TOPO_DUMP_FILE'][0]\n"
                 "assert file['value'] == 'a\"b\\\\c\\n\\ufffd', file\n"
                 "assert file['origin'] == file['name'] and file['default'] == '', file\n"
                 "assert len(rows) > 10 and all(r['help'] for r in rows)",
                 r.out});
  EXPECT_EQ(parse.wait(), 0) << parse.err();
}

/* By dlopen(3), where little static thread-local memory is left. */
TEST(Library, CanBeLoadedByAnInterpreter) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library must come first";
  if (!installed("python3")) GTEST_SKIP() << "needs python3";
  Command c({"python3", "-c", "import ctypes; ctypes.CDLL('" TUTTI_LIBRARY "')"});
  EXPECT_EQ(c.wait(), 0) << c.err();
}

TEST(Run, PutsTheLibraryBeforeWhatIsThere) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library must come first";
  Result r = tutti({"run", "--", "sh", "-c", "echo $LD_PRELOAD $LD_LIBRARY_PATH; exit 7"},
                   {"LD_PRELOAD=", "LD_LIBRARY_PATH=/some/where"});
  std::string folder = std::string(NCCL_LIBRARY).substr(0, strlen(NCCL_LIBRARY) - 13);
  EXPECT_EQ(r.out, std::string(NCCL_LIBRARY) + " " + folder + ":/some/where\n") << r.err;
  EXPECT_EQ(r.code, 7);
  r = tutti({"run", "/nowhere/program"});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "tutti run: cannot run /nowhere/program: No such file or directory\n");
}

TEST(Topo, BadArgumentsAreNamedWithARemedy) {
  const Bad bad[] = {
      {{"topo", "--chanels", "2"}, "unknown option --chanels; did you mean --channels?"},
      {{"topo", "--svg"}, "option --svg needs a value"},
      {{"topo", "x"}, "unexpected argument 'x'"},
      {{"topo", "--ranks", "0"}, "--ranks is '0'; it must be a number from 1 to 1048576"},
      {{"topo", "--channels", "2"}, "need --ranks or --hosts"},
      {{"topo", "--ranks", "2", "--dump", "x"}, "go without --ranks and --hosts"},
      {{"topo", "--xml", "x", "--sysfs", "x"}, "exclude each other"},
      {{"topo", "--hosts", "4,,2"}, "--hosts is '4,,2'; it must be a list of numbers"},
      {{"topo", "--hosts", "4,2,"}, "must be a list of numbers"},
      {{"topo", "--hosts", "4,x"}, "must be a list of numbers"},
      {{"topo", "--hosts", "1048576,1"}, "must be a list of numbers"},
      {{"topo", "--hosts", "00000000000000004"}, "must be a list of numbers"},
      {{"topo", "--paths", "0"}, "--paths, --graph, --graph-dump and --svg need --ranks"},
      {{"topo", "--traffic", "1M"}, "--gpus, --traffic"},
      {{"topo", "--gpus", "--hosts", "2,2", "--graph", "x"}, "--gpus goes without --graph"},
      {{"topo", "--gpus", "--hosts", "2,2", "--paths", "1"}, "--gpus goes without --graph"},
      {{"topo", "--gpus", "--hosts", "2,2", "--dump", "x"}, "go without --ranks and --hosts"},
      {{"topo", "--ranks", "4", "--paths", "4"}, "--paths is 4; it must be one of the ranks"},
      {{"topo", "--ranks", "5000", "--paths", "4"}, "at most 4096, not 5000"},
      {{"topo", "--hosts", "4,2", "--ranks", "5"}, "--ranks 5 differs from the sum of --hosts 4,2"},
  };
  for (auto &b : bad) {
    Result r = tutti(b.args);
    EXPECT_EQ(r.code, 2) << b.says;
    EXPECT_THAT(r.err, HasSubstr(b.says));
  }
  EXPECT_THAT(tutti({"topo", "--hosts", "2,1", "--ranks", "3"}).out,
              HasSubstr("3 ranks on 2 hosts"));
}

/* What init would make of such ranks: the table of paths, in the words of the log. */
TEST(Topo, ShowsPathsAndWhy) {
  Result r = tutti({"topo", "--hosts", "2,1", "--paths", "1"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("Path 1 -> 0 : SHM/direct, 0.3 us, 13 GB/s (shared memory of one "
                               "host; not P2P: different processes ("));
  EXPECT_THAT(r.out, HasSubstr("Path 1 -> 2 : NET/"));
  EXPECT_THAT(r.out, HasSubstr("; not SHM: different hosts ("));
  EXPECT_THAT(r.out, HasSubstr("Worst path inside a host : 0.3 us, 13 GB/s\n"));
  EXPECT_THAT(r.out, HasSubstr("Worst path between hosts : "));
  EXPECT_THAT(r.out, Not(HasSubstr("Path 1 -> 1")));
  EXPECT_THAT(r.out, Not(HasSubstr("Path 0")));
}

#ifdef TUTTI_HAVE_VERBS
/* What each NIC carries, of a recorded machine; by --sysfs and, written there, by --xml. */
TEST(Topo, ShowsRailsAndTraffic) {
  SysfsTree tree("dgx");
  TempDir dir;
  const std::string xml = (dir.path() / "dgx.xml").string();
  ASSERT_EQ(tutti({"topo", "--sysfs", tree.root(), "--dump", xml}).code, 0);
  Result r = tutti({"topo", "--sysfs", tree.root(), "--hosts", "8,8", "--traffic", "64M"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(tutti({"topo", "--xml", xml, "--hosts", "8,8", "--traffic", "64M"}).out, r.out);
  EXPECT_THAT(r.out, HasSubstr("Rail 03 : host 0 mlx5_3\nRail 03 : host 1 mlx5_3\n"));
  EXPECT_THAT(r.out,
              HasSubstr("16 ranks on 2 hosts, 16 channels\nRing 00 : 0 7 6 5 4 3 2 1 8 15 14 "
                        "13 12 11 10 9; enters by rail 0 0\n"));
  EXPECT_THAT(r.out, HasSubstr("Tree 03 : by rail 3\n"));
  /* Of 2 * 15 / 16 * 64 MiB in and out of a host each of 8 NICs has an eighth. */
  std::string line = "Traffic of AllReduce, Ring, 64 MiB, 16 channels; MiB sent/received by each "
                     "NIC:\n  host 0 :";
  for (int i = 0; i < 8; i++)
    line += " mlx5_" + std::to_string(i) + " 15.00/15.00";
  EXPECT_THAT(r.out, HasSubstr(line + "\n  host 1 :"));
  EXPECT_THAT(r.out,
              HasSubstr("the busiest NIC has 1.000 of the mean; the busiest host 1.875 of the "
                        "least possible\n"));
  EXPECT_THAT(r.out, HasSubstr("Traffic of AllGather, Ring, 64 MiB"));
  EXPECT_THAT(r.out, HasSubstr("Traffic of ReduceScatter, Ring, 64 MiB"));
  EXPECT_THAT(r.out, HasSubstr("Traffic of AllReduce, Hierarchical, 64 MiB"));
  EXPECT_THAT(r.out, HasSubstr("the busiest host 1.000 of the least possible\n"));
  /* 64 MiB of each rank for all 16: those of 8 for the other host, each by the NIC of its place. */
  size_t first = r.out.find("Traffic of AlltoAll, Hierarchical, 64 MiB, 16 channels; MiB sent");
  ASSERT_NE(first, std::string::npos) << r.out;
  first = r.out.find("host 0 :", first);
  line = r.out.substr(first, r.out.find("\n", first) - first);
  for (int i = 0; i < 8; i++)
    EXPECT_THAT(line, HasSubstr(" mlx5_" + std::to_string(i) + " 32.00/32.00"));
  const std::string svg = (dir.path() / "dgx.svg").string();
  r = tutti({"topo", "--sysfs", tree.root(), "--hosts", "8,8", "--gpus", "--svg", svg});
  ASSERT_EQ(r.code, 0) << r.err;
  std::ifstream file(svg);
  std::string picture((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(picture, HasSubstr(">channel 3, rail 3 ...</text>"));
  EXPECT_THAT(picture, HasSubstr("of channel 9, rail 1; depth "));
  r = tutti({"topo", "--sysfs", tree.root(), "--hosts", "9,8", "--gpus"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("host 0 has more ranks than the topology has GPUs, which are 8"));
  r = tutti({"topo", "--sysfs", tree.root(), "--hosts", "1,1", "--gpus"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("there are no rails: it takes several hosts"));
}
#endif

TEST(Topo, IsACommand) {
  Result r = tutti({"topo", "--ranks", "4"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out, "");
}

} // namespace
