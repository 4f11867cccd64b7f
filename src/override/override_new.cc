/* operator new and delete in all their forms ([new.delete]; C++17 alignment, C++14 sizes).
 *
 * The shared library must not pull libstdc++ into C programs, so what a failed allocation needs of it is weak there: a
 * program that uses operator new has loaded it. When it came in later by dlopen, its symbols are looked up then. */
#include <dlfcn.h>

#include <cerrno>
#include <new>

extern "C" {
#include "api/api.h"
#include "misuse/misuse.h"
}

#if HAK_WEAK_CXX_RUNTIME
#define HAK_CXX_RUNTIME __attribute__((weak))
/* The try and catch below refer to these; absent in a C program, where no code path reaches them. */
__asm__(".weak __gxx_personality_v0\n.weak __cxa_begin_catch\n.weak __cxa_end_catch\n.weak _ZSt9terminatev");
#else
#define HAK_CXX_RUNTIME
#endif

/* Declared here under names of our own: <new> declares the first without "weak". */
extern "C" std::new_handler runtime_get_new_handler() noexcept __asm__("_ZSt15get_new_handlerv") HAK_CXX_RUNTIME;
extern "C" [[noreturn]] void runtime_throw_bad_alloc() __asm__("_ZSt17__throw_bad_allocv") HAK_CXX_RUNTIME;

#if HAK_WEAK_CXX_RUNTIME
extern "C" void runtime_begin_catch() __asm__("__cxa_begin_catch") HAK_CXX_RUNTIME;
#endif

namespace {

#if HAK_WEAK_CXX_RUNTIME
void *runtime_symbol(const char *name) {
  void *lib = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return lib == nullptr ? nullptr : dlsym(lib, name);
}

std::new_handler current_handler() {
  if (runtime_get_new_handler != nullptr) return runtime_get_new_handler();
  auto get = reinterpret_cast<std::new_handler (*)()>(runtime_symbol("_ZSt15get_new_handlerv"));
  return get == nullptr ? nullptr : get();
}

[[noreturn]] void throw_bad_alloc() {
  if (runtime_throw_bad_alloc != nullptr) runtime_throw_bad_alloc();
  auto thrower = reinterpret_cast<void (*)()>(runtime_symbol("_ZSt17__throw_bad_allocv"));
  if (thrower != nullptr) thrower();
  hak_fatal("operator new failed and no C++ runtime is there to throw std::bad_alloc");
}
#else
std::new_handler current_handler() { return runtime_get_new_handler(); }
[[noreturn]] void throw_bad_alloc() { runtime_throw_bad_alloc(); }
#endif

#if HAK_WEAK_CXX_RUNTIME
/* A runtime that came by dlopen was not there when this library's try and catch were bound to it. Its own nothrow
 * operator catches for us: it calls operator new, which is ours. Returns false when there is no such operator. */
bool nothrow_by_late_runtime(std::size_t size, std::size_t align, hak_family family, void **p) {
  if (runtime_begin_catch != nullptr) return false;
  bool array = family == HAK_FAMILY_NEW_ARRAY;
  if (align == 0) {
    auto plain = reinterpret_cast<void *(*)(std::size_t, const std::nothrow_t &)>(
        runtime_symbol(array ? "_ZnamRKSt9nothrow_t" : "_ZnwmRKSt9nothrow_t"));
    if (plain == nullptr) return false;
    *p = plain(size, std::nothrow_t());
    return true;
  }
  auto aligned = reinterpret_cast<void *(*)(std::size_t, std::align_val_t, const std::nothrow_t &)>(
      runtime_symbol(array ? "_ZnamSt11align_val_tRKSt9nothrow_t" : "_ZnwmSt11align_val_tRKSt9nothrow_t"));
  if (aligned == nullptr) return false;
  *p = aligned(size, std::align_val_t(align), std::nothrow_t());
  return true;
}
#else
bool nothrow_by_late_runtime(std::size_t, std::size_t, hak_family, void **) { return false; }
#endif

/* One attempt, plain or aligned. */
HAK_INLINE void *attempt(std::size_t size, std::size_t align, hak_family family) {
  return align == 0 ? hak_malloc_as(size, family) : hak_aligned_as(align, size, family);
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

HAK_INLINE void *new_or_throw(std::size_t size, std::size_t align, hak_family family) {
  void *p = attempt(size, align, family);
  return HAK_LIKELY(p != nullptr) ? p : retry_or_throw(size, align, family);
}

HAK_INLINE void *new_nothrow(std::size_t size, std::size_t align, hak_family family) noexcept {
  void *p = attempt(size, align, family);
  return HAK_LIKELY(p != nullptr) ? p : retry_nothrow(size, align, family);
}

std::size_t raw(std::align_val_t align) { return static_cast<std::size_t>(align); }

}  // namespace

HAK_EXPORT void *operator new(std::size_t n) { return new_or_throw(n, 0, HAK_FAMILY_NEW); }
HAK_EXPORT void *operator new[](std::size_t n) { return new_or_throw(n, 0, HAK_FAMILY_NEW_ARRAY); }
HAK_EXPORT void *operator new(std::size_t n, const std::nothrow_t &) noexcept { return new_nothrow(n, 0, HAK_FAMILY_NEW); }
HAK_EXPORT void *operator new[](std::size_t n, const std::nothrow_t &) noexcept { return new_nothrow(n, 0, HAK_FAMILY_NEW_ARRAY); }
HAK_EXPORT void *operator new(std::size_t n, std::align_val_t a) { return new_or_throw(n, raw(a), HAK_FAMILY_NEW); }
HAK_EXPORT void *operator new[](std::size_t n, std::align_val_t a) { return new_or_throw(n, raw(a), HAK_FAMILY_NEW_ARRAY); }
HAK_EXPORT void *operator new(std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
  return new_nothrow(n, raw(a), HAK_FAMILY_NEW);
}
HAK_EXPORT void *operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
  return new_nothrow(n, raw(a), HAK_FAMILY_NEW_ARRAY);
}

HAK_EXPORT void operator delete(void *p) noexcept { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW); }
HAK_EXPORT void operator delete[](void *p) noexcept { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW_ARRAY); }
HAK_EXPORT void operator delete(void *p, const std::nothrow_t &) noexcept { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW); }
HAK_EXPORT void operator delete[](void *p, const std::nothrow_t &) noexcept { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW_ARRAY); }
HAK_EXPORT void operator delete(void *p, std::size_t n) noexcept { hak_free_as(p, n, HAK_FAMILY_NEW); }
HAK_EXPORT void operator delete[](void *p, std::size_t n) noexcept { hak_free_as(p, n, HAK_FAMILY_NEW_ARRAY); }
HAK_EXPORT void operator delete(void *p, std::align_val_t) noexcept { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW); }
HAK_EXPORT void operator delete[](void *p, std::align_val_t) noexcept { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW_ARRAY); }
HAK_EXPORT void operator delete(void *p, std::align_val_t, const std::nothrow_t &) noexcept { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW); }
HAK_EXPORT void operator delete[](void *p, std::align_val_t, const std::nothrow_t &) noexcept {
  hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW_ARRAY);
}
HAK_EXPORT void operator delete(void *p, std::size_t n, std::align_val_t) noexcept { hak_free_as(p, n, HAK_FAMILY_NEW); }
HAK_EXPORT void operator delete[](void *p, std::size_t n, std::align_val_t) noexcept { hak_free_as(p, n, HAK_FAMILY_NEW_ARRAY); }
