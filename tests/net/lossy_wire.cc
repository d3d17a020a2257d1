/* A wire between two interfaces that loses every hundredth packet on average, in each direction:
 * works on kernels without netem. Ends when its parent does.
 *
 *   lossy_wire INTERFACE INTERFACE */
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace {

[[noreturn]] void die(const char *what) {
  fprintf(stderr, "lossy_wire: %s: %s\n", what, strerror(errno));
  exit(1);
}

int openInterface(const char *name) {
  int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
  if (fd < 0) die("socket");
  sockaddr_ll at = {};
  at.sll_family = AF_PACKET;
  at.sll_protocol = htons(ETH_P_ALL);
  at.sll_ifindex = (int)if_nametoindex(name);
  if (!at.sll_ifindex || bind(fd, (sockaddr *)&at, sizeof at) != 0) die(name);
  int yes = 1, bytes = 8 << 20;
  if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes) != 0)
    die("PACKET_IGNORE_OUTGOING");
  /* Checksums and segments that the sender left to its card travel on as they are. */
  if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof yes) != 0) die("PACKET_VNET_HDR");
  setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
  return fd;
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s INTERFACE INTERFACE\n", argv[0]);
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd ends[2] = {{openInterface(argv[1]), POLLIN, 0}, {openInterface(argv[2]), POLLIN, 0}};
  std::mt19937 random(4711);
  static char packet[1 << 17];
  unsigned long carried = 0, lost = 0;
  for (;;) {
    if (poll(ends, 2, -1) < 0) die("poll");
    for (int i = 0; i < 2; i++) {
      ssize_t n = recv(ends[i].fd, packet, sizeof packet, MSG_DONTWAIT);
      if (n <= 0) continue;
      if (random() % 100 == 0)
        lost++;
      else if (send(ends[1 - i].fd, packet, (size_t)n, 0) != n && errno != ENOBUFS)
        die("send");
      if (++carried % 1000 == 0) fprintf(stderr, "carried %lu, lost %lu\n", carried, lost);
    }
  }
}
