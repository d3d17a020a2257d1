/* Waits for a thread to wait: the event after which something shall happen to it. */
#ifndef TUTTI_TESTS_ASLEEP_H_
#define TUTTI_TESTS_ASLEEP_H_

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

/* Of the calling thread; that of a process is the one of its first thread. */
inline pid_t threadId() {
  return (pid_t)syscall(SYS_gettid);
}

/* Returns once that thread sleeps in the kernel, in a call or in a nap between two looks; after a
 * minute it has failed. 0: a thread that has not said yet which one it is. */
inline void waitUntilAsleep(const std::atomic<pid_t> &thread) {
  auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (char state = 0; state != 'S';) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "thread " << thread << " does not wait";
    std::ifstream file("/proc/" + std::to_string(thread) + "/stat");
    std::string line;
    if (thread && std::getline(file, line))
      state = line[line.rfind(')') + 2]; /* proc_pid_stat(5) */
    std::this_thread::yield();
  }
}

#endif
