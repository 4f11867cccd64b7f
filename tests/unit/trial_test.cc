// How long memory rests: longer after mistakes, shorter after a time without, and ever fewer mistakes.
#include <gtest/gtest.h>

#include <algorithm>

extern "C" {
#include "pool/trial.h"
}

namespace {

constexpr hak_trial_least LEAST = {.vain = 64, .given = 4096};

class Trial : public testing::Test {
 protected:
  void SetUp() override { judge(0, 0); }
  // So much is given back now, of which `vain` is taken again before the next look.
  bool judge(size_t given, size_t vain) {
    now_ += 250;
    given_ += given;
    vain_ += vain;
    return hak_trial_judge(&trial_, LEAST, now_, given_, vain_);
  }
  void pass(uint64_t ms) {
    for (; ms >= 250; ms -= 250) judge(0, 0);
  }

  hak_trial trial_ = {};
  uint64_t now_ = 100000;
  size_t given_ = 0, vain_ = 0;
};

TEST_F(Trial, AQuarterInVainAndMemoryRestsFourTimesAsLong) {
  judge(10000, 2500);
  EXPECT_EQ(trial_.rest_ms, 0u) << "a quarter is not more than a quarter";
  EXPECT_TRUE(judge(0, 1));
  EXPECT_EQ(trial_.rest_ms, 1000u);
  for (uint64_t rest = 4000; rest < 1024 * 1000; rest *= 4) {
    judge(1000, 1000);
    EXPECT_EQ(trial_.rest_ms, rest);
  }
  for (int i = 0; i < 3; i++) judge(1000, 1000);
  EXPECT_EQ(trial_.rest_ms, 1024u * 1000);
}

TEST_F(Trial, ALittleSaysNothing) {
  judge(64, 64);
  EXPECT_EQ(trial_.rest_ms, 0u);
}

TEST_F(Trial, ALittleAgainAndAgainAddsUp) {
  for (int i = 0; i < 20; i++) {
    judge(32, 16);
    pass(60000);
  }
  EXPECT_GE(trial_.rest_ms, 1000u);
}

// What is taken again long after a verdict was given back before it.
TEST_F(Trial, WithoutAGiftNothingIsInVain) {
  judge(10000, 5000);
  ASSERT_EQ(trial_.rest_ms, 1000u);
  for (int i = 0; i < 10; i++) EXPECT_FALSE(judge(0, 500));
  EXPECT_EQ(trial_.rest_ms, 1000u);
  judge(100, 0);
  EXPECT_EQ(trial_.rest_ms, 1000u) << "what came back before counts against it";
  judge(100, 100);
  EXPECT_EQ(trial_.rest_ms, 4000u);
}

TEST_F(Trial, APauseProvesNothing) {
  judge(10000, 5000);
  judge(10000, 5000);
  ASSERT_EQ(trial_.rest_ms, 4000u);
  pass(120000);
  judge(10000, 0);
  EXPECT_EQ(trial_.rest_ms, 4000u) << "it has just gone";
}

TEST_F(Trial, JudgesFourTimesASecond) {
  judge(1000, 0);
  given_ += 1000;
  vain_ += 1000;
  EXPECT_FALSE(hak_trial_judge(&trial_, LEAST, now_ + 249, given_, vain_));
  EXPECT_TRUE(hak_trial_judge(&trial_, LEAST, now_ + 250, given_, vain_));
}

TEST_F(Trial, ShorterOnlyAfterMuchAndLong) {
  judge(1000, 1000);
  judge(1000, 1000);
  ASSERT_EQ(trial_.rest_ms, 4000u);
  judge(5000, 0);
  pass(15000);
  EXPECT_EQ(trial_.rest_ms, 4000u) << "it may still be taken again";
  pass(2000);
  EXPECT_EQ(trial_.rest_ms, 1000u);
  pass(60000);
  EXPECT_EQ(trial_.rest_ms, 1000u) << "nothing has been given back since";
}

TEST_F(Trial, MistakesWithoutEndAreStillLearntFrom) {
  for (int i = 0; i < 200; i++) judge(1000, 1000);
  EXPECT_GE(trial_.trust_ms, uint64_t{1} << 40);
  EXPECT_GT(trial_.until_ms, now_ + (uint64_t{1} << 39));
  EXPECT_EQ(trial_.rest_ms, 1024u * 1000);
}

TEST_F(Trial, AClockThatIsBehindAnothersJudgesNothing) {
  EXPECT_FALSE(hak_trial_judge(&trial_, LEAST, now_ - 100, 1000000, 1000000));
  EXPECT_EQ(trial_.rest_ms, 0u);
}

// A program that takes all of it again whenever it has rested for less than 3 s, and gives the allocator every reason to try
// when it has rested for more.
TEST_F(Trial, MistakesGrowWithTheLogarithmOfTime) {
  unsigned mistakes = 0, in_first_half = 0;
  constexpr unsigned DAY = 24 * 3600 * 4;
  for (unsigned i = 0; i < DAY; i++) {
    bool too_early = trial_.rest_ms < 3000;
    uint64_t before = trial_.trust_ms;
    judge(5000, too_early ? 5000 : 0);
    if (trial_.trust_ms != before) mistakes++;
    if (i == DAY / 2) in_first_half = mistakes;
  }
  EXPECT_LE(mistakes, 40u);
  EXPECT_LE(mistakes - in_first_half, 2u);
}

}  // namespace
