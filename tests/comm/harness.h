/* n ranks as threads of one process, and settings for the length of a test. */
#ifndef TUTTI_TESTS_COMM_HARNESS_H_
#define TUTTI_TESTS_COMM_HARNESS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "tutti.h"
extern "C" { /* it is for the library alone, and does not say so itself */
#include "comm/handle.h"
}

/* Environment variables while it lives; a null value unsets. */
class Settings {
public:
  explicit Settings(const std::map<std::string, std::string> &values) {
    for (auto &[name, value] : values) {
      const char *old = getenv(name.c_str());
      before_[name] = old ? std::make_pair(true, std::string(old)) : std::make_pair(false, "");
      setenv(name.c_str(), value.c_str(), 1);
    }
    EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess) << tuttiGetLastError(nullptr);
  }
  ~Settings() {
    for (auto &[name, old] : before_) {
      if (old.first)
        setenv(name.c_str(), old.second.c_str(), 1);
      else
        unsetenv(name.c_str());
    }
    EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  }

private:
  std::map<std::string, std::pair<bool, std::string>> before_;
};

/* Runs body(rank) on n threads. */
inline void onThreads(int n, const std::function<void(int)> &body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; r++)
    threads.emplace_back(body, r);
  for (auto &t : threads)
    t.join();
}

/* A communicator over n threads; hosts(r), if given, names the "host" of rank r. */
class Ranks {
public:
  explicit Ranks(int n, const tuttiConfig_t *config = nullptr) : comms(n, nullptr) {
    tuttiUniqueId id;
    EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
    onThreads(n, [&](int r) {
      tuttiConfig_t mine = TUTTI_CONFIG_INITIALIZER;
      if (config) mine = *config;
      EXPECT_EQ(tuttiCommInitRankConfig(&comms[r], n, id, r, &mine),
                mine.blocking == 0 ? tuttiInProgress : tuttiSuccess)
          << tuttiGetLastError(nullptr);
    });
  }
  ~Ranks() {
    onThreads((int)comms.size(), [&](int r) {
      if (comms[r]) {
        EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess) << tuttiGetLastError(nullptr);
      }
    });
  }
  bool ok() const {
    for (auto c : comms)
      if (!c) return false;
    return true;
  }
  void run(const std::function<void(int, tuttiComm_t)> &body) {
    onThreads((int)comms.size(), [&](int r) { body(r, comms[r]); });
  }

  std::vector<tuttiComm_t> comms;
};

/* From now on calls of this rank wait so long. For tests in which a call runs into its timeout: all
 * that comes before it may take its time. */
inline void setTimeout(tuttiComm_t comm, int64_t ms) {
  tuttiCommunicator *c = nullptr;
  ASSERT_EQ(tuttiHandleEnter(comm, "setTimeout", &c), tuttiSuccess);
  c->options.timeoutMs = ms;
  tuttiHandleLeave(c);
}

/* The state of a non-blocking communicator once nothing is under way. */
inline tuttiResult_t settle(tuttiComm_t comm) {
  tuttiResult_t state = tuttiInProgress;
  while (state == tuttiInProgress) {
    tuttiResult_t known = tuttiCommGetAsyncError(comm, &state);
    if (known != tuttiSuccess) return known; /* it is none that lives */
    std::this_thread::yield();
  }
  return state;
}

#endif
