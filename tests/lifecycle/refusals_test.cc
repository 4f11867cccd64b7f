/* A system that refuses: reservations, commits beyond a budget (what overcommit_memory=2 does), any call now and then.
 * The allocator answers NULL with ENOMEM, loses nothing, and works again when the system does. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "accounting.h"
#include "fake_files.h"
#include "fake_os.h"
#include "hak.h"
#include "hakmem/hakmem.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct Block {
  unsigned char *p;
  size_t size;
};

/* Allocates until NULL, at most `most` blocks; frees are the caller's. */
std::vector<Block> exhaust(size_t size, size_t most) {
  std::vector<Block> blocks;
  blocks.reserve(most);
  while (blocks.size() < most) {
    errno = 0;
    auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
    if (p == nullptr) {
      EXPECT_EQ(errno, ENOMEM);
      break;
    }
    p[0] = p[size - 1] = static_cast<unsigned char>(blocks.size());
    blocks.push_back({p, size});
  }
  return blocks;
}

bool free_all(const std::vector<Block> &blocks) {
  bool right = true;
  for (size_t i = 0; i < blocks.size(); i++) {
    right = right && blocks[i].p[0] == static_cast<unsigned char>(i) &&
            blocks[i].p[blocks[i].size - 1] == static_cast<unsigned char>(i);
    hakmem_free(blocks[i].p);
  }
  return right;
}

void expect_nothing_lost() {
  hakmem_malloc_trim(0);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  EXPECT_EQ(accounting_check_nothing_live(), 0u);
  EXPECT_EQ(fake_os::violations(), std::vector<std::string>());
}

class Exhausted : public testing::TestWithParam<size_t> {};

TEST_P(Exhausted, ByRefusedCommits) {
  size_t size = GetParam(), budget = 64 * kMiB, used = 0;
  fake_os::fail_if([&](const fake_os::Event &e) {
    bool commit = (e.call == fake_os::PROTECT || e.call == fake_os::MAP) && e.detail != 0;
    if (!commit) return 0;
    if (used + e.size_bytes > budget) return ENOMEM;
    used += e.size_bytes;
    return 0;
  });
  /* Some megabytes were made accessible at the start. */
  size_t most = (budget + 16 * kMiB) / size + 1;
  std::vector<Block> first = exhaust(size, most);
  EXPECT_GT(first.size(), most / 8);
  EXPECT_LT(first.size(), most) << "the budget did not bind";
  EXPECT_TRUE(free_all(first));
  hakmem_malloc_trim(0);
  /* Spans that were accessible stay so, and a kept mapping may be refused: what was served as runs must be again. */
  std::vector<Block> again = exhaust(size, most);
  if (size <= 32 * kMiB) {
    EXPECT_GE(again.size(), first.size() - first.size() / 1000) << "slabs have other colours";
  }
  EXPECT_TRUE(free_all(again));
  fake_os::allow_all();
  std::vector<Block> more = exhaust(size, most * 2);
  EXPECT_EQ(more.size(), most * 2);
  EXPECT_TRUE(free_all(more));
  expect_nothing_lost();
}

INSTANTIATE_TEST_SUITE_P(Sizes, Exhausted, testing::Values(64, 3000, 30000, 100000, 5 * kMiB, 40 * kMiB));

/* vm.overcommit_memory is 2: what is accessible is promised, touched or not, until it is unmapped. A large block, which is a mapping, gets
 * the promises that the small ones had, once they are free. */
class Promises {
 public:
  explicit Promises(size_t most) : most_(most) {
    fake_os::fail_if([this](const fake_os::Event &e) { return answer(e); });
  }
  ~Promises() { fake_os::allow_all(); }
  size_t withdrawn() const { return withdrawn_; }

 private:
  int answer(const fake_os::Event &e) {
    bool gives = e.detail != 0 && (e.call == fake_os::MAP || e.call == fake_os::PROTECT);
    uintptr_t page = e.addr / kPage, end = page + e.size_bytes / kPage;
    if (gives && (mapped_ + promised_.size()) * kPage + e.size_bytes > most_) return ENOMEM;
    if (gives && e.call == fake_os::MAP) mapped_ += e.size_bytes / kPage; /* where, is not known yet */
    if (gives && e.call == fake_os::PROTECT)
      for (; page < end; page++) promised_.insert(page);
    if (e.call == fake_os::UNMAP) {
      size_t before = promised_.size();
      promised_.erase(promised_.lower_bound(page), promised_.lower_bound(end));
      withdrawn_ += (before - promised_.size()) * kPage;
    }
    return 0;
  }
  static constexpr size_t kPage = 4096;
  size_t most_, mapped_ = 0, withdrawn_ = 0;
  std::set<uintptr_t> promised_; /* pages */
};

class Promised : public testing::TestWithParam<size_t> {};

TEST_P(Promised, GoBackForAnotherKindOfBlock) {
  constexpr size_t kMost = 256 * kMiB, kLarge = 160 * kMiB;
  FakeFiles files;
  Promises promises(kMost);
  auto large = [] { return exhaust(kLarge, 1); };
  files.write("/proc/sys/vm/overcommit_memory", "0\n");
  std::vector<Block> small = exhaust(GetParam(), kMost / GetParam());
  ASSERT_LT(small.size(), kMost / GetParam()) << "no promise was refused";
  EXPECT_TRUE(free_all(small));
  EXPECT_EQ(large().size(), 0u) << "promises were left";
  files.write("/proc/sys/vm/overcommit_memory", "2\n");
  std::vector<Block> blocks = large();
  EXPECT_EQ(blocks.size(), 1u);
  EXPECT_GE(promises.withdrawn(), kLarge - 64 * kMiB);
  EXPECT_TRUE(free_all(blocks));
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Promised, testing::Values(64, 3000, 200000, 3 * kMiB));

/* No new mapping at all, in several threads: arenas, caches and magazines cannot be made either. */
TEST(Refusals, ThreadsWithoutAnyNewMemory) {
  std::vector<Block> blocks = exhaust(100, 10000);
  fake_os::fail_all(fake_os::MAP);
  fake_os::fail_all(fake_os::PROTECT);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; t++) {
    threads.emplace_back([&blocks, t] {
      std::vector<Block> own = exhaust(2000, 20000);
      for (size_t i = t; i < blocks.size(); i += 8) hakmem_free(blocks[i].p); /* free cannot fail */
      EXPECT_TRUE(free_all(own));
    });
  }
  for (auto &t : threads) t.join();
  fake_os::allow_all();
  expect_nothing_lost();
}

/* All that was accessible once serves before more becomes so, that of freed extents too. */
TEST(Refusals, FreedExtentsServeWithoutACall) {
  std::vector<Block> extents = exhaust(kMiB, 200);
  fake_os::fail_all(fake_os::PROTECT);
  fake_os::fail_all(fake_os::MAP);
  for (const Block &b : exhaust(kMiB, 200)) extents.push_back(b);
  fake_os::allow_all();
  size_t spans = extents.size() * (kMiB / HAK_SPAN_SIZE);
  for (const Block &b : extents) hakmem_free(b.p);
  fake_os::reset();
  std::vector<Block> blocks = exhaust(HAK_SPAN_SIZE - 5000, spans - 8);
  EXPECT_EQ(blocks.size(), spans - 8);
  EXPECT_EQ(fake_os::count(fake_os::PROTECT), 0u) << "memory was added";
  EXPECT_TRUE(free_all(blocks));
  expect_nothing_lost();
}

TEST(Refusals, AThreadAsksForItsCacheNowAndThen) {
  std::vector<Block> served = exhaust(100, 1); /* the allocator has started */
  size_t asked = 0;
  fake_os::fail_if([&](const fake_os::Event &e) {
    asked += e.call == fake_os::MAP;
    return e.call == fake_os::MAP ? ENOMEM : 0;
  });
  while (hak_meta_take_block(1) != nullptr) continue; /* no metadata is left */
  asked = 0;
  constexpr size_t kSlowPaths = 4000;
  std::thread([&] { EXPECT_TRUE(free_all(exhaust(2000, kSlowPaths))); }).join();
  EXPECT_GT(asked, 0u) << "the thread did not want a cache";
  EXPECT_LT(asked, kSlowPaths / 20);
  fake_os::allow_all();
  EXPECT_TRUE(free_all(served));
  expect_nothing_lost();
}

/* There are blocks enough, but none for samples, for which each of them is drawn where the settings say so (see CMakeLists.txt). */
TEST(Refusals, SamplesAskNowAndThen) {
  constexpr size_t kBlocks = 8000, kSize = 100;
  EXPECT_TRUE(free_all(exhaust(kSize, 1))); /* the allocator has started */
  unsigned c = hak_class_for(kSize);
  hak_deferred d = {};
  std::vector<void *> plain(kBlocks + kBlocks / 16);
  for (void *&p : plain) p = hak_arena_alloc(c, &d);
  size_t asked = 0;
  fake_os::fail_if([&](const fake_os::Event &e) {
    bool more = e.call == fake_os::MAP || (e.call == fake_os::PROTECT && e.detail != 0);
    asked += more;
    return more ? ENOMEM : 0;
  });
  std::vector<Block> rest = exhaust(60000, 10000);
  for (size_t i = 0; i < plain.size(); i++) /* no slab becomes empty */
    if (i % 16 != 0) hak_arena_free(plain[i], c, &d);
  asked = 0;
  constexpr size_t kTaken = kBlocks / 2;
  std::vector<Block> blocks = exhaust(kSize, kTaken);
  EXPECT_EQ(blocks.size(), kTaken);
  EXPECT_LT(asked, kTaken / 20);
  fake_os::allow_all();
  for (size_t i = 0; i < plain.size(); i += 16) hak_arena_free(plain[i], c, &d);
  EXPECT_TRUE(free_all(blocks));
  EXPECT_TRUE(free_all(rest));
  expect_nothing_lost();
}

/* Any call may fail at any time. */
TEST(Refusals, NowAndThen) {
  for (unsigned seed = 1; seed <= 20; seed++) {
    std::mt19937 random(seed), dice(seed * 31);
    fake_os::fail_if([&](const fake_os::Event &e) {
      if (dice() % 4 != 0) return 0;
      return e.call == fake_os::ADVISE && dice() % 2 == 0 ? EAGAIN : ENOMEM;
    });
    std::vector<Block> live;
    size_t refused = 0;
    for (int step = 0; step < 4000; step++) {
      unsigned what = random() % 8;
      if (what < 4 && live.size() < 300) {
        static const size_t limits[] = {100, 1000, 30000, 300000, 6 * kMiB, 50 * kMiB};
        size_t size = 1 + random() % limits[random() % (step % 50 == 0 ? 6 : 4)];
        errno = 0;
        auto *p = static_cast<unsigned char *>(random() % 4 == 0 ? hakmem_aligned_alloc(size_t{16} << random() % 14, size)
                                                                 : hakmem_malloc(size));
        if (p == nullptr) {
          ASSERT_EQ(errno, ENOMEM);
          refused++;
          continue;
        }
        p[0] = p[size - 1] = static_cast<unsigned char>(size);
        live.push_back({p, size});
      } else if (what < 6 && !live.empty()) {
        Block &b = live[random() % live.size()];
        size_t size = 1 + random() % (b.size * 2 + 100);
        auto *p = static_cast<unsigned char *>(hakmem_realloc(b.p, size));
        if (p == nullptr) {
          refused++;
        } else {
          ASSERT_EQ(p[0], static_cast<unsigned char>(b.size));
          b = {p, size};
          p[0] = p[size - 1] = static_cast<unsigned char>(size);
        }
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        Block b = live.back();
        live.pop_back();
        ASSERT_EQ(b.p[0], static_cast<unsigned char>(b.size));
        ASSERT_EQ(b.p[b.size - 1], static_cast<unsigned char>(b.size));
        hakmem_free(b.p);
      }
      if (step % 1000 == 0) hakmem_malloc_trim(0);
      if (step % 100 == 0) ASSERT_EQ(hakmem_heap_check(), 0u) << "seed " << seed << ", step " << step;
    }
    for (const Block &b : live) hakmem_free(b.p);
    fake_os::allow_all();
    hakmem_malloc_trim(0);
    ASSERT_EQ(accounting_check_nothing_live(), 0u) << "seed " << seed;
    (void)refused;
  }
  expect_nothing_lost();
}

/* Large reservations are refused from now on, as in a container that has little address space left. */
TEST(Refusals, OfLargeReservations) {
  fake_os::fail_if([](const fake_os::Event &e) {
    return e.call == fake_os::MAP && e.size_bytes > 64 * kMiB ? ENOMEM : 0;
  });
  for (size_t size : {size_t{64}, size_t{30000}, size_t{5} * kMiB, size_t{40} * kMiB}) {
    size_t n = 256 * kMiB / size;
    std::vector<Block> blocks = exhaust(size, n);
    EXPECT_EQ(blocks.size(), n) << size;
    EXPECT_TRUE(free_all(blocks));
  }
  EXPECT_EQ(hakmem_malloc(size_t{65} * kMiB), nullptr);
  fake_os::allow_all();
  expect_nothing_lost();
}

}  // namespace
