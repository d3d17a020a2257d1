/* Several hosts: the summary says in what they differ, and no host can harm it. */
#include <elf.h>
#include <gmock/gmock.h>

#include "base/os.h"
#include "doctor/command.h"
#include "doctor/hosts.h"
#include "port.h"
#include "recorded.h"
#include "tools/command.h"
#include "topology/sysfs_tree.h"

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

namespace {

std::string linesOf(const Recorded &r) {
  Examined e(r);
  char *text = nullptr;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  tuttiHostLines(e.view(), e.findings(), out);
  fclose(out);
  std::string lines(text, size);
  free(text);
  return lines;
}

struct Comparison {
  std::string out;
  tuttiSeverity worst;
};

Comparison compare(std::vector<std::string> texts, double skew = 0) {
  std::vector<tuttiHostReport> hosts(texts.size());
  for (size_t i = 0; i < texts.size(); i++) {
    texts[i].resize(std::max(texts[i].size() + 1, size_t{TUTTI_HOST_BYTES}));
    hosts[i] = {};
    snprintf(hosts[i].name, sizeof hosts[i].name, "node%zu", i);
    hosts[i].text = texts[i].data();
    hosts[i].timed = true;
  }
  hosts.back().skew = skew;
  char *text = nullptr;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  Comparison c{};
  c.worst = tuttiHostsCompare(hosts.data(), static_cast<int>(hosts.size()), out);
  fclose(out);
  c.out.assign(text, size);
  free(text);
  return c;
}

TEST(DoctorHosts, AlikeHostsDifferInNothing) {
  std::string dgx = linesOf(Recorded("dgx"));
  Comparison c = compare({dgx, dgx, dgx});
  EXPECT_EQ(c.out, "3 of 3 hosts reported; the worst is: ok\n");
  EXPECT_EQ(c.worst, TUTTI_FOUND_OK);
}

TEST(DoctorHosts, WhatOneLacksIsNamedFirst) {
  std::string good = linesOf(Recorded("switches"));
  std::string bad = linesOf(Recorded("switches")
                                .drop("sys/module/nvidia_peermem/version")
                                .drop("sys/kernel/mm/memory_peers/nv_mem/version"));
  Comparison c = compare({good, bad, good, good});
  EXPECT_THAT(c.out, StartsWith("warning  node1: 0000:23:00.0, 0000:24:00.0, "));
  EXPECT_THAT(c.out, HasSubstr("modprobe nvidia-peermem; no dma-buf because"));
  EXPECT_THAT(c.out, HasSubstr("; not so on 3 others [gdr.driver]\n         $ sudo modprobe"));
  EXPECT_THAT(c.out, HasSubstr("\nnote     all 4 hosts: the kernel's log"));
  EXPECT_THAT(c.out, EndsWith("4 of 4 hosts reported; the worst is: warning\n"));
}

TEST(DoctorHosts, FactsThatDifferAreNamedWithTheRarer) {
  std::string good = linesOf(Recorded("dgx"));
  std::string old =
      linesOf(Recorded("dgx").answer("nvml.driver", "570.86.15").file("*/fw_ver", "28.36.1010"));
  Comparison c = compare({good, good, old});
  EXPECT_EQ(c.out, "note     node2: NVIDIA driver: 570.86.15; node0, node1: 580.159.03 [differs]\n"
                   "note     node2: firmware of RDMA devices: 28.36.1010; node0, node1: 28.39.1002 "
                   "[differs]\n"
                   "3 of 3 hosts reported; the worst is: ok\n");
}

TEST(DoctorHosts, ClockThatIsAhead) {
  std::string dgx = linesOf(Recorded("dgx"));
  Comparison c = compare({dgx, dgx}, 17.3);
  EXPECT_THAT(c.out, StartsWith("warning  node1: its clock is 17.3 s ahead"));
  EXPECT_EQ(c.worst, TUTTI_FOUND_WARNING);
  EXPECT_THAT(compare({dgx, dgx}, -1.5).out, Not(HasSubstr("clock")));
}

TEST(DoctorHosts, WhatIsNotUnderstoodIsAFailureOfThatHost) {
  std::string dgx = linesOf(Recorded("dgx"));
  const std::pair<std::string, const char *> cases[] = {
      {"", "what it sent is not whole"},
      {"bash: tutti: command not found\n", "no tutti doctor of this version"},
      {"tutti doctor lines 1\n", "what it sent is not whole"},
      {dgx.substr(0, dgx.rfind("end\t")), "what it sent is not whole"},
      {"tutti doctor lines 1\nwarning\tx\n", "what it sent is not understood"},
      {"tutti doctor lines 1\nlethal\ta\tb\tc\td\n", "what it sent is not understood"},
      {"tutti doctor lines 1\nnote\ta\tb\tc\td\te\n", "what it sent is not understood"},
      {"tutti doctor lines 1\nnote\ta\tb\t\033[2Jc\td\n", "what it sent is not understood"},
      {std::string(TUTTI_HOST_BYTES - 1, 'x'), "no tutti doctor of this version"},
  };
  for (const auto &[text, error] : cases) {
    Comparison c = compare({dgx, text});
    EXPECT_THAT(c.out, HasSubstr(std::string("failure  node1: ")));
    EXPECT_THAT(c.out, HasSubstr(error)) << text.substr(0, 60);
    EXPECT_THAT(c.out, HasSubstr("1 of 2 hosts reported"));
    EXPECT_EQ(c.worst, TUTTI_FOUND_FAILURE);
  }
}

TEST(DoctorHosts, EndlesslyManyFindingsAreBounded) {
  std::string text = "tutti doctor lines 1\n";
  for (int i = 0; text.size() < TUTTI_HOST_BYTES - 64; i++)
    text += "note\tid\t" + std::to_string(i) + "\ts\t\n";
  Comparison c = compare({text + "end\t1.0\n", text + "end\t1.0\n"});
  EXPECT_THAT(c.out, EndsWith("2 of 2 hosts reported; the worst is: note\n"));
}

/* A program named ssh that does what the last word of the host's name says. */
class FakeSsh {
public:
  FakeSsh() {
    std::ofstream script(dir_.path() / "ssh");
    script << "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\ncase $2 in\n"
              "refused) exit 255;;\nmute) exit 0;;\nsilent) exit 127;;\n*) exec " TUTTI_COMMAND
              " doctor --lines --from " TUTTI_TEST_DATA "/$2.rec;;\nesac\n";
    script.close();
    std::filesystem::permissions(dir_.path() / "ssh", std::filesystem::perms::owner_all);
  }
  Result doctor(const std::string &hosts) const {
    return tutti({"doctor", "--host", hosts},
                 {"PATH=" + dir_.path().string() + ":" + getenv("PATH")});
  }

private:
  TempDir dir_;
};

TEST(DoctorHosts, BySsh) {
  FakeSsh ssh;
  Result r = ssh.doctor("dgx,dgx");
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_EQ(r.out, "2 of 2 hosts reported; the worst is: ok\n");
  r = ssh.doctor("dgx,refused,mute,silent");
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out, HasSubstr("failure  refused: ssh cannot reach it without a password"));
  EXPECT_THAT(r.out, HasSubstr("failure  mute: it has no tutti"));
  EXPECT_THAT(r.out, HasSubstr("failure  silent: it has no tutti"));
  for (const char *wrong : {"", "a,,b", ",a", "a,", "-oProxyCommand=x", "a b"}) {
    r = ssh.doctor(wrong);
    EXPECT_EQ(r.code, 2) << wrong;
    EXPECT_THAT(r.err, HasSubstr("it must be a list like h1,h2"));
  }
}

/* Ranks as torchrun starts them: two here are of one host, of which one looks. */
TEST(DoctorHosts, ByRanks) {
  HeldPort port;
  auto start = [&](const char *rank) {
    return std::make_unique<Command>(
        std::vector<std::string>{TUTTI_COMMAND, "doctor"},
        std::vector<std::string>{std::string("RANK=") + rank, std::string("LOCAL_RANK=") + rank,
                                 "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                                 "TUTTI_COMM_ID=127.0.0.1:" + std::to_string(port.number())});
  };
  auto a = start("0"), b = start("1");
  Result first = finished(*a), second = finished(*b);
  EXPECT_THAT(first.out, HasSubstr("1 of 1 hosts reported")) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, "");
}

/* Some launchers tell no rank on the host: rank 0 and 1 are of one here, and rank 2 of another. */
TEST(DoctorHosts, ByRanksOfUnknownPlace) {
  HeldPort port;
  std::vector<std::unique_ptr<Command>> ranks;
  for (const char *rank : {"0", "1", "2"})
    ranks.push_back(std::make_unique<Command>(
        std::vector<std::string>{TUTTI_COMMAND, "doctor", "--quick"},
        std::vector<std::string>{std::string("PMI_RANK=") + rank, "PMI_SIZE=3",
                                 std::string("TUTTI_HOSTID=") + (rank[0] == '2' ? "b" : "a"),
                                 "TUTTI_COMM_ID=127.0.0.1:" + std::to_string(port.number())}));
  EXPECT_THAT(finished(*ranks[0]).out, HasSubstr("2 of 2 hosts reported"));
  for (int i = 1; i < 3; i++)
    EXPECT_EQ(finished(*ranks[i]).out, "");
}

/* ---- programs that are run ------------------------------------------------------------------ */

/* Z and X: ended, and not waited for by whoever inherited it. */
bool isAlive(int pid) {
  std::string stat = [&] {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    return std::string(std::istreambuf_iterator<char>(in), {});
  }();
  size_t name = stat.rfind(") ");
  return name != std::string::npos && stat[name + 2] != 'Z' && stat[name + 2] != 'X';
}

TEST(DoctorPrograms, AreEndedAtTheirTimeWithWhatTheyStarted) {
  char out[64] = "";
  char *forever[] = {const_cast<char *>("sh"), const_cast<char *>("-c"),
                     const_cast<char *>("sleep 1000 & echo $!; sleep 1000"), nullptr};
  uint64_t start = tuttiNow();
  for (int ms = 100; ms < 100000 && out[0] == '\0'; ms *= 4) /* until it had the time to begin */
    EXPECT_FALSE(tuttiCommandRun(forever, nullptr, out, sizeof out, ms));
  EXPECT_LT(tuttiMs(start, tuttiNow()), 500000);
  int child = atoi(out);
  ASSERT_GT(child, 0);
  for (int i = 0; i < 1000 && isAlive(child); i++)
    usleep(10000);
  EXPECT_FALSE(isAlive(child));
}

TEST(DoctorPrograms, MayPrintMoreThanThereIsRoomFor) {
  char out[64];
  char *yes[] = {const_cast<char *>("sh"), const_cast<char *>("-c"),
                 const_cast<char *>("yes | head -c 300000"), nullptr};
  EXPECT_TRUE(tuttiCommandRun(yes, nullptr, out, sizeof out, 100000));
  EXPECT_EQ(strlen(out), sizeof out - 1);
  char *missing[] = {const_cast<char *>("/nowhere/at/all"), nullptr};
  EXPECT_FALSE(tuttiCommandRun(missing, nullptr, out, sizeof out, 10000));
  char *fine[] = {const_cast<char *>("sh"), const_cast<char *>("-c"), const_cast<char *>("echo $A"),
                  nullptr};
  EXPECT_TRUE(tuttiCommandRun(fine, "A=b", out, sizeof out, 10000));
  EXPECT_STREQ(out, "b\n");
}

TEST(DoctorPrograms, TheLibraryOfAProgram) {
  const char *said = "it would load " NCCL_FOLDER "/libnccl.so.2: tutti, as NCCL ";
  Result r = tutti({"doctor", "--quick", "--program", NCCL_USER});
  EXPECT_THAT(r.out, HasSubstr(std::string("test_nccl_user: ") + said)) << r.err;
#ifndef __SANITIZE_ADDRESS__ /* which must be loaded first of all */
  r = tutti({"doctor", "--quick", "--program", "/bin/ls"},
            {"LD_PRELOAD=" NCCL_FOLDER "/libnccl.so.2"});
  EXPECT_THAT(r.out, HasSubstr(std::string("ls: ") + said)) << r.err;
#endif
  r = tutti({"doctor", "--quick", "--program", "/bin/ls"});
  EXPECT_THAT(r.out, HasSubstr("note     ls: it would load no libnccl.so.2"));
  r = tutti({"doctor", "--quick", "--program", "/nowhere/at/all"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out, HasSubstr("failure  all: it cannot be run"));
}

#ifndef __SANITIZE_ADDRESS__
/* Of two that are preloaded a program's calls go to the first, wherever each is mapped. */
TEST(DoctorPrograms, TheFirstOfTwoLibraries) {
  TempDir dir;
  std::string other = dir.path().string() + "/libnccl.so.2";
  std::filesystem::copy_file(NCCL_FOLDER "/libnccl.so.2", other);
  for (int i = 0; i < 6; i++) { /* a set of Python has another order in each process */
    Result r = tutti({"doctor", "--quick", "--program", "python3"},
                     {"LD_PRELOAD=" + other + ":" NCCL_FOLDER "/libnccl.so.2"});
    EXPECT_THAT(r.out, HasSubstr("python3: it would load " + other + ": tutti")) << r.err;
    r = tutti({"doctor", "--quick", "--program", "python3"},
              {"LD_PRELOAD=" NCCL_FOLDER "/libnccl.so.2:" + other});
    EXPECT_THAT(r.out, Not(HasSubstr(other))) << r.err;
  }
}
#endif

#ifdef __x86_64__
/* A program without a loader, which prints what a loader would list. */
void writeStatic(const std::string &path) {
  const std::string listed = "\tlibnccl.so.2 => /ran/libnccl.so.2 (0x1)\n";
  const unsigned char length = static_cast<unsigned char>(listed.size());
  const unsigned char code[] = {0xb8, 1,      0,    0,  0,          /* write( */
                                0xbf, 1,      0,    0,  0,          /* stdout, */
                                0x48, 0x8d,   0x35, 16, 0, 0,    0, /* what is behind the code, */
                                0xba, length, 0,    0,  0, 0x0f, 5, /* its length) */
                                0xb8, 60,     0,    0,  0,          /* exit( */
                                0x31, 0xff,   0x0f, 5};             /* 0) */
  Elf64_Ehdr head{};
  Elf64_Phdr part{};
  memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_ident[EI_DATA] = ELFDATA2LSB;
  head.e_ident[EI_VERSION] = EV_CURRENT;
  head.e_type = ET_EXEC;
  head.e_machine = EM_X86_64;
  head.e_version = EV_CURRENT;
  head.e_entry = 0x400000 + sizeof head + sizeof part;
  head.e_phoff = head.e_ehsize = sizeof head;
  head.e_phentsize = sizeof part;
  head.e_phnum = 1;
  part.p_type = PT_LOAD;
  part.p_flags = PF_R | PF_X;
  part.p_vaddr = 0x400000;
  part.p_filesz = part.p_memsz = sizeof head + sizeof part + sizeof code + listed.size();
  part.p_align = 0x1000;
  std::ofstream out(path);
  out.write(reinterpret_cast<char *>(&head), sizeof head);
  out.write(reinterpret_cast<char *>(&part), sizeof part);
  out.write(reinterpret_cast<const char *>(code), sizeof code);
  out << listed;
  out.close();
  std::filesystem::permissions(path, std::filesystem::perms(0755));
}

TEST(DoctorPrograms, WithoutALoaderAreNotRun) {
  TempDir dir;
  std::string folder = dir.path().string(), alone = folder + "/alone", script = folder + "/script";
  writeStatic(alone);
  Command c({alone});
  ASSERT_EQ(c.wait(), 0);
  ASSERT_THAT(c.out(), HasSubstr("/ran/libnccl.so.2"));
  std::ofstream(script) << "#!" << alone << " x\n";
  std::filesystem::permissions(script, std::filesystem::perms(0755));
  const std::string path = "PATH=/nowhere:" + folder + ":" + getenv("PATH");
  for (const std::string &program : {alone, script, std::string("alone")}) {
    Result r = tutti({"doctor", "--quick", "--program", program}, {path});
    EXPECT_THAT(r.out, HasSubstr(": glibc's loader does not start it")) << program << r.err;
    EXPECT_THAT(r.out, Not(HasSubstr("/ran/"))) << program;
  }
  std::ofstream(script) << "#!/bin/sh\nexit 7\n";
  Result r = tutti({"doctor", "--quick", "--program", script});
  EXPECT_THAT(r.out, HasSubstr("script: it would load no libnccl.so.2")) << r.err;
}
#endif

TEST(DoctorPrograms, MpiAndUcxBesideGpus) {
  Recorded r("roce");
  r.answer("mpi.openmpi", "v4.1.4").answer("mpi.openmpi.cuda", "false").answer("ucx.cuda", "");
  Examined without(r);
  EXPECT_THAT(without.text(TUTTI_FOUND_NOTE),
              HasSubstr("note mpi.cuda Open MPI: v4.1.4 is built without CUDA"));
  EXPECT_THAT(without.text(TUTTI_FOUND_NOTE), HasSubstr("note ucx.cuda UCX: it has no transport"));
  r.answer("mpi.openmpi.cuda", "true").answer("ucx.cuda", "cuda_copy cuda_ipc");
  Examined with(r);
  EXPECT_EQ(with.text(TUTTI_FOUND_NOTE), "");
  EXPECT_THAT(with.text(TUTTI_FOUND_OK), HasSubstr("ok ucx.cuda UCX: it has cuda_copy cuda_ipc"));
}

} // namespace
