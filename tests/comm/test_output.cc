/* What the library writes: nothing on stdout, and the log lines that people search for. */
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "comm/harness.h"

using testing::ContainsRegex;
using testing::HasSubstr;

namespace {

/* All that one job of two ranks writes: to stdout, and to its log at level INFO. */
struct Written {
  std::string out, log;

  explicit Written(std::map<std::string, std::string> settings) {
    char path[] = "/tmp/tuttitest.XXXXXX";
    close(mkstemp(path));
    settings["TUTTI_DEBUG"] = "INFO";
    settings["TUTTI_DEBUG_FILE"] = path;
    testing::internal::CaptureStdout();
    {
      Settings in(settings);
      Ranks ranks(2);
      ranks.run([](int, tuttiComm_t comm) {
        float x = 1, y = 0;
        EXPECT_EQ(tuttiAllReduce(&x, &y, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess);
        EXPECT_EQ(tuttiAllReduce(&x, nullptr, 1, tuttiFloat32, tuttiSum, comm, nullptr),
                  tuttiInvalidArgument);
      });
    }
    fflush(stdout);
    out = testing::internal::GetCapturedStdout();
    std::ostringstream all;
    all << std::ifstream(path).rdbuf();
    log = all.str();
    unlink(path);
  }

  void expectChannels(const std::string &via) {
    EXPECT_EQ(out, "");
    EXPECT_THAT(
        log, ContainsRegex(
                 "Channel 00/0[1-9] : 0\\[-?[0-9]+\\] -> 1\\[-?[0-9]+\\] \\[send\\] via " + via));
    EXPECT_THAT(
        log,
        ContainsRegex("Channel 00/0[1-9] : 0\\[-?[0-9]+\\] -> 1\\[-?[0-9]+\\] \\[receive\\] via " +
                      via));
    EXPECT_THAT(log, HasSubstr("TUTTI INFO Ring 00 : 0 1"));
    EXPECT_THAT(log, ContainsRegex("TUTTI INFO Tree 00 : -?[0-9]+/[01]/"));
    EXPECT_THAT(log, ContainsRegex("[^ ]+:[0-9]+:[0-9]+ .*TUTTI INFO .*init complete in"));
  }
};

TEST(Output, P2p) {
  Written({{"TUTTI_P2P_DISABLE", "0"}, {"TUTTI_SHM_DISABLE", "0"}})
      .expectChannels("P2P/direct pointer");
}

/* Whatever is not the best path says why. */
TEST(Output, Shm) {
  Written w({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "0"}});
  w.expectChannels("SHM/direct .*TUTTI_P2P_DISABLE");
}

TEST(Output, Net) {
  Written w({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}});
  w.expectChannels("NET/Socket/0 .*TUTTI_P2P_DISABLE.*TUTTI_SHM_DISABLE");
}

} // namespace
