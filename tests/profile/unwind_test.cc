// The walk beside libgcc's, wherever both can go. SUITE: Unwind, or UnwindTable, which knows modules by a table made at the start.
#include <gtest/gtest.h>
#include <link.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

extern "C" {
#include "frames.h"
}
#include "stacks.h"

namespace {

// Filled by a constructor, before hak_unwind_start.
Stacks &early() {
  static Stacks stacks;
  return stacks;
}
__attribute__((constructor)) void before_main() { record(&early()); }

extern "C" int of_libc() __asm__("_dl_find_object") __attribute__((weak));

class SUITE : public testing::Test {
 protected:
  void SetUp() override { hak_unwind_start(); }
  Stacks stacks;
};

chain_link *(*const families[])(unsigned) = {o0_frame, o0_bare_frame, o2_frame, o2_bare_frame, os_frame};

void run_chain(const std::vector<chain_link *> &links, Stacks *s) {
  chain c = {links.data(), unsigned(links.size()), 0, record, s};
  chain_go_on(&c);
}

TEST_F(SUITE, EveryKindOfFrameWithAndWithoutFramePointer) {
  for (auto *family : families) {
    for (unsigned kind = 0; kind < CHAIN_KINDS; kind++) {
      run_chain({families[2](0), family(kind), families[3](0)}, &stacks);
      ASSERT_TRUE(stacks.same()) << "kind " << kind << stacks.text();
    }
  }
  EXPECT_SAME_STACKS(stacks, 4);
}

TEST_F(SUITE, MixedFramesInAnyOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; round++) {
    std::vector<chain_link *> links;
    for (unsigned n = random() % 60 + 1; n > 0; n--) links.push_back(families[random() % 5](random()));
    run_chain(links, &stacks);
    ASSERT_TRUE(stacks.same()) << "round " << round << stacks.text();
    ASSERT_GT(stacks.ours_count, links.size());
  }
}

TEST_F(SUITE, FramesOfMebibytes) {
  for (auto *family : {o0_wide_frame, o0_bare_wide_frame, o2_wide_frame, o2_bare_wide_frame, os_wide_frame}) {
    run_chain({families[2](0), family(), families[3](0)}, &stacks);
    EXPECT_SAME_STACKS(stacks, 4);
  }
}

TEST_F(SUITE, DeepStacksAreCut) {
  std::vector<chain_link *> links(400, families[3](0));
  run_chain(links, &stacks);
  EXPECT_SAME_STACKS(stacks, 400);
  static uintptr_t cut[129];
  static unsigned count, capacity;
  for (unsigned c : {0u, 1u, 2u, 128u}) {
    capacity = c;
    std::fill(std::begin(cut), std::end(cut), 4711);
    chain c2 = {links.data(), 400, 0, [](void *) { count = hak_unwind(cut, capacity); }, nullptr};
    chain_go_on(&c2);
    EXPECT_EQ(count, capacity);
    EXPECT_EQ(cut[capacity], 4711u) << "written beyond the end";
  }
  // One chain's frames, but for the innermost.
  for (unsigned i = 2; i < 128; i++) EXPECT_EQ(cut[i], stacks.ours[i]);
}

Stacks *comparing;
int compare_and_record(const void *a, const void *b) {
  record(comparing);
  return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

TEST_F(SUITE, CallbacksThroughLibraries) {
  comparing = &stacks;
  int numbers[] = {3, 1, 2, 5, 4, 9, 8, 7, 6, 0};
  qsort(numbers, 10, sizeof *numbers, compare_and_record);
  EXPECT_SAME_STACKS(stacks, 4);
  int key = 5;
  bsearch(&key, numbers, 10, sizeof *numbers, compare_and_record);
  EXPECT_SAME_STACKS(stacks, 4);
  std::vector<int> many(100);
  for (int i = 0; i < 100; i++) many[size_t(i)] = i * 37 % 101;
  std::sort(many.begin(), many.end(), [this](int a, int b) { return record(&stacks), a < b; });
  EXPECT_SAME_STACKS(stacks, 4);
  std::function<void()> inner = [this] { record(&stacks); };
  std::function<void()> outer = [&] { inner(); };
  outer();
  EXPECT_SAME_STACKS(stacks, 4);
}

TEST_F(SUITE, InsideDlIteratePhdr) {
  dl_iterate_phdr([](dl_phdr_info *, size_t, void *s) { return record(s), 0; }, &stacks);
  EXPECT_SAME_STACKS(stacks, 4);
}

TEST_F(SUITE, Threads) {
  std::thread([this] { record(&stacks); }).join();
  EXPECT_SAME_STACKS(stacks, 3);
  pthread_t small;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_create(&small, &attributes, [](void *s) -> void * { return record(s), nullptr; }, &stacks);
  pthread_join(small, nullptr);
  EXPECT_SAME_STACKS(stacks, 2);
}

TEST_F(SUITE, DestructorsOfThreads) {
  struct Recorder {
    Stacks *s;
    ~Recorder() { record(s); }
  };
  std::thread([this] {
    static thread_local Recorder recorder{nullptr};
    recorder.s = &stacks;
  }).join();
  EXPECT_SAME_STACKS(stacks, 3);
  static pthread_key_t key;
  pthread_key_create(&key, [](void *s) { record(s); });
  std::thread([this] { pthread_setspecific(key, &stacks); }).join();
  EXPECT_SAME_STACKS(stacks, 3);
  EXPECT_EQ(stacks.times, 2u);
}

TEST_F(SUITE, BeforeMain) {
  EXPECT_EQ(of_libc != nullptr, ASKS_LIBC);
  if (of_libc != nullptr) EXPECT_SAME_STACKS(early(), 2);
}

TEST_F(SUITE, WhileExceptionsAreThrown) {
  struct Recorder {
    Stacks *s;
    ~Recorder() { record(s); }
  };
  struct Thrown {
    Stacks *s;
    Thrown(const Thrown &other) : s(other.s) { record(s); }
    explicit Thrown(Stacks *to) : s(to) { record(s); }
    ~Thrown() { record(s); }
  };
  try {
    Recorder recorder{&stacks};  // destroyed by the unwinder
    throw Thrown(&stacks);
  } catch (const Thrown &thrown) {
    record(thrown.s);
    try {
      Recorder recorder{&stacks};
      throw;
    } catch (...) {
      record(&stacks);
    }
  }
  EXPECT_SAME_STACKS(stacks, 4);
  EXPECT_GE(stacks.times, 5u);
}

TEST_F(SUITE, InForksChild) {
  for (bool in_thread : {false, true}) {
    int status = -1;
    auto forking = [&] {
      pid_t child = fork();
      if (child == 0) {
        record(&stacks);
        _exit(stacks.same() && stacks.ours_count >= 3 ? 0 : 1);
      }
      waitpid(child, &status, 0);
    };
    if (in_thread)
      std::thread(forking).join();
    else
      forking();
    EXPECT_EQ(status, 0) << in_thread;
  }
}

TEST_F(SUITE, KeepsErrno) {
  errno = 4711;
  record(&stacks);
  EXPECT_EQ(errno, 4711);
}

TEST_F(SUITE, ManyThreadsShareTheCache) {
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Stacks>> each;
  for (unsigned t = 0; t < 4; t++) {
    each.push_back(std::make_unique<Stacks>());
    threads.emplace_back([s = each.back().get(), t] {
      std::mt19937 random(t);
      for (int round = 0; round < 2000; round++) {
        std::vector<chain_link *> links;
        for (unsigned n = 0; n < 12; n++) links.push_back(families[random() % 5](random()));
        run_chain(links, s);
      }
    });
  }
  for (auto &thread : threads) thread.join();
  for (auto &s : each) EXPECT_SAME_STACKS(*s, 14);
}

}  // namespace
