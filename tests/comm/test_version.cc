#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"
#include "tutti.h"

namespace {

TEST(Version, IsTheHeaders) {
  int version = -1;
  ASSERT_EQ(tuttiGetVersion(&version), tuttiSuccess);
  EXPECT_EQ(version, TUTTI_VERSION_CODE);
  EXPECT_EQ(tuttiGetVersion(nullptr), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("tuttiGetVersion: version is NULL"));
}

TEST(ErrorString, EachCodeHasItsOwn) {
  std::set<std::string> texts;
  for (int code = 0; code < tuttiNumResults; code++) {
    const char *text = tuttiGetErrorString(static_cast<tuttiResult_t>(code));
    ASSERT_NE(text, nullptr) << code;
    EXPECT_TRUE(texts.insert(text).second) << text;
  }
  EXPECT_STREQ(tuttiGetErrorString(tuttiTimeout), "timed out");
}

TEST(ErrorString, UnknownCodesAreSaidToBe) {
  EXPECT_STREQ(tuttiGetErrorString(tuttiNumResults), "unknown result code");
  EXPECT_STREQ(tuttiGetErrorString(static_cast<tuttiResult_t>(15)), "unknown result code");
}

} // namespace
