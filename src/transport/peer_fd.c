#include "transport/peer_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"

int tuttiPeerFdDescribe(int fd, tuttiPeerFd *out) {
  struct stat st;
  if (fstat(fd, &st) != 0) return errno;
  *out = (tuttiPeerFd){.fd = fd, .device = st.st_dev, .inode = st.st_ino};
  return 0;
}

static bool sameFile(const tuttiPeerFd *of, const struct stat *st) {
  return S_ISREG(st->st_mode) && st->st_dev == of->device && st->st_ino == of->inode;
}

/* Checks what `path` leads to: 0, or a negative errno. */
static int judge(int found, const tuttiPeerFd *of, const char *path, char *why, size_t size) {
  struct stat st;
  if (found < 0 || fstat(found, &st) != 0) {
    int err = errno;
    snprintf(why, size, "%s: %s", path, tuttiErrnoText(err));
    return -err;
  }
  if (!sameFile(of, &st)) {
    snprintf(why, size, "%s is another file", path);
    return -ESTALE;
  }
  if (st.st_uid == geteuid() || st.st_uid == 0) return 0;
  snprintf(why, size, "%s is of user %u", path, st.st_uid);
  return -EPERM;
}

int tuttiPeerFdOpen(int32_t pid, const tuttiPeerFd *of, char *why, size_t size) {
  char path[64], again[64];
  if (of->fd < 0 || pid <= 0) {
    snprintf(why, size, "process %d shows no descriptor", pid);
    return -EBADF;
  }
  /* Looked at first, by a descriptor that opens nothing: to open a device or a pipe has effects. */
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, of->fd);
  TUTTI_CLOSED int found = open(path, O_PATH | O_CLOEXEC);
  int err = judge(found, of, path, why, size);
  if (err) return err;
  snprintf(again, sizeof again, "/proc/self/fd/%d", found);
  int fd = open(again, O_RDWR | O_CLOEXEC);
  if (fd >= 0) return fd;
  err = errno;
  snprintf(why, size, "%s: %s", path, tuttiErrnoText(err));
  return -err;
}
