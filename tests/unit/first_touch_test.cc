// What becomes accessible has huge pages as long as their first touches are cheap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <set>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

namespace {

constexpr uint64_t CHEAP_NS = 300'000, DEAR_NS = 8'000'000;
constexpr size_t HUGE_PAGE_MIB = HAK_HUGE_PAGE / HAK_MIB;

class FirstTouch : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(16 * HAK_GIB));
    hak_span_pool.huge_from_spans = 0;
    // What finishes the first chunk, which has small pages, is no part of what is counted.
    take(HAK_HUGE_PAGE_SPANS);
    fake_os::reset();
  }

  static void take(size_t spans) {
    bool zeroed;
    hak_span *s = hak_pool_take(spans, 1, HELD_TAGS, true, &zeroed);
    ASSERT_NE(s, nullptr);
    // What a sample left in the page is zeros.
    if (zeroed) {
      const char *p = static_cast<const char *>(hak_region_address(&hak_main_region, s - hak_main_region.spans));
      EXPECT_EQ(*p, 0);
    }
  }
  static void take_mib(size_t mib) {
    for (size_t i = 0; i < mib / HUGE_PAGE_MIB; i++) take(HAK_HUGE_PAGE_SPANS);
  }
  // What asks for huge pages, and has not asked for small ones since.
  static size_t huge_mib() {
    std::set<uintptr_t> huge;
    for (const fake_os::Event &e : fake_os::log()) {
      if (e.call != fake_os::ADVISE) continue;
      uintptr_t end = e.addr + e.size_bytes;
      for (uintptr_t page = hak_align_up(e.addr, HAK_HUGE_PAGE); page + HAK_HUGE_PAGE <= end; page += HAK_HUGE_PAGE) {
        if (e.detail == MADV_HUGEPAGE) huge.insert(page);
        if (e.detail == MADV_NOHUGEPAGE) huge.erase(page);
      }
    }
    return huge.size() * HUGE_PAGE_MIB;
  }
};

TEST_F(FirstTouch, OfEachHugePageIsTimed) {
  fake_os::set_touch_ns(CHEAP_NS);
  take_mib(1000);
  EXPECT_GE(fake_os::touched(), 1000 / HUGE_PAGE_MIB - 1);
  EXPECT_GE(huge_mib(), 998u);
}

// Of a gibibyte three pages, by which nearly nothing is lost beside small pages alone.
TEST_F(FirstTouch, IsTriedSeldomWhileItIsDear) {
  fake_os::set_touch_ns(DEAR_NS);
  take_mib(1024);
  EXPECT_THAT(fake_os::touched(), testing::AllOf(testing::Ge(2u), testing::Le(3u)));
  EXPECT_EQ(huge_mib(), 0u) << "what is purged of them does not come back as huge pages";
  take_mib(8192);
  EXPECT_LE(fake_os::touched(), 12u) << "a gibibyte lies between two at most";
  EXPECT_GE(fake_os::touched(), 8u);
}

TEST_F(FirstTouch, OnceCheapAgainBringsHugePages) {
  fake_os::set_touch_ns(DEAR_NS);
  take_mib(64);
  EXPECT_LE(huge_mib(), HUGE_PAGE_MIB);
  fake_os::set_touch_ns(CHEAP_NS);
  take_mib(1024);
  EXPECT_GE(huge_mib(), 1024u - 2 * 64);
  // One that is dear after cheap ones stops them as shortly as the first did.
  fake_os::set_touch_ns(DEAR_NS);
  take_mib(2);
  fake_os::set_touch_ns(CHEAP_NS);
  size_t before = huge_mib();
  take_mib(256);
  EXPECT_GE(huge_mib() - before, 256u - 2 * 64);
}

TEST_F(FirstTouch, IsIgnoredWhereHugePagesAreAskedForAlways) {
  hak_config.thp = HAK_THP_ON;
  fake_os::set_touch_ns(DEAR_NS);
  take_mib(256);
  EXPECT_EQ(fake_os::touched(), 0u);
  EXPECT_GE(huge_mib(), 254u);
}

// A mapping whose first huge page was dear has small ones behind it, and stays one block: it grows, moves and goes.
TEST_F(FirstTouch, OfAMapping) {
  auto alloc = [] { return static_cast<char *>(hak_huge_alloc(64 * HAK_MIB, hak_os_page_size(), false)); };
  bool due;
  char *first = alloc();
  memset(first, 1, 64 * HAK_MIB);
  EXPECT_TRUE(hak_huge_free(first, &due));  // it has proved dense
  fake_os::reset();
  fake_os::set_touch_ns(DEAR_NS);
  char *p = alloc();
  EXPECT_EQ(fake_os::touched(), 1u);
  EXPECT_EQ(huge_mib(), HUGE_PAGE_MIB);
  for (size_t i = 0; i < 64 * HAK_MIB; i += 4096) {
    ASSERT_EQ(p[i], 0) << i;
    p[i] = char(i >> 12);
  }
  p = static_cast<char *>(hak_huge_resize(p, 512 * HAK_MIB, true));
  ASSERT_NE(p, nullptr);
  for (size_t i = 0; i < 64 * HAK_MIB; i += 4096) ASSERT_EQ(p[i], char(i >> 12)) << i;
  EXPECT_TRUE(hak_huge_free(p, &due));
  EXPECT_THAT(fake_os::violations(), testing::IsEmpty());
}

}  // namespace
