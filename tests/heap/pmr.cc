/* pmr RUNS: a program of std::pmr containers, each request in a heap of its own. Works, is capped (std::bad_alloc at the same byte in each run),
 * counted, and dropped without its destructors. */
#include <cstring>
#include <map>
#include <memory_resource>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "hakmem/hakmem.h"
#include "programs.h"

namespace {

class InHeap final : public std::pmr::memory_resource {
 public:
  explicit InHeap(hakmem_heap *heap) : heap_(heap) {}
  refusal refused = {};

 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    void *p = alignment <= 16 ? hakmem_heap_malloc(heap_, bytes) : hakmem_heap_aligned_alloc(heap_, alignment, bytes);
    if (p != nullptr) return p;
    note_refusal(&refused, heap_, bytes);
    throw std::bad_alloc();
  }
  void do_deallocate(void *p, std::size_t, std::size_t) override { hakmem_free(p); }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

  hakmem_heap *heap_;
};

struct alignas(128) Wide {
  unsigned char bytes[128] = {};
};

using Index = std::pmr::unordered_map<std::pmr::string, std::pmr::vector<int>>;

/* Knows std::pmr alone. */
size_t build(Index *index, std::pmr::vector<Wide> *wide) {
  for (int i = 0; i < 20000; i++) {
    char word[64];
    snprintf(word, sizeof word, "a word that is longer than a string has room for: %d", i * 7919 % 1009);
    (*index)[std::pmr::string(word, index->get_allocator())].push_back(i);
    if (i % 100 == 0) wide->emplace_back();
  }
  return index->size() * 1000 + wide->size();
}

}  // namespace

int main(int argc, char **argv) {
  int runs = argc > 1 ? atoi(argv[1]) : 100;
  hakmem_heap *all = program_heap("requests", 0, nullptr), *heap = program_heap("request", 0, all);
  size_t answer, needs;
  {
    InHeap resource(heap);
    Index index(&resource);
    std::pmr::vector<Wide> wide(&resource);
    answer = build(&index, &wide);
    EXPECT(answer == 1009200);
    EXPECT(reinterpret_cast<uintptr_t>(wide.data()) % 128 == 0 && hakmem_heap_of(wide.data()) == heap);
    needs = program_stats(heap).peak;
    EXPECT(program_stats(heap).blocks > 2 * index.size());
  }
  EXPECT(program_stats(heap).blocks == 0 && program_stats(all).total == 0);
  hakmem_heap_destroy(heap);

  refusal first = {0, 0, 0};
  for (int run = 0; run < runs; run++) {
    heap = program_heap("capped", needs - needs / 4, all);
    InHeap resource(heap);
    /* In the heap themselves, so that nobody calls their destructors. */
    auto *index = new (hakmem_heap_malloc(heap, sizeof(Index))) Index(&resource);
    auto *wide = new (hakmem_heap_malloc(heap, sizeof(std::pmr::vector<Wide>))) std::pmr::vector<Wide>(&resource);
    bool thrown = false;
    try {
      build(index, wide);
    } catch (const std::bad_alloc &) {
      thrown = true;
    }
    EXPECT(thrown && resource.refused.size != 0);
    expect_refusal(run, &resource.refused, &first);
    hakmem_heap_destroy(heap);
    EXPECT(program_stats(all).total == 0);
  }

  /* A heap that threads share: each has containers in it. */
  heap = program_heap("shared", 0, all);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([heap, answer] {
      InHeap resource(heap);
      Index index(&resource);
      std::pmr::vector<Wide> wide(&resource);
      EXPECT(build(&index, &wide) == answer);
    });
  }
  for (std::thread &t : threads) t.join();
  EXPECT(program_stats(heap).blocks == 0);
  hakmem_heap_destroy(all);
  printf("pmr: needs %zu bytes; %d times refused %zu bytes after %llu requests with %zu live\n", needs, runs, first.size, first.served, first.live);
}
