/* Recordings: what comes back is what was seen, nothing in them says whose machine it was, and bad
 * ones are refused. */
#include <gmock/gmock.h>

#include <filesystem>

#include "recorded.h"

using testing::HasSubstr;
using testing::Not;

namespace {

std::string contentOf(const std::string &path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/* Records the machine of a recording. */
std::string recordedAgain(const tuttiMachine *m) {
  RecordingFile file("");
  EXPECT_EQ(tuttiMachineRecord(m, file.path().c_str()), tuttiSuccess) << tuttiGetLastError(nullptr);
  return contentOf(file.path());
}

class Recordings : public testing::TestWithParam<const char *> {};

TEST_P(Recordings, ARecordingOfARecordingSaysTheSame) {
  Examined first{Recorded(GetParam())};
  std::string once = recordedAgain(first.machine());
  RecordingFile file(once);
  tuttiMachine m;
  ASSERT_EQ(tuttiMachineOpen(&m, file.path().c_str()), tuttiSuccess) << tuttiGetLastError(nullptr);
  EXPECT_EQ(recordedAgain(&m), once);
  auto view = std::make_unique<tuttiView>();
  auto findings = std::make_unique<tuttiFindings>();
  ASSERT_EQ(tuttiViewMake(&m, view.get()), tuttiSuccess);
  tuttiCheckAll(view.get(), findings.get());
  ASSERT_EQ(findings->n, first.findings()->n);
  for (int i = 0; i < findings->n; i++) {
    EXPECT_STREQ(findings->list[i].sentence, first.findings()->list[i].sentence);
    EXPECT_STREQ(findings->list[i].subject, first.findings()->list[i].subject);
  }
  tuttiViewFree(view.get());
  tuttiMachineClose(&m);
}

INSTANTIATE_TEST_SUITE_P(Machines, Recordings,
                         testing::Values("dgx", "switches", "roce", "cpu", "container", "soft"),
                         [](const auto &info) { return info.param; });

TEST(Recording, KeepsNoAddresses) {
  Recorded r("roce");
  r.file("*mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:5e25:73ff:fe12:3456");
  r.file("*mlx5_0/ports/1/gids/1", "fe80:0000:0000:0000:5e25:73ff:fe12:3456");
  r.file("*mlx5_0/ports/1/gids/2", "0000:0000:0000:0000:0000:ffff:c0a8:b212");
  r.file("*mlx5_0/ports/1/gids/3", "2001:0db8:1234:5678:5e25:73ff:fe12:3456");
  r.add("sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:44:00.0/infiniband/"
        "mlx5_0/node_guid",
        "5c25:7303:0012:3456");
  r.add("sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:44:00.0/net/ens1np0/"
        "address",
        "5c:25:73:12:34:56");
  r.add("proc/cmdline", "root=UUID=1d3e2f-host7 ip=192.168.178.18");
  Examined e(r);
  std::string text = recordedAgain(e.machine());
  for (const char *secret : {"73ff", "7312", "3456", "c0a8", "b212", "2001:", "0db8", "5c25",
                             "5c:25", "host7", "192.168", "cmdline", "node_guid"})
    EXPECT_THAT(text, Not(HasSubstr(secret)));
  /* One kind of address stays that kind, and two rows of one address stay alike. */
  EXPECT_THAT(text, HasSubstr("0 = fe80:0000:0000:0000:0000:0000:0000:0001\n"
                              "1 = fe80:0000:0000:0000:0000:0000:0000:0001\n"
                              "2 = 0000:0000:0000:0000:0000:ffff:0a00:0002\n"
                              "3 = fd00:0000:0000:0000:0000:0000:0000:0003\n"));
}

std::string replaced(std::string text, const std::string &from, const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/* Interfaces and devices may be named by their addresses, in answers and in paths. */
TEST(Recording, KeepsNoAddressesInNames) {
  Recorded r("roce"); /* the library cuts names of devices */
  r.answer("live.rocex5e2573fffe.1", "ok");
  std::string named = r.text();
  named = replaced(named, "ens1np0", "enx5e2573aabbcc");
  named = replaced(named, "ens2np0", "enx5e2573123456");
  named = replaced(named, "mlx5_0", "rocex5e2573fffeaabbcc");
  named = replaced(named, "mlx5_1", "rocex5e2573fffe123456");
  RecordingFile file(named);
  tuttiMachine m;
  ASSERT_EQ(tuttiMachineOpen(&m, file.path().c_str()), tuttiSuccess) << tuttiGetLastError(nullptr);
  std::string once = recordedAgain(&m);
  tuttiMachineClose(&m);
  for (const char *secret : {"5e2573", "aabbcc", "123456"})
    EXPECT_THAT(once, Not(HasSubstr(secret)));
  for (const char *kept :
       {"? net.001 = enx000300000000 v4", "? probe.enx000300000000 v4 = ok",
        "? verbs.rocex0004000000000000.open = ok", "? live.rocex0005000000.1 = ok",
        "/net/enx000300000000\n", "\nrocex0005000000000000 -> "})
    EXPECT_THAT(once, HasSubstr(kept));
  /* The same number everywhere: with the names of before it is the recording of before. */
  RecordingFile hidden(once);
  ASSERT_EQ(tuttiMachineOpen(&m, hidden.path().c_str()), tuttiSuccess)
      << tuttiGetLastError(nullptr);
  EXPECT_EQ(recordedAgain(&m), once);
  tuttiMachineClose(&m);
  once = replaced(once, "enx000300000000", "enx5e2573aabbcc");
  once = replaced(once, "enx000200000000", "enx5e2573123456");
  once = replaced(once, "rocex0005000000000000", "rocex5e2573fffeaabbcc");
  once = replaced(once, "rocex0004000000000000", "rocex5e2573fffe123456");
  once = replaced(once, "rocex0005000000", "rocex5e2573fffe");
  RecordingFile again(once);
  tuttiMachine copy;
  ASSERT_EQ(tuttiMachineOpen(&m, file.path().c_str()), tuttiSuccess);
  ASSERT_EQ(tuttiMachineOpen(&copy, again.path().c_str()), tuttiSuccess);
  EXPECT_EQ(recordedAgain(&copy), recordedAgain(&m));
  tuttiMachineClose(&m);
  tuttiMachineClose(&copy);
}

/* The serial number of a device is a capability (3) beside ACS. */
TEST(Recording, KeepsNoSerialNumbers) {
  Recorded r("dgx");
  r.bytes("*/0000:39:04.0/config",
          "34:40 40:10 60 60:05 00 fe 100:03 00 81 14 de ad be ef fe ed 148:0d 00 01 00 1f 00 1d");
  Examined e(r);
  std::string text = recordedAgain(e.machine());
  for (const char *secret : {"de ad", "be ef", "fe ed"})
    EXPECT_THAT(text, Not(HasSubstr(secret)));
  EXPECT_THAT(text, HasSubstr("config : 34:40 40:10 60 60:05 100:03 102:81 14 148:0d 14a:01 14c:1f "
                              "14e:1d\n"));
}

struct Bad {
  const char *name, *text, *error;
};
void PrintTo(const Bad &bad, std::ostream *out) {
  *out << bad.name;
}

const Bad kBad[] = {
    {"Empty", "", ":1: a recording begins with 'tutti doctor recording 1'"},
    {"OtherVersion", "tutti doctor recording 2\n", ":1: a recording begins with"},
    {"NoDirectory", "HEAD\nstate = 4\n", ":2: 'at DIRECTORY' must come first"},
    {"Upwards", "HEAD\nat ../etc\n", ":2: this is no path of a directory"},
    {"Absolute", "HEAD\nat /etc\n", ":2: this is no path of a directory"},
    {"UpwardsWithin", "HEAD\nat sys/../../etc\n", ":2: this is no path of a directory"},
    {"Nowhere", "HEAD\nat \n", ":2: this is no path of a directory"},
    {"SlashInName", "HEAD\nat sys\na/b = 1\n", ":3: it must begin with a name and a space"},
    {"DotsAsName", "HEAD\nat sys\n.. = 1\n", ":3: it must begin with a name and a space"},
    {"NoMark", "HEAD\nat sys\nstate 4\n", ":3: after the name there must be one of"},
    {"LinkAbove", "HEAD\nat sys/class\na -> ../../../etc\n", ":3: a link must lead to a place"},
    {"LinkAbsolute", "HEAD\nat sys\na -> /etc/passwd\n", ":3: a link must lead to a place inside"},
    {"LinkDotsLater", "HEAD\nat sys\na -> b/../../../etc\n", ":3: a link must lead to a place"},
    {"LinkNowhere", "HEAD\nat sys\na ->\n", ":3: a link must lead to a place inside"},
    {"Twice", "HEAD\nat sys\na = 1\na = 2\n", ":4: this name is there already"},
    {"LinkOverFile", "HEAD\nat sys\na = 1\nb = 2\na -> b\n", "the link sys/a cannot be made"},
    {"Bytes", "HEAD\nat sys\na : 0:zz\n", ":3: bytes must be hexadecimal numbers"},
    {"BytesTooLarge", "HEAD\nat sys\na : 0:100\n", ":3: a byte is too large or too far"},
    {"BytesTooFar", "HEAD\nat sys\na : ffffffff:1\n", ":3: a byte is too large or too far"},
    {"Answer", "HEAD\n? nvml.state\n", ":2: an answer must be '? KEY = VALUE'"},
};

class BadRecordings : public testing::TestWithParam<Bad> {};

TEST_P(BadRecordings, AreRefused) {
  std::string text = GetParam().text;
  if (text.rfind("HEAD", 0) == 0) text.replace(0, 4, "tutti doctor recording 1");
  RecordingFile file(text);
  tuttiMachine m;
  EXPECT_EQ(tuttiMachineOpen(&m, file.path().c_str()), tuttiInvalidArgument);
  EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr(GetParam().error));
  std::string root = m.root;
  tuttiMachineClose(&m);
  EXPECT_TRUE(root.empty() || !std::filesystem::exists(root)) << "nothing is left behind";
}

INSTANTIATE_TEST_SUITE_P(Texts, BadRecordings, testing::ValuesIn(kBad),
                         [](const auto &info) { return std::string(info.param.name); });

TEST(Recording, TooMuchIsRefused) {
  const std::string head = "tutti doctor recording 1\nat sys\n";
  const std::pair<std::string, const char *> cases[] = {
      {head + "a = " + std::string(5000, 'x') + "\n", "this file is too long"},
      {head + "at " + std::string(600, 'x') + "\n", "this is no path"},
      {head + std::string(300, 'x') + " = 1\n", "it must begin with a name"},
      {"tutti doctor recording 1\n? a = " + std::string(2000, 'x') + "\n", "an answer is too long"},
      {head + std::string(9 << 20, '#'), "is longer than"},
      {head + std::string("a = \0b\n", 7), "this is no text"},
  };
  for (const auto &[text, error] : cases) {
    RecordingFile file(text);
    tuttiMachine m;
    EXPECT_EQ(tuttiMachineOpen(&m, file.path().c_str()), tuttiInvalidArgument) << error;
    EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr(error));
    tuttiMachineClose(&m);
  }
  tuttiMachine m;
  EXPECT_EQ(tuttiMachineOpen(&m, "/nowhere/at/all"), tuttiInvalidArgument);
  EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr("cannot read /nowhere/at/all: No such file"));
  tuttiMachineClose(&m);
}

/* Every recording cut at every line is read or refused, and never more than that. */
TEST(Recording, CutAnywhere) {
  const std::string text = Recorded("soft").text();
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
    RecordingFile file(text.substr(0, at + 3));
    tuttiMachine m;
    auto view = std::make_unique<tuttiView>();
    auto findings = std::make_unique<tuttiFindings>();
    if (tuttiMachineOpen(&m, file.path().c_str()) == tuttiSuccess) {
      EXPECT_EQ(tuttiViewMake(&m, view.get()), tuttiSuccess);
      tuttiCheckAll(view.get(), findings.get());
      tuttiViewFree(view.get());
    }
    tuttiMachineClose(&m);
  }
}

TEST(Recording, LiesAboutNumbersDoNoHarm) {
  Recorded r("roce");
  r.file("*/ports/1/state", "999999999999999999999").file("*/ports/1/rate", "1e300 Gb/sec");
  r.file("*/current_link_width", "-7").file("*/mtu", "-1");
  r.answers("nvml.*.index", "-5").answers("nvml.*.links", "switch/99999999 x y/ /z");
  r.answers("nvml.*.peers", "9 x -").answer("host.uptime", "nan").answer("net.001", "x");
  r.answers("nvml.*.power", "-1").answer("cores.quota", "99999999999999999999999");
  Examined e(r);
  EXPECT_GE(e.findings()->n, 1);
}

/* This machine, whatever it is: asking, recording and reading that back agree. */
TEST(Recording, OfThisMachine) {
  tuttiMachine m;
  ASSERT_EQ(tuttiMachineAsk(&m, true), tuttiSuccess) << tuttiGetLastError(nullptr);
  ASSERT_NE(tuttiMachineAnswer(&m, "host.release"), nullptr);
  std::string text = recordedAgain(&m);
  tuttiMachineClose(&m);
  EXPECT_THAT(text, HasSubstr("? host.release = "));
  char host[256] = "";
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  if (strlen(host) > 6) { /* a shorter one may be a word of something else */
    EXPECT_THAT(text, Not(HasSubstr(host)));
  }
  RecordingFile file(text);
  ASSERT_EQ(tuttiMachineOpen(&m, file.path().c_str()), tuttiSuccess) << tuttiGetLastError(nullptr);
  EXPECT_EQ(recordedAgain(&m), text);
  tuttiMachineClose(&m);
}

} // namespace
