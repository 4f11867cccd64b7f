// jemalloc's interface, as its header has it, and what the tests of it have in common.
#ifndef HAKMEM_TESTS_JE_H
#define HAKMEM_TESTS_JE_H

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <string>
#include <sys/types.h>
#include <vector>

extern "C" {
void *mallocx(size_t size, int flags);
void *rallocx(void *p, size_t size, int flags);
size_t xallocx(void *p, size_t size, size_t extra, int flags);
size_t sallocx(const void *p, int flags);
void dallocx(void *p, int flags);
void sdallocx(void *p, size_t size, int flags);
size_t nallocx(size_t size, int flags);
int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
int mallctlnametomib(const char *name, size_t *mibp, size_t *miblenp);
int mallctlbymib(const size_t *mib, size_t miblen, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
void malloc_stats_print(void (*write_cb)(void *, const char *), void *context, const char *options);
extern void (*malloc_message)(void *context, const char *text);
}

constexpr int kZero = 0x40, kNoCache = 1 << 8;
constexpr int lg_align(int lg) { return lg; }
constexpr int cache_flag(unsigned id) { return static_cast<int>((id + 2) << 8); }
constexpr int arena_flag(unsigned index) { return static_cast<int>((index + 1) << 20); }

// A name's value; a name without one fails the test.
template <typename T>
T get(const std::string &name) {
  T value{};
  size_t length = sizeof value;
  EXPECT_EQ(mallctl(name.c_str(), &value, &length, nullptr, 0), 0) << name;
  EXPECT_EQ(length, sizeof value) << name;
  return value;
}

template <typename T>
int set(const std::string &name, T value) {
  return mallctl(name.c_str(), nullptr, nullptr, &value, sizeof value);
}

inline int act(const std::string &name) { return mallctl(name.c_str(), nullptr, nullptr, nullptr, 0); }

inline void refresh() { ASSERT_EQ(set<uint64_t>("epoch", 1), 0); }

// Of an arena of its own, until the end of the scope.
struct Arena {
  unsigned index = get<unsigned>("arenas.create");
  ~Arena() {
    if (alive) EXPECT_EQ(act(name("arena", "destroy")), 0);
  }
  std::string name(const char *tree, const std::string &leaf) const { return std::string(tree) + "." + std::to_string(index) + "." + leaf; }
  std::string stats(const std::string &leaf) const { return name("stats.arenas", leaf); }
  int flag() const { return arena_flag(index); }
  bool alive = true;
};

inline bool is_filled(const void *p, unsigned char byte, size_t from, size_t to) {
  auto *c = static_cast<const unsigned char *>(p);
  for (size_t i = from; i < to; i++) {
    if (c[i] != byte) return false;
  }
  return true;
}

#endif
