#include "fault.h"

#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <netinet/in.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace chaos {

const char *nameOf(FaultKind kind) {
  static const char *const names[] = {"kill",  "stop", "freeze",  "cut",
                                      "delay", "drop", "reorder", "corrupt"};
  return names[kind];
}

bool isHarmless(FaultKind kind) {
  return kind == kStop || kind == kDelay || kind == kDrop || kind == kReorder;
}

namespace {

using Clock = std::chrono::steady_clock;

/* The functions that this file's replace: a sanitizer's, or libc's. */
template <class F> F replaced(const char *name) {
  return (F)dlsym(RTLD_NEXT, name);
}

ssize_t sendNow(int fd, const void *data, size_t bytes, int flags) {
  static const auto real = chaos::replaced<ssize_t (*)(int, const void *, size_t, int)>("send");
  return real(fd, data, bytes, flags);
}

bool isTcp(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return false;
  return domain == AF_INET || domain == AF_INET6;
}

/* ---- messages under way --------------------------------------------------------------------- */

/* Keeps what is sent over TCP for a while. Each connection's bytes stay in order. */
class Flight {
public:
  void begin(const Fault &f) {
    std::lock_guard<std::mutex> hold(lock);
    fault = f;
    end = Clock::now() + std::chrono::milliseconds(f.ms);
    std::thread([this] { deliver(); }).detach();
    begun = true;
  }
  /* False: the caller sends it, nothing is in its way. */
  bool take(int fd, const char *data, size_t bytes) {
    if (!begun || !isTcp(fd)) return false;
    std::lock_guard<std::mutex> hold(lock);
    auto at = queues.find(fd);
    Clock::time_point now = Clock::now();
    if (now >= end && at == queues.end()) return false;
    Clock::time_point due = now < end ? now + latency(fd, now) : now;
    auto &queue = queues[fd];
    if (!queue.empty() && due < queue.back().due) due = queue.back().due;
    queue.push_back({due, std::string(data, bytes)});
    return true;
  }
  /* Before the descriptor is closed: what it has sent goes out. */
  void land(int fd) {
    if (!begun) return;
    std::lock_guard<std::mutex> hold(lock);
    auto at = queues.find(fd);
    for (int tries = 0; at != queues.end() && !at->second.empty() && tries < 50; tries++)
      if (!push(fd, at->second)) usleep(1000);
    if (at != queues.end()) queues.erase(at);
  }
  void landAll() {
    while (begun) {
      usleep(500);
      std::lock_guard<std::mutex> hold(lock);
      if (queues.empty() && Clock::now() >= end) return;
    }
  }

private:
  struct Message {
    Clock::time_point due;
    std::string bytes;
  };

  Clock::duration latency(int fd, Clock::time_point now) const {
    if (fault.kind == kDrop) return end - now;
    uint32_t most = 20000; /* us; of connections that overtake each other, one has almost none */
    uint32_t hash = (fault.seed ^ (uint32_t)fd * 2654435761u) * 2246822519u;
    return std::chrono::microseconds(fault.kind == kDelay ? 1000 + fault.seed % most
                                                          : (hash >> 8) % most);
  }
  /* False: there is no room now. */
  static bool push(int fd, std::deque<Message> &queue) {
    while (!queue.empty()) {
      std::string &bytes = queue.front().bytes;
      ssize_t n = sendNow(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) return false;
      if (n >= 0 && (size_t)n < bytes.size())
        bytes.erase(0, (size_t)n);
      else
        queue.pop_front(); /* or its connection has ended, and with it what was under way */
      if (!queue.empty() && queue.front().due > Clock::now()) break;
    }
    return true;
  }
  [[noreturn]] void deliver() {
    for (;;) {
      {
        std::lock_guard<std::mutex> hold(lock);
        for (auto at = queues.begin(); at != queues.end();) {
          auto &[fd, queue] = *at;
          if (!queue.empty() && queue.front().due <= Clock::now()) push(fd, queue);
          at = queue.empty() ? queues.erase(at) : std::next(at);
        }
      }
      usleep(200);
    }
  }

  std::mutex lock;
  std::atomic<bool> begun{false};
  Fault fault{};
  Clock::time_point end;
  std::map<int, std::deque<Message>> queues; /* by descriptor; none is empty while it is unlocked */
};

/* ---- the strike ------------------------------------------------------------------------------ */

int *sends;
int leastSends;
std::atomic<int> sendsOver[1 << 16]; /* by descriptor */
int strikesAt;                       /* atomic */
const Fault *fault;
Strike *strike;
const pid_t *candidates;
int ncandidates;

Flight &flight() {
  static Flight *one = new Flight; /* its thread outlives main */
  return *one;
}

/* The inode of the socket from `remote` to `local`, which is the other end of one of this host; 0:
 * none. */
unsigned long otherEnd(uint16_t local, uint16_t remote) {
  for (const char *path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    FILE *f = fopen(path, "r");
    char line[512];
    unsigned from, to;
    unsigned long inode;
    while (f && fgets(line, sizeof line, f)) {
      if (sscanf(line,
                 " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%x %*x %*x:%*x %*x:%*x %*x %*d %*d %lu",
                 &from, &to, &inode) == 3 &&
          from == remote && to == local) {
        fclose(f);
        return inode;
      }
    }
    if (f) fclose(f);
  }
  return 0;
}

bool holds(pid_t pid, unsigned long inode) {
  std::string folder = "/proc/" + std::to_string(pid) + "/fd", link;
  std::string wanted = "socket:[" + std::to_string(inode) + "]";
  DIR *dir = opendir(folder.c_str());
  bool found = false;
  for (dirent *e; dir && !found && (e = readdir(dir)) != nullptr;) {
    char target[64] = "";
    if (readlink((folder + "/" + e->d_name).c_str(), target, sizeof target - 1) > 0)
      found = wanted == target;
  }
  if (dir) closedir(dir);
  return found;
}

uint16_t portOf(const sockaddr_storage &a) {
  return ntohs(a.ss_family == AF_INET6 ? ((const sockaddr_in6 &)a).sin6_port
                                       : ((const sockaddr_in &)a).sin_port);
}

pid_t processAtOtherEnd(int fd) {
  sockaddr_storage local = {}, remote = {};
  socklen_t a = sizeof local, b = sizeof remote;
  if (getsockname(fd, (sockaddr *)&local, &a) != 0 || getpeername(fd, (sockaddr *)&remote, &b) != 0)
    return 0;
  unsigned long inode = otherEnd(portOf(local), portOf(remote));
  for (int i = 0; i < ncandidates && inode; i++)
    if (holds(candidates[i], inode)) return candidates[i];
  return 0;
}

/* Before the send that it falls on, which goes to fd. */
void strikeNow(int fd, std::string *changed) {
  switch (fault->kind) {
  case kKill:
    syscall(SYS_kill, getpid(), SIGKILL);
    break;
  case kStop:
  case kFreeze:
    syscall(SYS_kill, getpid(), SIGSTOP);
    break;
  case kCut:
    __atomic_store_n(&strike->peer, processAtOtherEnd(fd), __ATOMIC_RELEASE);
    shutdown(fd, SHUT_RDWR);
    break;
  case kCorrupt:
    (*changed)[fault->seed % changed->size()] ^= (char)(1u << (fault->seed >> 16) % 8);
    break;
  default:
    flight().begin(*fault);
  }
}

/* Counts a send, and strikes if it is the one. */
void count(int fd, std::string *message) {
  if (!sends) return;
  int n = __atomic_add_fetch(sends, 1, __ATOMIC_ACQ_REL);
  if ((size_t)fd < std::size(sendsOver) && isTcp(fd)) sendsOver[fd]++;
  if (!fault) return;
  int at = __atomic_load_n(&strikesAt, __ATOMIC_ACQUIRE);
  if (!(at > 0 && n >= at) && !__atomic_load_n(&strike->fire, __ATOMIC_ACQUIRE)) return;
  bool needsTcp = fault->kind != kKill && fault->kind != kStop && fault->kind != kFreeze;
  if (needsTcp && (!isTcp(fd) || message->empty())) return;
  if (mayStrike(strike)) strikeNow(fd, message);
}

/* The connection is about to be closed. */
void discount(int fd) {
  if (!sends || (size_t)fd >= std::size(sendsOver)) return;
  int n = sendsOver[fd].exchange(0);
  if (n > 0 && n < leastSends) __atomic_sub_fetch(sends, n, __ATOMIC_ACQ_REL);
}

} // namespace

bool mayStrike(Strike *s) {
  int not_yet = 0;
  return __atomic_compare_exchange_n(&s->struck, &not_yet, 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE);
}

void countSends(int *counter, int least) {
  leastSends = least;
  sends = counter;
}

void armFault(const Fault &f, Strike *s, const pid_t *pids, int n) {
  strike = s;
  candidates = pids;
  ncandidates = n;
  fault = &f;
}

void strikeAtSend(int at) {
  __atomic_store_n(&strikesAt, at, __ATOMIC_RELEASE);
}

void landAll() {
  if (fault && fault->kind >= kDelay && fault->kind <= kReorder) flight().landAll();
}

} // namespace chaos

/* In place of libc's: the library must see them. */
#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED ssize_t send(int fd, const void *data, size_t bytes, int flags) {
  using namespace chaos;
  if (!sends) return sendNow(fd, data, bytes, flags);
  std::string message((const char *)data, bytes);
  count(fd, &message);
  if (fault && flight().take(fd, message.data(), bytes)) return (ssize_t)bytes;
  return sendNow(fd, message.data(), bytes, flags);
}

EXPORTED ssize_t sendmsg(int fd, const msghdr *m, int flags) {
  using namespace chaos;
  std::string message;
  static const auto real = chaos::replaced<ssize_t (*)(int, const msghdr *, int)>("sendmsg");
  if (!sends || m->msg_controllen > 0) return real(fd, m, flags);
  for (size_t i = 0; i < m->msg_iovlen; i++)
    message.append((const char *)m->msg_iov[i].iov_base, m->msg_iov[i].iov_len);
  return send(fd, message.data(), message.size(), flags);
}

EXPORTED int close(int fd) {
  static const auto real = chaos::replaced<int (*)(int)>("close");
  if (chaos::fault) chaos::flight().land(fd);
  chaos::discount(fd);
  return real(fd);
}
