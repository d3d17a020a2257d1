/* For tests of encryption: a key file, and whether the library for it is there. */
#ifndef TESTS_SOCKET_TLS_H_
#define TESTS_SOCKET_TLS_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "socket/openssl.h"
#include "socket/secure.h"

/* Of a test, or of a fixture's SetUp. */
#define NEEDS_TLS()                                                                                \
  if (const char *missing = tuttiOpensslLoad()) GTEST_SKIP() << "no TLS here: " << missing

/* Holds a key while it lives. */
class KeyFile {
public:
  explicit KeyFile(const std::string &key = "a key of these tests, and of no other use") {
    int fd = mkstemp(path_);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(write(fd, key.data(), key.size()), (ssize_t)key.size());
    EXPECT_EQ(fchmod(fd, 0600), 0);
    close(fd);
  }
  ~KeyFile() { unlink(path_); }
  const char *path() const { return path_; }

private:
  char path_[32] = "/tmp/tutti-key-XXXXXX";
};

/* The outcome of the handshakes of both ends of a connection: 1, or -errno. */
inline std::pair<int, int> shakeHands(int callerFd, int listenerFd) {
  int caller = 0, listens = 0;
  short callerWaits = POLLIN, listenerWaits = POLLIN;
  while (caller == 0 || listens == 0) {
    if (caller == 0) caller = tuttiSecureHandshake(callerFd, &callerWaits);
    if (listens == 0) listens = tuttiSecureHandshake(listenerFd, &listenerWaits);
    /* Who has failed closes, as every user of it does. */
    if (caller < 0 && listens == 0) shutdown(callerFd, SHUT_WR);
    if (listens < 0 && caller == 0) shutdown(listenerFd, SHUT_WR);
    pollfd both[] = {{caller == 0 ? callerFd : -1, callerWaits, 0},
                     {listens == 0 ? listenerFd : -1, listenerWaits, 0}};
    if ((caller == 0 || listens == 0) && poll(both, 2, 10000) <= 0) break;
  }
  return {caller, listens};
}

#endif
