#include "ras/signal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"

/* Where the handler writes; -1: nowhere. It may run in any thread, also while this is closed, and
 * in a forked child, where the number is closed and may be another file's. */
static tuttiAtomic32 target = {UINT32_MAX};

static void handle(int signal) {
  (void)signal;
  int before = errno, fd = (int)tuttiLoadAcquire32(&target);
  if (fd >= 0 && !tuttiForked()) (void)eventfd_write(fd, 1);
  errno = before;
}

static bool isOurs(const struct sigaction *action) {
  return !(action->sa_flags & SA_SIGINFO) && action->sa_handler == handle;
}

/* False: it is the program's. */
static bool take(void) {
  struct sigaction ours = {.sa_handler = handle, .sa_flags = SA_RESTART}, now;
  sigemptyset(&ours.sa_mask);
  if (sigaction(SIGUSR2, NULL, &now) != 0) return false;
  bool free = !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
  return free && sigaction(SIGUSR2, &ours, NULL) == 0;
}

int tuttiRasSignalOpen(void) {
  if (!*tuttiSettingString(TUTTI_SETTING_DUMP_FILE)) return -1;
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    TUTTI_WARN(INIT, "TUTTI_DUMP_FILE: SIGUSR2 does nothing: no eventfd: %s",
               tuttiErrnoText(errno));
    return -1;
  }
  tuttiForkCloseAdd(fd);
  tuttiStoreRelease32(&target, (uint32_t)fd);
  if (take()) return fd;
  TUTTI_WARN(INIT,
             "TUTTI_DUMP_FILE: SIGUSR2 writes no record: the program handles that signal itself; "
             "tutti status --trace and tuttiCommDump give it");
  tuttiRasSignalClose(&fd);
  return -1;
}

bool tuttiRasSignalTake(int fd) {
  eventfd_t times;
  return eventfd_read(fd, &times) == 0;
}

void tuttiRasSignalClose(int *fd) {
  struct sigaction now, before = {.sa_handler = SIG_DFL};
  if (*fd < 0) return;
  sigemptyset(&before.sa_mask);
  if (sigaction(SIGUSR2, NULL, &now) == 0 && isOurs(&now)) sigaction(SIGUSR2, &before, NULL);
  tuttiStoreRelease32(&target, UINT32_MAX);
  tuttiFdClose(fd);
}
