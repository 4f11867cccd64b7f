// What only the override has: operator new and delete, glibc's internal names, and that libc's own allocations are ours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <new>
#include <string>

#include "family.h"

extern "C" {
void *__libc_malloc(size_t);
void __libc_free(void *);
void __libc_cfree(void *);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *__libc_valloc(size_t);
void *__libc_pvalloc(size_t);
int __posix_memalign(void **, size_t, size_t);
}

namespace {

const size_t IMPOSSIBLE = opaque(size_t(PTRDIFF_MAX));
bool aligned(const void *p, size_t align) { return reinterpret_cast<uintptr_t>(p) % align == 0; }

class Override : public testing::Test {
 protected:
  void TearDown() override {
    std::set_new_handler(nullptr);
    EXPECT_EQ(hakmem_heap_check(), 0u);
  }
};

struct NewForm {
  const char *name;
  std::function<void *(size_t)> make;
  std::function<void(void *, size_t)> drop;
  size_t align;
  bool nothrow;
};

// Every form of new with every form of delete that goes with it.
std::vector<NewForm> forms() {
  std::vector<NewForm> all;
  auto plain = [](void *p, size_t) { operator delete(p); };
  auto sized = [](void *p, size_t n) { operator delete(p, n); };
  auto nothrow_drop = [](void *p, size_t) { operator delete(p, std::nothrow); };
  auto array = [](void *p, size_t) { operator delete[](p); };
  auto array_sized = [](void *p, size_t n) { operator delete[](p, n); };
  auto array_nothrow = [](void *p, size_t) { operator delete[](p, std::nothrow); };
  for (auto &drop : std::vector<std::function<void(void *, size_t)>>{plain, sized, nothrow_drop}) {
    all.push_back({"new", [](size_t n) { return operator new(n); }, drop, 16, false});
    all.push_back({"new nothrow", [](size_t n) { return operator new(n, std::nothrow); }, drop, 16, true});
  }
  for (auto &drop : std::vector<std::function<void(void *, size_t)>>{array, array_sized, array_nothrow}) {
    all.push_back({"new[]", [](size_t n) { return operator new[](n); }, drop, 16, false});
    all.push_back({"new[] nothrow", [](size_t n) { return operator new[](n, std::nothrow); }, drop, 16, true});
  }
  for (size_t align : {32, 64, 128, 4096, 1 << 20}) {
    std::align_val_t a{align};
    auto drops = std::vector<std::function<void(void *, size_t)>>{
        [a](void *p, size_t) { operator delete(p, a); },
        [a](void *p, size_t n) { operator delete(p, n, a); },
        [a](void *p, size_t) { operator delete(p, a, std::nothrow); }};
    auto array_drops = std::vector<std::function<void(void *, size_t)>>{
        [a](void *p, size_t) { operator delete[](p, a); },
        [a](void *p, size_t n) { operator delete[](p, n, a); },
        [a](void *p, size_t) { operator delete[](p, a, std::nothrow); }};
    for (auto &drop : drops) {
      all.push_back({"aligned new", [a](size_t n) { return operator new(n, a); }, drop, align, false});
      all.push_back({"aligned new nothrow", [a](size_t n) { return operator new(n, a, std::nothrow); }, drop, align, true});
    }
    for (auto &drop : array_drops) {
      all.push_back({"aligned new[]", [a](size_t n) { return operator new[](n, a); }, drop, align, false});
      all.push_back({"aligned new[] nothrow", [a](size_t n) { return operator new[](n, a, std::nothrow); }, drop, align, true});
    }
  }
  return all;
}

TEST_F(Override, EveryNewAndDelete) {
  for (const NewForm &form : forms()) {
    for (size_t size : {0, 1, 100, 5000, 100000, 50 << 20}) {
      void *p = opaque(form.make(opaque(size)));
      ASSERT_NE(p, nullptr) << form.name << size;
      EXPECT_TRUE(hakmem_is_ours(p)) << form.name;
      EXPECT_TRUE(aligned(p, form.align)) << form.name;
      EXPECT_GE(malloc_usable_size(p), size);
      if (size > 0) memset(p, 1, std::min<size_t>(size, 5000));
      form.drop(p, size);
    }
  }
}

TEST_F(Override, FailureThrowsOrIsNull) {
  for (const NewForm &form : forms()) {
    if (form.nothrow) {
      EXPECT_EQ(form.make(IMPOSSIBLE), nullptr) << form.name;
      EXPECT_EQ(form.make(SIZE_MAX), nullptr) << form.name;
    } else {
      EXPECT_THROW(form.make(IMPOSSIBLE), std::bad_alloc) << form.name;
      EXPECT_THROW(form.make(SIZE_MAX), std::bad_alloc) << form.name;
    }
  }
}

int handler_calls;

TEST_F(Override, HandlerIsCalledUntilItGivesUp) {
  for (const NewForm &form : forms()) {
    handler_calls = 0;
    std::set_new_handler([] {
      if (++handler_calls == 4) std::set_new_handler(nullptr);
    });
    if (form.nothrow)
      EXPECT_EQ(form.make(IMPOSSIBLE), nullptr);
    else
      EXPECT_THROW(form.make(IMPOSSIBLE), std::bad_alloc);
    EXPECT_EQ(handler_calls, 4) << form.name;
  }
}

struct OwnException {};

TEST_F(Override, HandlerMayThrow) {
  std::set_new_handler([] { throw std::bad_alloc(); });
  for (const NewForm &form : forms()) {
    if (form.nothrow)
      EXPECT_EQ(form.make(IMPOSSIBLE), nullptr) << form.name;
    else
      EXPECT_THROW(form.make(IMPOSSIBLE), std::bad_alloc) << form.name;
  }
  // What a handler throws from a throwing form reaches the program as it is.
  std::set_new_handler([] { throw OwnException(); });
  EXPECT_THROW(opaque(operator new(IMPOSSIBLE)), OwnException);
}

rlimit original_limit;

TEST_F(Override, HandlerMayMakeRoom) {
  getrlimit(RLIMIT_AS, &original_limit);
  rlimit tight = original_limit;
  tight.rlim_cur = size_t(64) << 20;  // less than the request: it fails, whatever reserved addresses go back to make room
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  handler_calls = 0;
  std::set_new_handler([] {
    if (++handler_calls == 2) setrlimit(RLIMIT_AS, &original_limit);
  });
  void *p = opaque(operator new(opaque(size_t(100) << 20)));
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(handler_calls, 2);
  operator delete(p);
}

TEST_F(Override, SuccessDoesNotAskTheHandler) {
  handler_calls = 0;
  std::set_new_handler([] { handler_calls++; });
  operator delete(opaque(operator new(100)));
  EXPECT_EQ(handler_calls, 0);
}

TEST_F(Override, LibcAliases) {
  void *blocks[] = {__libc_malloc(100), __libc_calloc(10, 10), __libc_realloc(nullptr, 100), __libc_memalign(256, 100),
                    __libc_valloc(100), __libc_pvalloc(100),   nullptr};
  EXPECT_EQ(__posix_memalign(&blocks[6], 64, 100), 0);
  for (void *p : blocks) {
    EXPECT_TRUE(hakmem_is_ours(p));
    EXPECT_GE(malloc_usable_size(p), 100u);
  }
  for (int i = 0; i < 100; i++) EXPECT_EQ(static_cast<char *>(blocks[1])[i], 0);
  EXPECT_TRUE(aligned(blocks[3], 256) && aligned(blocks[4], 4096) && aligned(blocks[5], 4096));
  for (void *p : {blocks[0], blocks[1], blocks[2], blocks[3]}) __libc_free(p);
  __libc_cfree(blocks[4]);
  cfree(blocks[5]);
  cfree(nullptr);
  free(blocks[6]);
}

TEST_F(Override, WhatLibcAndTheRuntimeAllocateIsOurs) {
  char *copy = strdup("a string of some length");
  EXPECT_TRUE(hakmem_is_ours(copy));
  free(copy);
  char *printed = nullptr;
  ASSERT_GT(asprintf(&printed, "%d", 42), 0);
  EXPECT_TRUE(hakmem_is_ours(printed));
  free(printed);
  std::string text(1000, 'x');
  EXPECT_TRUE(hakmem_is_ours(text.data()));
}

}  // namespace
