#include "collectives/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "tutti.h"

namespace {

tuttiSignature signature(tuttiColl coll) {
  tuttiSignature s = {};
  s.seq = 12;
  s.count = 1024;
  s.root = -1;
  s.coll = static_cast<uint8_t>(coll);
  s.type = tuttiFloat32;
  s.redop = 0xffff;
  return s;
}

std::string textOf(const tuttiSignature &s) {
  char buf[128];
  EXPECT_EQ(tuttiSignatureText(&s, buf, sizeof(buf)), buf);
  return buf;
}

TEST(Signature, TextNamesWhatTheCollectiveHas) {
  tuttiSignature s = signature(tuttiCollAllReduce);
  s.redop = tuttiSum;
  EXPECT_EQ(textOf(s), "#12 AllReduce(count 1024, float32, sum)");
  s.coll = tuttiCollReduce;
  s.root = 3;
  s.redop = 5;
  EXPECT_EQ(textOf(s), "#12 Reduce(count 1024, float32, premulsum, root 3)");
  s = signature(tuttiCollBroadcast);
  s.root = 0;
  EXPECT_EQ(textOf(s), "#12 Broadcast(count 1024, float32, root 0)");
  EXPECT_EQ(textOf(signature(tuttiCollSendRecv)), "#12 SendRecv(count 1024, float32)");
  EXPECT_EQ(textOf(signature(tuttiCollSplit)), "#12 Split");
}

/* A signature comes off the wire: any bytes must give a text that fits. */
TEST(Signature, TextOfAnyBytes) {
  tuttiSignature s;
  memset(&s, 0xff, sizeof(s));
  EXPECT_EQ(textOf(s), "#18446744073709551615 ?(count 18446744073709551615, ?)");
  memset(&s, 0x7f, sizeof(s));
  EXPECT_THAT(textOf(s), testing::EndsWith("premulsum, root 2139062143)"));
}

TEST(Signature, TextIsCutToTheBuffer) {
  tuttiSignature s = signature(tuttiCollAllGather);
  char buf[10];
  memset(buf, 'x', sizeof(buf));
  tuttiSignatureText(&s, buf, 8);
  EXPECT_STREQ(buf, "#12 All");
  EXPECT_EQ(buf[8], 'x');
}

TEST(Signature, EqualComparesEveryField) {
  const tuttiSignature base = signature(tuttiCollReduce);
  EXPECT_TRUE(tuttiSignatureEqual(&base, &base));
  for (size_t byte = 0; byte < sizeof(base); byte++) {
    tuttiSignature other = base;
    reinterpret_cast<unsigned char *>(&other)[byte] ^= 1;
    EXPECT_FALSE(tuttiSignatureEqual(&base, &other)) << byte;
  }
}

TEST(Names, TypesHaveNameAndSize) {
  const struct {
    tuttiDataType_t type;
    const char *name;
    size_t size;
  } expected[] = {
      {tuttiInt8, "int8", 1},
      {tuttiUint8, "uint8", 1},
      {tuttiInt32, "int32", 4},
      {tuttiUint32, "uint32", 4},
      {tuttiInt64, "int64", 8},
      {tuttiUint64, "uint64", 8},
      {tuttiFloat16, "float16", 2},
      {tuttiFloat32, "float32", 4},
      {tuttiFloat64, "float64", 8},
      {tuttiBfloat16, "bfloat16", 2},
      {tuttiFloat8e4m3, "float8e4m3", 1},
      {tuttiFloat8e5m2, "float8e5m2", 1},
  };
  ASSERT_EQ(sizeof(expected) / sizeof(expected[0]), static_cast<size_t>(tuttiNumTypes));
  for (const auto &e : expected) {
    EXPECT_STREQ(tuttiTypeName(e.type), e.name);
    EXPECT_EQ(tuttiTypeSize(e.type), e.size) << e.name;
  }
  for (int bad : {-1, static_cast<int>(tuttiNumTypes), 255}) {
    EXPECT_STREQ(tuttiTypeName(bad), "?");
    EXPECT_EQ(tuttiTypeSize(bad), 0u);
  }
}

TEST(Names, ReductionsAndCollectives) {
  EXPECT_STREQ(tuttiRedOpName(tuttiSum), "sum");
  EXPECT_STREQ(tuttiRedOpName(tuttiProd), "prod");
  EXPECT_STREQ(tuttiRedOpName(tuttiMax), "max");
  EXPECT_STREQ(tuttiRedOpName(tuttiMin), "min");
  EXPECT_STREQ(tuttiRedOpName(tuttiAvg), "avg");
  EXPECT_STREQ(tuttiRedOpName(tuttiNumOps), "premulsum");
  EXPECT_STREQ(tuttiRedOpName(tuttiNumOps + 77), "premulsum");
  EXPECT_STREQ(tuttiRedOpName(-1), "?");
  EXPECT_STREQ(tuttiCollName(tuttiCollAllReduce), "AllReduce");
  EXPECT_STREQ(tuttiCollName(tuttiCollSplit), "Split");
  EXPECT_STREQ(tuttiCollName(tuttiCollCount), "?");
  EXPECT_STREQ(tuttiCollName(-1), "?");
  std::set<std::string> names;
  for (int coll = 0; coll < tuttiCollCount; coll++)
    names.insert(tuttiCollName(coll));
  EXPECT_EQ(names.size(), static_cast<size_t>(tuttiCollCount));
}

} // namespace
