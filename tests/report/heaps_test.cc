// Heaps in the figures: what is theirs is counted to the byte, apart from the main heap's; a line each; and the heap walk looks at them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "../heap/heaps.h"
#include "hak.h"
extern "C" {
#include "hakmem/heap.h"
#include "harden/sweep.h"
#include "guard/fault.h"
#include "hakmem/stats.h"
#include "heap/heap.h"
#include "report/figures.h"
#include "report/render.h"
}

using testing::HasSubstr;
using testing::Not;

namespace {

hakmem_stats stats() {
  hakmem_stats s;
  EXPECT_EQ(hakmem_stats_get(&s, sizeof s), 0);
  EXPECT_EQ(s.heaps_held, s.span_heaps + s.huge_heaps);
  EXPECT_EQ(s.heaps_held, s.heaps_live + s.heaps_free);
  return s;
}

hakmem_heap *new_heap(const char *name, size_t limit = 0, hakmem_heap *parent = nullptr, unsigned flags = 0) {
  return ::new_heap(limit, parent, flags, name);
}

std::string rendered(void (*write)(hak_sink *s)) {
  std::vector<char> memory(8 << 20);
  hak_sink sink;
  hak_sink_to_memory(&sink, memory.data(), memory.size());
  write(&sink);
  EXPECT_EQ(hak_sink_finish(&sink), 0);
  return {memory.data(), size_t(sink.at - memory.data())};
}
std::string all_rows() {
  return rendered([](hak_sink *s) { hak_heaps_json(s, false); });
}
std::string page_rows() {
  return rendered([](hak_sink *s) { hak_heaps_json(s, true); });
}
std::string text_rows() { return rendered(hak_heaps_text); }

size_t count_of(const std::string &text, const std::string &what) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at++) count++;
  return count;
}

class Heaps : public testing::Test {
 protected:
  void SetUp() override { hakmem_free(hakmem_malloc(1)); }
};

TEST_F(Heaps, AreApartFromTheMainHeap) {
  hakmem_stats before = stats();
  hakmem_heap *h = new_heap("a");
  size_t usable = 0, blocks = 0;
  for (size_t size : {1, 100, 100, 5000, 30000, 100000, 300000})
    for (int i = 0; i < 20; i++, blocks++) usable += hakmem_malloc_usable_size(hakmem_heap_malloc(h, size));
  hakmem_stats with = stats();
  EXPECT_EQ(with.heaps, before.heaps + 1);
  EXPECT_EQ(with.heaps_live, usable);
  EXPECT_EQ(with.heaps_blocks, blocks);
  EXPECT_EQ(with.live - before.live, usable) << "the program's, all together";
  EXPECT_EQ(with.slab_live, before.slab_live);
  EXPECT_EQ(with.extents, before.extents);
  EXPECT_EQ(with.span_heaps % HAK_SPAN_SIZE, 0u);
  EXPECT_EQ(with.spans, with.slabs + with.extents + with.extents_cached + with.span_heaps + with.free_dirty + with.free_clean + with.claimed + with.guards);
  hakmem_heap_stats s = stats_of(h);
  EXPECT_EQ(s.live, usable);
  EXPECT_EQ(s.blocks, blocks);
  EXPECT_LT(with.heaps_held - s.held, HAK_SPAN_SIZE) << "but for the pieces of one span that no heap has";
  EXPECT_GE(with.heaps_held, s.held);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  hakmem_heap_destroy(h);
  hakmem_stats after = stats();
  EXPECT_EQ(after.heaps_live, 0u);
  EXPECT_EQ(after.heaps_blocks, 0u);
  EXPECT_LE(after.span_heaps, HAK_SPAN_SIZE);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST_F(Heaps, MappingsAreTheirs) {
  hakmem_stats before = stats();
  hakmem_heap *h = new_heap("a");
  void *theirs = hakmem_heap_malloc(h, 40 * MIB), *mains = hakmem_malloc(50 * MIB);
  hakmem_stats with = stats();
  EXPECT_EQ(with.huge_heaps, 40 * MIB);
  EXPECT_EQ(with.huge_live - before.huge_live, hak_huge_size(mains));
  EXPECT_EQ(with.huge_count - before.huge_count, 1u);
  EXPECT_EQ(with.accessible, with.spans + with.huge_live + with.huge_heaps + with.huge_kept + with.sampled_accessible + with.own);
  theirs = hakmem_realloc(theirs, 60 * MIB);
  EXPECT_EQ(stats().huge_heaps, 60 * MIB);
  EXPECT_EQ(stats().heaps_live, 60 * MIB);
  for (int i = 0; i < 300; i++) (void)!hakmem_heap_malloc(h, 33 * MIB);  // a larger table
  EXPECT_EQ(stats().huge_heaps, (60 + 300 * 33) * MIB);
  hakmem_free(theirs);
  EXPECT_EQ(stats().huge_heaps, 300 * 33 * MIB);
  hakmem_heap_destroy(h);
  EXPECT_EQ(stats().huge_heaps, 0u);
  EXPECT_EQ(stats().huge_live - before.huge_live, hak_huge_size(mains));
  hakmem_free(mains);
}

// The blocks of a deleted heap are nobody else's: they stay in the sums, without a line.
TEST_F(Heaps, DeletedOnesStayInTheSums) {
  hakmem_heap *h = new_heap("gone");
  void *p = hakmem_heap_malloc(h, 100), *q = hakmem_heap_malloc(h, 200000);
  size_t usable = hakmem_malloc_usable_size(p) + hakmem_malloc_usable_size(q);
  hakmem_heap_delete(h);
  hakmem_stats s = stats();
  EXPECT_EQ(s.heaps, 0u);
  EXPECT_EQ(s.heaps_live, usable);
  EXPECT_EQ(s.heaps_blocks, 2u);
  EXPECT_EQ(all_rows(), "\"heaps\":[],\"heaps_left_out\":0");
  EXPECT_EQ(hakmem_heap_check(), 0u);
  hakmem_free(p);
  hakmem_free(q);
  EXPECT_EQ(stats().heaps_live, 0u);
}

TEST_F(Heaps, CachesOfThreadsAreNotLive) {
  hakmem_heap *h = new_heap("a");
  std::vector<void *> blocks;
  for (int i = 0; i < 5000; i++) blocks.push_back(hakmem_heap_malloc(h, 64));
  uint64_t live = stats().heaps_live;
  for (int i = 0; i < 2000; i++) hakmem_free(blocks[size_t(i)]);
  EXPECT_EQ(live - stats().heaps_live, 2000 * 64u) << "some of them are cached";
  EXPECT_EQ(stats().heaps_blocks, 3000u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  hakmem_heap_destroy(h);
}

TEST_F(Heaps, MallinfoHasThem) {
  struct mallinfo2 before = hakmem_mallinfo2();
  hakmem_heap *h = new_heap("a");
  void *p = hakmem_heap_malloc(h, 1000), *q = hakmem_heap_malloc(h, 40 * MIB);
  struct mallinfo2 with = hakmem_mallinfo2();
  EXPECT_EQ(with.uordblks - before.uordblks, hakmem_malloc_usable_size(p) + hakmem_malloc_usable_size(q));
  hakmem_stats s = stats();
  EXPECT_EQ(with.fordblks, s.slab_depots + s.slab_free + s.slab_never_allocated + s.free_dirty + s.claimed + s.extents_cached + s.huge_kept + s.heaps_free);
  EXPECT_EQ(with.arena, with.uordblks + with.fordblks);
  EXPECT_EQ(with.hblkhd, before.hblkhd);
  hakmem_heap_destroy(h);
}

TEST_F(Heaps, ALineEach) {
  hakmem_heap *parent = new_heap("tenant", MIB), *child = new_heap("a \"b\"\n\xff", 0, parent);
  (void)!hakmem_heap_malloc(parent, 100);
  for (int i = 0; i < 3; i++) (void)!hakmem_heap_malloc(child, 16);
  EXPECT_EQ(hakmem_heap_malloc(child, 2 * MIB), nullptr);
  hakmem_heap_stats p = stats_of(parent), c = stats_of(child);
  char expected[1000];
  snprintf(expected, sizeof expected,
           "\"heaps\":[{\"name\":\"tenant\",\"id\":%zu,\"parent\":0,\"live\":112,\"peak\":112,\"blocks\":1,\"held\":%zu,\"limit\":1048576,"
           "\"total\":160,\"refused\":1,\"requests\":1},"
           "{\"name\":\"a \\\"b\\\"\\u000a\\u00ff\",\"id\":%zu,\"parent\":%zu,\"live\":48,\"peak\":48,\"blocks\":3,\"held\":%zu,\"limit\":0,"
           "\"total\":48,\"refused\":0,\"requests\":3}],\"heaps_left_out\":0",
           size_t(p.id), p.held, size_t(c.id), size_t(p.id), c.held);
  EXPECT_EQ(all_rows(), expected);
  EXPECT_EQ(page_rows(), expected);
  std::string text = text_rows();
  EXPECT_THAT(text, HasSubstr("  tenant\n"));
  EXPECT_THAT(text, HasSubstr("  a \"b\"??\n")) << "no name breaks a line";
  EXPECT_EQ(stats().heaps_refused, 1u);
  hakmem_heap_destroy(parent);
  EXPECT_EQ(text_rows(), "");
  EXPECT_EQ(all_rows(), "\"heaps\":[],\"heaps_left_out\":0");
}

// The heap numbered i has 64 * i bytes, in an order that is neither theirs nor its reverse. What caches hold would count.
TEST_F(Heaps, ThePageHasTheLargest) {
  constexpr size_t kHeaps = 1000;
  std::vector<hakmem_heap *> heaps;
  for (size_t i = 0; i < kHeaps; i++) {
    size_t number = i * 377 % kHeaps;
    heaps.push_back(new_heap(("h" + std::to_string(number)).c_str(), 0, nullptr, HAKMEM_HEAP_UNCACHED));
    for (size_t n = 0; n < number; n++) (void)!hakmem_heap_malloc(heaps.back(), 64);
  }
  std::string all = all_rows(), page = page_rows(), text = text_rows();
  EXPECT_EQ(count_of(all, "\"name\""), kHeaps);
  EXPECT_THAT(all, HasSubstr("\"heaps_left_out\":0"));
  EXPECT_EQ(count_of(page, "\"name\""), size_t(HAK_HEAPS_IN_PAGE));
  EXPECT_EQ(count_of(page, "\"heaps_left_out\":900"), 1u);
  for (size_t number = kHeaps - HAK_HEAPS_IN_PAGE; number < kHeaps; number++) EXPECT_EQ(count_of(page, "\"h" + std::to_string(number) + "\""), 1u) << number;
  EXPECT_EQ(count_of(text, "\n"), 1u + HAK_HEAPS_IN_TEXT + 1);
  EXPECT_THAT(text, HasSubstr("and 980 heaps with less\n"));
  EXPECT_THAT(text, HasSubstr("  h980\n"));
  EXPECT_THAT(text, Not(HasSubstr("  h979\n")));
  for (hakmem_heap *h : heaps) hakmem_heap_destroy(h);
}

// One that has a limit for others is not hidden by them.
TEST_F(Heaps, ThePageHasWhatIsAboveTheLargest) {
  hakmem_heap *tenant = new_heap("tenant", MIB);
  for (int i = 0; i < 200; i++) (void)!hakmem_heap_malloc(new_heap("query", 0, tenant), 1000);
  EXPECT_EQ(count_of(page_rows(), "\"tenant\""), 1u);
  EXPECT_EQ(count_of(page_rows(), "\"query\""), HAK_HEAPS_IN_PAGE - 1u);
  EXPECT_THAT(text_rows(), HasSubstr("  tenant\n"));
  hakmem_heap_destroy(tenant);
}

// Where all are alike, the oldest are shown, and no more than there is room for.
TEST_F(Heaps, ThePageIsBounded) {
  std::vector<hakmem_heap *> heaps;
  std::string name(63, '\x01');
  for (size_t i = 0; i < 300; i++) heaps.push_back(new_heap(name.c_str(), SIZE_MAX - 1));
  std::string page = page_rows();
  EXPECT_EQ(count_of(page, "\"name\""), size_t(HAK_HEAPS_IN_PAGE));
  EXPECT_LT(page.size(), 68000u) << "the page's JSON has room for so much beside its other lists (report/page.c)";
  for (hakmem_heap *h : heaps) hakmem_heap_destroy(h);
}

TEST_F(Heaps, TheWalkLooksAtThem) {
  hakmem_heap *h = new_heap("a");
  for (int i = 0; i < 3000; i++) (void)!hakmem_heap_malloc(h, 48);
  void *large = hakmem_heap_malloc(h, 200000);
  ASSERT_EQ(hakmem_heap_check(), 0u);
  h->out += 16;
  EXPECT_EQ(hakmem_heap_check(), 1u) << "charged and not in use";
  h->out -= 16;
  hak_span *slab = nullptr;
  for (uint32_t i = 0; i < h->span_count; i++) {
    hak_span *s = hak_heap_span_at(h, i);
    if (s != nullptr && hak_code_is_class(HAK_TAG_CODE(s->tag))) slab = s;
  }
  ASSERT_NE(slab, nullptr);
  slab->bits[0] ^= 1;
  EXPECT_GE(hakmem_heap_check(), 1u) << "bits and counters of a slab";
  slab->bits[0] ^= 1;
  h->pieces->live++;
  EXPECT_EQ(hakmem_heap_check(), 1u);
  h->pieces->live--;
  h->pieces->owner++;
  EXPECT_GE(hakmem_heap_check(), 1u);
  h->pieces->owner--;
  hak_span *first = hak_region_span(hak_region_find(large), large);
  hak_span *head = first[1].head;
  first[1].head = first + 1;
  EXPECT_GE(hakmem_heap_check(), 1u) << "a span that belongs elsewhere";
  first[1].head = head;
  EXPECT_EQ(hakmem_heap_check(), 0u);
  hakmem_heap_destroy(h);
}

#if HAK_HARDENED
// The walk over all blocks knows that those of heaps have no trailers.
TEST_F(Heaps, TheSweepLeavesThemAlone) {
  hakmem_heap *h = new_heap("a");
  for (size_t size : {10, 100, 1000, 20000, 100000, 300000})
    for (int i = 0; i < 100; i++) {
      void *p = hakmem_heap_malloc(h, size);
      memset(p, 0xff, hakmem_malloc_usable_size(p));
      if (i % 3 == 0) hakmem_free(p);
    }
  for (int i = 0; i < 3; i++) memset(hakmem_heap_malloc(h, 40 * MIB), 0xff, 40 * MIB);
  hak_sweep_at_exit();
  EXPECT_EQ(hakmem_heap_check(), 0u);
  hakmem_heap_destroy(h);
}

TEST_F(Heaps, AFaultBehindOneIsExplained) {
  hakmem_heap *h = new_heap("a");
  const hak_region *r = hak_region_at(0);
  const char *last = nullptr;
  for (int i = 0; i < 100000 && last == nullptr; i++) {
    void *p = hakmem_heap_malloc(h, 1000);
    size_t index = hak_region_index(r, p);
    const hak_span *s = hak_region_span_at(r, index);
    bool is_slab = hak_region_slab_code(r, index) == HAK_CODE_IN_HEAP && hak_code_is_class(HAK_TAG_CODE(s->tag)) && HAK_TAG_OWNER(s->tag) == h->owner;
    if (is_slab && hak_region_is_guard(index + 1)) last = reinterpret_cast<char *>(s->start) + (s->blocks - 1u) * 1024;
  }
  ASSERT_NE(last, nullptr);
  char expected[100];
  snprintf(expected, sizeof expected, "behind the block %p (class 1024 bytes)", static_cast<const void *>(last));
  testing::internal::CaptureStderr();
  EXPECT_TRUE(hak_fault_explain(reinterpret_cast<void *>(hak_align_up(reinterpret_cast<uintptr_t>(last), HAK_SPAN_SIZE))));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(expected));
  hakmem_heap_destroy(h);
}
#endif

// Samples of the profile carry the name, whatever the block is made of, and go with the heap.
TEST_F(Heaps, SamplesOfTheProfile) {
  hak_config.heap_profile_most = 0;
  ASSERT_EQ(hakmem_profile_start(1), 0);
  hakmem_heap *h = new_heap("query"), *other = new_heap("other");
  std::vector<void *> blocks;
  for (size_t size : {10, 100, 5000, 40000, 300000}) {
    for (int i = 0; i < 100; i++) blocks.push_back(hakmem_heap_malloc(h, size));
    (void)!hakmem_heap_malloc(other, size);
  }
  blocks.push_back(hakmem_heap_malloc(h, 40 * MIB));
  auto live = [](const char *name) {
    uint64_t samples = 0;
    hak_lock_take(&hak_profile_lock);
    const hak_profile_stack *stack;
    for (size_t place = 0; (stack = hak_profile_next(&place)) != nullptr;) {
      const char *heap = hak_profile_heap(stack);
      if (heap != nullptr && std::string(heap) == name) samples += stack->live_samples;
    }
    hak_lock_drop(&hak_profile_lock);
    return samples;
  };
  EXPECT_EQ(live("query"), 501u);
  EXPECT_EQ(live("other"), 5u);
  void *&mapping = blocks.back();
  mapping = hakmem_realloc(mapping, 80 * MIB);
  EXPECT_EQ(live("query"), 501u) << "resized, it is another sample";
  hakmem_free(mapping);
  for (int i = 0; i < 100; i++) hakmem_free(blocks[size_t(i) * 5]);
  EXPECT_EQ(live("query"), 400u);
  void *large = hakmem_realloc(blocks[401], 310000);  // in its spans
  EXPECT_EQ(large, blocks[401]);
  EXPECT_EQ(live("query"), 400u);
  hakmem_heap *before = hakmem_heap_set_default(other);
  (void)!hakmem_malloc(1000);
  hakmem_heap_set_default(before);
  EXPECT_EQ(live("other"), 6u) << "what malloc takes from the thread's default too";
  hakmem_heap_destroy(h);
  EXPECT_EQ(live("query"), 0u);
  EXPECT_EQ(live("other"), 6u);
  hakmem_heap *again = new_heap("again");  // the number of the one before
  void *p = hakmem_heap_malloc(again, 100);
  EXPECT_EQ(live("again"), 1u);
  hakmem_heap_delete(again);
  EXPECT_EQ(live("again"), 1u) << "its blocks live on";
  hakmem_free(p);
  EXPECT_EQ(live("again"), 0u);
  hakmem_heap_destroy(other);
}

}  // namespace
