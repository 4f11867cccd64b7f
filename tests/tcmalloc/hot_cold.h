// What LLVM calls instead of operator new (TargetLibraryInfo).
#ifndef HAKMEM_TESTS_TCMALLOC_HOT_COLD_H
#define HAKMEM_TESTS_TCMALLOC_HOT_COLD_H

#include <cstddef>
#include <cstdint>
#include <new>

enum class __hot_cold_t : uint8_t {};
void *operator new(size_t, __hot_cold_t);
void *operator new[](size_t, __hot_cold_t);
void *operator new(size_t, const std::nothrow_t &, __hot_cold_t) noexcept;
void *operator new[](size_t, const std::nothrow_t &, __hot_cold_t) noexcept;
void *operator new(size_t, std::align_val_t, __hot_cold_t);
void *operator new[](size_t, std::align_val_t, __hot_cold_t);
void *operator new(size_t, std::align_val_t, const std::nothrow_t &, __hot_cold_t) noexcept;
void *operator new[](size_t, std::align_val_t, const std::nothrow_t &, __hot_cold_t) noexcept;

extern "C" {
struct __sized_ptr_t {
  void *p;
  size_t n;
};
__sized_ptr_t __size_returning_new(size_t);
__sized_ptr_t __size_returning_new_aligned(size_t, std::align_val_t);
__sized_ptr_t __size_returning_new_hot_cold(size_t, __hot_cold_t);
__sized_ptr_t __size_returning_new_aligned_hot_cold(size_t, std::align_val_t, __hot_cold_t);
}

#endif
