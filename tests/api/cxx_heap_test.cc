// hakmem.hpp: heaps as objects, as memory resources and as scopes. Run on the core library, and on the shared one, where
// operator new is the library's.
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "family.h"
#include "hakmem/hakmem.hpp"

namespace {

constexpr size_t MIB = 1 << 20;
#if HAKMEM_TEST_OVERRIDE
constexpr bool NEW_IS_OURS = true;
#else
constexpr bool NEW_IS_OURS = false;
#endif

bool aligned(const void *p, size_t align) { return reinterpret_cast<uintptr_t>(p) % align == 0; }
size_t heaps() { return hakmem_heap_list(nullptr, nullptr); }

TEST(CxxHeap, IsMadeWithItsOptionsAndDestroyed) {
  size_t before = heaps();
  {
    hakmem::heap server({"server", 8 * MIB});
    hakmem::heap query({"query", MIB, server.get(), HAKMEM_HEAP_UNCACHED});
    hakmem::heap nameless;
    EXPECT_EQ(heaps(), before + 3);
    EXPECT_STREQ(query.name(), "query");
    EXPECT_EQ(query.stats().limit, MIB);
    EXPECT_EQ(hakmem_heap_parent(query.get()), server.get());
    EXPECT_STREQ(nameless.name(), "");
    EXPECT_EQ(nameless.stats().limit, 0u);
    EXPECT_EQ(hakmem_heap_parent(nameless.get()), nullptr);
  }
  EXPECT_EQ(heaps(), before);
}

TEST(CxxHeap, OptionsThatAreWrongThrow) {
  size_t before = heaps();
  std::string name(64, 'n');
  EXPECT_THROW(hakmem::heap({name.c_str()}), std::invalid_argument);
  EXPECT_THROW(hakmem::heap({"flags", 0, nullptr, 1u << 31}), std::invalid_argument);
  name.pop_back();
  EXPECT_STREQ(hakmem::heap({name.c_str()}).name(), name.c_str());
  EXPECT_EQ(heaps(), before);
}

TEST(CxxHeap, AllocatesAtTheAlignment) {
  hakmem::heap heap;
  for (size_t align = 1; align <= 65536; align *= 2)
    for (size_t size : {size_t(0), size_t(1), size_t(100), size_t(5000), size_t(300000)}) {
      void *p = heap.allocate(size, align);
      EXPECT_TRUE(aligned(p, align));
      EXPECT_TRUE(heap.contains(p));
      EXPECT_GE(hakmem_malloc_usable_size(p), size);
      memset(p, 1, size);
      hakmem::heap::deallocate(p);
    }
  EXPECT_EQ(heap.stats().blocks, 0u);
  EXPECT_EQ(heap.stats().live, 0u);
  void *other = hakmem_malloc(100);
  EXPECT_FALSE(heap.contains(other));
  hakmem_free(other);
}

TEST(CxxHeap, LimitThrows) {
  hakmem::heap heap({"limited", MIB});
  void *p = heap.allocate(MIB / 2);
  EXPECT_THROW((void)heap.allocate(MIB), std::bad_alloc);
  EXPECT_THROW((void)heap.allocate(MIB, 4096), std::bad_alloc);
  EXPECT_EQ(heap.stats().refused, 2u);
  heap.set_limit(2 * MIB);
  EXPECT_EQ(heap.stats().limit, 2 * MIB);
  hakmem::heap::deallocate(heap.allocate(MIB));
  heap.set_limit(1);
  EXPECT_THROW((void)heap.allocate(1), std::bad_alloc);
  hakmem::heap::deallocate(p);
  EXPECT_LE(heap.stats().peak, 2 * MIB);
}

TEST(CxxHeap, LimitOfTheParentHolds) {
  hakmem::heap server({"server", MIB});
  hakmem::heap first({"first", 0, server.get()}), second({"second", 0, server.get()});
  void *p = first.allocate(MIB / 2);
  EXPECT_THROW((void)second.allocate(MIB * 3 / 4), std::bad_alloc);
  hakmem::heap::deallocate(p);
  hakmem::heap::deallocate(second.allocate(MIB * 3 / 4));
}

TEST(CxxHeap, Moves) {
  static_assert(!std::is_copy_constructible_v<hakmem::heap> && !std::is_copy_assignable_v<hakmem::heap>);
  static_assert(std::is_nothrow_move_constructible_v<hakmem::heap> && std::is_nothrow_move_assignable_v<hakmem::heap>);
  size_t before = heaps();
  hakmem::heap first({"first"});
  void *p = first.allocate(100);
  hakmem::heap moved = std::move(first);
  EXPECT_EQ(first.get(), nullptr);
  EXPECT_TRUE(moved.contains(p));
  {
    hakmem::heap second({"second"});
    EXPECT_EQ(heaps(), before + 2);
    moved = std::move(second);
    EXPECT_STREQ(moved.name(), "second");
    EXPECT_EQ(heaps(), before + 1) << "the first is destroyed, with its block";
  }
  hakmem::heap &same = moved;
  moved = std::move(same);
  EXPECT_STREQ(moved.name(), "second");
  EXPECT_EQ(heaps(), before + 1);
  std::vector<hakmem::heap> many(10);
  many.emplace_back(hakmem::heap_options{"eleventh"});
  EXPECT_EQ(heaps(), before + 12);
}

TEST(CxxHeap, ReleasedToMainItsBlocksLiveOn) {
  size_t before = heaps();
  char *p;
  {
    hakmem::heap heap({"ends"});
    p = static_cast<char *>(heap.allocate(1000));
    memset(p, 5, 1000);
    heap.release_to_main();
    EXPECT_EQ(heap.get(), nullptr);
    EXPECT_EQ(heaps(), before);
  }
  EXPECT_EQ(hakmem_heap_of(p), nullptr);
  EXPECT_EQ(p[0] + p[999], 10);
  hakmem_free(p);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(CxxHeap, VisitTakesWhatCanBeCalled) {
  hakmem::heap heap;
  std::map<void *, size_t> wanted;
  for (size_t size : {10, 1000, 50000, 1000000}) {
    void *p = heap.allocate(size);
    wanted[p] = hakmem_malloc_usable_size(p);
  }
  std::pair<void *, size_t> found[8];
  size_t count = 0;
  EXPECT_EQ(heap.visit([&](void *block, size_t size) { found[count++] = {block, size}; }), 4u);
  EXPECT_EQ((std::map<void *, size_t>(found, found + count)), wanted);
  count = 0;
  EXPECT_EQ(heap.visit([&](void *, size_t) { return ++count < 2; }), 2u);
  EXPECT_EQ(count, 2u);
  struct Adder {
    size_t sum = 0;
    void operator()(void *, size_t size) { sum += size; }
  } adder;
  heap.visit(adder);
  EXPECT_EQ(adder.sum, heap.stats().live) << "an object that is called, not a copy of it";
  const auto constant = [](void *, size_t) {};
  EXPECT_EQ(heap.visit(constant), 4u);
}

TEST(HeapResource, ServesPmrContainersFromSeveralThreads) {
  hakmem::heap_resource resource({"documents"});
  std::pmr::vector<std::pmr::string> strings(&resource);
  for (int i = 0; i < 1000; i++) strings.emplace_back("a string that is too long for its own buffer");
  EXPECT_TRUE(resource.get_heap().contains(strings.data()));
  EXPECT_TRUE(resource.get_heap().contains(strings.back().data())) << "the resource is passed on to the elements";
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&resource, i] {
      std::pmr::map<int, std::pmr::string> map(&resource);
      for (int j = 0; j < 1000; j++) map.emplace(j, std::pmr::string(size_t(i + 1) * 20, 'x'));
    });
  for (auto &thread : threads) thread.join();
  EXPECT_EQ(resource.get_heap().stats().blocks, 1001u);
  strings = std::pmr::vector<std::pmr::string>(&resource);
  EXPECT_EQ(resource.get_heap().stats().live, 0u);
  for (size_t align = 1; align <= 65536; align *= 2) {
    void *p = resource.allocate(100, align);
    EXPECT_TRUE(aligned(p, align));
    EXPECT_TRUE(resource.get_heap().contains(p));
    resource.deallocate(p, 100, align);
  }
}

TEST(HeapResource, ReleaseDropsAllBlocksAndKeepsTheOptions) {
  size_t before = heaps();
  hakmem::heap server({"server", 4 * MIB});
  {
    hakmem::heap_resource resource({std::string("request").c_str(), MIB, server.get(), HAKMEM_HEAP_UNCACHED});
    for (int round = 0; round < 3; round++) {
      uint64_t id = resource.get_heap().stats().id;
      for (int i = 0; i < 900; i++) (void)resource.allocate(1000);
      EXPECT_THROW((void)resource.allocate(MIB), std::bad_alloc);
      EXPECT_GE(server.stats().total, 900000u);
      resource.release();
      hakmem_heap_stats stats = resource.get_heap().stats();
      EXPECT_NE(stats.id, id);
      EXPECT_EQ(stats.live, 0u);
      EXPECT_EQ(stats.limit, MIB);
      EXPECT_STREQ(resource.get_heap().name(), "request");
      EXPECT_EQ(hakmem_heap_parent(resource.get_heap().get()), server.get());
      EXPECT_EQ(server.stats().total, 0u);
      EXPECT_EQ(heaps(), before + 2);
    }
    resource.get_heap().set_limit(2 * MIB);
    resource.release();
    EXPECT_EQ(resource.get_heap().stats().limit, 2 * MIB) << "the limit is the last one";
  }
  EXPECT_EQ(heaps(), before + 1);
}

TEST(Heap, ResetDropsAllBlocksAndIsTheSameHeap) {
  size_t before = heaps();
  hakmem::heap server({"server"}), heap({"request", MIB, server.get()});
  uint64_t id = heap.stats().id;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 900; i++) (void)heap.allocate(1000);
    EXPECT_GE(server.stats().total, 900000u);
    heap.reset();
    EXPECT_EQ(heap.stats().id, id);
    EXPECT_EQ(heap.stats().live + server.stats().total, 0u);
    EXPECT_EQ(heap.stats().limit, MIB);
    EXPECT_STREQ(heap.name(), "request");
    EXPECT_EQ(heaps(), before + 2);
  }
}

TEST(HeapResource, IsEqualToItselfAlone) {
  hakmem::heap_resource a({"a"}), b({"b"});
  EXPECT_TRUE(a == a);
  EXPECT_FALSE(a == b);
  EXPECT_FALSE(a == *hakmem::resource());
  EXPECT_FALSE(*hakmem::resource() == a);
  std::pmr::vector<int> from(1000, 1, &a), to(&b);
  to = std::move(from);
  EXPECT_TRUE(b.get_heap().contains(to.data())) << "elements move one by one, not their memory";
}

TEST(HeapScope, PutsBackTheHeapBefore) {
  hakmem::heap outer({"outer"}), inner({"inner"});
  ASSERT_EQ(hakmem_heap_get_default(), nullptr);
  {
    hakmem::heap_scope first(outer);
    EXPECT_EQ(hakmem_heap_get_default(), outer.get());
    try {
      hakmem::heap_scope second(inner);
      EXPECT_EQ(hakmem_heap_get_default(), inner.get());
      throw 1;
    } catch (int) {
    }
    EXPECT_EQ(hakmem_heap_get_default(), outer.get());
    bool same = true;
    std::thread([&same] { same = hakmem_heap_get_default() == nullptr; }).join();
    EXPECT_TRUE(same) << "another thread's default is its own";
  }
  EXPECT_EQ(hakmem_heap_get_default(), nullptr);
}

TEST(HeapScope, PlainAllocationIsInTheHeap) {
  hakmem::heap heap({"plugin"});
  void *kept[3];
  std::list<int> *list;
  {
    hakmem::heap_scope scope(heap);
    kept[0] = F(malloc)(100);
    kept[1] = F(calloc)(10, 10);
    kept[2] = F(aligned_alloc)(256, 100);
    list = new std::list<int>(100, 1);
  }
  for (void *p : kept) EXPECT_TRUE(heap.contains(p));
  EXPECT_EQ(heap.contains(list), NEW_IS_OURS);
  EXPECT_EQ(heap.stats().blocks, NEW_IS_OURS ? 104u : 3u);
  void *after = F(malloc)(100);
  EXPECT_FALSE(heap.contains(after));
  F(free)(after);
  kept[0] = F(realloc)(kept[0], 100000);
  EXPECT_TRUE(heap.contains(kept[0])) << "what is resized stays";
  delete list;
  for (void *p : kept) F(free)(p);
  EXPECT_EQ(heap.stats().blocks, 0u);
}

TEST(HeapScope, WhatIsLeakedInsideIsDroppedWithTheHeap) {
  hakmem::heap server({"server"});
  for (int i = 0; i < 100; i++) {
    hakmem::heap plugin({"plugin", 0, server.get()});
    hakmem::heap_scope scope(plugin);
    for (int j = 0; j < 100; j++) EXPECT_NE(F(malloc)(1000), nullptr);
  }
  EXPECT_EQ(server.stats().total, 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

void work_in_a_heap(hakmem_heap **heap) {
  hakmem::heap query({"query", MIB});
  *heap = query.get();
  hakmem::heap_scope scope(query);
  throw std::runtime_error("the text of an exception is a block like others, and so is its object");
}

// The heap ends between the throw and the handler.
TEST(HeapScope, AnExceptionOutlivesTheHeapThatItEnds) {
  size_t before = heaps();
  hakmem_heap *heap = nullptr;
  for (int i = 0; i < 100; i++) try {
      work_in_a_heap(&heap);
    } catch (const std::runtime_error &error) {
      EXPECT_EQ(hakmem_heap_get_default(), nullptr);
      EXPECT_EQ(heaps(), before);
      // What had been freed would be used again.
      std::vector<void *> blocks;
      for (int j = 0; j < 100; j++) blocks.push_back(memset(F(malloc)(200), 'x', 200));
      EXPECT_STREQ(error.what(), "the text of an exception is a block like others, and so is its object");
      for (void *p : blocks) F(free)(p);
    }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Blocks of heaps that end by an exception live on only where the exception may be among them.
TEST(HeapScope, OtherHeapsAreDestroyedWhileAnExceptionPasses) {
  struct Cleanup {
    void **block;
    ~Cleanup() {
      hakmem::heap heap({"begun while the exception passes"});
      hakmem::heap_scope scope(heap);
      *block = F(malloc)(MIB);
    }
  };
  void *in_destructor = nullptr, *without_scope = nullptr;
  try {
    Cleanup cleanup{&in_destructor};
    hakmem::heap heap({"without a scope"});
    without_scope = heap.allocate(MIB);
    throw 1;
  } catch (int) {
  }
  EXPECT_NE(in_destructor, nullptr);
  EXPECT_FALSE(hakmem_is_ours(in_destructor));
  EXPECT_FALSE(hakmem_is_ours(without_scope));
}

}  // namespace
