// The language of TUTTI_ALGO and TUTTI_PROTO.
#include "collectives/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "collectives/planner.h"

namespace {

using testing::HasSubstr;

constexpr uint32_t kRing = 1u << tuttiAlgoRing, kTree = 1u << tuttiAlgoTree,
                   kDirect = 1u << tuttiAlgoDirect, kAll = (1u << tuttiAlgoCount) - 1;

class Selection : public testing::Test {
protected:
  tuttiSelection selected{{99}};
  tuttiResult_t parse(const char *text) {
    return tuttiSelectionParse("NCCL_ALGO", text, &tuttiAlgoWords, &selected);
  }
  void expectAll(uint32_t mask, const char *text) {
    for (uint32_t one : selected.of)
      EXPECT_EQ(one, mask) << text;
  }
};

TEST_F(Selection, OfAllCollectives) {
  const std::pair<const char *, uint32_t> good[] = {
      {"", kAll},
      {"  ", kAll},
      {"Ring", kRing},
      {"tree", kTree},
      {"DIRECT", kDirect},
      {"Ring,Tree", kRing | kTree},
      {" Ring , Direct ", kRing | kDirect},
      {"^Direct", kAll & ~kDirect},
      {"^ring,TREE", kAll & ~(kRing | kTree)},
      {"ring,ring", kRing},
      {" ^ring", kAll & ~kRing},
      {"ring,collnetdirect", kRing},
      {"^nvls,nvlstree,PAT", kAll},
      {"CollnetChain", 0},
  };
  for (auto [text, expected] : good) {
    EXPECT_EQ(parse(text), tuttiSuccess) << text << tuttiErrorText();
    expectAll(expected, text);
  }
}

TEST_F(Selection, ByCollective) {
  ASSERT_EQ(parse("ring,collnetdirect; AllReduce : tree,collnetdirect;broadcast:^ring"),
            tuttiSuccess)
      << tuttiErrorText();
  for (int coll = 0; coll < tuttiCollCount; coll++)
    EXPECT_EQ(selected.of[coll], coll == tuttiCollAllReduce   ? kTree
                                 : coll == tuttiCollBroadcast ? kAll & ~kRing
                                                              : kRing)
        << tuttiCollName(coll);
  ASSERT_EQ(parse("allreduce:tree"), tuttiSuccess);
  EXPECT_EQ(selected.of[tuttiCollAllReduce], kTree);
  EXPECT_EQ(selected.of[tuttiCollReduce], kAll);
  ASSERT_EQ(parse("reducescatter:ring;reducescatter:direct"), tuttiSuccess);
  EXPECT_EQ(selected.of[tuttiCollReduceScatter], kDirect);
  ASSERT_EQ(tuttiSelectionParse("NCCL_PROTO", "^LL;allgather:simple", &tuttiProtoWords, &selected),
            tuttiSuccess);
  EXPECT_EQ(selected.of[tuttiCollAllGather], 1u << tuttiProtoSimple);
  EXPECT_EQ(selected.of[tuttiCollReduce], 1u << tuttiProtoSimple | 1u << tuttiProtoLL128);
}

TEST_F(Selection, SaysWhereWhatIsNotUnderstoodStands) {
  const std::pair<const char *, const char *> bad[] = {
      {"Rings", "\"Rings\" at character 1 is none of Ring, Hierarchical, Tree, Doubling, Direct"},
      {"Ring,", "\"\" at character 6 is none of"},
      {",Ring", "\"\" at character 1 is none of"},
      {"Ring,, Tree", "\"\" at character 6 is none of"},
      {"^", "\"\" at character 2 is none of"},
      {"Ring Tree", "\"Ring Tree\" at character 1 is none of"},
      {"Ring,^Tree", "\"^Tree\" at character 6 is none of"},
      {"^^Ring", "\"^Ring\" at character 2 is none of"},
      {"ring;", "\"\" at character 6 is none of"},
      {"ring;allreduce:tre,ring",
       "\"tre\" at character 16 is none of Ring, Hierarchical, Tree, Doubling, Direct"},
      {"ring; allreduces:tree", "\"allreduces\" at character 7, before a colon, is no collective"},
      {"sendrecv:ring", "\"sendrecv\" at character 1, before a colon, is no collective"},
      {":ring", "\"\" at character 1, before a colon, is no collective; accepted: AllReduce, "},
      {"allreduce:ring:tree", "the colon at character 15 follows no collective"},
      {"allreduce:", "\"\" at character 11 is none of"},
      {"ring;reduce:^ring,hierarchical,tree,doubling,direct",
       "the part at character 13 excludes everything"},
      {"^ring,hierarchical,tree,doubling,direct,nvls",
       "the part at character 1 excludes everything"},
  };
  for (auto [text, expected] : bad) {
    EXPECT_EQ(parse(text), tuttiInvalidArgument) << text;
    EXPECT_EQ(selected.of[0], 99u) << text;
    EXPECT_THAT(
        tuttiErrorText(),
        testing::AllOf(HasSubstr(std::string("NCCL_ALGO=\"") + text + "\""), HasSubstr(expected)));
  }
}

} // namespace
