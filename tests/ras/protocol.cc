/* The lines of the RAS port, as NCCL's clients say them and as nobody should. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "ras/protocol.h"

namespace {

struct Said {
  std::string answer;
  tuttiRasRequest request;
};

Said say(const std::string &line, tuttiRasRequest request = {}) {
  char answer[TUTTI_RAS_LINE + 64];
  tuttiRasLineTake(line.c_str(), &request, answer);
  return {answer, request};
}

TEST(RasProtocol, AnswersWhatNcclsClientSays) {
  EXPECT_EQ(say("CLIENT PROTOCOL 2").answer, "SERVER PROTOCOL 2\n");
  EXPECT_EQ(say("client protocol 7").answer, "SERVER PROTOCOL 2\n");
  Said timeout = say("TIMEOUT 12");
  EXPECT_EQ(timeout.answer, "OK\n");
  EXPECT_EQ(timeout.request.timeoutMs, 12000);
  EXPECT_EQ(say("timeout 0").answer, "OK\n");
  EXPECT_EQ(say("timeout -1").answer, "ERROR: Invalid timeout value -1\n");
  EXPECT_EQ(say("timeout soon").answer, "ERROR: Invalid timeout value soon\n");
  EXPECT_EQ(say("set format JSON").request.format, tuttiRasJson);
  EXPECT_EQ(say("SET FORMAT text").answer, "OK\n");
  EXPECT_EQ(say("set format xml").answer, "ERROR: Invalid format xml\n");
  EXPECT_EQ(say("status").request.wish, tuttiRasReport);
  EXPECT_EQ(say("STATUS").answer, "");
  EXPECT_TRUE(say("verbose status").request.verbose);
  EXPECT_EQ(say("monitor").request.wish, tuttiRasEvents);
  EXPECT_EQ(say("monitor lifecycle,trace").answer, "OK\n");
  EXPECT_EQ(say("monitor cats").answer, "ERROR: Invalid event group 'cats'\n");
  EXPECT_EQ(say("statusses").answer, "ERROR: Unknown command statusses\n");
  EXPECT_EQ(say("").answer, "ERROR: Unknown command \n");
}

TEST(RasProtocol, OurWordsChooseTheirFormat) {
  EXPECT_EQ(say("prometheus").request.format, tuttiRasPrometheus);
  EXPECT_EQ(say("trace").request.format, tuttiRasTrace);
  EXPECT_EQ(say("facts").request.wish, tuttiRasReport);
  EXPECT_EQ(say("facts").request.format, tuttiRasFacts);
  EXPECT_EQ(say("local facts").request.wish, tuttiRasLocal);
  EXPECT_EQ(say("local facts").request.format, tuttiRasFacts);
  EXPECT_FALSE(say("facts").request.verbose);
  tuttiRasRequest request = {};
  char answer[TUTTI_RAS_LINE + 64];
  for (const char *line : {"set format json", "verbose status"})
    tuttiRasLineTake(line, &request, answer);
  EXPECT_EQ(request.format, tuttiRasJson) << "status keeps the format that was set";
}

TEST(RasProtocol, FindsLinesAndEndsThatAreTooLong) {
  char text[TUTTI_RAS_LINE] = "status\r\nmore\n";
  EXPECT_EQ(tuttiRasLineFind(text, strlen(text)), 8);
  EXPECT_STREQ(text, "status");
  char part[TUTTI_RAS_LINE] = "stat";
  EXPECT_EQ(tuttiRasLineFind(part, 4), 0);
  char full[TUTTI_RAS_LINE];
  memset(full, 'a', sizeof full);
  EXPECT_EQ(tuttiRasLineFind(full, sizeof full), -1);
  full[sizeof full - 1] = '\n';
  EXPECT_EQ(tuttiRasLineFind(full, sizeof full), TUTTI_RAS_LINE);
}

TEST(RasProtocol, ALongestLineFitsItsAnswer) {
  std::string line(TUTTI_RAS_LINE - 1, 'x');
  EXPECT_EQ(say(line).answer, "ERROR: Unknown command " + line + "\n");
  std::string groups = "monitor " + std::string(TUTTI_RAS_LINE - 9, 'y');
  EXPECT_EQ(say(groups).answer.back(), '\n');
}

} // namespace
