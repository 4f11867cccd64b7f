// The default heap of a thread, with the library as programs get it: malloc and its kin, operator new, libc's own requests.
#include <gtest/gtest.h>
#include <malloc.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "heaps.h"

namespace {

// `allocate` is called with the heap as the default; what it returns is in the heap.
void expect_in_heap(const char *what, const std::function<void *()> &allocate, const std::function<void(void *)> &release = free) {
  SCOPED_TRACE(what);
  Heap heap;
  hakmem_heap *before = hakmem_heap_set_default(heap);
  hakmem_heap *during = hakmem_heap_get_default();
  void *p = allocate();
  hakmem_heap_set_default(before);
  EXPECT_EQ(before, nullptr);
  EXPECT_EQ(during, heap);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(hakmem_heap_of(p), heap);
  EXPECT_EQ(heap.live(), malloc_usable_size(p));
  release(p);
  EXPECT_EQ(heap.stats().blocks, 0u);
  EXPECT_EQ(hakmem_heap_get_default(), nullptr);
}

TEST(Default, ServesEachFunction) {
  expect_in_heap("malloc", [] { return malloc(100); });
  expect_in_heap("malloc of a page", [] { return malloc(5000); });
  expect_in_heap("malloc of many pages", [] { return malloc(100000); });
  expect_in_heap("malloc of MiB", [] { return malloc(5 * MIB); });
  expect_in_heap("malloc of a mapping", [] { return malloc(50 * MIB); });
  expect_in_heap("malloc of nothing", [] { return malloc(0); });
  expect_in_heap("calloc", [] { return calloc(10, 10); });
  expect_in_heap("large calloc", [] { return calloc(1000, 1000); });
  expect_in_heap("realloc(NULL)", [] { return realloc(nullptr, 100); });
  expect_in_heap("reallocarray(NULL)", [] { return reallocarray(nullptr, 10, 10); });
  expect_in_heap("aligned_alloc", [] { return aligned_alloc(256, 512); });
  expect_in_heap("memalign", [] { return memalign(4096, 512); });
  expect_in_heap("posix_memalign", [] {
    void *p = nullptr;
    return posix_memalign(&p, 128, 100) == 0 ? p : nullptr;
  });
  expect_in_heap("valloc", [] { return valloc(100); });
  expect_in_heap("pvalloc", [] { return pvalloc(100); });
  expect_in_heap("hakmem_malloc", [] { return hakmem_malloc(100); });
  expect_in_heap("hakmem_calloc", [] { return hakmem_calloc(10, 10); });
  expect_in_heap("hakmem_aligned_alloc", [] { return hakmem_aligned_alloc(64, 100); });
  expect_in_heap("hakmem_alloc_at_least", [] {
    size_t actual;
    return hakmem_alloc_at_least(100, &actual);
  });
}

TEST(Default, AlignsBlocksOfNoBytes) {
  Heap heap;
  hakmem_heap_set_default(heap);
  size_t wrong = 0;
  for (size_t alignment = 16; alignment <= size_t{2} << 20; alignment *= 2) {
    for (int i = 0; i < 50; i++) {
      void *p = nullptr;
      int error = posix_memalign(&p, alignment, 0);
      void *const blocks[] = {error == 0 ? p : nullptr,
                              aligned_alloc(alignment, 0),
                              memalign(alignment, 0),
                              operator new(0, std::align_val_t{alignment}),
                              operator new[](0, std::align_val_t{alignment}),
                              hakmem_aligned_alloc(alignment, 0),
                              hakmem_aligned_calloc(alignment, 1, 0),
                              hakmem_aligned_realloc(nullptr, alignment, 0)};
      for (void *block : blocks) wrong += block == nullptr || reinterpret_cast<uintptr_t>(block) % alignment != 0;
      for (size_t k = 0; k < std::size(blocks); k++) k == 3   ? operator delete(blocks[k], std::align_val_t{alignment})
                                                     : k == 4 ? operator delete[](blocks[k], std::align_val_t{alignment})
                                                              : free(blocks[k]);
      free(malloc(16));
    }
  }
  hakmem_heap_set_default(nullptr);
  EXPECT_EQ(wrong, 0u);
}

TEST(Default, ServesOperatorNew) {
  expect_in_heap("new", [] { return operator new(100); }, [](void *p) { operator delete(p); });
  expect_in_heap("new of a page", [] { return operator new(5000); }, [](void *p) { operator delete(p, size_t{5000}); });
  expect_in_heap("new[]", [] { return operator new[](100); }, [](void *p) { operator delete[](p); });
  expect_in_heap("new(nothrow)", [] { return operator new(100, std::nothrow); }, [](void *p) { operator delete(p, std::nothrow); });
  expect_in_heap("new(align)", [] { return operator new(100, std::align_val_t{64}); },
                 [](void *p) { operator delete(p, std::align_val_t{64}); });
}

TEST(Default, ServesLibraries) {
  expect_in_heap("strdup", [] { return strdup("a text that is copied"); });
  expect_in_heap("asprintf", [] {
    char *text = nullptr;
    return asprintf(&text, "%d texts", 3) > 0 ? text : nullptr;
  });
  expect_in_heap("realpath", [] { return realpath("/", nullptr); });
  Heap heap;
  std::unique_ptr<std::string> text;
  std::unique_ptr<std::vector<std::string>> words;
  hakmem_heap_set_default(heap);
  text = std::make_unique<std::string>(200, 'x');
  words = std::make_unique<std::vector<std::string>>(100, *text);
  hakmem_heap_set_default(nullptr);
  EXPECT_EQ(hakmem_heap_of(text.get()), heap);
  EXPECT_EQ(hakmem_heap_of(text->data()), heap);
  for (const std::string &word : *words) ASSERT_EQ(hakmem_heap_of(word.data()), heap);
  EXPECT_EQ(heap.stats().blocks, 2u + 1 + 1 + 100);
  std::string outside(200, 'y');
  EXPECT_EQ(hakmem_heap_of(outside.data()), nullptr);
  text->append(1000, 'z');
  EXPECT_EQ(hakmem_heap_of(text->data()), nullptr) << "a new block, allocated outside of the scope";
  text.reset();
  words.reset();
  EXPECT_EQ(heap.stats().blocks, 0u);
}

// The thread is started outside: what libc keeps of a thread would be in the heap.
TEST(Default, IsOneThreads) {
  Heap heap, other;
  hakmem_heap *seen = heap, *of = heap, *now = nullptr;
  std::atomic<int> step{0};
  std::thread second([&] {
    while (step == 0) std::this_thread::yield();
    seen = hakmem_heap_get_default();
    void *p = malloc(100);
    of = hakmem_heap_of(p);
    free(p);
    hakmem_heap_set_default(other);
    step = 2;
  });
  hakmem_heap_set_default(heap);
  step = 1;
  while (step == 1) std::this_thread::yield();
  now = hakmem_heap_get_default();
  hakmem_heap_set_default(nullptr);
  second.join();
  EXPECT_EQ(seen, nullptr);
  EXPECT_EQ(of, nullptr);
  EXPECT_EQ(now, heap);
}

TEST(Default, ReturnsTheOneBefore) {
  Heap a, b;
  hakmem_heap *none = hakmem_heap_set_default(a), *first = hakmem_heap_set_default(b), *same = hakmem_heap_set_default(b);
  void *p = malloc(50);
  hakmem_heap *second = hakmem_heap_set_default(a);
  void *q = malloc(50);
  hakmem_heap *last = hakmem_heap_set_default(nullptr);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(first, a);
  EXPECT_EQ(same, b);
  EXPECT_EQ(second, b);
  EXPECT_EQ(last, a);
  EXPECT_EQ(hakmem_heap_of(p), b);
  EXPECT_EQ(hakmem_heap_of(q), a);
  free(p);
  free(q);
}

// Each block stays in the heap where it began.
TEST(Default, ResizesBlocksWhereTheyAre) {
  Heap heap, other;
  for (size_t from : {0, 20, 1000, 5000, 50000, 500000}) {
    for (size_t to : {30, 3000, 30000, 300000, 3000000}) {
      void *main_block = malloc(from), *of_other = hakmem_heap_malloc(other, from);
      hakmem_heap_set_default(heap);
      main_block = realloc(main_block, to);
      of_other = realloc(of_other, to);
      void *next = malloc(10), *second = malloc(10), *page = malloc(5000);
      hakmem_heap_set_default(nullptr);
      for (void *p : {next, second, page}) {
        EXPECT_EQ(hakmem_heap_of(p), heap) << "after " << from << " to " << to;
        free(p);
      }
      EXPECT_EQ(hakmem_heap_of(main_block), nullptr) << from << " to " << to;
      EXPECT_EQ(hakmem_heap_of(of_other), other) << from << " to " << to;
      free(main_block);
      free(of_other);
    }
  }
  EXPECT_EQ(heap.stats().blocks, 0u);
}

// Whatever else the thread does meanwhile.
TEST(Default, StaysWhateverTheThreadDoes) {
  Heap heap;
  const std::pair<const char *, std::function<void()>> acts[] = {
      {"trim", [] { malloc_trim(0); }},
      {"purge", [] { hakmem_purge(); }},
      {"idle", [] { hakmem_thread_idle(); }},
      {"forbid", [] { hakmem_forbid(false); }},
      {"statistics", [] { process_stats(); }},
      {"mallinfo", [] { (void)mallinfo2(); }},
      {"usable size", [] { hakmem_good_size(100); }},
      {"check", [] { hakmem_heap_check(); }},
      {"another heap", [] { Heap other; (void)!hakmem_heap_malloc(other, 100); }},
      {"profile", [] { hakmem_profile_start(0); }},
      {"no profile", [] { hakmem_profile_stop(); }},
      {"mapping", [] { free(realloc(malloc(40 * MIB), 50 * MIB)); }},
      {"refusal", [] { (void)!malloc(SIZE_MAX / 4); }},
      {"main block", [&] {
         hakmem_heap_set_default(nullptr);
         void *p = malloc(3 * MIB);
         hakmem_heap_set_default(heap);
         free(p);
       }},
      {"many", [] { for (int i = 0; i < 5000; i++) free(malloc(static_cast<size_t>(i))); }},
  };
  for (const auto &[name, act] : acts) {
    void *blocks[4];
    hakmem_heap_set_default(heap);
    act();
    for (size_t i = 0; i < 4; i++) blocks[i] = malloc(10 + 4000 * i);
    hakmem_heap *now = hakmem_heap_get_default();
    hakmem_heap_set_default(nullptr);
    EXPECT_EQ(now, heap) << name;
    for (void *p : blocks) {
      EXPECT_EQ(hakmem_heap_of(p), heap) << name;
      free(p);
    }
    void *outside = malloc(10);
    EXPECT_EQ(hakmem_heap_of(outside), nullptr) << name;
    free(outside);
  }
}

// The thread's own count goes on.
TEST(Default, CountsWhatTheThreadAsksFor) {
  Heap heap;
  uint64_t before = hakmem_thread_allocated();
  hakmem_heap_set_default(heap);
  for (int i = 0; i < 1000; i++) free(malloc(985));
  hakmem_heap_set_default(nullptr);
  uint64_t inside = hakmem_thread_allocated() - before;
  EXPECT_GE(inside, 985000u);
  EXPECT_LE(inside, 1100000u);
}

TEST(Default, RefusesByTheLimit) {
  Heap heap(10000);
  hakmem_heap_set_default(heap);
  errno = 0;
  void *p = malloc(20000), *q = malloc(5000);
  int error = errno;
  bool thrown = false;
  try {
    operator delete(operator new(20000));
  } catch (const std::bad_alloc &) {
    thrown = true;
  }
  hakmem_heap_set_default(nullptr);
  EXPECT_EQ(p, nullptr);
  EXPECT_NE(q, nullptr);
  EXPECT_EQ(error, ENOMEM);
  EXPECT_TRUE(thrown);
  free(q);
}

// Frees inside of the scope of blocks of others, and outside of it of the heap's.
TEST(Default, FreesAnyBlock) {
  Heap heap, other;
  std::vector<void *> inside, outside, others;
  inside.reserve(20000);
  for (int i = 0; i < 20000; i++) {
    outside.push_back(malloc(static_cast<size_t>(i) % 700));
    others.push_back(hakmem_heap_malloc(other, static_cast<size_t>(i) % 700));
  }
  hakmem_heap_set_default(heap);
  for (size_t i = 0; i < outside.size(); i++) {
    inside.push_back(malloc(i % 700));
    free(outside[i]);
    free(others[i]);
  }
  hakmem_heap_set_default(nullptr);
  EXPECT_EQ(heap.stats().blocks, inside.size());
  EXPECT_EQ(other.stats().blocks, 0u);
  for (void *p : inside) free(p);
  EXPECT_EQ(heap.stats().blocks, 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// What libc keeps for a thread of the library's, and hands to later threads, is not the heap's of the thread that starts the library's.
TEST(Default, HasNothingOfTheLibrarysThreads) {
  Heap heap;
  free(malloc(1)); // the option may be set by now
  hakmem_heap_set_default(heap);
  int set = hakmem_option_set("HAKMEM_BACKGROUND", 1);
  hakmem_heap_set_default(nullptr);
  size_t of_helper = heap.stats().requests;
  hakmem_heap_set_default(heap);
  int started = hakmem_profile_start(0);
  hakmem_heap_set_default(nullptr);
  size_t of_profiler = heap.stats().requests;
  hakmem_profile_stop();
  hakmem_option_set("HAKMEM_BACKGROUND", 0);
  EXPECT_EQ(set, 0);
  EXPECT_EQ(started, 0);
  EXPECT_EQ(of_helper, 0u);
  EXPECT_EQ(of_profiler, 0u);
  EXPECT_EQ(hakmem_heap_get_default(), nullptr);
}

#if defined(__GLIBC__) && HAKMEM_OPTIMIZED // else malloc does not see who calls it
// Thread-local blocks are the loader's, which keeps them beyond the heap, and ends the program where it gets none.
TEST(Default, HasNothingOfTheLoader) {
  void *library = dlopen(HEAP_PLUG, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  auto plug = reinterpret_cast<const char *(*)(const char *)>(dlsym(library, "plug"));
  ASSERT_NE(plug, nullptr);
  for (size_t limit : {size_t{0}, size_t{4096}}) {
    std::thread([plug, limit] {
      hakmem_heap *heap = new_heap(limit), *before = hakmem_heap_set_default(heap);
      while (limit != 0 && malloc(100) != nullptr) {}
      size_t requests = stats_of(heap).requests;
      plug("first call");
      size_t of_loader = stats_of(heap).requests - requests;
      hakmem_heap_set_default(before);
      hakmem_heap_destroy(heap);
      EXPECT_EQ(of_loader, 0u);
      EXPECT_STREQ(plug("second call"), "first call");
    }).join();
  }
  Heap heap;
  hakmem_heap_set_default(heap);
  void *again = dlopen(HEAP_PLUG, RTLD_NOW);
  hakmem_heap_set_default(nullptr);
  EXPECT_EQ(again, library);
  EXPECT_EQ(heap.stats().requests, 0u);
}

// Values of keys, beyond the first 32, and destructors of thread_local objects are libc's until the thread ends.
TEST(Default, HasNothingThatLibcKeepsForTheThread) {
  pthread_key_t keys[100];
  for (pthread_key_t &key : keys) ASSERT_EQ(pthread_key_create(&key, nullptr), 0);
  size_t requests = 0, wrong = 0;
  static std::atomic<int> ended{0};
  std::thread([&] {
    hakmem_heap *heap = new_heap(), *before = hakmem_heap_set_default(heap);
    for (pthread_key_t key : keys) pthread_setspecific(key, &keys);
    struct Ending {
      ~Ending() { ended++; }
    };
    static thread_local Ending ending;
    (void)&ending;
    requests = stats_of(heap).requests;
    hakmem_heap_set_default(before);
    hakmem_heap_destroy(heap);
    for (int i = 0; i < 2000; i++) (void)!memset(malloc(512), 1, 512);
    for (pthread_key_t key : keys) wrong += pthread_getspecific(key) != &keys;
  }).join();
  for (pthread_key_t key : keys) pthread_key_delete(key);
  EXPECT_EQ(requests, 0u);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(ended, 1);
}

// An exception flies out of the scope whose heap goes.
TEST(Default, HasNoExceptionsInFlight) {
  for (int round = 0; round < 3; round++) {
    std::exception_ptr kept;
    std::string what;
    try {
      struct Scope {
        hakmem_heap *heap = new_heap(), *before = hakmem_heap_set_default(heap);
        ~Scope() {
          hakmem_heap_set_default(before);
          hakmem_heap_destroy(heap);
        }
      } scope;
      try {
        throw std::runtime_error("a message that is longer than fifteen");
      } catch (...) {
        kept = std::current_exception();
      }
      std::rethrow_exception(kept);
    } catch (const std::exception &e) {
      what = e.what();
    }
    EXPECT_EQ(what, "a message that is longer than fifteen");
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}
#endif

// A leak inside of it is gone with the heap.
TEST(Default, DropsWhatALibraryLeaks) {
  size_t held = 0;
  for (int round = 0; round < 300; round++) {
    hakmem_heap *heap = new_heap(), *before = hakmem_heap_set_default(heap);
    for (int i = 0; i < 2000; i++) (void)!strdup("nobody frees this text, which is one of many");
    hakmem_heap_set_default(before);
    if (stats_of(heap).blocks != 2000) abort();
    hakmem_heap_destroy(heap);
    if (round == 50) held = process_stats().accessible;
  }
  EXPECT_LE(process_stats().accessible, held + MIB);
}

// The child has each heap before or after a reset by another thread, and can use it.
TEST(Fork, BesideResets) {
  hakmem_heap *heaps[4];
  for (hakmem_heap *&heap : heaps) heap = new_heap();
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (hakmem_heap *heap : heaps) {
    threads.emplace_back([heap, &end] {
      while (!end) {
        for (size_t size = 20; size < 200000; size += size / 8) hakmem_heap_malloc(heap, size);
        hakmem_heap_reset(heap);
      }
    });
  }
  for (int i = 0; i < 200; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      for (hakmem_heap *heap : heaps) {
        void *p = hakmem_heap_malloc(heap, 100);
        if (hakmem_heap_of(p) != heap || stats_of(heap).held == 0) _exit(1);
        hakmem_free(p);
      }
      _exit(hakmem_heap_check() == 0 ? 0 : 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) end = true;
    EXPECT_EQ(status, 0) << "fork " << i;
    if (end) break;
  }
  end = true;
  for (std::thread &thread : threads) thread.join();
}

}  // namespace
