// What the profile has of blocks in heaps: which name they are summed up by, and what is left when their heap ends.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hak.h"
extern "C" {
#include "report/heap_profile.h"
}

namespace {

struct Sums {
  uint64_t live = 0, total = 0, freed = 0;
  bool found = false;
};

class HeapSamples : public testing::Test {
 protected:
  void SetUp() override {
    hakmem_free(hakmem_malloc(1));
    ASSERT_TRUE(hak_profile_start(1 << 20));
  }

  // Blocks of 16 bytes at addresses that nobody reads.
  void note(size_t first, size_t count, uint32_t owner, const char *name) {
    for (size_t i = first; i < first + count; i++) ASSERT_TRUE(hak_profile_note_alloc(block(i), nullptr, 16, 1, owner, name));
  }
  void note_main(size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) ASSERT_TRUE(hak_profile_note_alloc(block(i), nullptr, 16, 1, 0, nullptr));
  }
  static bool note_free(size_t i) {
    hak_profile_sample aside = hak_profile_set_aside(block(i));
    hak_profile_end(&aside);
    return aside.block != 0;
  }
  static void *block(size_t i) { return reinterpret_cast<void *>((i + 1) * 64); }

  // Of all stacks with the heap's name; NULL: the main heap's.
  static Sums sums(const char *name) {
    Sums s;
    hak_lock_take(&hak_profile_lock);
    const hak_profile_stack *stack;
    for (size_t place = 0; (stack = hak_profile_next(&place)) != nullptr;) {
      const char *heap = hak_profile_heap(stack);
      if (heap == nullptr ? name != nullptr : name == nullptr || std::string(heap) != name) continue;
      s.found |= stack->total.count > 0;
      s.live += stack->live_samples;
      s.total += uint64_t(stack->total.count);
      for (double freed : stack->freed) s.freed += uint64_t(freed);
    }
    hak_lock_drop(&hak_profile_lock);
    return s;
  }

  static std::string rendered(hak_profile_format format) {
    std::vector<char> memory(8 << 20);
    hak_sink sink;
    hak_sink_to_memory(&sink, memory.data(), memory.size());
    hak_heap_profile_render(&sink, format, HAKMEM_PROFILE_ALL);
    EXPECT_EQ(hak_sink_finish(&sink), 0);
    return {memory.data(), size_t(sink.at - memory.data())};
  }
};

TEST_F(HeapSamples, AreSummedUpByName) {
  note(0, 3, 7, "query");
  note(3, 4, 8, "query");
  note(7, 5, 9, "");
  note(12, 6, 10, "plug-in");
  note_main(18, 2);
  EXPECT_EQ(sums("query").live, 7u) << "of two heaps";
  EXPECT_EQ(sums("").live, 5u);
  EXPECT_EQ(sums("plug-in").live, 6u);
  EXPECT_EQ(sums(nullptr).live, 2u);
  EXPECT_TRUE(note_free(0));
  EXPECT_EQ(sums("query").live, 6u);
  EXPECT_EQ(sums("query").freed, 1u);
}

TEST_F(HeapSamples, AHeapThatEndsTakesItsOwn) {
  note(0, 300, 7, "query");
  note(300, 100, 8, "query");
  note(400, 100, 7 + 1024, "other");  // counted in the same place
  note_main(500, 50);
  hak_profile_forget_heap(7);
  EXPECT_EQ(sums("query").live, 100u);
  EXPECT_EQ(sums("query").freed, 300u) << "they were freed";
  EXPECT_EQ(sums("other").live, 100u);
  EXPECT_EQ(sums(nullptr).live, 50u);
  EXPECT_EQ(hak_profile_occupied, 250u);
  for (size_t i = 0; i < 300; i++) ASSERT_FALSE(note_free(i)) << i;
  for (size_t i = 300; i < 550; i++) ASSERT_TRUE(note_free(i)) << i;
  EXPECT_EQ(hak_profile_occupied, 0u);
  note(0, 1, 7, "query");  // the number, and the address, of another one
  EXPECT_EQ(sums("query").live, 1u);
  hak_profile_forget_heap(8);
  EXPECT_EQ(sums("query").live, 1u);
}

TEST_F(HeapSamples, OfAnEarlierEraToo) {
  note(0, 100, 7, "query");
  hak_profile_reset();
  note(100, 10, 7, "query");
  hak_profile_forget_heap(7);
  EXPECT_EQ(hak_profile_occupied, 0u);
  EXPECT_EQ(sums("query").freed, 10u) << "those of before are in no sum";
}

TEST_F(HeapSamples, AreResizedInTheirHeap) {
  note(0, 2, 7, "query");
  hak_profile_sample aside = hak_profile_set_aside(block(0));
  hak_profile_put_back(&aside);
  aside = hak_profile_set_aside(block(1));
  hak_profile_end(&aside);
  EXPECT_EQ(sums("query").live, 1u);
  hak_profile_forget_heap(7);
  EXPECT_EQ(sums("query").live, 0u);
  EXPECT_EQ(hak_profile_occupied, 0u);
}

TEST_F(HeapSamples, AreWrittenWithTheirName) {
  note(0, 1, 7, "a \"b\"\n\xff\xc3\xa9");
  note(1, 1, 8, "");
  note_main(2, 1);
  std::string json = rendered(HAK_PROFILE_JSON);
  EXPECT_NE(json.find("\"heap\":\"a \\\"b\\\"\\u000a\\u00ff\xc3\xa9\"}"), std::string::npos) << json;
  EXPECT_NE(json.find("\"heap\":\"\"}"), std::string::npos) << json;
  size_t heaps = 0;
  for (size_t at = 0; (at = json.find("\"heap\":", at)) != std::string::npos; at++) heaps++;
  EXPECT_EQ(heaps, 2u) << "those of the main heap have none";
  std::string proto = rendered(HAK_PROFILE_PROTO);
  EXPECT_NE(proto.find("a \"b\"\n?\xc3\xa9"), std::string::npos);
  EXPECT_NE(proto.find("unnamed"), std::string::npos);
}

TEST_F(HeapSamples, NamesAreBoundedAsStacksAre) {
  for (size_t i = 0; i < 40000; i++) {
    note(0, 1, 7, ("request " + std::to_string(i)).c_str());
    note_free(0);
  }
  EXPECT_LE(hak_profile_own_bytes(), HAK_MIB + HAK_MIB / 16);
  EXPECT_EQ(hak_profile.stacks_dropped, 0u);
  EXPECT_GT(hak_profile.labels_evicted, 0u);
  EXPECT_EQ(sums("").total, hak_profile.labels_evicted) << "what was evicted is summed up, of a heap without a name";
  EXPECT_EQ(sums("request 39999").total, 1u);
}

TEST_F(HeapSamples, NamesOfLiveOnesAreNotEvicted) {
  for (size_t i = 0; i < 200; i++) note(i, 1, 7, ("live " + std::to_string(i)).c_str());
  for (size_t i = 0; i < 40000; i++) {
    note(200, 1, 7, ("request " + std::to_string(i)).c_str());
    note_free(200);
  }
  EXPECT_EQ(hak_profile.stacks_dropped, 0u);
  EXPECT_GT(hak_profile.labels_evicted, 0u);
  for (size_t i = 0; i < 200; i++) ASSERT_EQ(sums(("live " + std::to_string(i)).c_str()).live, 1u);
  Sums evicted = sums("");
  EXPECT_EQ(evicted.total, hak_profile.labels_evicted);
  EXPECT_EQ(evicted.freed, hak_profile.labels_evicted);
  for (size_t i = 0; i < 200; i++) note_free(i);
  EXPECT_EQ(sums("live 7").freed, 1u);
}

// The request without a label that comes when the table is full finds the stack that an eviction has just made.
TEST_F(HeapSamples, AStackThatLosesItsLabelIsFoundWithoutIt) {
  auto labelled = [&](uint64_t label) { // called in one place: the stacks differ by their labels alone
    hak_tls.label = label;
    note_main(0, 1);
    note_free(0);
    hak_tls.label = 0;
  };
  uint64_t room = 0;
  while (hak_profile.labels_evicted == 0) labelled(++room);
  hak_profile_reset();
  for (uint64_t i = 1; i <= room; i++) {
    ASSERT_EQ(hak_profile.labels_evicted, 0u);
    labelled(i % room);
  }
  EXPECT_GT(hak_profile.labels_evicted, 0u);
  size_t place = 0, stacks = 0;
  for (const hak_profile_stack *k; (k = hak_profile_next(&place)) != nullptr;) stacks += k->depth != 0;
  EXPECT_EQ(stacks, 1u);
  EXPECT_EQ(hak_profile.stacks_dropped, 0u);
  EXPECT_EQ(sums(nullptr).total, room);
}

// Each request has a label of its own; the last one keeps what it has.
TEST_F(HeapSamples, LabelsAreEvicted) {
  for (size_t i = 0; i < 40000; i++) {
    hak_tls.label = i + 1;
    note_main(i, 1);
    if (i < 39999) note_free(i);
  }
  hak_tls.label = 0;
  EXPECT_EQ(hak_profile.stacks_dropped, 0u);
  EXPECT_GT(hak_profile.labels_evicted, 20000u);
  EXPECT_EQ(sums(nullptr).total, 40000u);
  std::string json = rendered(HAK_PROFILE_JSON);
  EXPECT_NE(json.find("\"label\":40000}"), std::string::npos);
  EXPECT_NE(json.find("\"labels_evicted\":" + std::to_string(hak_profile.labels_evicted)), std::string::npos);
  hak_profile_reset();
  EXPECT_EQ(hak_profile.labels_evicted, 0u);
  note_main(50000, 10);
  EXPECT_EQ(sums(nullptr).live, 10u);
}

__attribute__((noinline)) void call_deep_down(int frames, const std::function<void()> &call) {
  frames == 0 ? call() : call_deep_down(frames - 1, call);
  asm volatile("" ::: "memory"); // no jump in place of the call
}

// The table is full of shallow ones when deeper ones come: places of two or more become one's.
TEST_F(HeapSamples, StacksThatAreDeeperTakeThePlaceOfEvictedOnes) {
  for (int frames : {0, 40, 0, 100}) {
    for (size_t i = 0; i < 20000; i++) {
      hak_tls.label++;
      call_deep_down(frames, [&] { note_main(0, 1); });
      note_free(0);
    }
  }
  hak_tls.label = 0;
  EXPECT_EQ(hak_profile.stacks_dropped, 0u);
  EXPECT_EQ(sums(nullptr).total, 80000u);
  EXPECT_LE(hak_profile_own_bytes(), HAK_MIB + HAK_MIB / 16);
}

// Bytes of UTF-8 stay; others are written as the characters of Latin-1.
TEST(Escaped, AnyBytesAreJson) {
  struct {
    const char *bytes, *written;
  } const cases[] = {
      {"plain", "plain"},
      {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
      {"\xe9t\xe9", "\\u00e9t\\u00e9"},
      {"\xc0\xaf", "\\u00c0\\u00af"},              // longer than it has to be
      {"\xe0\x80\xaf", "\\u00e0\\u0080\\u00af"},
      {"\xed\xa0\x80", "\\u00ed\\u00a0\\u0080"},    // half of a pair
      {"\xf4\x90\x80\x80", "\\u00f4\\u0090\\u0080\\u0080"},
      {"\xf5\x80\x80\x80", "\\u00f5\\u0080\\u0080\\u0080"},
      {"cut \xe2\x82", "cut \\u00e2\\u0082"},
      {"\x01\"\\", "\\u0001\\\"\\\\"},
  };
  for (const auto &one : cases) {
    char memory[200];
    hak_sink sink;
    hak_sink_to_memory(&sink, memory, sizeof memory);
    hak_sink_string(&sink, nullptr, one.bytes);
    EXPECT_EQ(std::string(memory, size_t(sink.at - memory)), std::string("\"") + one.written + "\"");
  }
}

}  // namespace
