#include <gtest/gtest.h>

#include <cstring>

#include "base/settings.h"
#include "tool.h"

namespace {

TEST(Text, SizesTakeUnits) {
  size_t size;
  const std::pair<const char *, size_t> good[] = {
      {"0", 0},          {"8", 8},           {"64K", 64 << 10},    {"64k", 64 << 10},
      {"16M", 16 << 20}, {"16MB", 16 << 20}, {"2GiB", 2ull << 30}, {"7B", 7},
      {"1T", 1ull << 40}};
  for (auto &[text, want] : good) {
    EXPECT_TRUE(tuttiParseSize(text, &size)) << text;
    EXPECT_EQ(size, want) << text;
  }
  for (auto text : {"", "K", "-8", "+8", " 8", "8Q", "8KK", "8K ", "1.5M", "0x10", "8iB",
                    "99999999999999999999", "99999999999999G"})
    EXPECT_FALSE(tuttiParseSize(text, &size)) << text;
}

TEST(Text, NumbersAreWholeAndInRange) {
  int64_t n;
  EXPECT_TRUE(tuttiParseInt("12", 1, 12, &n));
  EXPECT_EQ(n, 12);
  for (auto text : {"", "13", "0", "12x", "1e1", "99999999999999999999"})
    EXPECT_FALSE(tuttiParseInt(text, 1, 12, &n)) << text;
}

TEST(Text, NearestWord) {
  const char *words[] = {"all_reduce", "all_gather", "reduce", "gather"};
  EXPECT_STREQ(tuttiNearest("allreduce", words, 4), "all_reduce");
  EXPECT_STREQ(tuttiNearest("gathr", words, 4), "gather");
  EXPECT_STREQ(tuttiNearest("redcue", words, 4), "reduce");
  EXPECT_EQ(tuttiNearest("xyzzy", words, 4), nullptr);
  EXPECT_EQ(tuttiNearest("", words, 4), nullptr);
}

std::string json(const char *text) {
  char *buffer;
  size_t size;
  FILE *f = open_memstream(&buffer, &size);
  tuttiJsonString(f, text);
  fclose(f);
  std::string s(buffer, size);
  free(buffer);
  return s;
}

TEST(Text, JsonStringsAreValid) {
  EXPECT_EQ(json("plain"), "\"plain\"");
  EXPECT_EQ(json("a\"b\\c\n\x01\x7f"), "\"a\\\"b\\\\c\\u000a\\u0001\\u007f\"");
  EXPECT_EQ(json("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"), "\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\"");
  /* A stray byte, a cut character, an overlong one, a surrogate, beyond the last one. */
  EXPECT_EQ(json("\xff!"), "\"\\ufffd!\"");
  EXPECT_EQ(json("\xe2\x82"), "\"\\ufffd\\ufffd\"");
  EXPECT_EQ(json("\xc0\xaf"), "\"\\ufffd\\ufffd\"");
  EXPECT_EQ(json("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
  EXPECT_EQ(json("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
}

} // namespace
