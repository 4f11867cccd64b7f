#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "os/callers.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include "base/atomic.h"
#include "base/compiler.h"

hak_keeper hak_keepers[HAK_KEEPERS], hak_keepers_around;

extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *) __attribute__((weak)); /* not in each libc */

/* Absent where the program has no C++ runtime at its start, and in libraries that have one of their own inside. */
extern void *__cxa_allocate_exception(size_t) __attribute__((weak));
extern void *__cxa_allocate_dependent_exception(void) __attribute__((weak));
/* libstdc++'s std::string of before C++11, which the standard exceptions keep their texts in: _Rep::_S_create. */
extern void make_shared_string(void) __asm__("_ZNSs4_Rep9_S_createEmmRKSaIcE") __attribute__((weak));

#ifdef __GLIBC__ /* elsewhere the loader is libc itself */
/* A function of the loader's. Not __tls_get_addr: where a static program's other objects call that, which ld resolves
 * without it, ld misses it for this one. */
extern void _dl_mcount(ElfW(Addr), ElfW(Addr)) __attribute__((weak));

static hak_keeper object_of(const void *address) {
  Dl_info info;
  hak_keeper all = {0};
  if (address == NULL || dladdr(address, &info) == 0 || info.dli_fbase == NULL) return all;
  const ElfW(Ehdr) *header = info.dli_fbase;
  const ElfW(Phdr) *segments = (const void *)((const char *)header + header->e_phoff);
  all.start = (uintptr_t)header;
  for (unsigned i = 0; i < header->e_phnum; i++) {
    size_t end = segments[i].p_type == PT_LOAD ? segments[i].p_vaddr + segments[i].p_memsz : 0;
    if (end > all.bytes) all.bytes = end;
  }
  return all;
}

static hak_keeper function_at(const void *address) {
  Dl_info info;
  const ElfW(Sym) *symbol = NULL;
  if (address == NULL || dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL ||
      info.dli_saddr != address)
    return (hak_keeper){0};
  return (hak_keeper){(uintptr_t)address, symbol->st_size};
}

/* Of a program that is linked statically the loader is a part: then nothing is known of it. */
static hak_keeper loader(void) {
  hak_keeper found = object_of((const void *)_dl_mcount);
  return (uintptr_t)&hak_keepers - found.start < found.bytes ? (hak_keeper){0} : found;
}
#else
static hak_keeper function_at(const void *address) {
  (void)address;
  return (hak_keeper){0};
}
static hak_keeper loader(void) { return (hak_keeper){0}; }
#endif

static hak_keeper around(const hak_keeper *all) {
  uintptr_t first = UINTPTR_MAX, end = 0;
  for (int i = 0; i < HAK_KEEPERS; i++) {
    if (all[i].bytes == 0) continue;
    if (all[i].start < first) first = all[i].start;
    if (all[i].start + all[i].bytes > end) end = all[i].start + all[i].bytes;
  }
  return end == 0 ? (hak_keeper){0} : (hak_keeper){first, end - first};
}

static void set(hak_keeper *keeper, hak_keeper to) {
  hak_store_relaxed(&keeper->start, to.start);
  hak_store_relaxed(&keeper->bytes, to.bytes);
}

/* Two threads may write the same. */
void hak_callers_find(void) {
  static bool found;
  if (HAK_LIKELY(hak_load_acquire(&found))) return;
  const hak_keeper all[HAK_KEEPERS] = {loader(),
                                       function_at((const void *)pthread_setspecific),
                                       function_at((const void *)__cxa_thread_atexit_impl),
                                       function_at((const void *)__cxa_allocate_exception),
                                       function_at((const void *)__cxa_allocate_dependent_exception),
                                       function_at((const void *)make_shared_string)};
  for (int i = 0; i < HAK_KEEPERS; i++) set(&hak_keepers[i], all[i]);
  set(&hak_keepers_around, around(all));
  hak_store_release(&found, true);
}
