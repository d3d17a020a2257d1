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
  /* Any that is free, or this one: then ok() says whether it was. */
  explicit HeldPort(int number = 0) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    socklen_t length = sizeof address;
    int on = 1;
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.v4.sin_port = htons((uint16_t)number);
    /* A port that was asked for must be nobody's: one that is held likewise would be shared. */
    ok_ = number == 0 || bind(fd_, &address.sa, sizeof address.v4) == 0;
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    if (number == 0) {
      EXPECT_EQ(bind(fd_, &address.sa, sizeof address.v4), 0);
    }
    EXPECT_EQ(getsockname(fd_, &address.sa, &length), 0);
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort &) = delete;

  bool ok() const { return ok_; }
  int number() const { return ntohs(address.v4.sin_port); }

  tuttiAddress address = {};

private:
  int fd_;
  bool ok_;
};

#endif
