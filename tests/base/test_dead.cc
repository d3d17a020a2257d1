#include <gtest/gtest.h>

#include "base/dead.h"

namespace {

TEST(Dead, AreKnownUntilManyMoreHaveDied) {
  EXPECT_FALSE(tuttiDeadKnown(7));
  tuttiDeadNote(7);
  tuttiDeadNote(7); /* as each of its communicators tells it */
  EXPECT_TRUE(tuttiDeadKnown(7));
  for (uint64_t other = 1000; other < 1255; other++)
    tuttiDeadNote(other);
  EXPECT_TRUE(tuttiDeadKnown(7));
  tuttiDeadNote(9999);
  EXPECT_FALSE(tuttiDeadKnown(7));
  EXPECT_TRUE(tuttiDeadKnown(1000));
  EXPECT_TRUE(tuttiDeadKnown(9999));
}

TEST(Dead, NobodyIsNone) {
  tuttiDeadNote(0);
  EXPECT_FALSE(tuttiDeadKnown(0));
}

} // namespace
