/* What this process holds, for tests that say that nothing is left behind. */
#ifndef TUTTI_TESTS_HOLDINGS_H_
#define TUTTI_TESTS_HOLDINGS_H_

#include <dirent.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

inline int openFds() {
  int n = 0;
  DIR *dir = opendir("/proc/self/fd");
  while (readdir(dir))
    n++;
  closedir(dir);
  return n - 3; /* ".", ".." and the folder's own */
}

/* Those that are not ending: pthread_join(3) returns a moment before the kernel takes the thread
 * off its list, with PF_EXITING in field 9 of proc_pid_stat(5) by then. */
inline int liveThreads() {
  std::thread([] {}).join(); /* with the first thread a sanitizer starts its own */
  int n = 0;
  for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string line, field;
    if (!std::getline(file, line)) continue;
    if (line.find("(tutti-fence)") != std::string::npos) continue; /* it ends by itself */
    std::istringstream rest(line.substr(line.rfind(')') + 1));
    for (int i = 3; i < 9; i++)
      rest >> field;
    unsigned long flags = 0, exiting = 0x4;
    rest >> flags;
    n += (flags & exiting) == 0;
  }
  return n;
}

/* Roots of this process that have not ended. */
inline int rootThreads() {
  int n = 0;
  for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    n += std::getline(comm, name) && name == "tutti-root";
  }
  return n;
}

#endif
