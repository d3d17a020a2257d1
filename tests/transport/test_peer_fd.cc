#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "base/os.h"
#include "holdings.h"
#include "transport/peer_fd.h"

namespace {
using ::testing::HasSubstr;

class PeerFd : public ::testing::Test {
protected:
  int fd = -1, fds = openFds();
  tuttiPeerFd at = {-1, 0, 0};
  std::string why;

  void SetUp() override {
    ASSERT_EQ(tuttiSuccess, tuttiSharedFd("test", &fd));
    ASSERT_EQ(5, pwrite(fd, "hello", 5, 0));
    ASSERT_EQ(0, tuttiPeerFdDescribe(fd, &at));
  }
  void TearDown() override {
    close(fd);
    EXPECT_EQ(fds, openFds());
  }
  int tryOpen(int pid) {
    char text[160] = "";
    int opened = tuttiPeerFdOpen(pid, &at, text, sizeof text);
    why = text;
    return opened;
  }
};

TEST_F(PeerFd, LeadsToTheFile) {
  int opened = tryOpen(getpid());
  ASSERT_GE(opened, 0) << why;
  char text[6] = "";
  EXPECT_EQ(5, pread(opened, text, 5, 0));
  EXPECT_STREQ("hello", text);
  EXPECT_EQ(1, pwrite(opened, "j", 1, 0));
  EXPECT_EQ(FD_CLOEXEC, fcntl(opened, F_GETFD));
  close(opened);
}

TEST_F(PeerFd, OfAnotherFileIsRefused) {
  int other;
  ASSERT_EQ(tuttiSuccess, tuttiSharedFd("test", &other));
  at.fd = other;
  EXPECT_EQ(-ESTALE, tryOpen(getpid()));
  EXPECT_THAT(why, HasSubstr("/fd/" + std::to_string(other) + " is another file"));
  close(other);
  at.fd = fd;
  at.device++;
  EXPECT_EQ(-ESTALE, tryOpen(getpid()));
}

// To open it would let the writer at the other end of the pipe go on.
TEST_F(PeerFd, OpensNothingToLookAtIt) {
  int pipes[2];
  ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
  close(pipes[0]);
  ASSERT_EQ(0, tuttiPeerFdDescribe(pipes[1], &at));
  EXPECT_EQ(-ESTALE, tryOpen(getpid())) << "the same, but no regular file";
  signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(-1, write(pipes[1], "x", 1));
  EXPECT_EQ(EPIPE, errno);
  close(pipes[1]);
}

TEST_F(PeerFd, OfNobodyIsAReason) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(-ENOENT, tryOpen(child));
  EXPECT_THAT(why, HasSubstr("/proc/" + std::to_string(child) + "/fd/"));
  at.fd = -1;
  EXPECT_EQ(-EBADF, tryOpen(getpid()));
  at.fd = fd;
  EXPECT_EQ(-EBADF, tryOpen(0));
}

TEST_F(PeerFd, OfAnotherUserIsRefused) {
  if (fchown(fd, 65534, (gid_t)-1) != 0) GTEST_SKIP() << "may not give files away";
  EXPECT_EQ(-EPERM, tryOpen(getpid()));
  EXPECT_THAT(why, HasSubstr("is of user 65534"));
}

// What processes that may not be looked into are to others of their user.
TEST_F(PeerFd, OfAnUndumpableProcessIsRefusedByTheKernel) {
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    bool ok = geteuid() != 0 || setuid(65534) == 0;
    ok = ok && prctl(PR_SET_DUMPABLE, 0) == 0;
    pid_t asker = ok ? fork() : -1;
    if (asker == 0) _exit(tryOpen(getppid()) == -EACCES ? 0 : 1);
    int status = 1;
    if (asker > 0) waitpid(asker, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
}

} // namespace
