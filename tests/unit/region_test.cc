// The reservation ladder, growth, lookup and tags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>


#include "fake_os.h"
#include "hak.h"
#include "mapping_flags.h"

using testing::IsEmpty;

namespace {

constexpr size_t TIB = size_t(1) << 40;
constexpr size_t FIRST_RESERVED = 16 * HAK_GIB;

bool is_reservation(const fake_os::Event &e) { return e.call == fake_os::MAP && !e.detail && !e.fixed; }

// Where mmap's results are not aligned to huge pages by themselves, a reservation is made with that much slack.
constexpr size_t SLACK = HAK_HUGE_PAGE;

// Refuses reservations above `most` bytes (the slack of alignment not counted).
void refuse_above(size_t most) {
  fake_os::fail_if([=](const fake_os::Event &e) { return is_reservation(e) && e.size_bytes > most + SLACK ? ENOMEM : 0; });
}

// Another system that aligns its mappings to pages only, and never to more: many kernels, and emulators.
const hak_os_ops *finer_than;
bool hint_ignored;
void *map_off_huge_pages(void *hint, size_t size, hak_os_access access, bool fixed) {
  if (!fixed && size >= HAK_HUGE_PAGE && size <= 2 * TIB) {
    void *probe = hak_os_linux.map(nullptr, size + 2 * HAK_HUGE_PAGE, HAK_OS_RESERVED, false);
    if (probe != nullptr) {
      hak_os_linux.unmap(probe, size + 2 * HAK_HUGE_PAGE);
      hint = reinterpret_cast<void *>(hak_align_up(reinterpret_cast<uintptr_t>(probe), HAK_HUGE_PAGE) + hak_os_page_size());
    }
  }
  void *p = finer_than->map(hint, size, access, fixed);
  hint_ignored |= p != nullptr && hint != nullptr && p != hint;
  return p;
}

class OffHugePages {
 public:
  OffHugePages() : ops_(*hak_os) {
    finer_than = hak_os;
    ops_.map = map_off_huge_pages;
    hak_os = &ops_;
  }
  ~OffHugePages() { hak_os = finer_than; }

 private:
  hak_os_ops ops_;
};

class Region : public testing::Test {
 protected:
  void SetUp() override {
    hak_size_class_init(7);
    fake_os::reset();
  }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }
};

// Each rung in turn is the largest that is granted.
void go_down_the_ladder(size_t top) {
  size_t rung = top;
  for (int i = 0; i < 9; i++, rung /= 4) {
    if (rung < 16 * HAK_MIB) break;
    refuse_above(rung);
    ASSERT_TRUE(hak_region_init(top)) << rung;
    size_t reserved = std::min(rung, FIRST_RESERVED);
    EXPECT_EQ(hak_main_region.reserved_bytes, reserved);
    EXPECT_EQ(hak_main_region.base % HAK_HUGE_PAGE, 0u);
    EXPECT_EQ(hak_main_base, hak_main_region.base);
    EXPECT_EQ(hak_main_limit, hak_main_region.limit);
    EXPECT_GT(hak_main_region.limit, hak_main_region.first_span << HAK_SPAN_SHIFT);
    EXPECT_EQ(hak_region_count(), 1u);
    hak_os_unmap(reinterpret_cast<void *>(hak_main_region.base), reserved);
  }
  EXPECT_LT(rung, 16 * HAK_MIB) << "the ladder ended early";
}

TEST_F(Region, TakesTheLargestRungThatIsGranted) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a tebibyte does not always fit beside ThreadSanitizer's shadow";
#endif
  go_down_the_ladder(TIB);
}

// qemu-user keeps a note for every page: 1 TiB would take it minutes (tests/targets/README.md).
TEST_F(Region, TakesTheLargestRungBelowTheOption) { go_down_the_ladder(4 * HAK_GIB); }

// The slack at both ends of each reservation is given back.
TEST_F(Region, TakesTheLargestRungWhereMmapAlignsToPagesOnly) {
  OffHugePages system;
  size_t before = fake_os::mapped_bytes();
  go_down_the_ladder(4 * HAK_GIB);
  EXPECT_EQ(fake_os::mapped_bytes(), before);
  bool slack_was_needed = false;
  for (const auto &e : fake_os::log()) slack_was_needed |= is_reservation(e) && e.size_bytes % HAK_HUGE_PAGE != 0;
  if (!slack_was_needed && hint_ignored) GTEST_SKIP() << "the system puts mappings where it likes, here always aligned";
  EXPECT_TRUE(slack_was_needed) << "this system aligned them all the same";
}

// Grows until no more is to be had; returns the index behind the last span.
size_t grow_up_to(size_t spans) {
  while (hak_main_region.ready_spans < spans && hak_region_grow(&hak_main_region, 1, false)) continue;
  return hak_main_region.ready_spans;
}

// Of a large rung little is reserved, and more when that is used up: in place, where the fast path finds it.
TEST_F(Region, IsExtendedInPlace) {
  if (hak_os_is_limited(HAK_OS_ADDRESS_SPACE)) GTEST_SKIP() << "all is reserved at once";
  ASSERT_TRUE(hak_region_init(64 * HAK_GIB));
  hak_region *r = &hak_main_region;
  EXPECT_EQ(r->reserved_bytes, FIRST_RESERVED);
  EXPECT_EQ(r->span_count, 64 * HAK_GIB >> HAK_SPAN_SHIFT);
  size_t first_spans = FIRST_RESERVED >> HAK_SPAN_SHIFT;
  uintptr_t base = hak_main_base;
  EXPECT_EQ(grow_up_to(first_spans), first_spans);
  EXPECT_EQ(r->reserved_bytes, FIRST_RESERVED) << "not before it is used up";
  ASSERT_GT(grow_up_to(first_spans + 1), first_spans);
  EXPECT_EQ(r->reserved_bytes, 2 * FIRST_RESERVED);
  EXPECT_EQ(hak_main_base, base);
  EXPECT_EQ(hak_region_count(), 1u);
  auto *p = static_cast<volatile char *>(hak_region_address(r, first_spans));
  *p = 1;
  EXPECT_LT(reinterpret_cast<uintptr_t>(p) - hak_main_base, hak_main_limit) << "the fast path's range";
  EXPECT_TRUE(hak_os_decommit(const_cast<char *>(p), HAK_SPAN_SIZE)) << "and its pages may be given back";
  EXPECT_EQ(*p, 0);
  EXPECT_EQ(grow_up_to(r->span_count), 64 * HAK_GIB >> HAK_SPAN_SHIFT);
  EXPECT_EQ(r->reserved_bytes, 64 * HAK_GIB);
  EXPECT_FALSE(hak_region_grow(r, 1, false));
}

// Each part of the reservation has one name, whatever is accessible: a call each when it is reserved, and none as it grows.
TEST_F(Region, PartsAreNamed) {
  if (hak_os_is_limited(HAK_OS_ADDRESS_SPACE)) GTEST_SKIP() << "all is reserved at once";
  ASSERT_TRUE(hak_region_init(64 * HAK_GIB));
  hak_region *r = &hak_main_region;
  uintptr_t spans = reinterpret_cast<uintptr_t>(hak_region_address(r, r->first_span)), end = r->base + r->reserved_bytes;
  auto expect = [](const fake_os::Event &e, uintptr_t from, uintptr_t to, const char *name) {
    EXPECT_STREQ(e.name, name);
    EXPECT_EQ(e.addr, from);
    EXPECT_EQ(e.addr + e.size_bytes, to);
  };
  ASSERT_EQ(fake_os::names().size(), 2u);
  expect(fake_os::names()[0], r->base, spans, "hakmem: tables");
  expect(fake_os::names()[1], spans, end, "hakmem: heap");
  size_t first_spans = FIRST_RESERVED >> HAK_SPAN_SHIFT;
  ASSERT_EQ(grow_up_to(first_spans), first_spans);
  EXPECT_EQ(fake_os::names().size(), 2u);
  ASSERT_GT(grow_up_to(first_spans + 1), first_spans);
  ASSERT_EQ(fake_os::names().size(), 3u);
  expect(fake_os::names()[2], end, r->base + r->reserved_bytes, "hakmem: heap");
}

// Behind it something is mapped, or the system refuses: it ends there, and further regions serve.
TEST_F(Region, EndsWhereItCannotBeExtended) {
  if (hak_os_is_limited(HAK_OS_ADDRESS_SPACE)) GTEST_SKIP() << "all is reserved at once";
  ASSERT_TRUE(hak_region_init(64 * HAK_GIB));
  hak_region *r = &hak_main_region;
  void *end = reinterpret_cast<void *>(r->base + r->reserved_bytes);
  void *in_the_way = mmap(end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  size_t first_spans = FIRST_RESERVED >> HAK_SPAN_SHIFT, before = 0;
  EXPECT_EQ(grow_up_to(first_spans), first_spans);
  before = fake_os::mapped_bytes();
  EXPECT_EQ(grow_up_to(first_spans + 1), first_spans);
  EXPECT_EQ(r->span_count, first_spans);
  EXPECT_EQ(fake_os::mapped_bytes(), before) << "what was mapped elsewhere is unmapped";
  munmap(in_the_way, 4096);
  EXPECT_NE(hak_region_add(1), nullptr);
}

// gcore writes whatever is mapped and does not say dd: all of a reservation, unless it does.
TEST_F(Region, DumpsHaveWhatIsAccessible) {
  using testing::HasSubstr, testing::Not;
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  hak_region *r = &hak_main_region;
  ASSERT_TRUE(hak_region_grow(r, 1, false));
  for (const void *p : {static_cast<void *>(r->map), static_cast<void *>(r->spans + r->first_span),
                        static_cast<void *>(r->bitmaps + r->first_span * HAK_BITMAP_WORDS), static_cast<void *>(r->chunks),
                        hak_region_address(r, r->first_span), hak_region_address(r, r->ready_spans - 1)})
    EXPECT_THAT(flags_of(p), AllOf(HasSubstr(" rd "), Not(HasSubstr(" dd ")))) << p;
  // Once for the spans that the tables describe, accessible or not.
  EXPECT_THAT(flags_of(hak_region_address(r, r->table_spans - 1)), Not(HasSubstr(" dd ")));
  EXPECT_THAT(flags_of(static_cast<char *>(hak_region_address(r, r->table_spans)) + 2 * hak_os_page_size()), HasSubstr(" dd "));
  EXPECT_THAT(flags_of(hak_region_address(r, r->span_count - 1)), HasSubstr(" dd "));
  EXPECT_THAT(flags_of(r->spans + r->span_count - 1), HasSubstr(" dd "));
}

// Where fresh memory gets pages of 64 KiB, no advice keeps what is not accessible yet from having them.
TEST_F(Region, FollowsTheSystemsPageSizes) {
  using testing::HasSubstr, testing::Not;
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  hak_region *r = &hak_main_region;
  ASSERT_TRUE(hak_region_grow(r, 1, false));
  size_t first_end = r->table_spans;
  hak_region_follow_page_sizes();
  while (r->ready_spans < first_end + 2 * HAK_HUGE_PAGE_SPANS) ASSERT_TRUE(hak_region_grow(r, 16, false));
  EXPECT_THAT(flags_of(hak_region_address(r, r->first_span)), HasSubstr(" nh "));
  EXPECT_THAT(flags_of(hak_region_address(r, first_end - 1)), HasSubstr(" nh "));
  EXPECT_THAT(flags_of(hak_region_address(r, first_end + 2)), AllOf(HasSubstr(" wr "), Not(HasSubstr(" nh ")), Not(HasSubstr(" dd "))));
  EXPECT_THAT(flags_of(hak_region_address(r, r->span_count - 1)), AllOf(HasSubstr(" dd "), Not(HasSubstr(" nh ")), Not(HasSubstr(" rd "))));
  EXPECT_EQ(r->chunks[r->first_span / HAK_CHUNK_SPANS].small_spans, first_end % HAK_CHUNK_SPANS);
  hak_region *another = hak_region_add(1);
  ASSERT_NE(another, nullptr);
  EXPECT_THAT(flags_of(hak_region_address(another, another->first_span)), Not(HasSubstr(" nh ")));
}

TEST_F(Region, KeepsSmallPagesWhereTheSystemRefusesToMapAnew) {
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  fake_os::fail_all(fake_os::MAP);
  hak_region_follow_page_sizes();
  EXPECT_FALSE(hak_main_region.follows_page_sizes);
  EXPECT_THAT(flags_of(hak_region_address(&hak_main_region, hak_main_region.span_count - 1)), testing::HasSubstr(" nh "));
}

TEST_F(Region, LadderStopsAt16MiB) {
  refuse_above(8 * HAK_MIB);
  size_t before = fake_os::mapped_bytes();
  EXPECT_FALSE(hak_region_init(TIB));
  EXPECT_EQ(fake_os::mapped_bytes(), before);
}

TEST_F(Region, OptionBoundsTheLadder) {
  ASSERT_TRUE(hak_region_init(100 * HAK_MIB));
  EXPECT_EQ(hak_main_region.reserved_bytes, 64 * HAK_MIB);
  for (const auto &e : fake_os::log()) EXPECT_LE(e.size_bytes, 64 * HAK_MIB + SLACK);
}

TEST_F(Region, OptionBoundsTheLadderWhereMmapAlignsToPagesOnly) {
  OffHugePages system;
  ASSERT_TRUE(hak_region_init(100 * HAK_MIB));
  EXPECT_EQ(hak_main_region.reserved_bytes, 64 * HAK_MIB);
  EXPECT_EQ(hak_main_region.base % HAK_HUGE_PAGE, 0u);
  for (const auto &e : fake_os::log()) EXPECT_LE(e.size_bytes, 64 * HAK_MIB + SLACK);
}

TEST_F(Region, RungWhoseTablesCannotBeCommittedIsGivenUp) {
  size_t before = fake_os::mapped_bytes();
  fake_os::fail_all(fake_os::PROTECT);
  EXPECT_FALSE(hak_region_init(4 * HAK_GIB));
  EXPECT_EQ(fake_os::mapped_bytes(), before) << "a refused rung was not unmapped";
}

TEST_F(Region, LookupKnowsItsBounds) {
  ASSERT_TRUE(hak_region_init(64 * HAK_MIB));
  const hak_region &r = hak_main_region;
  auto find = [](uintptr_t p) { return hak_region_find(reinterpret_cast<void *>(p)); };
  EXPECT_EQ(find(r.base), &hak_main_region);
  EXPECT_EQ(find(r.base + r.limit - 1), &hak_main_region);
  EXPECT_EQ(find(r.base + r.limit), nullptr);
  EXPECT_EQ(find(r.base - 1), nullptr);
  EXPECT_EQ(find(0), nullptr);
  EXPECT_EQ(find(UINTPTR_MAX), nullptr);
  int local;
  EXPECT_EQ(hak_region_find(&local), nullptr);
  // Every address below the limit can be looked up, those of the tables too.
  for (uintptr_t p = r.base; p < r.base + r.limit; p += HAK_SPAN_SIZE)
    EXPECT_EQ(hak_region_code(&r, reinterpret_cast<void *>(p)), unsigned(HAK_CODE_NONE));
}

TEST_F(Region, GrowsByAQuarterAndPublishesTheLimit) {
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  hak_region *r = &hak_main_region;
  std::vector<size_t> steps = {r->ready_spans - r->first_span};
  while (r->ready_spans < 8000) {
    size_t before = r->ready_spans;
    ASSERT_TRUE(hak_region_grow(r, 1, false));
    steps.push_back(r->ready_spans - before);
    EXPECT_EQ(r->limit, r->ready_spans << HAK_SPAN_SHIFT);
    EXPECT_EQ(hak_main_limit, r->limit);
    // What was added can be used: its tag, its metadata, its memory.
    size_t last = r->ready_spans - 1;
    r->map[last] = 0;
    r->spans[last].head = nullptr;
    r->bitmaps[last * HAK_BITMAP_WORDS + HAK_BITMAP_WORDS - 1] = 0;
    *static_cast<char *>(hak_region_address(r, last)) = 1;
    EXPECT_NE(r->chunks[last / HAK_CHUNK_SPANS].free[last % HAK_CHUNK_SPANS / 64] >> (last % 64) & 1, 0u);
  }
  size_t at = hak_main_region.first_span;
  for (size_t i = 0; i < steps.size(); i++) {
    size_t quarter = (at - hak_main_region.first_span) / 4, left_in_chunk = HAK_CHUNK_SPANS - at % HAK_CHUNK_SPANS;
    EXPECT_EQ(steps[i], std::min({std::max<size_t>(quarter, 4), left_in_chunk, size_t{HAK_CHUNK_SPANS}})) << i;
    at += steps[i];
  }
}

TEST_F(Region, GrowsByAsMuchAsIsAskedFor) {
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  hak_region *r = &hak_main_region;
  size_t wanted = 512, left = HAK_CHUNK_SPANS - r->ready_spans % HAK_CHUNK_SPANS, before = r->ready_spans;
  ASSERT_TRUE(hak_region_grow(r, wanted, false));
  EXPECT_GE(r->ready_spans - before, std::min(wanted, left));
  while (r->ready_spans % HAK_CHUNK_SPANS != 0) ASSERT_TRUE(hak_region_grow(r, 1, false));
  before = r->ready_spans;
  ASSERT_TRUE(hak_region_grow(r, wanted, false));
  EXPECT_GE(r->ready_spans - before, wanted);
}

TEST_F(Region, GrowthTakesSmallerStepsWhenMemoryIsShort) {
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  hak_region *r = &hak_main_region;
  while (r->ready_spans - r->first_span < 100) ASSERT_TRUE(hak_region_grow(r, 1, false));
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::PROTECT && e.size_bytes > HAK_MIB ? ENOMEM : 0; });
  size_t before = r->ready_spans;
  ASSERT_TRUE(hak_region_grow(r, 3, false));
  EXPECT_GT(r->ready_spans - before, 8u) << "half of the step, again and again, until the system grants it";
  EXPECT_LE(r->ready_spans - before, 16u) << "1 MiB is what the system grants";
  before = r->ready_spans;
  EXPECT_FALSE(hak_region_grow(r, 17, false));
  EXPECT_EQ(r->ready_spans, before);
  EXPECT_EQ(r->limit, before << HAK_SPAN_SHIFT);
}

TEST_F(Region, FailedGrowthChangesNothingAndCanBeRepeated) {
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  hak_region *r = &hak_main_region;
  size_t before = r->ready_spans;
  // A step makes tables longer where they have no room in their pages, and then what they describe accessible; each may be what fails.
  bool grown = false;
  for (unsigned n = 1; !grown; n++) {
    fake_os::allow_all();
    fake_os::fail_nth(fake_os::PROTECT, n, 1000);
    grown = hak_region_grow(r, 64, false);
    EXPECT_EQ(grown, r->ready_spans != before) << n;
    EXPECT_EQ(hak_main_limit, r->ready_spans << HAK_SPAN_SHIFT) << n;
    if (n == 1) EXPECT_FALSE(grown);
  }
  EXPECT_EQ(r->ready_spans, before + 64);
}

// A chunk is of one kind; a change of kind finishes the chunk that is being made accessible.
TEST_F(Region, ChunksOfHugePages) {
  std::vector<std::pair<uintptr_t, uintptr_t>> huge;
  fake_os::on_call([&](const fake_os::Event &e) {
    if (e.call == fake_os::ADVISE && e.detail == MADV_HUGEPAGE) huge.push_back({e.addr, e.addr + e.size_bytes});
  });
  ASSERT_TRUE(hak_region_init(4 * HAK_GIB));
  hak_region *r = &hak_main_region;
  size_t small_chunk = r->first_span / HAK_CHUNK_SPANS, next = (small_chunk + 1) * HAK_CHUNK_SPANS;
  EXPECT_THAT(huge, testing::IsEmpty());
  ASSERT_TRUE(hak_region_grow(r, 10, true));
  EXPECT_EQ(r->ready_spans, next) << "the rest of the chunk of small pages";
  EXPECT_FALSE(r->chunks[small_chunk].huge);
  EXPECT_THAT(huge, testing::IsEmpty());
  ASSERT_TRUE(hak_region_grow(r, 10, true));
  EXPECT_TRUE(r->chunks[small_chunk + 1].huge);
  ASSERT_FALSE(huge.empty());
  EXPECT_EQ(huge[0].first, reinterpret_cast<uintptr_t>(hak_region_address(r, next)));
  EXPECT_EQ(huge[0].first % HAK_HUGE_PAGE, 0u);
  while (r->ready_spans < next + HAK_CHUNK_SPANS) ASSERT_TRUE(hak_region_grow(r, 10, false)) << "its rest is huge as well";
  size_t bytes = 0;
  for (auto &range : huge) bytes += range.second - range.first;
  EXPECT_EQ(bytes, HAK_CHUNK_SPANS * HAK_SPAN_SIZE);
  ASSERT_TRUE(hak_region_grow(r, 10, false));
  EXPECT_FALSE(r->chunks[small_chunk + 2].huge);
}

TEST_F(Region, FullRegionsStayFull) {
  ASSERT_TRUE(hak_region_init(16 * HAK_MIB));
  hak_region *r = &hak_main_region;
  while (hak_region_grow(r, 1, false)) {
  }
  EXPECT_EQ(r->ready_spans, r->span_count);
  EXPECT_EQ(r->limit, 16 * HAK_MIB);
  EXPECT_FALSE(hak_region_grow(r, 1, false));
  // The tables of a small region are a small part of it.
  EXPECT_LE(r->first_span, 8u);
}

TEST_F(Region, FurtherRegionsAreFoundThroughTheSlowPath) {
  ASSERT_TRUE(hak_region_init(16 * HAK_MIB));
  std::vector<hak_region *> added;
  for (unsigned n = 1; n < 20; n++) {
    hak_region *r = hak_region_add(1);
    ASSERT_NE(r, nullptr);
    EXPECT_EQ(hak_region_count(), n + 1);
    EXPECT_EQ(hak_region_at(n), r);
    added.push_back(r);
  }
  for (hak_region *r : added) {
    EXPECT_EQ(hak_region_find(reinterpret_cast<void *>(r->base)), r);
    EXPECT_EQ(hak_region_find(reinterpret_cast<void *>(r->base + r->limit - 1)), r);
    ASSERT_TRUE(hak_region_grow(r, 1, false));
    EXPECT_EQ(hak_region_find(reinterpret_cast<void *>(r->base + r->limit - 1)), r);
  }
  EXPECT_EQ(hak_main_base, hak_main_region.base) << "growth of a further region must not move the main one";
}

// A kernel that fills holes first, as it does where a limit has left some in a region and the addresses above it are taken.
uintptr_t hole;
void *map_into_hole(void *hint, size_t size, hak_os_access access, bool fixed) {
  return finer_than->map(hint == nullptr && size >= 16 * HAK_MIB ? reinterpret_cast<void *>(hole) : hint, size,
                         access, fixed);
}

TEST_F(Region, NoneLiesInAHoleOfAnother) {
  ASSERT_TRUE(hak_region_init(64 * HAK_MIB));
  hak_region *r = &hak_main_region;
  while (hak_region_grow(r, 1, false)) {
  }
  hole = hak_align_up(r->base + 16 * HAK_MIB, HAK_HUGE_PAGE);
  hak_os_unmap(reinterpret_cast<void *>(hole), 32 * HAK_MIB);
  finer_than = hak_os;
  hak_os_ops filling = *hak_os;
  filling.map = map_into_hole;
  hak_os = &filling;
  refuse_above(16 * HAK_MIB);
  hak_region *further = hak_region_add(1);
  hak_os = finer_than;
  ASSERT_NE(further, nullptr);
  EXPECT_GE(further->base - r->base, r->limit);
  void *last = reinterpret_cast<void *>(further->base + further->limit - 1);
  EXPECT_EQ(hak_region_around(last), further);
}

TEST_F(Region, RegionsAreBounded) {
  ASSERT_TRUE(hak_region_init(16 * HAK_MIB));
  for (unsigned n = 1; n < HAK_MAX_REGIONS; n++) ASSERT_NE(hak_region_add(1), nullptr) << n;
  EXPECT_EQ(hak_region_add(1), nullptr);
  EXPECT_EQ(hak_region_count(), unsigned(HAK_MAX_REGIONS));
}

TEST_F(Region, RefusedFurtherRegionLeavesTheOthersAlone) {
  ASSERT_TRUE(hak_region_init(16 * HAK_MIB));
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(hak_region_add(1), nullptr);
  EXPECT_EQ(hak_region_count(), 1u);
  fake_os::allow_all();
  EXPECT_NE(hak_region_add(1), nullptr);
}

TEST_F(Region, SmallStepsWhereMemoryIsLocked) {
#if HAKMEM_TEST_SANITIZED
  GTEST_SKIP() << "would lock the sanitizer's shadow";
#endif
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "may not lock memory";
  ASSERT_TRUE(hak_region_init(64 * HAK_MIB));
  for (int i = 0; i < 3; i++) {
    size_t before = hak_main_region.ready_spans;
    ASSERT_TRUE(hak_region_grow(&hak_main_region, 1, i == 1)); /* the kind is no reason for a larger step */
    EXPECT_EQ(hak_main_region.ready_spans - before, 4u);
    EXPECT_FALSE(hak_main_region.chunks[before / HAK_CHUNK_SPANS].huge);
  }
  munlockall();
}

}  // namespace
