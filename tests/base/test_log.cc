#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "base/os.h"

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

namespace {

class LogTest : public EnvironmentTest {
protected:
  void SetUp() override {
    EnvironmentTest::SetUp();
    char pattern[] = "/tmp/tutti-test-log.XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    directory = pattern;
  }

  void TearDown() override {
    EnvironmentTest::TearDown();
    for (const auto &name : files)
      unlink(name.c_str());
    rmdir(directory.c_str());
  }

  std::string fileNamed(const std::string &name) {
    files.push_back(directory + "/" + name);
    return files.back();
  }

  static std::string contents(const std::string &path) {
    std::ifstream in(path);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }

  static std::string here() {
    std::ostringstream prefix;
    prefix << tuttiHostname() << ":" << getpid() << ":" << gettid() << " ";
    return prefix.str();
  }

private:
  std::string directory;
  std::vector<std::string> files;
};

/* What the log writes to stderr while `body` runs. */
template <typename Body> std::string logOf(Body body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST_F(LogTest, LinesHaveTheKnownShape) {
  ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
  EXPECT_EQ(logOf([] { TUTTI_INFO(INIT, "Ring %02d : 0 1", 0); }),
            here() + "TUTTI INFO Ring 00 : 0 1\n");
  EXPECT_EQ(logOf([] { TUTTI_WARN(COLL, "late"); }), here() + "TUTTI WARN late\n");
}

TEST_F(LogTest, LevelsIncludeThoseBelow) {
  auto everything = [] {
    TUTTI_WARN(INIT, "a warning");
    TUTTI_INFO(INIT, "a note");
    TUTTI_TRACE(INIT, "a trace");
  };
  EXPECT_EQ(logOf(everything), "");
  ASSERT_EQ(load("TUTTI_DEBUG", "VERSION"), "");
  EXPECT_EQ(logOf(everything), "");
  ASSERT_EQ(load("TUTTI_DEBUG", "warn"), "");
  EXPECT_THAT(logOf(everything), AllOf(HasSubstr("a warning"), Not(HasSubstr("a note"))));
  ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
  EXPECT_THAT(logOf(everything),
              AllOf(HasSubstr("a warning"), HasSubstr("a note"), Not(HasSubstr("a trace"))));
  ASSERT_EQ(load("TUTTI_DEBUG", "TRACE"), "");
  EXPECT_THAT(logOf(everything), HasSubstr("a trace"));
  ASSERT_EQ(load("TUTTI_DEBUG", "NONE"), "");
  EXPECT_EQ(logOf(everything), "");
  ASSERT_EQ(load("TUTTI_DEBUG", ""), "");
  ASSERT_EQ(load("NCCL_DEBUG", "ABORT"), "");
  EXPECT_THAT(logOf(everything), AllOf(HasSubstr("a note"), Not(HasSubstr("a trace"))));
}

TEST_F(LogTest, SubsystemsFilterInfoButNotWarnings) {
  auto each = [] {
    TUTTI_INFO(INIT, "from-init");
    TUTTI_INFO(NET, "from-net");
    TUTTI_INFO(COLL, "from-coll");
    TUTTI_WARN(COLL, "warning-coll");
  };
  ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
  EXPECT_THAT(logOf(each), AllOf(HasSubstr("from-init"), HasSubstr("from-net"),
                                 Not(HasSubstr("from-coll")), HasSubstr("warning-coll")));
  ASSERT_EQ(load("TUTTI_DEBUG_SUBSYS", "COLL,net"), "");
  EXPECT_THAT(logOf(each),
              AllOf(Not(HasSubstr("from-init")), HasSubstr("from-net"), HasSubstr("from-coll")));
  ASSERT_EQ(load("TUTTI_DEBUG_SUBSYS", "^NET,INIT"), "");
  EXPECT_THAT(logOf(each), AllOf(Not(HasSubstr("from-init")), Not(HasSubstr("from-net")),
                                 HasSubstr("from-coll")));
  ASSERT_EQ(load("TUTTI_DEBUG_SUBSYS", "ALL"), "");
  EXPECT_THAT(logOf(each), AllOf(HasSubstr("from-init"), HasSubstr("from-coll")));
  ASSERT_EQ(load("TUTTI_DEBUG_SUBSYS", "^ALL"), "");
  EXPECT_THAT(logOf(each), AllOf(Not(HasSubstr("from-")), HasSubstr("warning-coll")));
}

TEST_F(LogTest, ErrorsAreLoggedOnceWithTheirPlace) {
  ASSERT_EQ(load("TUTTI_DEBUG", "WARN"), "");
  auto inner = [] { return TUTTI_FAIL(tuttiSystemError, "no such thing"); };
  auto outer = [&inner]() -> tuttiResult_t {
    TUTTI_TRY(inner());
    return tuttiSuccess;
  };
  std::string log = logOf([&outer] {
    EXPECT_EQ(outer(), tuttiSystemError);
    tuttiErrorAdopt(tuttiRemoteError, "adopted");
  });
  EXPECT_THAT(log, AllOf(HasSubstr("TUTTI WARN "), HasSubstr("test_log.cc:"),
                         HasSubstr(" no such thing\n"), Not(HasSubstr("adopted"))));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

/* A text that came from elsewhere must not look like a second line, and a long one is cut. */
TEST_F(LogTest, OneCallIsOneLine) {
  ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
  EXPECT_EQ(logOf([] { TUTTI_INFO(INIT, "a\nvm:1:1 TUTTI WARN forged\r\x1b[2J"); }),
            here() + "TUTTI INFO a vm:1:1 TUTTI WARN forged  [2J\n");
  std::string longText(10000, 'z');
  std::string log = logOf([&longText] { TUTTI_INFO(INIT, "%s", longText.c_str()); });
  EXPECT_EQ(log.size(), 4096u);
  EXPECT_EQ(log.substr(4090), "zzzzz\n");
}

TEST_F(LogTest, FileTakesHostAndPid) {
  std::string pid = std::to_string(getpid());
  std::string path = fileNamed(std::string(tuttiHostname()) + "-" + pid + "-%x%.log");
  std::string pattern = path.substr(0, path.rfind('/')) + "/%h-%p-%x%.log";
  ASSERT_EQ(load("TUTTI_DEBUG_FILE", pattern), "");
  ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
  EXPECT_EQ(logOf([] { TUTTI_INFO(INIT, "into the file"); }), "");
  EXPECT_THAT(contents(path), testing::EndsWith(here() + "TUTTI INFO into the file\n"));
}

TEST_F(LogTest, FollowsTheSettings) {
  std::string one = fileNamed("one"), two = fileNamed("two");
  ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
  for (const auto &path : {one, two, one}) {
    ASSERT_EQ(load("TUTTI_DEBUG_FILE", path), "");
    EXPECT_EQ(logOf([&path] { TUTTI_INFO(INIT, "to %s", path.c_str()); }), "");
  }
  ASSERT_EQ(load("TUTTI_DEBUG_FILE", ""), "");
  EXPECT_THAT(logOf([] { TUTTI_INFO(INIT, "back"); }), HasSubstr("back"));
  std::string first = contents(one);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 2) << "reopened files are appended to";
  EXPECT_THAT(contents(two), HasSubstr("to " + two));
}

TEST_F(LogTest, ManyReloadsKeepOneDescriptor) {
  std::string one = fileNamed("one"), two = fileNamed("two");
  ASSERT_EQ(load("TUTTI_DEBUG", "WARN"), "");
  ASSERT_EQ(load("TUTTI_DEBUG_FILE", one), "");
  int before = dup(STDERR_FILENO);
  close(before);
  for (int i = 0; i < 20; i++)
    ASSERT_EQ(load("TUTTI_DEBUG_FILE", i % 2 ? one : two), "");
  int after = dup(STDERR_FILENO);
  close(after);
  EXPECT_EQ(before, after);
}

TEST_F(LogTest, BadFileFallsBackToStderrWithOneWarning) {
  ASSERT_EQ(load("TUTTI_DEBUG", "WARN"), "");
  std::string fifo = fileNamed("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  alarm(20); /* ends the test if opening the FIFO waits for a reader */
  for (const std::string &bad :
       {std::string("/no/such/directory/log"), fifo, "/tmp/" + std::string(5000, 'n')}) {
    std::string log = logOf([&bad] {
      EXPECT_EQ(load("TUTTI_DEBUG_FILE", bad), "");
      EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
      TUTTI_WARN(INIT, "still heard");
    });
    EXPECT_THAT(log, AllOf(HasSubstr("cannot open the log file \"" + bad.substr(0, 20)),
                           HasSubstr("still heard")));
    EXPECT_EQ(log.find("cannot open"), log.rfind("cannot open"));
  }
  alarm(0);
}

TEST_F(LogTest, FullDiskIsSilent) {
  ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
  ASSERT_EQ(load("TUTTI_DEBUG_FILE", "/dev/full"), "");
  errno = EAGAIN;
  EXPECT_EQ(logOf([] { TUTTI_INFO(INIT, "nowhere"); }), "");
  EXPECT_EQ(errno, EAGAIN);
}

/* ---- in a child of its own, which has never logged (hence no fixture, which would) ----------- */

/* The first thing logged loads the settings, shows the version, and touches no stdout. */
void firstUse() {
  EnvironmentTest::clear();
  setenv("TUTTI_DEBUG", "INFO", 1);
  fflush(stdout);
  char path[] = "/tmp/tutti-test-stdout.XXXXXX";
  int out = mkstemp(path);
  unlink(path);
  dup2(out, STDOUT_FILENO);
  TUTTI_INFO(INIT, "first");
  tuttiSettingsLoad();
  TUTTI_INFO(INIT, "second");
  struct stat st;
  _exit(fstat(out, &st) == 0 && st.st_size == 0 ? 0 : 1);
}

TEST(LogFirstUse, LoadsTheSettingsAndShowsTheVersionOnce) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(firstUse(), testing::ExitedWithCode(0),
              testing::MatchesRegex("[^\n]* TUTTI VERSION tutti [0-9.]*\n"
                                    "[^\n]* TUTTI INFO first\n[^\n]* TUTTI INFO second\n"));
}

/* A malformed setting must not switch off the log that reports it. */
void malformedSetting() {
  EnvironmentTest::clear();
  setenv("TUTTI_DEBUG", "WARN", 1);
  setenv("TUTTI_TIMEOUT", "abc", 1);
  setenv("TUTTI_BUFFSIZE", "1M", 1);
  bool tolerated = tuttiSettingInt(TUTTI_SETTING_TIMEOUT) == 600000 &&
                   tuttiSettingInt(TUTTI_SETTING_BUFFSIZE) == 1 << 20;
  bool silent = tuttiErrorText()[0] == '\0';
  _exit(tolerated && silent && tuttiSettingsLoad() == tuttiInvalidArgument ? 0 : 1);
}

TEST(LogFirstUse, ReportsMalformedSettings) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(malformedSetting(), testing::ExitedWithCode(0), HasSubstr("TUTTI_TIMEOUT=\"abc\""));
}

void closedStderr() {
  EnvironmentTest::clear();
  signal(SIGPIPE, SIG_DFL);
  setenv("TUTTI_DEBUG", "INFO", 1);
  tuttiSettingsLoad();
  int ends[2];
  if (pipe(ends) != 0) _exit(1);
  close(ends[0]);
  dup2(ends[1], STDERR_FILENO);
  TUTTI_INFO(INIT, "to nobody"); /* EPIPE */
  sigset_t pending;
  sigpending(&pending);
  bool left = sigismember(&pending, SIGPIPE) == 1;
  close(STDERR_FILENO);
  TUTTI_INFO(INIT, "to nothing"); /* EBADF */
  _exit(left ? 2 : 0);
}

TEST(LogFirstUse, BrokenStderrKillsNobody) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(closedStderr(), testing::ExitedWithCode(0), "");
}

void noisyChild(int fd, char mark) {
  dup2(fd, STDERR_FILENO);
  setenv("TUTTI_DEBUG", "INFO", 1);
  if (tuttiSettingsLoad() != tuttiSuccess) _exit(1);
  std::string text(200, mark);
  for (int i = 0; i < 300; i++)
    TUTTI_INFO(INIT, "%s", text.c_str());
  _exit(0);
}

TEST_F(LogTest, LinesOfProcessesDoNotMix) {
  std::string path = fileNamed("shared");
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  std::vector<pid_t> children;
  for (char mark : {'a', 'b', 'c'}) {
    pid_t child = fork();
    if (child == 0) noisyChild(fd, mark);
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  close(fd);
  std::istringstream lines(contents(path));
  std::regex shape("[^ ]+:[0-9]+:[0-9]+ TUTTI (INFO (a{200}|b{200}|c{200})|VERSION .*)");
  int infos = 0;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_TRUE(std::regex_match(line, shape)) << line;
    infos += line.find(" INFO ") != std::string::npos;
  }
  EXPECT_EQ(infos, 900);
}

} // namespace
