/* operator new and delete in all their forms ([new.delete]; C++17 alignment, C++14 sizes), those that compilers call
 * beside the language's included (LLVM's TargetLibraryInfo), and tcmalloc's names of them.
 *
 * The shared library must not pull libstdc++ into C programs, so what a failed allocation needs of it is weak there: a
 * program that uses operator new has loaded it. When it came in later by dlopen, its symbols are looked up then. */
#include <dlfcn.h>

#include <cerrno>
#include <cstdint>
#include <new>

extern "C" {
#include "entry/entry.h"
}

#if HAK_WEAK_CXX_RUNTIME
#define HAK_CXX_RUNTIME __attribute__((weak))
/* The try and catch below refer to these; absent in a C program, where no code path reaches them. */
__asm__(".weak __gxx_personality_v0\n.weak __cxa_begin_catch\n.weak __cxa_end_catch\n.weak _ZSt9terminatev");
extern "C" void runtime_begin_catch() __asm__("__cxa_begin_catch") HAK_CXX_RUNTIME;
#else
#define HAK_CXX_RUNTIME
#endif

/* Declared here under names of our own: <new> declares the first without "weak". */
extern "C" std::new_handler runtime_get_new_handler() noexcept __asm__("_ZSt15get_new_handlerv") HAK_CXX_RUNTIME;
extern "C" [[noreturn]] void runtime_throw_bad_alloc() __asm__("_ZSt17__throw_bad_allocv") HAK_CXX_RUNTIME;

namespace {

#if HAK_WEAK_CXX_RUNTIME
/* Of a runtime that came by dlopen; nullptr: there is none. */
template <typename F>
F *runtime_symbol(const char *name) {
  void *lib = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return lib == nullptr ? nullptr : reinterpret_cast<F *>(dlsym(lib, name));
}

std::new_handler current_handler() {
  auto get = runtime_get_new_handler != nullptr ? runtime_get_new_handler
                                                : runtime_symbol<std::new_handler()>("_ZSt15get_new_handlerv");
  return get == nullptr ? nullptr : get();
}

[[noreturn]] void throw_bad_alloc() {
  auto thrower =
      runtime_throw_bad_alloc != nullptr ? runtime_throw_bad_alloc : runtime_symbol<void()>("_ZSt17__throw_bad_allocv");
  if (thrower != nullptr) thrower();
  hak_fatal("operator new failed and no C++ runtime is there to throw std::bad_alloc");
}

/* A runtime that came by dlopen was not there when this library's try and catch were bound to it. Its own nothrow
 * operator catches for us: it calls operator new, which is ours. Returns false when there is no such operator. */
bool nothrow_by_late_runtime(std::size_t size, std::size_t align, hak_family family, void **p) {
  if (runtime_begin_catch != nullptr) return false;
  bool array = family == HAK_FAMILY_NEW_ARRAY;
  if (align == 0) {
    auto plain = runtime_symbol<void *(std::size_t, const std::nothrow_t &)>(array ? "_ZnamRKSt9nothrow_t"
                                                                                   : "_ZnwmRKSt9nothrow_t");
    if (plain != nullptr) *p = plain(size, std::nothrow_t());
    return plain != nullptr;
  }
  auto aligned = runtime_symbol<void *(std::size_t, std::align_val_t, const std::nothrow_t &)>(
      array ? "_ZnamSt11align_val_tRKSt9nothrow_t" : "_ZnwmSt11align_val_tRKSt9nothrow_t");
  if (aligned != nullptr) *p = aligned(size, std::align_val_t(align), std::nothrow_t());
  return aligned != nullptr;
}
#else
std::new_handler current_handler() { return runtime_get_new_handler(); }
[[noreturn]] void throw_bad_alloc() { runtime_throw_bad_alloc(); }
bool nothrow_by_late_runtime(std::size_t, std::size_t, hak_family, void **) { return false; }
#endif

HAK_INLINE void *new_in_heap(std::size_t size, hak_family family, const void *caller) {
  return HAK_HARDENED ? hak_hard_alloc_for(size, family, caller) : hak_malloc_for(size, caller);
}

/* One attempt, plain or aligned. */
HAK_INLINE void *attempt(std::size_t size, std::size_t align, hak_family family) {
  if (align != 0) return hak_aligned_as(align, size, family);
  if (HAK_TOTALS) return hak_malloc_as(size, family);
  void *p = !HAK_HARDENED || HAK_HARD_FAST ? hak_tcache_pop(size) : nullptr;
  if (HAK_LIKELY(p != nullptr)) return HAK_HARDENED ? hak_held_set_any(p) : p;
  return HAK_UNLIKELY(hak_tls.in_heap) ? new_in_heap(size, family, HAK_CALLER())
         : HAK_HARDENED                ? hak_hard_alloc(size, 0, family)
                                       : hak_malloc_slow(size);
}

/* After a failed attempt: the handler until it succeeds, gives up or throws. nullptr: no handler is set. */
HAK_COLD void *retry(std::size_t size, std::size_t align, hak_family family) {
  for (;;) {
    std::new_handler handler = current_handler();
    if (handler == nullptr) return nullptr;
    handler();
    void *p = attempt(size, align, family);
    if (p != nullptr) return p;
  }
}

HAK_COLD void *retry_or_throw(std::size_t size, std::size_t align, hak_family family) {
  void *p = retry(size, align, family);
  if (p == nullptr) throw_bad_alloc();
  return p;
}

HAK_COLD void *retry_nothrow(std::size_t size, std::size_t align, hak_family family) noexcept {
  void *p;
  if (nothrow_by_late_runtime(size, align, family, &p)) return p;
  try {
    return retry(size, align, family);
  } catch (...) {
    return nullptr;
  }
}

std::size_t raw(std::align_val_t align) { return static_cast<std::size_t>(align); }

/* --- forms that a program has replaced --- */

/* A program may replace some forms only; by default the others call those ([new.delete]): an array's the single
 * object's, one with a size or nothrow the one without. The hardened build has to, because it checks that a block is
 * freed by the family it was allocated by. The default build takes its blocks back by any form; the comparison would
 * cost its fast path three instructions. Both of a pair are asked at once, so that new and delete decide alike. */
void *own_new(std::size_t) __attribute__((alias("_Znwm"), malloc, alloc_size(1)));
void own_delete(void *) noexcept __attribute__((alias("_ZdlPv")));
void *own_new_array(std::size_t) __attribute__((alias("_Znam"), malloc, alloc_size(1)));
void own_delete_array(void *) noexcept __attribute__((alias("_ZdaPv")));
void *own_new_aligned(std::size_t, std::align_val_t)
    __attribute__((alias("_ZnwmSt11align_val_t"), malloc, alloc_size(1)));
void own_delete_aligned(void *, std::align_val_t) noexcept __attribute__((alias("_ZdlPvSt11align_val_t")));
void *own_new_array_aligned(std::size_t, std::align_val_t)
    __attribute__((alias("_ZnamSt11align_val_t"), malloc, alloc_size(1)));
void own_delete_array_aligned(void *, std::align_val_t) noexcept __attribute__((alias("_ZdaPvSt11align_val_t")));

using plain_new = void *(std::size_t);
using plain_delete = void(void *) noexcept;
using aligned_new = void *(std::size_t, std::align_val_t);
using aligned_delete = void(void *, std::align_val_t) noexcept;

template <typename New, typename Delete>
HAK_INLINE bool differ(New *bound_new, New *own, Delete *bound_delete, Delete *own_too) {
  return bound_new != own || bound_delete != own_too;
}

HAK_INLINE bool replaced(bool array, bool aligned) {
  if (!HAK_HARDENED) return false;
  if (aligned)
    return array ? differ<aligned_new, aligned_delete>(&::operator new[], own_new_array_aligned, &::operator delete[],
                                                       own_delete_array_aligned)
                 : differ<aligned_new, aligned_delete>(&::operator new, own_new_aligned, &::operator delete,
                                                       own_delete_aligned);
  return array
             ? differ<plain_new, plain_delete>(&::operator new[], own_new_array, &::operator delete[], own_delete_array)
             : differ<plain_new, plain_delete>(&::operator new, own_new, &::operator delete, own_delete);
}

/* The form of the program that one of `family` calls by default, if there is one; `itself`: it is the one without a
 * size or nothrow. align 0: malloc's. */
HAK_INLINE bool passes_new(std::size_t size, std::size_t align, hak_family family, bool itself, void **p) {
  bool array = family == HAK_FAMILY_NEW_ARRAY;
  auto a = static_cast<std::align_val_t>(align);
  if (array && !itself && replaced(true, align != 0))
    *p = align != 0 ? ::operator new[](size, a) : ::operator new[](size);
  else if ((array || !itself) && replaced(false, align != 0))
    *p = align != 0 ? ::operator new(size, a) : ::operator new(size);
  else
    return false;
  return true;
}

HAK_INLINE bool passes_delete(void *p, std::size_t align, hak_family family, bool itself) {
  bool array = family == HAK_FAMILY_NEW_ARRAY;
  auto a = static_cast<std::align_val_t>(align);
  if (array && !itself && replaced(true, align != 0))
    align != 0 ? ::operator delete[](p, a) : ::operator delete[](p);
  else if ((array || !itself) && replaced(false, align != 0))
    align != 0 ? ::operator delete(p, a) : ::operator delete(p);
  else
    return false;
  return true;
}

HAK_INLINE void *new_form(std::size_t size, std::size_t align, hak_family family) {
  void *p;
  if (passes_new(size, align, family, true, &p)) return p;
  p = attempt(size, align, family);
  return HAK_LIKELY(p != nullptr) ? p : retry_or_throw(size, align, family);
}

HAK_COLD void *pass_new_nothrow(std::size_t size, std::size_t align, hak_family family) noexcept {
  try {
    void *p = nullptr;
    passes_new(size, align, family, false, &p);
    return p;
  } catch (...) {
    return nullptr;
  }
}

HAK_INLINE void *new_form_nothrow(std::size_t size, std::size_t align, hak_family family) noexcept {
  bool array = family == HAK_FAMILY_NEW_ARRAY;
  if (replaced(false, align != 0) || (array && replaced(true, align != 0)))
    return pass_new_nothrow(size, align, family);
  void *p = attempt(size, align, family);
  return HAK_LIKELY(p != nullptr) ? p : retry_nothrow(size, align, family);
}

HAK_INLINE void delete_form(void *p, std::size_t size, std::size_t align, hak_family family,
                            bool itself = false) noexcept {
  if (!passes_delete(p, align, family, itself)) hak_free_as(p, size, family);
}

}  // namespace

/* What LLVM makes of calls of operator new where it is told to (-optimize-hot-cold-new): with a hint from a memory
 * profile. Blocks that live long and short ones lie together here, so that a hint has no use. Through the loader: the
 * program may have an operator new of its own. */
enum class __hot_cold_t : std::uint8_t {};

/* All forms of one family. BRACKETS: [] or nothing. */
#define OPERATORS(BRACKETS, FAMILY) \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n) { return new_form(n, 0, FAMILY); } \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n, std::align_val_t a) { return new_form(n, raw(a), FAMILY); } \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n, const std::nothrow_t &) noexcept { \
    return new_form_nothrow(n, 0, FAMILY); \
  } \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept { \
    return new_form_nothrow(n, raw(a), FAMILY); \
  } \
  HAK_EXPORT void operator delete BRACKETS(void *p) noexcept { delete_form(p, HAK_SIZE_UNKNOWN, 0, FAMILY, true); } \
  HAK_EXPORT void operator delete BRACKETS(void *p, std::size_t n) noexcept { delete_form(p, n, 0, FAMILY); } \
  HAK_EXPORT void operator delete BRACKETS(void *p, const std::nothrow_t &) noexcept { \
    delete_form(p, HAK_SIZE_UNKNOWN, 0, FAMILY); \
  } \
  HAK_EXPORT void operator delete BRACKETS(void *p, std::align_val_t a) noexcept { \
    delete_form(p, HAK_SIZE_UNKNOWN, raw(a), FAMILY, true); \
  } \
  HAK_EXPORT void operator delete BRACKETS(void *p, std::size_t n, std::align_val_t a) noexcept { \
    delete_form(p, n, raw(a), FAMILY); \
  } \
  HAK_EXPORT void operator delete BRACKETS(void *p, std::align_val_t a, const std::nothrow_t &) noexcept { \
    delete_form(p, HAK_SIZE_UNKNOWN, raw(a), FAMILY); \
  } \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n, __hot_cold_t) { return ::operator new BRACKETS(n); } \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n, std::align_val_t a, __hot_cold_t) { \
    return ::operator new BRACKETS(n, a); \
  } \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n, const std::nothrow_t & t, __hot_cold_t) noexcept { \
    return ::operator new BRACKETS(n, t); \
  } \
  HAK_EXPORT void *operator new BRACKETS(std::size_t n, std::align_val_t a, const std::nothrow_t & t, \
                                         __hot_cold_t) noexcept { \
    return ::operator new BRACKETS(n, a, t); \
  }

OPERATORS(, HAK_FAMILY_NEW)
OPERATORS([], HAK_FAMILY_NEW_ARRAY)

extern "C" {

/* new that says how many bytes may be used, for containers (P0901). What an operator new of the program's own gives has
 * the size that was asked for. */
struct __sized_ptr_t {
  void *p;
  std::size_t n;
};
static __sized_ptr_t sized(void *p, std::size_t asked) {
  return {p, hakmem_is_ours(p) ? hak_usable_size(p, HAK_CALLER()) : asked};
}
HAK_EXPORT __sized_ptr_t __size_returning_new(std::size_t n) { return sized(::operator new(n), n); }
HAK_EXPORT __sized_ptr_t __size_returning_new_aligned(std::size_t n, std::align_val_t a) {
  return sized(::operator new(n, a), n);
}
/* The hint is one argument more, at which nobody looks: so these are declared without it. */
#define ALIAS(own) __attribute__((weak, alias(#own), visibility("default")))
__sized_ptr_t size_returning_new_hot_cold(std::size_t) __asm__("__size_returning_new_hot_cold")
    ALIAS(__size_returning_new);
__sized_ptr_t size_returning_new_aligned_hot_cold(std::size_t,
                                                  std::align_val_t) __asm__("__size_returning_new_aligned_hot_cold")
    ALIAS(__size_returning_new_aligned);

/* --- tcmalloc's names (gperftools/tcmalloc.h), weak as those of override_libc.c --- */

#define NEW_ALIAS(own) ALIAS(own) __attribute__((malloc, alloc_size(1)))
void *tc_new(std::size_t) NEW_ALIAS(_Znwm);
void *tc_new_nothrow(std::size_t, const std::nothrow_t &) noexcept NEW_ALIAS(_ZnwmRKSt9nothrow_t);
void *tc_newarray(std::size_t) NEW_ALIAS(_Znam);
void *tc_newarray_nothrow(std::size_t, const std::nothrow_t &) noexcept NEW_ALIAS(_ZnamRKSt9nothrow_t);
void *tc_new_aligned(std::size_t, std::align_val_t) NEW_ALIAS(_ZnwmSt11align_val_t);
void *tc_new_aligned_nothrow(std::size_t, std::align_val_t, const std::nothrow_t &) noexcept
    NEW_ALIAS(_ZnwmSt11align_val_tRKSt9nothrow_t);
void *tc_newarray_aligned(std::size_t, std::align_val_t) NEW_ALIAS(_ZnamSt11align_val_t);
void *tc_newarray_aligned_nothrow(std::size_t, std::align_val_t, const std::nothrow_t &) noexcept
    NEW_ALIAS(_ZnamSt11align_val_tRKSt9nothrow_t);
void tc_delete(void *) noexcept ALIAS(_ZdlPv);
void tc_delete_sized(void *, std::size_t) noexcept ALIAS(_ZdlPvm);
void tc_delete_nothrow(void *, const std::nothrow_t &) noexcept ALIAS(_ZdlPvRKSt9nothrow_t);
void tc_deletearray(void *) noexcept ALIAS(_ZdaPv);
void tc_deletearray_sized(void *, std::size_t) noexcept ALIAS(_ZdaPvm);
void tc_deletearray_nothrow(void *, const std::nothrow_t &) noexcept ALIAS(_ZdaPvRKSt9nothrow_t);
void tc_delete_aligned(void *, std::align_val_t) noexcept ALIAS(_ZdlPvSt11align_val_t);
void tc_delete_sized_aligned(void *, std::size_t, std::align_val_t) noexcept ALIAS(_ZdlPvmSt11align_val_t);
void tc_delete_aligned_nothrow(void *, std::align_val_t, const std::nothrow_t &) noexcept
    ALIAS(_ZdlPvSt11align_val_tRKSt9nothrow_t);
void tc_deletearray_aligned(void *, std::align_val_t) noexcept ALIAS(_ZdaPvSt11align_val_t);
void tc_deletearray_sized_aligned(void *, std::size_t, std::align_val_t) noexcept ALIAS(_ZdaPvmSt11align_val_t);
void tc_deletearray_aligned_nothrow(void *, std::align_val_t, const std::nothrow_t &) noexcept
    ALIAS(_ZdaPvSt11align_val_tRKSt9nothrow_t);
}
