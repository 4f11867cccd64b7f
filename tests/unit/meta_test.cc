// Cells: the allocator's own memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "fake_os.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

class Meta : public testing::Test {
 protected:
  void SetUp() override { fake_os::reset(); }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }
};

TEST_F(Meta, AlignedAndApart) {
  std::set<uintptr_t> seen;
  for (int i = 0; i < 5000; i++) {
    hak_meta *c = hak_meta_take();
    ASSERT_NE(c, nullptr);
    uintptr_t at = reinterpret_cast<uintptr_t>(c);
    EXPECT_EQ(at % HAK_META_SIZE, 0u);
    EXPECT_TRUE(seen.insert(at).second) << "handed out twice";
    memset(static_cast<void *>(c), 0xff, HAK_META_SIZE);
  }
  EXPECT_GE(hak_meta_bytes(), 5000u * HAK_META_SIZE);
}

TEST_F(Meta, GivenChainsAreTakenAgain) {
  hak_meta *a = hak_meta_take(), *b = hak_meta_take(), *c = hak_meta_take();
  a->next = b;
  b->next = c;
  c->next = nullptr;
  hak_meta_give(a);
  EXPECT_EQ(hak_meta_take(), a);
  EXPECT_EQ(hak_meta_take(), b);
  EXPECT_EQ(hak_meta_take(), c);
  hak_meta_give(nullptr);
}

TEST_F(Meta, OneIsGivenWhateverItHolds) {
  hak_meta *a = hak_meta_take(), *b = hak_meta_take();
  memset(static_cast<void *>(a), 0xff, HAK_META_SIZE);
  hak_meta_give_one(a);
  memset(static_cast<void *>(b), 0xff, HAK_META_SIZE);
  hak_meta_give_one(b);
  EXPECT_EQ(hak_meta_take(), b);
  EXPECT_EQ(hak_meta_take(), a);
}

// Nobody needs what a burst needed.
// Blocks are mapped piece by piece: of each piece a page may be shared with something else.
size_t at_least(size_t blocks) { return blocks * HAK_META_SIZE - std::max<size_t>(100 * HAK_META_SIZE, 16 * hak_os_page_size()); }

TEST_F(Meta, PagesOfFreeBlocksGoBackAndComeAgain) {
  constexpr size_t COUNT = 24000;  // in early mappings and in aligned ones
  std::set<hak_meta *> blocks;
  while (blocks.size() < COUNT) ASSERT_TRUE(blocks.insert(hak_meta_take()).second);
  hak_meta *kept = *blocks.begin();
  memset(static_cast<void *>(kept), 0x5a, HAK_META_SIZE);
  blocks.erase(kept);
  for (hak_meta *m : blocks) hak_meta_give_one(m);
  unsigned long mapped = hak_meta_bytes();
  size_t used = hak_load_relaxed(&hak_budget_mapped), purged = hak_meta_purge(true);
  EXPECT_GE(purged, at_least(COUNT));
  EXPECT_EQ(hak_load_relaxed(&hak_budget_mapped), used - purged);
  EXPECT_EQ(hak_meta_purge(true), 0u) << "once";
  std::set<hak_meta *> again;
  while (again.size() < COUNT - 1) {
    hak_meta *m = hak_meta_take();
    ASSERT_NE(m, kept);
    ASSERT_TRUE(again.insert(m).second) << "handed out twice";
    memset(static_cast<void *>(m), 0xff, HAK_META_SIZE);
  }
  EXPECT_EQ(hak_meta_bytes(), mapped) << "the same ones";
  EXPECT_EQ(hak_load_relaxed(&hak_budget_mapped), used);
  for (size_t i = sizeof(void *); i < HAK_META_SIZE; i++) ASSERT_EQ(reinterpret_cast<unsigned char *>(kept)[i], 0x5a);
  for (hak_meta *m : again) hak_meta_give_one(m);
  hak_meta_give_one(kept);
}

TEST_F(Meta, ByDecayGoesWhatNobodyNeededSinceTheLastTime) {
  std::vector<hak_meta *> blocks(6000);
  hak_meta_purge(true);
  for (hak_meta *&m : blocks) m = hak_meta_take();
  for (hak_meta *m : blocks) hak_meta_give_one(m);
  EXPECT_EQ(hak_meta_purge(false), 0u) << "needed just now";
  for (size_t i = 0; i < 3000; i++) blocks[i] = hak_meta_take();
  for (size_t i = 0; i < 3000; i++) hak_meta_give_one(blocks[i]);
  size_t purged = hak_meta_purge(false);
  EXPECT_GE(purged, at_least(3000));
  EXPECT_LE(purged, 3000 * HAK_META_SIZE);
  EXPECT_GE(hak_meta_purge(false), at_least(3000));
}

TEST_F(Meta, WhatTheSystemRefusesStays) {
  std::vector<hak_meta *> blocks(4000);
  for (hak_meta *&m : blocks) m = hak_meta_take();
  for (hak_meta *m : blocks) hak_meta_give_one(m);
  size_t used = hak_load_relaxed(&hak_budget_mapped);
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  EXPECT_EQ(hak_meta_purge(true), 0u);
  fake_os::allow_all();
  EXPECT_EQ(hak_load_relaxed(&hak_budget_mapped), used);
  unsigned long mapped = hak_meta_bytes();
  for (hak_meta *&m : blocks) m = hak_meta_take();
  EXPECT_EQ(hak_meta_bytes(), mapped);
}

// The thread that purges is not there to put back what it has claimed.
TEST_F(Meta, AForksChildHasWhatAnotherThreadWasPurging) {
  std::set<hak_meta *> all;
  for (int i = 0; i < 3000; i++) all.insert(hak_meta_take());
  for (hak_meta *m; (m = hak_meta_take_mapped()) != nullptr;) all.insert(m);
  for (hak_meta *m : all) hak_meta_give_one(m);
  std::atomic<bool> inside{false}, forked{false};
  fake_os::on_call([&](const fake_os::Event &e) {
    if (e.call == fake_os::ADVISE && !inside.exchange(true)) {
      while (!forked) usleep(100);
    }
  });
  std::thread purger([] { hak_meta_purge(true); });
  while (!inside) usleep(100);
  pid_t child = fork();
  if (child == 0) {
    hak_lock_take(&hak_meta_lock);
    hak_meta_fork_child();
    hak_lock_drop(&hak_meta_lock);
    size_t again = 0, foreign = 0;
    for (hak_meta *m; (m = hak_meta_take_mapped()) != nullptr; again++) {
      foreign += all.erase(m) != 1; /* or twice */
      memset(static_cast<void *>(m), 0xff, HAK_META_SIZE);
    }
    _exit(foreign != 0 ? 1 : !all.empty() ? 2 : again == 0 ? 3 : 0);
  }
  forked = true;
  purger.join();
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (hak_meta *m; (m = hak_meta_take_mapped()) != nullptr;) ASSERT_EQ(all.erase(m), 1u);
  EXPECT_TRUE(all.empty());
}

TEST_F(Meta, BlocksAreZeroedAndWhole) {
  for (int i = 0; i < 3000; i++) hak_meta_take();
  auto *block = static_cast<unsigned char *>(hak_meta_take_block(100));
  ASSERT_NE(block, nullptr);
  for (size_t i = 0; i < 100 * HAK_META_SIZE; i++) ASSERT_EQ(block[i], 0);
  memset(block, 0xff, 100 * HAK_META_SIZE);
  auto *huge = static_cast<unsigned char *>(hak_meta_take_block(20000));  // larger than any step
  ASSERT_NE(huge, nullptr);
  huge[0] = huge[20000 * HAK_META_SIZE - 1] = 1;
}

TEST_F(Meta, InaccessiblePagesOnBothSides) {
  hak_meta_take_block(20000);  // forces a mapping of its own
  uintptr_t lo = 0, hi = 0;
  for (const auto &e : fake_os::log()) {
    if (e.call == fake_os::MAP) {
      EXPECT_FALSE(e.detail) << "reserved first";
      lo = e.addr;
      hi = e.addr + e.size_bytes;
    } else if (e.call == fake_os::PROTECT) {
      EXPECT_GE(e.addr, lo + hak_os_page_size());
      EXPECT_LE(e.addr + e.size_bytes, hi - hak_os_page_size());
    }
  }
  EXPECT_NE(lo, 0u);
  ASSERT_EQ(fake_os::names().size(), 1u);
  EXPECT_STREQ(fake_os::names()[0].name, "hakmem: tables");
  EXPECT_EQ(fake_os::names()[0].addr, lo);
  EXPECT_EQ(fake_os::names()[0].addr + fake_os::names()[0].size_bytes, hi) << "with the pages on both sides";
}

TEST_F(Meta, NoMemoryIsNullAndLeavesNothing) {
  size_t before = fake_os::mapped_bytes();
  unsigned long bytes = hak_meta_bytes();
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(hak_meta_take_block(20000), nullptr);
  fake_os::allow_all();
  fake_os::fail_all(fake_os::PROTECT);
  EXPECT_EQ(hak_meta_take_block(20000), nullptr);
  EXPECT_EQ(fake_os::mapped_bytes(), before);
  EXPECT_EQ(hak_meta_bytes(), bytes);
  fake_os::allow_all();
  EXPECT_NE(hak_meta_take_block(20000), nullptr);
}

}  // namespace
