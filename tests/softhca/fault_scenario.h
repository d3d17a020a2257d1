// What goes wrong in one seeded run, and how it may end.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

// How a run may end.
enum class Ending {
  Right,      // there is always a way: the data must be right
  Told,       // or with an error that names rank, host and device of the culprit
  AnythingBut // wrong bytes were let through on purpose, which nothing can find: no crash, no hang
};

struct Scenario {
  unsigned seed = 0;
  int ranks = 2, steps = 10, culprit = -1; // culprit: the rank whose ports or memory fail for good
  Ending ending = Ending::Right;
  std::string devices;             // lines of configuration that all ranks have
  std::vector<std::string> faults; // those of each rank, the host of which has NICs of its own
  std::map<std::string, std::string> settings;
  std::string text; // all of it, for who reads the result

  void tell() {
    text = std::to_string(ranks) + " ranks, " + std::to_string(steps) + " steps\n";
    for (auto &[name, value] : settings)
      text += "  " + name + "=" + value + "\n";
    text += devices;
    for (size_t r = 0; r < faults.size(); r++)
      text += "rank " + std::to_string(r) + ":\n" + faults[r];
  }
};

// The first device of rank 1 goes away at its so many-th command; `devices`: how many it has.
inline Scenario removalScenario(int devices, int command) {
  Scenario s;
  s.seed = 1; // the same program, so the same commands in much the same order
  s.steps = 4;
  s.culprit = 1;
  s.ending = devices > 1 ? Ending::Right : Ending::Told;
  s.settings = {{"TUTTI_NET", "IB"},
                {"TUTTI_BUFFSIZE", "8192"},
                {"TUTTI_IB_QPS_PER_CONNECTION", "2"},
                {"TUTTI_IB_TIMEOUT", "9"},
                {"TUTTI_IB_RETRY_CNT", "2"},
                {"TUTTI_TIMEOUT", devices > 1 ? "60" : "4"}};
  for (int d = 0; d < devices; d++)
    s.devices += "device hca" + std::to_string(d) + " link=roce\n";
  s.faults = {"", "device hca0 removed_calls=" + std::to_string(command) + "\n"};
  s.tell();
  return s;
}

class ScenarioMaker {
public:
  explicit ScenarioMaker(unsigned seed) : random(seed) { s.seed = seed; }

  // Seeds from here on have lost and repeated completions, too; those below mean what they did
  // before.
  static constexpr unsigned kCompletionSeeds = 1000001;

  Scenario make() {
    s.ranks = below(4) ? 2 : 3 + below(2);
    s.steps = 6 + below(10);
    s.faults.resize(static_cast<size_t>(s.ranks));
    makeDevices();
    makeSettings();
    for (int r = 0; r < s.ranks; r++)
      makeFaults(r);
    makeKind();
    if (s.seed >= kCompletionSeeds) makeCompletions();
    s.tell();
    return s;
  }

private:
  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
  std::string number(int from, int to) { return std::to_string(from + below(to - from + 1)); }
  void add(int rank, const std::string &line) {
    s.faults[static_cast<size_t>(rank)] += line + "\n";
  }

  // One to four ports of one subnet, so that each reaches each.
  void makeDevices() {
    bool roce = below(2);
    int ndevices = 1 + below(2), nports = 1 + below(2);
    for (int d = 0; d < ndevices; d++) {
      s.devices += "device hca" + std::to_string(d) + " link=" + (roce ? "roce" : "ib") +
                   " ports=" + std::to_string(nports) +
                   (below(4) ? "" : " max_inline=" + number(0, 300)) + "\n";
      for (int p = 1; p <= nports; p++)
        ports.push_back("hca" + std::to_string(d) + "/" + std::to_string(p));
    }
    perDevice = nports;
  }

  void makeSettings() {
    static const char *const algorithms[] = {"", "Ring", "Tree", "Direct"};
    static const char *const sizes[] = {"8192", "65536", "4194304"};
    s.settings = {{"TUTTI_NET", "IB"},
                  {"TUTTI_ALGO", algorithms[below(4)]},
                  {"TUTTI_BUFFSIZE", sizes[below(3)]},
                  {"TUTTI_IB_QPS_PER_CONNECTION", number(1, 3)},
                  {"TUTTI_IB_TIMEOUT", number(7, 10)},
                  {"TUTTI_IB_RETRY_CNT", number(1, 7)},
                  {"TUTTI_TIMEOUT", "60"}};
    if (below(3)) return;
    s.settings["TUTTI_IB_ORDER"] = "immediate";
    if (below(2)) s.devices += "reorder_us " + number(10, 500) + "\n";
  }

  // What RDMA makes good by itself, or new queue pairs do.
  void makeFaults(int rank) {
    const std::string rules[] = {
        "fault lost p=0.0" + number(1, 3),
        "fault lost nth=" + number(1, 100),
        "fault late p=0.1 us=" + number(10, 3000),
        "fault completion p=0.1 us=" + number(10, 3000),
        "fault completion nth=" + number(1, 50) + " us=" + number(1000, 30000),
        "fault cut nth=" + number(1, 200),
        "fault rnr p=0.1",
        "fault flip icrc=yes p=0.0" + number(1, 3),
    };
    add(rank, "seed " + number(1, 1000000));
    std::vector<int> taken;
    for (int n = below(4); n > 0; n--) {
      int rule = below(8), kind = rule == 1 ? 0 : rule == 4 ? 3 : rule;
      bool again = false;
      for (int t : taken)
        again |= t == kind;
      if (again) continue;
      taken.push_back(kind);
      add(rank, rules[rule]);
    }
  }

  std::string when() {
    return below(2) ? "down_frames=" + number(1, 300) : "down_ms=" + number(1, 60);
  }
  // All ports of a rank but one that may fail.
  std::vector<std::string> spareable() {
    std::vector<std::string> some = ports;
    some.erase(some.begin() + below(static_cast<int>(some.size())));
    return some;
  }

  // Ports that fail for some time; of each rank others, or all of them. A rank needs one at init,
  // before which no frames are sent.
  void portsComeBack() {
    for (int r = 0; r < s.ranks; r++)
      for (const std::string &port : ports) {
        std::string fails = port == ports.front() ? "down_frames=" + number(1, 300) : when();
        if (below(2)) add(r, "port " + port + " " + fails + " up_ms=" + number(61, 300));
      }
  }
  // Of each rank one is left, and they need not be alike.
  void portsStayAway() {
    for (int r = 0; r < s.ranks; r++)
      for (const std::string &port : spareable())
        if (below(3)) add(r, "port " + port + " " + when());
  }
  void portsComeLate() {
    for (int r = 0; r < s.ranks; r++)
      for (const std::string &port : spareable())
        add(r, "port " + port + " down_ms=0.001 up_ms=" + number(1, 200));
  }
  void deviceGoes(int rank, const std::string &device, const std::string &at) {
    add(rank, "device " + device + " " + at);
  }
  std::string leaves() {
    return below(2) ? "removed_frames=" + number(1, 300) : "removed_ms=" + number(1, 60);
  }
  void oneDeviceGoes() {
    int r = below(s.ranks);
    deviceGoes(r, "hca" + number(0, 1), leaves());
  }

  void blame(Ending ending) {
    s.ending = ending;
    s.culprit = below(s.ranks);
    s.settings["TUTTI_TIMEOUT"] = "4";
  }
  void nothingIsLeft() {
    blame(Ending::Told);
    bool goes = below(2);
    std::string at = goes ? leaves() : when();
    for (size_t i = 0; i < ports.size(); i++) {
      if (!goes)
        add(s.culprit, "port " + ports[i] + " " + at);
      else if (i % static_cast<size_t>(perDevice) == 0)
        deviceGoes(s.culprit, ports[i].substr(0, ports[i].find('/')), at);
    }
  }
  void nothingIsThere() {
    blame(Ending::Told);
    for (const std::string &port : ports)
      add(s.culprit, "port " + port + " down_ms=0.001");
  }
  void memoryIsRefused() {
    blame(Ending::Told);
    add(s.culprit, below(2) ? "fault refuse nth=" + number(1, 6) : "fault refuse p=0.3");
  }
  void bitsFlip() {
    blame(Ending::AnythingBut);
    add(s.culprit, "fault flip p=0.05");
  }

  // What a queue pair's completion lacks is made good by its next one; but where completions tell
  // what has come, nothing may be left to say so.
  void makeCompletions() {
    std::string often[] = {"nth=" + number(1, 200), "p=0.00" + number(1, 9),
                           "p=0.0" + number(1, 5)};
    bool lost = below(2), told = s.settings.count("TUTTI_IB_ORDER");
    std::string rule = lost ? "fault completion_lost " : "fault completion_again ";
    if (lost && told && s.ending == Ending::Right) blame(Ending::Told);
    int rank = lost && told ? s.culprit : below(s.ranks);
    add(rank, rule + often[below(3)]);
    if (!lost || !told) add((rank + 1) % s.ranks, rule + often[below(3)]);
  }

  void makeKind() {
    bool several = ports.size() > 1, devices = ports.size() > static_cast<size_t>(perDevice);
    switch (below(12)) {
    case 0:
    case 1:
      return portsComeBack();
    case 2:
    case 3:
      return several ? portsStayAway() : portsComeBack();
    case 4:
    case 5:
      return several ? portsComeLate() : portsComeBack();
    case 6:
    case 7:
      return devices ? oneDeviceGoes() : portsComeBack();
    case 8:
      return nothingIsLeft();
    case 9:
      return below(2) ? nothingIsThere() : nothingIsLeft();
    case 10:
      return memoryIsRefused();
    default:
      return below(2) ? bitsFlip() : void();
    }
  }

  std::mt19937 random;
  Scenario s;
  std::vector<std::string> ports; // NAME/N
  int perDevice = 1;
};
