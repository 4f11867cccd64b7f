/* Blocks that are sampled do all that blocks do: each request is one, or nearly, as the environment says. The library is
 * preloaded. */
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../lifecycle/here.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
const size_t kSizes[] = {1, 16, 17, 64, 100, 512, 1000, 2048, 4096, 5000, 16 * kKiB, 32 * kKiB, 40000, 64 * kKiB, 100000, 200 * kKiB,
                         256 * kKiB, 300 * kKiB, 512 * kKiB, kMiB, 3 * kMiB, 20 * kMiB, 33 * kMiB, 50 * kMiB};

unsigned char byte_of(size_t i) { return static_cast<unsigned char>(i * 37 + 11); }

unsigned char *new_block(size_t size, size_t tag) {
  auto *p = static_cast<unsigned char *>(std::malloc(size));
  if (p == nullptr) std::abort();
  std::memset(p, byte_of(tag), size);
  return p;
}

TEST(Blocks, UsableSizeHoldsWhatWasAskedFor) {
  for (int round = 0; round < 20; round++) {
    for (size_t size : kSizes) {
      auto *p = static_cast<unsigned char *>(std::malloc(size));
      size_t usable = malloc_usable_size(p);
      ASSERT_GE(usable, size);
      p[0] = p[usable - 1] = 1;
      ASSERT_TRUE(here::is_ours(p));
      std::free(p);
    }
  }
}

TEST(Blocks, FromEachSizeToEach) {
  for (size_t from : kSizes) {
    for (size_t to : kSizes) {
      unsigned char *p = new_block(from, from);
      auto *q = static_cast<unsigned char *>(std::realloc(p, to));
      ASSERT_NE(q, nullptr);
      ASSERT_GE(malloc_usable_size(q), to);
      ASSERT_TRUE(here::holds(q, std::min(from, to), byte_of(from))) << from << " to " << to;
      std::memset(q, 1, to);
      std::free(q);
    }
  }
}

/* Step by step: in place while there is room, and moved. */
TEST(Blocks, GrowAndShrink) {
  for (size_t most : {10 * kKiB, 2 * kMiB, 80 * kMiB}) {
    unsigned char *p = new_block(1, 1);
    size_t size = 1;
    for (; size < most; size = size * 3 / 2 + 1) {
      p = static_cast<unsigned char *>(std::realloc(p, size * 3 / 2 + 1));
      ASSERT_NE(p, nullptr);
      p[size * 3 / 2] = p[0] = byte_of(1);
    }
    for (; size > 1; size = size * 2 / 3) {
      p = static_cast<unsigned char *>(std::realloc(p, size));
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(p[0], byte_of(1));
    }
    std::free(p);
  }
}

/* Mappings that the kernel does not move as one: with advice of their own on some pages. */
TEST(Blocks, MappingsInPieces) {
  for (int i = 0; i < 10; i++) {
    unsigned char *p = new_block(40 * kMiB, 5);
    size_t page = 4096;
    auto at = (reinterpret_cast<uintptr_t>(p) + 8 * kMiB) / page * page;
    madvise(reinterpret_cast<void *>(at), page, MADV_DONTFORK);
    auto *q = static_cast<unsigned char *>(std::realloc(p, (80 + static_cast<size_t>(i)) * kMiB));
    ASSERT_NE(q, nullptr);
    ASSERT_TRUE(here::holds(q, 40 * kMiB, byte_of(5)));
    std::free(q);
  }
}

/* Of the profile that is written to a file: bytes of all allocations; 0: the profile is off. */
double allocated_bytes() {
  auto dump = reinterpret_cast<int (*)(const char *, int)>(dlsym(RTLD_DEFAULT, "hakmem_profile_dump"));
  std::string path = std::string(SCRATCH) + "/blocks." + std::to_string(getpid()) + ".heap";
  double live_count, live_bytes, count, bytes = 0;
  if (dump == nullptr || dump(path.c_str(), 0) != 0) return 0;
  FILE *f = std::fopen(path.c_str(), "re");
  if (std::fscanf(f, "heap profile: %lf: %lf [%lf: %lf]", &live_count, &live_bytes, &count, &bytes) != 4) bytes = -1;
  std::fclose(f);
  std::remove(path.c_str());
  return bytes;
}

TEST(Blocks, AResizeThatFailsIsNoAllocation) {
  unsigned char *p = new_block(40 * kMiB, 5);
  double before = allocated_bytes();
  void *(*volatile resize)(void *, size_t) = std::realloc;
  for (int i = 0; i < 10; i++) ASSERT_EQ(resize(p, size_t{1} << 55), nullptr);
  double after = allocated_bytes();
  ASSERT_GE(before, 0);
  ASSERT_LT(after - before, 20 * kMiB);
  ASSERT_TRUE(here::holds(p, 40 * kMiB, byte_of(5)));
  std::free(p);
}

TEST(Blocks, ZeroedAfterTheyWereDirty) {
  for (int round = 0; round < 10; round++) {
    for (size_t size : kSizes) {
      if (size > 4 * kMiB && round > 0) continue;
      std::free(new_block(size, 3));
      auto *p = static_cast<unsigned char *>(std::calloc(1, size));
      ASSERT_TRUE(here::holds(p, size, 0)) << size;
      std::memset(p, 0xff, size);
      std::free(p);
    }
  }
}

TEST(Blocks, Aligned) {
  for (size_t align = 8; align <= 4 * kMiB; align *= 2) {
    for (size_t size : {size_t{1}, size_t{100}, size_t{5000}, size_t{70000}, kMiB}) {
      std::vector<void *> kept;
      for (int i = 0; i < 5; i++) {
        void *p = nullptr;
        ASSERT_EQ(posix_memalign(&p, align, size), 0);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
        std::memset(p, 0x11, size);
        kept.push_back(p);
        p = memalign(align, size);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
        kept.push_back(std::realloc(p, size + 1));
        p = ::operator new(size, std::align_val_t(align));
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
        ::operator delete(p, size, std::align_val_t(align));
      }
      for (void *p : kept) std::free(p);
    }
  }
}

TEST(Blocks, FreedByOthers) {
  std::vector<unsigned char *> blocks(3000);
  for (int round = 0; round < 10; round++) {
    std::thread([&] {
      for (size_t i = 0; i < blocks.size(); i++) blocks[i] = new_block(i % 50 == 0 ? 100000 : 1 + i % 3000, i);
    }).join();
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 3; t++) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < blocks.size(); i += 3) {
          if (!here::holds(blocks[i], i % 50 == 0 ? 100000 : 1 + i % 3000, byte_of(i))) std::abort();
          std::free(blocks[i]);
        }
      });
    }
    for (auto &t : threads) t.join();
  }
  EXPECT_EQ(here::heap_check(), 0u);
}

/* A slot a block, at random, with what it should hold: in several threads, which exchange them. */
TEST(Blocks, AtRandom) {
  struct Slot {
    unsigned char *p;
    size_t size, tag;
  };
  constexpr size_t kSlots = 600;
  static std::atomic<Slot *> shared[64];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++) {
    threads.emplace_back([t] {
      std::mt19937 random(t);
      std::vector<Slot *> slots(kSlots);
      for (auto &s : slots) s = new Slot{nullptr, 0, 0};
      for (size_t i = 0; i < 40000; i++) {
        Slot *&s = slots[random() % kSlots];
        if (random() % 8 == 0) {
          Slot *other = shared[random() % 64].exchange(s);
          s = other != nullptr ? other : new Slot{nullptr, 0, 0};
        }
        if (!here::holds(s->p, s->size, byte_of(s->tag))) std::abort();
        size_t size = random() % 500 == 0 ? random() % kMiB : random() % 60 == 0 ? random() % (100 * kKiB) : random() % 2000;
        if (s->p != nullptr && random() % 3 == 0) {
          s->p = static_cast<unsigned char *>(std::realloc(s->p, size + 1));
        } else {
          std::free(s->p);
          s->p = static_cast<unsigned char *>(random() % 4 == 0 ? std::calloc(size + 1, 1) : std::malloc(size + 1));
        }
        s->size = size + 1;
        s->tag = i;
        std::memset(s->p, byte_of(i), s->size);
      }
      for (Slot *s : slots) {
        std::free(s->p);
        delete s;
      }
    });
  }
  for (auto &t : threads) t.join();
  for (auto &s : shared) {
    if (Slot *left = s.exchange(nullptr)) {
      std::free(left->p);
      delete left;
    }
  }
  EXPECT_EQ(here::heap_check(), 0u);
}

}  // namespace
