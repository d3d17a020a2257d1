/* Runs the built `tutti` and reads what it says. */
#ifndef TUTTI_TESTS_TOOLS_COMMAND_H_
#define TUTTI_TESTS_TOOLS_COMMAND_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A program that runs; killed when this dies. */
class Command {
public:
  /* `program` is looked up in PATH; env holds NAME=VALUE. */
  explicit Command(std::vector<std::string> words, std::vector<std::string> env = {},
                   int stdoutFd = -1)
      : out_(memfd_create("stdout", MFD_CLOEXEC)), err_(memfd_create("stderr", MFD_CLOEXEC)) {
    /* Several processes write to a memfd: the kernel keeps their writes apart only when it appends.
     */
    for (int fd : {out_, err_})
      fcntl(fd, F_SETFL, O_APPEND);
    std::vector<char *> argv;
    for (auto &w : words)
      argv.push_back(w.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGINT,
             SIG_DFL); /* a shell's background job ignores it, and so would what it starts */
      for (auto &e : env)
        putenv(e.data());
      dup2(stdoutFd >= 0 ? stdoutFd : out_, STDOUT_FILENO);
      dup2(err_, STDERR_FILENO);
      execvp(argv[0], argv.data());
      _exit(126);
    }
  }
  ~Command() {
    if (!ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(err_);
  }
  Command(const Command &) = delete;

  /* The exit code, or 128 + the signal that ended it; kills it after `seconds`. */
  int wait(int seconds = 200) {
    int status = 0;
    for (int i = 0; i < seconds * 100 && !ended_; i++) {
      ended_ = waitpid(pid_, &status, WNOHANG) == pid_;
      if (!ended_) usleep(10000);
    }
    if (!ended_) {
      ADD_FAILURE() << "still running after " << seconds << " s; stderr: " << err();
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      ended_ = true;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string out() const { return content(out_); }
  std::string err() const { return content(err_); }
  pid_t pid() const { return pid_; }

private:
  static std::string content(int fd) {
    std::string text;
    char buffer[4096];
    ssize_t n;
    while ((n = pread(fd, buffer, sizeof buffer, (off_t)text.size())) > 0)
      text.append(buffer, (size_t)n);
    return text;
  }
  pid_t pid_;
  bool ended_ = false;
  int out_, err_;
};

struct Result {
  int code;
  std::string out, err;
};

inline Result finished(Command &c, int seconds = 200) {
  int code = c.wait(seconds);
  return {code, c.out(), c.err()};
}

/* tutti with these arguments. */
inline Result tutti(std::vector<std::string> args, std::vector<std::string> env = {}) {
  args.insert(args.begin(), TUTTI_COMMAND);
  Command c(args, env);
  return finished(c);
}

/* True if a program is in PATH. */
inline bool installed(const std::string &program) {
  return Command({"which", program}).wait() == 0;
}

#endif
