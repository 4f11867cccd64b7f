/* The coarse clocks, monotonic and since 1970, without libc's symbols, without the processor's time counter, and
 * without a system call where the kernel gives the process a vDSO. So slow paths may ask for the time in a process that
 * may read no time counter (PR_SET_TSC) or make no system call (SECCOMP_MODE_STRICT). They advance with the kernel's
 * tick, every 1 to 10 ms.
 *
 * Finds clock_gettime among the symbols of the vDSO, the library that the kernel maps into each process. */
#include <elf.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>

#include "base/atomic.h"
#include "os/call.h"
#include "os/gnu_hash.h"
#include "os/os.h"

typedef int clock_function(clockid_t clock, struct timespec *out);

#if defined(__aarch64__)
#define CLOCK_NAME "__kernel_clock_gettime"
#else
#define CLOCK_NAME "__vdso_clock_gettime"
#endif

typedef struct symbols {
  const Elf64_Sym *table;
  const char *names;
  size_t count;
} symbols;

static symbols read_dynamic(const Elf64_Dyn *entry, uintptr_t bias) {
  symbols found = {NULL, NULL, 0};
  for (; entry->d_tag != DT_NULL; entry++) {
    const void *target = (const void *)(bias + entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) found.table = target;
    if (entry->d_tag == DT_STRTAB) found.names = target;
    if (entry->d_tag == DT_HASH) found.count = ((const uint32_t *)target)[1];
    if (entry->d_tag == DT_GNU_HASH && found.count == 0) found.count = hak_os_gnu_hash_symbols(target);
  }
  return found;
}

static clock_function *find_clock(uintptr_t image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Phdr *part = (const Elf64_Phdr *)(image + header->e_phoff);
  const Elf64_Dyn *dynamic = NULL;
  uintptr_t bias = 0;
  for (unsigned i = 0; i < header->e_phnum; i++) {
    if (part[i].p_type == PT_LOAD && bias == 0) bias = image + part[i].p_offset - part[i].p_vaddr;
    if (part[i].p_type == PT_DYNAMIC) dynamic = (const Elf64_Dyn *)(image + part[i].p_offset);
  }
  if (dynamic == NULL) return NULL;
  symbols all = read_dynamic(dynamic, bias);
  for (size_t i = 0; all.table != NULL && all.names != NULL && i < all.count; i++) {
    const Elf64_Sym *symbol = &all.table[i];
    if (symbol->st_shndx != SHN_UNDEF && strcmp(all.names + symbol->st_name, CLOCK_NAME) == 0)
      return (clock_function *)(bias + symbol->st_value);
  }
  return NULL;
}

static int call_kernel(clockid_t clock, struct timespec *out) {
  return (int)hak_os_call(SYS_clock_gettime, clock, out);
}

/* Several threads may look for the function at once: all find the same one. */
static clock_function *clock_now(void) {
  static clock_function *known; /* relaxed */
  clock_function *function = hak_load_relaxed(&known);
  if (HAK_LIKELY(function != NULL)) return function;
  uintptr_t image = (uintptr_t)getauxval(AT_SYSINFO_EHDR);
  function = image == 0 ? NULL : find_clock(image);
  if (function == NULL) function = call_kernel;
  hak_store_relaxed(&known, function);
  return function;
}

static uint64_t read_ns(clockid_t clock) {
  struct timespec t = {0, 0};
  clock_now()(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t hak_os_clock_ns(void) { return read_ns(CLOCK_MONOTONIC_COARSE); }

uint64_t hak_os_unix_ms(void) { return read_ns(CLOCK_REALTIME_COARSE) / 1000000; }
