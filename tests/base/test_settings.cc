#include "base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace {

using SettingsTest = EnvironmentTest;

TEST(SettingsTable, RowsAreWellFormed) {
  std::set<std::string> names, ncclNames;
  for (const tuttiSettingRow &row : tuttiSettingTable) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    if (row.ncclName[0] != '\0') {
      EXPECT_TRUE(ncclNames.insert(row.ncclName).second) << row.ncclName;
      EXPECT_EQ(strncmp(row.ncclName, "NCCL_", 5), 0) << row.ncclName;
    }
    EXPECT_EQ(row.help[strlen(row.help) - 1], '.') << row.name;
    if (row.type == TUTTI_SETTING_STRING) continue;
    EXPECT_LE(row.min, row.dflt) << row.name;
    EXPECT_LE(row.dflt, row.max) << row.name;
    EXPECT_STREQ(row.dfltString, "") << row.name;
  }
  EXPECT_STREQ(tuttiSettingTable[TUTTI_SETTING_DEVICE].dfltString, "auto");
  EXPECT_EQ(tuttiSettingTable[TUTTI_SETTING_TIMEOUT].type, TUTTI_SETTING_SECONDS);
}

TEST_F(SettingsTest, DefaultsWithoutEnvironment) {
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    auto setting = static_cast<tuttiSettingId>(id);
    EXPECT_EQ(tuttiSettingInt(setting), tuttiSettingTable[id].dflt);
    EXPECT_STREQ(tuttiSettingString(setting), tuttiSettingTable[id].dfltString);
    EXPECT_STREQ(tuttiSettingOrigin(setting), "default");
  }
}

TEST_F(SettingsTest, OwnNameWinsOverNcclsOverDefault) {
  EXPECT_EQ(load("NCCL_BUFFSIZE", "65536"), "");
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), 65536);
  EXPECT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_BUFFSIZE), "NCCL_BUFFSIZE");
  EXPECT_EQ(load("TUTTI_BUFFSIZE", "1M"), "");
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), 1 << 20);
  EXPECT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_BUFFSIZE), "TUTTI_BUFFSIZE");
  EXPECT_EQ(load("TUTTI_BUFFSIZE", ""), ""); /* empty is unset */
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), 65536);
  EXPECT_EQ(load("NCCL_BUFFSIZE", ""), "");
  EXPECT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_BUFFSIZE), "default");
  EXPECT_EQ(load("NCCL_NSOCKS_PERTHREAD", "7"), "");
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_SOCKET_NSOCKS), 7);
  EXPECT_EQ(load("TUTTI_SOCKET_IFNAME", "=eth0"), "");
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_SOCKET_IFNAME), "=eth0");
}

TEST_F(SettingsTest, MalformedValueNamesVariableValueAndRemedy) {
  EXPECT_THAT(load("TUTTI_TIMEOUT", "abc"),
              AllOf(HasSubstr("TUTTI_TIMEOUT=\"abc\" is not a time"),
                    HasSubstr("seconds from 0 to 864000"), HasSubstr("500ms")));
  EXPECT_EQ(tuttiSettingsLoad(), tuttiInvalidArgument);
  unsetenv("TUTTI_TIMEOUT");
  EXPECT_THAT(load("TUTTI_SOCKET_NSOCKS", "17"),
              AllOf(HasSubstr("TUTTI_SOCKET_NSOCKS=\"17\" is out of range"),
                    HasSubstr("a whole number from 1 to 16")));
  unsetenv("TUTTI_SOCKET_NSOCKS");
  EXPECT_THAT(load("TUTTI_SHM_DISABLE", "yes"),
              AllOf(HasSubstr("TUTTI_SHM_DISABLE=\"yes\""), HasSubstr("0 or 1")));
  unsetenv("TUTTI_SHM_DISABLE");
  EXPECT_THAT(load("TUTTI_BUFFSIZE", "4X"),
              AllOf(HasSubstr("is not a size"), HasSubstr("from 8192 to 1073741824")));
}

TEST_F(SettingsTest, WordsOutsideTheirListAreRefused) {
  EXPECT_THAT(load("TUTTI_DEVICE", "gpu"),
              AllOf(HasSubstr("TUTTI_DEVICE=\"gpu\" is unknown"), HasSubstr("auto, host or cuda")));
  EXPECT_EQ(load("TUTTI_DEVICE", "host"), "");
  EXPECT_THAT(load("TUTTI_SOCKET_FAMILY", "IPv6"), HasSubstr("AF_INET or AF_INET6"));
  EXPECT_EQ(load("TUTTI_SOCKET_FAMILY", "AF_INET6"), "");
  EXPECT_THAT(load("TUTTI_IB_ADDR_FAMILY", "IPv4"), HasSubstr("AF_INET or AF_INET6"));
  EXPECT_EQ(load("TUTTI_IB_ADDR_FAMILY", "AF_INET"), "");
  EXPECT_THAT(load("TUTTI_DEBUG", "LOUD"), HasSubstr("VERSION, WARN, INFO, ABORT or TRACE"));
  EXPECT_EQ(load("TUTTI_DEBUG", "none"), "");
  for (const char *bad : {"INIT,NETT", "^", ",", "INIT,", "^ALL,^NET", "INIT NET"})
    EXPECT_THAT(load("TUTTI_DEBUG_SUBSYS", bad),
                AllOf(HasSubstr(bad), HasSubstr("ALL, or a list"), HasSubstr("BOOTSTRAP")));
  for (const char *good : {"ALL", "^COLL", "init,Net", "^INIT,P2P", "^ALL"})
    EXPECT_EQ(load("TUTTI_DEBUG_SUBSYS", good), "");
}

TEST_F(SettingsTest, AFailedLoadChangesNothing) {
  EXPECT_EQ(load("TUTTI_MIN_NCHANNELS", "4"), "");
  setenv("TUTTI_MIN_NCHANNELS", "5", 1);
  EXPECT_NE(load("TUTTI_MAX_NCHANNELS", "-1"), "");
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_MIN_NCHANNELS), 4);
  EXPECT_EQ(load("TUTTI_MAX_NCHANNELS", "8"), "");
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_MIN_NCHANNELS), 5);
}

/* The user did not address us with it, so it must not stop the program. */
TEST_F(SettingsTest, MalformedNcclVariableIsWarnedOfAndIgnored) {
  setenv("TUTTI_DEBUG", "WARN", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(load("NCCL_BUFFSIZE", "plenty"), "");
  EXPECT_EQ(load("NCCL_BUFFSIZE", "plenty"), "");
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("TUTTI WARN NCCL_BUFFSIZE=\"plenty\" is not a size"));
  EXPECT_THAT(log, HasSubstr("ignored, TUTTI_BUFFSIZE has its default"));
  EXPECT_EQ(log.find("plenty"), log.rfind("plenty")) << "warned twice: " << log;
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), 4194304);
  EXPECT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_BUFFSIZE), "default");
}

/* It may name a plugin of NCCL's. */
TEST_F(SettingsTest, AnUnknownNetworkIsRefusedOnlyUnderOurName) {
  setenv("TUTTI_DEBUG", "WARN", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(load("NCCL_NET", "AWS Libfabric"), "");
  EXPECT_EQ(load("NCCL_NET", "AWS Libfabric"), "");
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("NCCL_NET=\"AWS Libfabric\" is unknown; accepted: IB or Socket"));
  EXPECT_EQ(log.find("Libfabric"), log.rfind("Libfabric")) << "warned twice: " << log;
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_NET), "");
  EXPECT_EQ(load("NCCL_NET", "ib"), "");
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_NET), "ib");
  EXPECT_THAT(load("TUTTI_NET", "AWS Libfabric"),
              HasSubstr("TUTTI_NET=\"AWS Libfabric\" is unknown; accepted: IB or Socket"));
  EXPECT_EQ(load("TUTTI_NET", "SOCKET"), "");
}

/* A file of lines, named by NCCL_CONF_FILE while it lives. */
struct ConfFile {
  explicit ConfFile(const std::string &lines)
      : path(testing::TempDir() + "tutti-nccl.conf-" + std::to_string(getpid())) {
    FILE *file = fopen(path.c_str(), "w");
    EXPECT_EQ(fwrite(lines.data(), 1, lines.size(), file), lines.size());
    fclose(file);
    setenv("NCCL_CONF_FILE", path.c_str(), 1);
  }
  ~ConfFile() { unlink(path.c_str()); }
  std::string path;
};

TEST_F(SettingsTest, NcclConfIsReadLikeTheEnvironmentWhichWins) {
  ConfFile file("# a comment\n\n  NCCL_BUFFSIZE=64K  \r\nNCCL_HOSTID=a=b\nNCCL_SHM_DISABLE=1\n"
                "NCCL_MIN_NCHANNELS=2\nNCCL_MIN_NCHANNELS=3\nTUTTI_P2P_DISABLE=1\nNCCL_\n" +
                std::string(3000, 'x') + "\nNCCL_ALGO=Ring");
  setenv("NCCL_SHM_DISABLE", "0", 1);
  setenv("TUTTI_DEBUG", "WARN", 1);
  testing::internal::CaptureStderr();
  ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess) << tuttiErrorText();
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), 65536);
  EXPECT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_BUFFSIZE), "NCCL_BUFFSIZE");
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_HOSTID), "a=b");
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_SHM_DISABLE), 0);
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_MIN_NCHANNELS), 2);
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_P2P_DISABLE), 0);
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_ALGO), "Ring");
  EXPECT_THAT(log, HasSubstr(file.path + ":8 is no NCCL_NAME=value, and there are more"));
  setenv("TUTTI_BUFFSIZE", "1M", 1);
  ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_EQ(tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), 1 << 20);
  setenv("NCCL_CONF_FILE", "/nowhere/nccl.conf", 1);
  ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_HOSTID), "default");
}

/* Whatever it is, nothing of it is told but where. */
TEST_F(SettingsTest, AFileThatHoldsNoSettingsIsNotShown) {
  ConfFile file("# users\nroot:$6$secret:1\nNCCL_secret\n\tsecret\n");
  setenv("TUTTI_DEBUG", "INFO", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log,
              HasSubstr(file.path + ":2 is no NCCL_NAME=value, and there are more such lines"));
  EXPECT_THAT(log, Not(HasSubstr("secret")));
}

TEST_F(SettingsTest, OnlyRegularFilesOfABoundedSizeAreRead) {
  std::string fifo = testing::TempDir() + "tutti-fifo-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ConfFile large("NCCL_BUFFSIZE=64K\n" + std::string(64 << 10, '#'));
  setenv("TUTTI_DEBUG", "WARN", 1);
  const struct {
    std::string path, why;
  } files[] = {{"/dev/zero", " is not a regular file; not read"},
               {fifo, " is not a regular file; not read"},
               {"/nowhere/conf", ": No such file or directory; not read"},
               {large.path, " has 65554 bytes; at most 65536 are accepted; not read"}};
  for (const auto &f : files) {
    setenv("NCCL_CONF_FILE", f.path.c_str(), 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("NCCL_CONF_FILE=" + f.path + f.why));
    EXPECT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_BUFFSIZE), "default");
  }
  unlink(fifo.c_str());
}

TEST_F(SettingsTest, ControlCharactersAreNoText) {
  EXPECT_EQ(load("TUTTI_ALGO", "Ring\nTree"),
            "TUTTI_ALGO has a control character; accepted: printable text");
  unsetenv("TUTTI_ALGO");
  EXPECT_EQ(load("TUTTI_TOPO_DUMP_FILE", "/tmp/a\tb"), "") << "a path may have any";
}

TEST_F(SettingsTest, NcclVariablesWithoutAMeaningAreListedOnce) {
  ConfFile file("NCCL_CUMEM_ENABLE=0\nNCCL_BUFFSIZE=64K\n");
  setenv("TUTTI_DEBUG", "INFO", 1);
  setenv("NCCL_TOPO_FILE", "/nowhere/ndv4-topo.xml", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  std::string log = testing::internal::GetCapturedStderr(), mark = "without a meaning here: ";
  EXPECT_THAT(log, HasSubstr(mark + "NCCL_CUMEM_ENABLE, NCCL_TOPO_FILE; "));
  EXPECT_EQ(log.find(mark), log.rfind(mark)) << "told twice: " << log;
}

TEST_F(SettingsTest, UnknownNamesAreWarnedOfOnceWithTheNearest) {
  setenv("TUTTI_DEBUG", "WARN", 1);
  testing::internal::CaptureStderr();
  setenv("TUTTI_TIMOUT", "3", 1);
  setenv("TUTTI_shm_disable", "1", 1);
  setenv("TUTTI_NSOCKS_PERTHREAD", "1", 1); /* NCCL's name behind our prefix */
  setenv("TUTTI_XYZZY", "1", 1);
  setenv("TUTTI_LIBRARY", "/lib/libtutti.so", 1); /* the Python package reads it, */
  setenv("TUTTI_ENABLE", "1", 1);                 /* and this */
  setenv(("TUTTI_" + std::string(300, 'A')).c_str(), "1", 1);
  setenv("TUTTI_", "1", 1);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("TUTTI_TIMOUT is no setting; did you mean TUTTI_TIMEOUT?"));
  EXPECT_THAT(log, HasSubstr("TUTTI_shm_disable is no setting; did you mean TUTTI_SHM_DISABLE?"));
  EXPECT_THAT(log, HasSubstr("TUTTI_NSOCKS_PERTHREAD is no setting; did you mean "
                             "TUTTI_SOCKET_NSOCKS?"));
  EXPECT_THAT(log, HasSubstr("TUTTI_XYZZY is no setting; `tutti env` lists them"));
  EXPECT_THAT(log, Not(HasSubstr("TUTTI_LIBRARY")));
  EXPECT_THAT(log, Not(HasSubstr("TUTTI_ENABLE")));
  EXPECT_EQ(log.find("TUTTI_TIMOUT"), log.rfind("TUTTI_TIMOUT")) << "warned twice: " << log;
  EXPECT_THAT(log, HasSubstr("TUTTI_AAAA"));
}

TEST_F(SettingsTest, StringsStayValidAndAreKeptOnce) {
  EXPECT_EQ(load("TUTTI_HOSTID", "one"), "");
  const char *first = tuttiSettingString(TUTTI_SETTING_HOSTID);
  EXPECT_EQ(load("TUTTI_HOSTID", "other"), "");
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_HOSTID), "other");
  EXPECT_STREQ(first, "one");
  EXPECT_EQ(load("TUTTI_HOSTID", "one"), "");
  EXPECT_EQ(tuttiSettingString(TUTTI_SETTING_HOSTID), first);
}

/* One writer reloads while readers read: each reader sees one of the values, whole. */
TEST_F(SettingsTest, ReadersRunBesideReloads) {
  std::atomic<bool> stop{false};
  ASSERT_EQ(load("TUTTI_HOSTID", "alpha"), "");
  ASSERT_EQ(load("TUTTI_BUFFSIZE", "64K"), "");
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; i++)
    readers.emplace_back([&stop] {
      while (!stop) {
        std::string net = tuttiSettingString(TUTTI_SETTING_HOSTID);
        ASSERT_TRUE(net == "alpha" || net == "beta") << net;
        int64_t size = tuttiSettingInt(TUTTI_SETTING_BUFFSIZE);
        ASSERT_TRUE(size == 65536 || size == 131072) << size;
        ASSERT_STREQ(tuttiSettingOrigin(TUTTI_SETTING_HOSTID), "TUTTI_HOSTID");
      }
    });
  for (int i = 0; i < 500; i++) {
    setenv("TUTTI_HOSTID", i % 2 ? "alpha" : "beta", 1);
    setenv("TUTTI_BUFFSIZE", i % 2 ? "64K" : "128k", 1);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  }
  stop = true;
  for (auto &reader : readers)
    reader.join();
}

/* ---- parsing -------------------------------------------------------------------------------- */

tuttiSettingRow rowOf(tuttiSettingType type, int64_t min, int64_t max) {
  tuttiSettingRow row = {};
  row.name = "X";
  row.ncclName = "";
  row.type = type;
  row.min = min;
  row.max = max;
  row.dfltString = "";
  return row;
}

const int64_t UNTOUCHED = -987654321098765;

/* The value, or UNTOUCHED when refused. */
int64_t parse(tuttiSettingType type, const char *text) {
  tuttiSettingRow row = rowOf(type, INT64_MIN, INT64_MAX);
  int64_t value = UNTOUCHED;
  const char *wrong = tuttiSettingParse(&row, text, &value);
  EXPECT_EQ(wrong != nullptr, value == UNTOUCHED) << text;
  return value;
}

TEST(SettingParse, WholeNumbers) {
  const tuttiSettingType type = TUTTI_SETTING_INT;
  EXPECT_EQ(parse(type, "0"), 0);
  EXPECT_EQ(parse(type, "42"), 42);
  EXPECT_EQ(parse(type, "-42"), -42);
  EXPECT_EQ(parse(type, "+7"), 7);
  EXPECT_EQ(parse(type, " 7\t"), 7);
  EXPECT_EQ(parse(type, "007"), 7);
  EXPECT_EQ(parse(type, "9223372036854775807"), INT64_MAX);
  for (const char *bad : {"", " ", "-", "+", "--1", "1 2", "1.0", "0x10", "1e3", "12k", "abc",
                          "1,0", "9223372036854775808", "99999999999999999999999999", "\xd9\xa1"})
    EXPECT_EQ(parse(type, bad), UNTOUCHED) << bad;
}

TEST(SettingParse, Sizes) {
  const tuttiSettingType type = TUTTI_SETTING_SIZE;
  EXPECT_EQ(parse(type, "0"), 0);
  EXPECT_EQ(parse(type, "100"), 100);
  EXPECT_EQ(parse(type, "4K"), 4096);
  EXPECT_EQ(parse(type, "4k "), 4096);
  EXPECT_EQ(parse(type, "3M"), 3 << 20);
  EXPECT_EQ(parse(type, "2g"), int64_t{2} << 30);
  EXPECT_EQ(parse(type, "8589934591G"), int64_t{8589934591} << 30);
  for (const char *bad : {"", "K", "-1", "+1", "1KB", "1KK", "1 K", "1.5M", "1T", "8589934592G",
                          "9223372036854775807K"})
    EXPECT_EQ(parse(type, bad), UNTOUCHED) << bad;
}

TEST(SettingParse, Times) {
  const tuttiSettingType type = TUTTI_SETTING_SECONDS;
  EXPECT_EQ(parse(type, "0"), 0);
  EXPECT_EQ(parse(type, "600"), 600000);
  EXPECT_EQ(parse(type, "1.5"), 1500);
  EXPECT_EQ(parse(type, "1.5s"), 1500);
  EXPECT_EQ(parse(type, "250ms"), 250);
  EXPECT_EQ(parse(type, "10m"), 600000);
  EXPECT_EQ(parse(type, "0.5m "), 30000);
  EXPECT_EQ(parse(type, "0.001"), 1);
  EXPECT_EQ(parse(type, "0.000"), 0);
  /* Rounded up: a short time must not become 0, which means none. */
  EXPECT_EQ(parse(type, "0.0001"), 1);
  EXPECT_EQ(parse(type, "0.000000001"), 1);
  EXPECT_EQ(parse(type, "0.0010001"), 2);
  EXPECT_EQ(parse(type, "0.999999999m"), 60000);
  for (const char *bad :
       {"", ".", ".5", "5.", "-1", "1h", "1 s", "1.5.2", "1,5", "inf", "nan", "1e3", "1sm", "1.s",
        "0.0000000001", "9223372036854775807", "153722867280913m", "99999999999999999999"})
    EXPECT_EQ(parse(type, bad), UNTOUCHED) << bad;
}

TEST(SettingParse, BoundsBelongToTheRange) {
  tuttiSettingRow row = rowOf(TUTTI_SETTING_INT, -2, 5);
  int64_t value = UNTOUCHED;
  EXPECT_EQ(tuttiSettingParse(&row, "-2", &value), nullptr);
  EXPECT_EQ(value, -2);
  EXPECT_EQ(tuttiSettingParse(&row, "5", &value), nullptr);
  EXPECT_EQ(value, 5);
  EXPECT_STREQ(tuttiSettingParse(&row, "6", &value), "is out of range");
  EXPECT_STREQ(tuttiSettingParse(&row, "-3", &value), "is out of range");
  EXPECT_EQ(value, 5);
}

TEST(SettingParse, StringsAreTakenAsTheyAre) {
  tuttiSettingRow row = rowOf(TUTTI_SETTING_STRING, 0, 0);
  int64_t value = 3;
  EXPECT_EQ(tuttiSettingParse(&row, " any thing \x80", &value), nullptr);
  EXPECT_EQ(value, 0);
}

/* What strtoll says of a text that holds only a number. */
int64_t referenceInt(const std::string &text) {
  size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return UNTOUCHED;
  size_t last = text.find_last_not_of(" \t");
  std::string number = text.substr(first, last - first + 1);
  size_t digits = number.find_first_of("0123456789");
  if (digits == std::string::npos || digits > 1) return UNTOUCHED;
  if (digits == 1 && number[0] != '+' && number[0] != '-') return UNTOUCHED;
  if (number.find_first_not_of("0123456789", digits) != std::string::npos) return UNTOUCHED;
  errno = 0;
  long long value = strtoll(number.c_str(), nullptr, 10);
  return errno == ERANGE || value == LLONG_MIN ? UNTOUCHED : value;
}

/* Random texts, most of them near to what is valid. Whatever comes, the parser stays inside the
 * text, and either refuses it without a trace or gives a value in range. */
TEST(SettingParse, FuzzedTexts) {
  const char alphabet[] = "0123456789000999.-+ \tkKmMgGsx\x80";
  const tuttiSettingType types[] = {TUTTI_SETTING_INT, TUTTI_SETTING_BOOL, TUTTI_SETTING_SIZE,
                                    TUTTI_SETTING_SECONDS, TUTTI_SETTING_STRING};
  std::mt19937_64 random(4711);
  int accepted = 0;
  for (int i = 0; i < 300000; i++) {
    std::string text;
    bool anyByte = random() % 8 == 0;
    for (size_t n = random() % 24; n > 0; n--)
      text += anyByte ? static_cast<char>(random() % 255 + 1)
                      : alphabet[random() % (sizeof(alphabet) - 1)];
    /* An exact heap copy, so that ASan sees one byte too many. */
    std::vector<char> exact(text.c_str(), text.c_str() + text.size() + 1);
    exact.shrink_to_fit();
    for (tuttiSettingType type : types) {
      tuttiSettingRow row = rowOf(type, -1000, random() % 2 ? INT64_MAX : 100000);
      int64_t value = UNTOUCHED;
      const char *wrong = tuttiSettingParse(&row, exact.data(), &value);
      if (wrong != nullptr) {
        ASSERT_EQ(value, UNTOUCHED) << text;
        ASSERT_NE(wrong[0], '\0');
      } else {
        accepted += type != TUTTI_SETTING_STRING;
        ASSERT_GE(value, row.min) << text;
        ASSERT_LE(value, row.max) << text;
      }
    }
    ASSERT_EQ(parse(TUTTI_SETTING_INT, exact.data()), referenceInt(text)) << text;
  }
  EXPECT_GT(accepted, 50000) << "the texts are too far from what is valid";
}

} // namespace
