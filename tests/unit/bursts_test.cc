// A program that works in bursts and rests between them: where its memory is taken again, in every build and mode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"
#include "whole_steps.h"

using testing::IsEmpty;

namespace {

constexpr size_t SPANS_PER_MIB = HAK_MIB / HAK_SPAN_SIZE;

struct Mode {
  const char *name;
  bool lean;
  int decommit;
};

class Bursts : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(64 * HAK_GIB));
    hak_config.mem_lean = GetParam().lean;
    hak_config.mem_lean_target_mb = 10;
    hak_config.mem_lean_decommit = GetParam().decommit;
    hak_decay_start();
  }
  void TearDown() override {
    hak_config.mem_lean = 0;
    hak_decay_start();
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  // So much is taken; of every `apart` spans one is held until the next burst is over. Then nobody comes by for a while.
  void burst(size_t mib, size_t apart) {
    bool zeroed, due = false;
    hak_deferred d = {};
    std::vector<hak_span *> taken, held;
    for (size_t i = 0; i < mib * SPANS_PER_MIB; i++) taken.push_back(hak_pool_take(1, 1, HELD_TAGS, true, &zeroed));
    for (size_t i = 0; i < taken.size(); i++) {
      ASSERT_NE(taken[i], nullptr);
      if (i % apart == apart - 1)
        held.push_back(taken[i]);
      else
        hak_pool_give(taken[i], 0, HELD_TAGS.head, &due);
      d.purge_due = due;
      if (due) whole_steps::excess(&d);
      due = false;
    }
    for (hak_span *s : held_) hak_pool_give(s, 0, HELD_TAGS.head, &due);
    held_ = held;
    for (int tick = 0; tick < 3; tick++) {
      now_ms_ += 3000;
      fake_os::set_clock(now_ms_);
      whole_steps::tick(now_ms_, &d);
    }
  }
  size_t accessible_mib() const { return (hak_main_region.ready_spans - hak_main_region.first_span) / SPANS_PER_MIB; }

  uint64_t now_ms_ = 1000000;
  std::vector<hak_span *> held_;
};

TEST_P(Bursts, FindTheMemoryOfTheLastOne) {
  for (int i = 0; i < 300; i++) burst(100, 1024);
  size_t settled = accessible_mib();
  // Hardened, guards break up every other huge page: small pages will do beyond half a GiB.
  EXPECT_LE(settled, HAK_HARDENED ? 12 * 64u : 3 * 64u);
  for (int i = 0; i < 100; i++) burst(100, 1024);
  EXPECT_EQ(accessible_mib(), settled) << "a chunk for each burst would be 64 MiB 100 times";
}

// Chunks that cannot become huge again, since something lives everywhere in them: small pages will do, after a while.
TEST_P(Bursts, ThatLeaveSomethingEverywhereAreBoundedToo) {
  size_t most = 100 * 8 + 512 + 128;
  for (int i = 0; i < 100; i++) burst(100, 100);
  EXPECT_LE(accessible_mib(), most);
}

INSTANTIATE_TEST_SUITE_P(Modes, Bursts,
                         testing::Values(Mode{"balanced", false, HAK_LEAN_DONTNEED}, Mode{"lean", true, HAK_LEAN_DONTNEED},
                                         Mode{"lean_lazily", true, HAK_LEAN_FREE}),
                         [](const auto &i) { return i.param.name; });

}  // namespace
