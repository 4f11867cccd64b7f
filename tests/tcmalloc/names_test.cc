// tc_… and what LLVM calls instead of operator new: which functions they are, and that they do what those do.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "hakmem/hakmem.h"
#include "hot_cold.h"
#include "names.h"
#include "run_program.h"

namespace {

const volatile size_t IMPOSSIBLE = size_t(PTRDIFF_MAX);
constexpr std::align_val_t ALIGN{256};
constexpr __hot_cold_t COLD{1}, HOT{254};

bool aligned(const void *p, size_t align) { return reinterpret_cast<uintptr_t>(p) % align == 0; }

// No code of their own, and by name malloc is malloc: a tool that looks for an address's symbol prefers one that is not weak.
TEST(Names, AreAliases) {
  const char *pairs[][2] = {
      {"tc_malloc", "malloc"},
      {"tc_malloc_skip_new_handler", "malloc"},
      {"tc_free", "free"},
      {"tc_cfree", "free"},
      {"tc_calloc", "calloc"},
      {"tc_realloc", "realloc"},
      {"tc_memalign", "memalign"},
      {"tc_posix_memalign", "posix_memalign"},
      {"tc_valloc", "valloc"},
      {"tc_pvalloc", "pvalloc"},
      {"tc_malloc_size", "malloc_usable_size"},
      {"tc_mallopt", "mallopt"},
      {"tc_mallinfo", "mallinfo"},
      {"tc_mallinfo2", "mallinfo2"},
      {"tc_malloc_stats", "malloc_stats"},
      {"nallocx", "tc_nallocx"},
      {"tc_new", "_Znwm"},
      {"tc_new_nothrow", "_ZnwmRKSt9nothrow_t"},
      {"tc_newarray", "_Znam"},
      {"tc_newarray_nothrow", "_ZnamRKSt9nothrow_t"},
      {"tc_new_aligned", "_ZnwmSt11align_val_t"},
      {"tc_new_aligned_nothrow", "_ZnwmSt11align_val_tRKSt9nothrow_t"},
      {"tc_newarray_aligned", "_ZnamSt11align_val_t"},
      {"tc_newarray_aligned_nothrow", "_ZnamSt11align_val_tRKSt9nothrow_t"},
      {"tc_delete", "_ZdlPv"},
      {"tc_delete_sized", "_ZdlPvm"},
      {"tc_delete_nothrow", "_ZdlPvRKSt9nothrow_t"},
      {"tc_deletearray", "_ZdaPv"},
      {"tc_deletearray_sized", "_ZdaPvm"},
      {"tc_deletearray_nothrow", "_ZdaPvRKSt9nothrow_t"},
      {"tc_delete_aligned", "_ZdlPvSt11align_val_t"},
      {"tc_delete_sized_aligned", "_ZdlPvmSt11align_val_t"},
      {"tc_delete_aligned_nothrow", "_ZdlPvSt11align_val_tRKSt9nothrow_t"},
      {"tc_deletearray_aligned", "_ZdaPvSt11align_val_t"},
      {"tc_deletearray_sized_aligned", "_ZdaPvmSt11align_val_t"},
      {"tc_deletearray_aligned_nothrow", "_ZdaPvSt11align_val_tRKSt9nothrow_t"},
      {"__size_returning_new_hot_cold", "__size_returning_new"},
      {"__size_returning_new_aligned_hot_cold", "__size_returning_new_aligned"},
  };
  void *library = dlopen(HAKMEM_LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << dlerror();
  for (auto &pair : pairs) {
    EXPECT_NE(dlsym(library, pair[1]), nullptr) << pair[1];
    EXPECT_EQ(dlsym(library, pair[0]), dlsym(library, pair[1])) << pair[0];
  }
}

TEST(Names, Allocate) {
  void *p = tc_malloc(100);
  EXPECT_TRUE(hakmem_is_ours(p));
  p = tc_realloc(p, 100000);
  EXPECT_GE(tc_malloc_size(p), 100000u);
  tc_free(p);
  char *zeros = static_cast<char *>(tc_calloc(100, 10));
  for (int i = 0; i < 1000; i++) EXPECT_EQ(zeros[i], 0);
  tc_cfree(zeros);
  p = tc_malloc_skip_new_handler(64);
  tc_free_sized(p, 64);
  EXPECT_TRUE(aligned(p = tc_memalign(512, 10), 512));
  tc_free(p);
  EXPECT_EQ(tc_posix_memalign(&p, 1024, 10), 0);
  EXPECT_TRUE(aligned(p, 1024));
  tc_free(p);
  EXPECT_TRUE(aligned(p = tc_valloc(10), 4096));
  tc_free(p);
  EXPECT_GE(tc_malloc_size(p = tc_pvalloc(10)), 4096u);
  tc_free(p);
  errno = 0;
  EXPECT_EQ(tc_malloc(IMPOSSIBLE), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(tc_mallinfo2().uordblks, mallinfo2().uordblks);
}

TEST(Names, OperatorsAllocate) {
  const std::nothrow_t &none = std::nothrow;
  tc_delete(tc_new(10)), tc_delete_sized(tc_new(10), 10), tc_delete_nothrow(tc_new_nothrow(10, none), none);
  tc_deletearray(tc_newarray(10)), tc_deletearray_sized(tc_newarray(10), 10), tc_deletearray_nothrow(tc_newarray_nothrow(10, none), none);
  void *p = tc_new_aligned(10, ALIGN);
  EXPECT_TRUE(aligned(p, 256));
  tc_delete_aligned(p, ALIGN), tc_delete_sized_aligned(tc_new_aligned(10, ALIGN), 10, ALIGN);
  tc_delete_aligned_nothrow(tc_new_aligned_nothrow(10, ALIGN, none), ALIGN, none);
  p = tc_newarray_aligned(10, ALIGN);
  EXPECT_TRUE(aligned(p, 256));
  tc_deletearray_aligned(p, ALIGN), tc_deletearray_sized_aligned(tc_newarray_aligned(10, ALIGN), 10, ALIGN);
  tc_deletearray_aligned_nothrow(tc_newarray_aligned_nothrow(10, ALIGN, none), ALIGN, none);
  EXPECT_THROW(tc_new(IMPOSSIBLE), std::bad_alloc);
  EXPECT_EQ(tc_new_nothrow(IMPOSSIBLE, none), nullptr);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(NamesDeathTest, SizesAreChecked) {
  void *p = tc_malloc(100);
  EXPECT_DEATH(tc_free_sized(p, 1000), "hakmem");
  tc_free(p);
}

TEST(Names, Version) {
  int major = 0, minor = 0;
  const char *patch = nullptr;
  EXPECT_EQ(std::string(tc_version(&major, &minor, &patch)).find("hakmem " HAKMEM_VERSION_STRING), 0u);
  EXPECT_EQ(major, 2);
  EXPECT_EQ(minor, 10);
  EXPECT_STREQ(patch, "");
  EXPECT_NE(tc_version(nullptr, nullptr, nullptr), nullptr);
}

int handled;

// malloc asks no handler, in any mode.
TEST(Names, NewMode) {
  std::set_new_handler([] { handled++, std::set_new_handler(nullptr); });
  EXPECT_EQ(tc_set_new_mode(1), 0);
  EXPECT_EQ(tc_malloc(IMPOSSIBLE), nullptr);
  EXPECT_EQ(handled, 0);
  EXPECT_EQ(tc_set_new_mode(0), 0) << "the mode is what it was";
  EXPECT_EQ(tc_new_nothrow(IMPOSSIBLE, std::nothrow), nullptr);
  EXPECT_EQ(handled, 1);
}

TEST(HotCold, AsPlainForms) {
  struct {
    const char *name;
    std::function<void *(size_t)> make;
    std::function<void(void *)> drop;
    size_t align;
    bool throws;
  } forms[] = {
      {"new", [](size_t n) { return operator new(n, COLD); }, [](void *p) { operator delete(p); }, 16, true},
      {"new[]", [](size_t n) { return operator new[](n, HOT); }, [](void *p) { operator delete[](p); }, 16, true},
      {"nothrow", [](size_t n) { return operator new(n, std::nothrow, COLD); }, [](void *p) { operator delete(p); }, 16, false},
      {"nothrow[]", [](size_t n) { return operator new[](n, std::nothrow, HOT); }, [](void *p) { operator delete[](p); }, 16, false},
      {"aligned", [](size_t n) { return operator new(n, ALIGN, COLD); }, [](void *p) { operator delete(p, ALIGN); }, 256, true},
      {"aligned[]", [](size_t n) { return operator new[](n, ALIGN, HOT); }, [](void *p) { operator delete[](p, ALIGN); }, 256, true},
      {"aligned nothrow", [](size_t n) { return operator new(n, ALIGN, std::nothrow, COLD); }, [](void *p) { operator delete(p, ALIGN); }, 256, false},
      {"aligned nothrow[]", [](size_t n) { return operator new[](n, ALIGN, std::nothrow, HOT); }, [](void *p) { operator delete[](p, ALIGN); }, 256, false},
      {"sized", [](size_t n) { return __size_returning_new(n).p; }, [](void *p) { operator delete(p); }, 16, true},
      {"sized hot", [](size_t n) { return __size_returning_new_hot_cold(n, HOT).p; }, [](void *p) { operator delete(p); }, 16, true},
      {"sized aligned", [](size_t n) { return __size_returning_new_aligned(n, ALIGN).p; }, [](void *p) { operator delete(p, ALIGN); }, 256, true},
      {"sized aligned cold", [](size_t n) { return __size_returning_new_aligned_hot_cold(n, ALIGN, COLD).p; },
       [](void *p) { operator delete(p, ALIGN); }, 256, true},
  };
  for (auto &form : forms) {
    for (size_t size : {0, 1, 100, 3000, 100000, 1000000}) {
      void *p = form.make(size);
      EXPECT_TRUE(hakmem_is_ours(p)) << form.name;
      EXPECT_TRUE(aligned(p, form.align)) << form.name;
      memset(p, 1, size);
      form.drop(p);
    }
    if (form.throws)
      EXPECT_THROW(form.make(IMPOSSIBLE), std::bad_alloc) << form.name;
    else
      EXPECT_EQ(form.make(IMPOSSIBLE), nullptr) << form.name;
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(SizeReturning, SaysWhatMayBeUsed) {
  for (size_t size : {1, 17, 100, 1000, 5000, 100000, 300000, 40000000}) {
    for (auto &sized : {__size_returning_new(size), __size_returning_new_hot_cold(size, HOT), __size_returning_new_aligned(size, ALIGN),
                        __size_returning_new_aligned_hot_cold(size, ALIGN, COLD)}) {
      EXPECT_GE(sized.n, size);
      EXPECT_EQ(sized.n, malloc_usable_size(sized.p)) << size;
      memset(sized.p, 1, sized.n);
      operator delete(sized.p, sized.n); // as the interface has it: any size from the one that was asked for on
    }
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// A program with an operator new and delete of its own gets its own.
TEST(OwnOperators, AreCalled) {
  ProgramResult r = run_program({OWN_OPERATORS});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "hot 1 array 1 sized 1 of 100 aligned 1 of 100\n");
}

}  // namespace
