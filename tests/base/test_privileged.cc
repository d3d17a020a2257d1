/* A program with more rights than its user: this one, as a set-user-ID program started by nobody.
 */
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"

using testing::HasSubstr;
using testing::Not;

namespace {

/* What the program says of itself; also a test, which holds where nobody has raised its rights. */
TEST(Privileged, Child) {
  const char *asked = getenv("TUTTITEST_PRIVILEGED");
  EXPECT_EQ(tuttiPrivileged(), asked != nullptr);
  if (!asked) return;
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  TUTTI_WARN(ENV, "topology '%s', hostid '%s'", tuttiSettingString(TUTTI_SETTING_TOPO_DUMP_FILE),
             tuttiSettingString(TUTTI_SETTING_HOSTID));
}

class PrivilegedTest : public testing::Test {
protected:
  void SetUp() override {
    char name[] = "/tmp/tutti-privileged-XXXXXX";
    if (geteuid() != 0) GTEST_SKIP() << "may not make a set-user-ID program of root's";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir = name;
    chmod(name, 0755);
    program = dir / "program";
    std::filesystem::copy_file("/proc/self/exe", program);
    ASSERT_EQ(chmod(program.c_str(), 04755), 0);
  }
  void TearDown() override {
    if (!dir.empty()) std::filesystem::remove_all(dir);
  }

  /* The program's log, on its stderr; its exit status in *status. */
  std::string run(int *status) {
    std::string out = (dir / "out").string();
    pid_t child = fork();
    if (child == 0) {
      int fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(fd, 1);
      dup2(fd, 2);
      if (setgid(65534) != 0 || setuid(65534) != 0) _exit(98);
      setenv("TUTTITEST_PRIVILEGED", "1", 1);
      setenv("TUTTI_DEBUG", "INFO", 1);
      setenv("TUTTI_DEBUG_FILE", (dir / "log").c_str(), 1);
      setenv("TUTTI_TOPO_DUMP_FILE", (dir / "topology").c_str(), 1);
      setenv("NCCL_CONF_FILE", (dir / "shadow").c_str(), 1);
      setenv("HOME", dir.c_str(), 1);
      execl(program.c_str(), program.c_str(), "--gtest_filter=Privileged.Child", nullptr);
      _exit(99);
    }
    waitpid(child, status, 0);
    std::ifstream in(out);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

  std::filesystem::path dir, program;
};

TEST_F(PrivilegedTest, TakesNoNamesOfFilesFromItsUser) {
  struct statvfs fs;
  ASSERT_EQ(statvfs(dir.c_str(), &fs), 0);
  if (fs.f_flag & ST_NOSUID) GTEST_SKIP() << "/tmp has no set-user-ID programs";
  std::ofstream(dir / "shadow") << "root:$6$secret\nNCCL_HOSTID=secret\n";
  std::ofstream(dir / ".nccl.conf") << "NCCL_HOSTID=home\n";
  chmod((dir / "shadow").c_str(), 0600);
  int status;
  std::string log = run(&status);
  EXPECT_EQ(status, 0) << log;
  EXPECT_THAT(log,
              HasSubstr("this program has more rights than its user (set-user-ID?), who may not "
                        "name files: ignored are NCCL_CONF_FILE, TUTTI_DEBUG_FILE, "
                        "TUTTI_TOPO_DUMP_FILE"));
  EXPECT_THAT(log, HasSubstr("topology '', hostid ''"));
  EXPECT_THAT(log, Not(HasSubstr("secret")));
  EXPECT_FALSE(std::filesystem::exists(dir / "log"));
}

} // namespace
