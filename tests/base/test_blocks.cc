#include "base/blocks.h"

#include <gtest/gtest.h>

#include <vector>

namespace {

constexpr size_t kEach = 4096;

struct Blocks {
  tuttiMemAccount account{};
  std::vector<uint8_t> memory;
  tuttiBlocks b{};
  explicit Blocks(int n) : memory(static_cast<size_t>(n) * kEach) {
    EXPECT_EQ(tuttiBlocksDivide(&b, memory.data(), n, kEach, "blocks", &account), tuttiSuccess);
  }
  ~Blocks() { tuttiBlocksForget(&b); }
  /* As the number of the first block; -1: there are none. */
  int take(size_t bytes) {
    uint8_t *at = tuttiBlocksTake(&b, bytes);
    return at ? static_cast<int>(static_cast<size_t>(at - memory.data()) / kEach) : -1;
  }
  void give(int block) { tuttiBlocksGive(&b, memory.data() + static_cast<size_t>(block) * kEach); }
};

TEST(Blocks, AreTakenInARowAndGivenBackTogether) {
  Blocks blocks(8);
  EXPECT_EQ(blocks.take(1), 0);
  EXPECT_EQ(blocks.take(3 * kEach), 1);
  EXPECT_EQ(blocks.take(2 * kEach + 1), 4) << "three, for one more byte than two have";
  EXPECT_EQ(blocks.take(2 * kEach), -1) << "one is left";
  EXPECT_EQ(blocks.take(kEach), 7);
  EXPECT_EQ(blocks.take(1), -1);
  blocks.give(1);
  EXPECT_EQ(blocks.take(4 * kEach), -1);
  EXPECT_EQ(blocks.take(2 * kEach), 1);
  EXPECT_EQ(blocks.take(kEach), 3);
}

/* What is free on both sides of a block that is taken is no row. */
TEST(Blocks, ARowIsNotBrokenByOthers) {
  Blocks blocks(5);
  for (int i = 0; i < 5; i++)
    ASSERT_EQ(blocks.take(kEach), i);
  for (int i : {0, 1, 3, 4})
    blocks.give(i);
  EXPECT_EQ(blocks.take(3 * kEach), -1);
  EXPECT_EQ(blocks.take(2 * kEach), 0);
  EXPECT_EQ(blocks.take(2 * kEach), 3);
  blocks.give(2);
  EXPECT_EQ(blocks.take(2 * kEach), -1);
}

TEST(Blocks, MoreThanThereIsIsNotTaken) {
  Blocks blocks(4);
  EXPECT_EQ(blocks.take(4 * kEach + 1), -1);
  EXPECT_EQ(blocks.take(SIZE_MAX), -1);
  EXPECT_EQ(blocks.take(4 * kEach), 0);
  tuttiBlocks none{};
  EXPECT_EQ(tuttiBlocksTake(&none, 1), nullptr);
}

TEST(Blocks, KnowWhatIsTheirs) {
  Blocks blocks(2);
  uint8_t *base = blocks.memory.data();
  EXPECT_TRUE(tuttiBlocksHave(&blocks.b, base));
  EXPECT_TRUE(tuttiBlocksHave(&blocks.b, base + 2 * kEach - 1));
  EXPECT_FALSE(tuttiBlocksHave(&blocks.b, base + 2 * kEach));
  EXPECT_FALSE(tuttiBlocksHave(&blocks.b, base - 1));
}

TEST(Blocks, AreForgottenWithTheirList) {
  Blocks blocks(2);
  EXPECT_GT(tuttiLoadRelaxed(&blocks.account.bytes), 0u);
  tuttiBlocksForget(&blocks.b);
  EXPECT_EQ(tuttiLoadRelaxed(&blocks.account.bytes), 0u);
  EXPECT_FALSE(tuttiBlocksHave(&blocks.b, blocks.memory.data()));
  tuttiBlocksForget(&blocks.b);
}

} // namespace
