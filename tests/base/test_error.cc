#include "base/error.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

namespace {

class ErrorTest : public testing::Test {
protected:
  void SetUp() override {
    tuttiErrorScope(nullptr, nullptr, 0, 0);
    tuttiErrorClear();
  }
};

tuttiResult_t failWith(int number) {
  return TUTTI_FAIL(tuttiSystemError, "object %d of rank %d", number, 3);
}

tuttiResult_t tryTwice(int *reached) {
  TUTTI_TRY(tuttiSuccess);
  *reached = 1;
  TUTTI_TRY(failWith(7));
  *reached = 2;
  return tuttiSuccess;
}

TEST_F(ErrorTest, KeepsTheTextUntilTheNextOne) {
  EXPECT_STREQ(tuttiErrorText(), "");
  EXPECT_EQ(failWith(1), tuttiSystemError);
  EXPECT_STREQ(tuttiErrorText(), "object 1 of rank 3");
  EXPECT_EQ(failWith(2), tuttiSystemError);
  EXPECT_STREQ(tuttiErrorText(), "object 2 of rank 3");
  tuttiErrorClear();
  EXPECT_STREQ(tuttiErrorText(), "");
}

TEST_F(ErrorTest, TryPassesTheCodeUpAndStops) {
  int reached = 0;
  EXPECT_EQ(tryTwice(&reached), tuttiSystemError);
  EXPECT_EQ(reached, 1);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("object 7"));
}

TEST_F(ErrorTest, StartsWithTheContextOfTheCall) {
  tuttiErrorScope("tuttiAllReduce", "train", 3, 8);
  failWith(5);
  EXPECT_STREQ(tuttiErrorText(), "tuttiAllReduce (rank 3 of 8, comm train): object 5 of rank 3");
  tuttiErrorScope(nullptr, nullptr, 0, 0);
  failWith(5);
  EXPECT_STREQ(tuttiErrorText(), "object 5 of rank 3");
}

TEST_F(ErrorTest, AdoptsATextWithoutContext) {
  tuttiErrorScope("tuttiReduce", nullptr, 0, 0);
  EXPECT_EQ(tuttiErrorAdopt(tuttiRemoteError, "rank 2 died"), tuttiRemoteError);
  EXPECT_STREQ(tuttiErrorText(), "rank 2 died");
  EXPECT_EQ(tuttiErrorAdopt(tuttiTimeout, tuttiErrorText()), tuttiTimeout);
  EXPECT_STREQ(tuttiErrorText(), "rank 2 died");
}

TEST_F(ErrorTest, MayWrapItsOwnText) {
  failWith(4);
  TUTTI_FAIL(tuttiSystemError, "outer: %s", tuttiErrorText());
  EXPECT_STREQ(tuttiErrorText(), "outer: object 4 of rank 3");
}

TEST_F(ErrorTest, CutsLongTexts) {
  std::string longText(5000, 'x');
  TUTTI_FAIL(tuttiInternalError, "%s", longText.c_str());
  std::string text = tuttiErrorText();
  EXPECT_EQ(text.size(), TUTTI_ERROR_TEXT - 1u);
  EXPECT_THAT(text, StartsWith("xxx"));
  EXPECT_THAT(text, EndsWith("x..."));
  tuttiErrorAdopt(tuttiRemoteError, longText.c_str());
  EXPECT_THAT(tuttiErrorText(), EndsWith("x..."));
  EXPECT_EQ(std::string(tuttiErrorText()).size(), TUTTI_ERROR_TEXT - 1u);
}

TEST_F(ErrorTest, TextsThatJustFitAreWhole) {
  std::string fits(TUTTI_ERROR_TEXT - 1, 'y');
  TUTTI_FAIL(tuttiInternalError, "%s", fits.c_str());
  EXPECT_EQ(tuttiErrorText(), fits);
  tuttiErrorAdopt(tuttiInternalError, fits.c_str());
  EXPECT_EQ(tuttiErrorText(), fits);
}

/* The cut must not leave half of a character, wherever it falls. */
TEST_F(ErrorTest, CutsBetweenCharacters) {
  for (int shift = 0; shift < 3; shift++) {
    std::string text(shift, 'a');
    while (text.size() < 2000)
      text += "\u20ac"; /* three bytes */
    tuttiErrorAdopt(tuttiRemoteError, text.c_str());
    std::string cut = tuttiErrorText();
    ASSERT_THAT(cut, EndsWith("..."));
    EXPECT_EQ((cut.size() - 3 - shift) % 3, 0u) << cut.size();
    EXPECT_EQ(text.compare(0, cut.size() - 3, cut, 0, cut.size() - 3), 0);
  }
}

TEST_F(ErrorTest, ThreadsHaveTheirOwn) {
  tuttiErrorScope("here", nullptr, 0, 0);
  failWith(1);
  std::thread([] {
    EXPECT_STREQ(tuttiErrorText(), "");
    failWith(2);
    EXPECT_STREQ(tuttiErrorText(), "object 2 of rank 3");
  }).join();
  EXPECT_STREQ(tuttiErrorText(), "here: object 1 of rank 3");
}

TEST_F(ErrorTest, ErrnoSurvivesAndHasATextForEachThread) {
  errno = ENOSPC;
  failWith(1);
  EXPECT_EQ(errno, ENOSPC);
  const char *mine = tuttiErrnoText(ECONNREFUSED);
  EXPECT_STREQ(mine, "Connection refused");
  std::thread([mine] { EXPECT_NE(tuttiErrnoText(EPERM), mine); }).join();
  EXPECT_STREQ(mine, "Connection refused");
  EXPECT_THAT(tuttiErrnoText(123456), HasSubstr("123456"));
}

} // namespace
