#include "doctor/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"

enum { MOST = 1024, SLICE_MS = 100 };

static void becomeCommand(char *const argv[], const char *variable, bool quiet, int out) {
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  setpgid(0, 0); /* so that what it starts can be ended with it */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  if (nothing >= 0 && quiet) dup2(nothing, STDERR_FILENO);
  dup2(out, STDOUT_FILENO);
  if (variable) putenv((char *)variable);
  execvp(argv[0], argv);
  _exit(127);
}

bool tuttiCommandStart(tuttiCommand *c, char *const argv[], const char *variable, bool quiet,
                       char *out, size_t size) {
  int ends[2];
  *c = (tuttiCommand){.fd = -1, .out = out, .size = size, .status = -1};
  out[0] = '\0';
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  c->pid = fork();
  if (c->pid == 0) becomeCommand(argv, variable, quiet, ends[1]);
  close(ends[1]);
  c->fd = ends[0];
  if (c->pid > 0) return true;
  close(ends[0]);
  *c = (tuttiCommand){.fd = -1, .out = out, .size = size, .status = -1};
  return false;
}

static void readSome(tuttiCommand *c) {
  char more[4096];
  ssize_t n = read(c->fd, more, sizeof more);
  if (n < 0 && errno == EINTR) return;
  for (ssize_t i = 0; i < n && c->length + 1 < c->size; i++)
    c->out[c->length++] = more[i];
  c->out[c->length] = '\0';
  if (n > 0) return;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  c->endedAt = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
  close(c->fd);
  c->fd = -1;
}

static void end(tuttiCommand *c, bool late) {
  if (c->pid <= 0) return;
  if (late) kill(-c->pid, SIGKILL);
  if (late) kill(c->pid, SIGKILL); /* it may not have its group yet */
  while (waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR)
    continue;
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  c->pid = 0;
}

void tuttiCommandsAwait(tuttiCommand *c, int n, uint64_t deadline) {
  struct pollfd fds[MOST];
  for (int running = 1; running > 0 && tuttiNow() < deadline;) {
    running = 0;
    for (int i = 0; i < n && i < MOST; i++) {
      fds[i] = (struct pollfd){.fd = c[i].fd, .events = POLLIN};
      running += c[i].fd >= 0;
    }
    if (running == 0 || poll(fds, (nfds_t)(n < MOST ? n : MOST), SLICE_MS) <= 0) continue;
    for (int i = 0; i < n && i < MOST; i++)
      if (c[i].fd >= 0 && fds[i].revents) readSome(&c[i]);
  }
  for (int i = 0; i < n; i++)
    end(&c[i], c[i].fd >= 0); /* whoever has closed its output ends by itself */
}

bool tuttiCommandRun(char *const argv[], const char *variable, char *out, size_t size, int ms) {
  tuttiCommand c;
  if (!tuttiCommandStart(&c, argv, variable, true, out, size)) return false;
  tuttiCommandsAwait(&c, 1, tuttiDeadline(ms));
  return WIFEXITED(c.status) && WEXITSTATUS(c.status) == 0;
}
