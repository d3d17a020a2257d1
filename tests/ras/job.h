/* A job of rank processes that comes to hang, and what those who ask it are told. */
#ifndef TUTTI_TESTS_RAS_JOB_H_
#define TUTTI_TESTS_RAS_JOB_H_

#include <string>
#include <vector>

#include "port.h"
#include "processes.h"
#include "ras/verdict.h"

extern "C" {
#include "status.h"
}

namespace rastest {

constexpr int kRanks = 3;

/* Chosen so that the job meets by this transport alone: "SHM", "Socket", "IB"; that one on the
 * software HCA, or where TUTTITEST_RDMA is set on the devices of this host. */
inline void useTransport(const std::string &transport) {
  setenv("TUTTI_P2P_DISABLE", "1", 1);
  setenv("TUTTI_SHM_DISABLE", transport == "SHM" ? "0" : "1", 1);
  if (transport != "SHM") setenv("TUTTI_NET", transport.c_str(), 1);
#ifdef SOFTHCA_LIBRARY
  if (transport == "IB" && !getenv("TUTTITEST_RDMA")) setenv("LD_LIBRARY_PATH", SOFTHCA_LIBRARY, 1);
#endif
}

/* What status knows of the communicator of this name; nranks 0: nothing. The copy is of this test's
 * job, whatever else runs on the host. */
class Asked {
public:
  explicit Asked(const std::string &name) {
    int silent;
    tuttiStatusHost(5000, &all_, &silent);
    for (int i = 0; i < all_.ncomms; i++)
      if (name == all_.comms[i].name) comm = &all_.comms[i];
    if (!comm) return;
    tuttiFinding found[TUTTI_FINDINGS];
    int n = tuttiFindings(comm, found);
    findings.assign(found, found + n);
  }
  ~Asked() { tuttiSnapshotFree(&all_); }
  Asked(const Asked &) = delete;

  double seconds() const { return all_.seconds; }
  const tuttiSnapshot &snapshot() const { return all_; }
  std::string text() const {
    std::string all;
    for (const tuttiFinding &f : findings)
      all += std::string(f.text) + "\n";
    return all;
  }

  tuttiCommSnapshot *comm = nullptr;
  std::vector<tuttiFinding> findings;

private:
  tuttiSnapshot all_ = {};
};

/* The same in all processes of the test, and in no other test. */
inline std::string jobName() {
  const char *given = getenv("TUTTITEST_JOB");
  if (given) return given;
  std::string name = "hang-" + std::to_string(getpid());
  setenv("TUTTITEST_JOB", name.c_str(), 1);
  return name;
}

/* Asks until the verdict is of this kind and says all that, found in less than two seconds. */
inline void expectVerdict(tuttiVerdictKind kind, const std::vector<std::string> &says) {
  std::string text, missing;
  for (int i = 0; i < 200; i++) {
    Asked asked(jobName());
    text = asked.text();
    bool right = !asked.findings.empty() && asked.findings[0].kind == kind && asked.seconds() < 2;
    missing = tuttiVerdictWords[kind];
    for (const std::string &s : says)
      if (text.find(s) == std::string::npos) missing = s;
    if (right && missing == tuttiVerdictWords[kind]) return;
    usleep(50000);
  }
  ADD_FAILURE() << "it does not say: " << missing << "\nbut: " << text;
}

} // namespace rastest

#endif
