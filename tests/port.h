/* A port of the loopback where nobody listens, for as long as this lives: no other program is given
 * it, but whoever asks for it by its number gets it, as the library does. */
#ifndef TUTTI_TESTS_PORT_H_
#define TUTTI_TESTS_PORT_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "socket/socket.h"

class HeldPort {
public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    socklen_t length = sizeof address;
    int on = 1;
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    EXPECT_EQ(bind(fd_, &address.sa, sizeof address.v4), 0);
    EXPECT_EQ(getsockname(fd_, &address.sa, &length), 0);
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort &) = delete;

  int number() const { return ntohs(address.v4.sin_port); }

  tuttiAddress address = {};

private:
  int fd_;
};

#endif
