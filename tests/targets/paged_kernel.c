/* A kernel with larger pages than this one's, for a test program: linked into it with --wrap, it stands between the
 * program (allocator and test) and the C library's memory calls and answers as a kernel with pages of
 * PAGED_KERNEL_PAGE_SIZE bytes does. Addresses that are not on such a page are refused with EINVAL, lengths are rounded
 * up to whole pages (so advice or protection reaches as far as it would there), and new mappings begin on a page.
 * Without the variable pages are 4 KiB and every call passes through.
 *
 * A call that is right only on 4 KiB pages (an address or a length that is a multiple of 4 KiB but not of the page) is
 * reported on stderr, and the program ends with status 1: the kernel's EINVAL alone may go unnoticed, for instance where
 * the allocator merely keeps pages that it could have given back.
 *
 * What it does not show: that touching a byte makes a whole large page resident, and what the C library does itself. */
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL_PAGE ((size_t)4096)

unsigned long __real_getauxval(unsigned long type);
long __real_sysconf(int name);
void *__real_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *addr, size_t length);
int __real_mprotect(void *addr, size_t length, int prot);
int __real_madvise(void *addr, size_t length, int advice);
void *__real_mremap(void *old, size_t old_length, size_t new_length, int flags, ...);
int __real_mincore(void *addr, size_t length, unsigned char *vector);
/* The allocator's own calls, which go through no symbol of the C library (os/call.h). */
long __real_hak_os_call6(long number, long a, long b, long c, long d, long e, long f);

unsigned long __wrap_getauxval(unsigned long type);
long __wrap_sysconf(int name);
int __wrap_getpagesize(void);
void *__wrap_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *addr, size_t length);
int __wrap_mprotect(void *addr, size_t length, int prot);
int __wrap_madvise(void *addr, size_t length, int advice);
void *__wrap_mremap(void *old, size_t old_length, size_t new_length, int flags, ...);
int __wrap_mincore(void *addr, size_t length, unsigned char *vector);
long __wrap_hak_os_call6(long number, long a, long b, long c, long d, long e, long f);

static atomic_size_t page_size; /* 0: not read yet */
static atomic_uint violations;

static size_t read_page_size(void) {
  const char *text = getenv("PAGED_KERNEL_PAGE_SIZE");
  if (text == NULL) return REAL_PAGE;
  char *end;
  unsigned long size = strtoul(text, &end, 10);
  if (*end == '\0' && size >= REAL_PAGE && size <= 65536 && (size & (size - 1)) == 0) return size;
  dprintf(STDERR_FILENO, "paged_kernel: PAGED_KERNEL_PAGE_SIZE=%s is not a power of two from 4096 to 65536\n", text);
  _exit(2);
}

static size_t page(void) {
  size_t size = atomic_load(&page_size);
  if (size != 0) return size;
  size = read_page_size();
  atomic_store(&page_size, size);
  return size;
}

static size_t rounded(size_t length) { return (length + page() - 1) & ~(page() - 1); }

static void violate(const char *call, uintptr_t addr, size_t length, const char *what) {
  int saved = errno;
  if (atomic_fetch_add(&violations, 1) < 16)
    dprintf(STDERR_FILENO, "paged_kernel: %s(%#zx, %zu): %s, with pages of %zu bytes\n", call, (size_t)addr, length, what,
            page());
  errno = saved;
}

/* False, with EINVAL, for an address inside a page. One that no kernel would accept is a test's deliberate mistake. */
static int on_page(const char *call, const void *addr, size_t length) {
  uintptr_t at = (uintptr_t)addr;
  if (at % page() == 0) return 1;
  if (at % REAL_PAGE == 0) violate(call, at, length, "the address is inside a page");
  errno = EINVAL;
  return 0;
}

static void whole_pages(const char *call, const void *addr, size_t length) {
  if (length % REAL_PAGE == 0 && length % page() != 0) violate(call, (uintptr_t)addr, length, "the length is not in whole pages");
}

__attribute__((destructor)) static void report(void) {
  if (atomic_load(&violations) == 0) return;
  dprintf(STDERR_FILENO, "paged_kernel: %u calls fit 4 KiB pages only\n", atomic_load(&violations));
  _exit(1);
}

unsigned long __wrap_getauxval(unsigned long type) {
  return type == AT_PAGESZ ? (unsigned long)page() : __real_getauxval(type);
}

long __wrap_sysconf(int name) { return name == _SC_PAGESIZE ? (long)page() : __real_sysconf(name); }

int __wrap_getpagesize(void) { return (int)page(); }

/* Address space that begins on a page: as the kernel gives it if it does, which also keeps its preference for huge-page
 * boundaries; else mapped with slack, whose ends are given back. */
static char *map_on_page(size_t length, int prot, int flags) {
  size_t slack = page() - REAL_PAGE;
  char *raw = __real_mmap(NULL, length, prot, flags, -1, 0);
  if (raw == MAP_FAILED) return NULL;
  if ((uintptr_t)raw % page() == 0) return raw;
  __real_munmap(raw, length);
  raw = __real_mmap(NULL, length + slack, prot, flags, -1, 0);
  if (raw == MAP_FAILED) return NULL;
  char *start = (char *)(((uintptr_t)raw + slack) & ~(uintptr_t)(page() - 1));
  if (start != raw) __real_munmap(raw, (size_t)(start - raw));
  if (raw + slack != start) __real_munmap(start + length, (size_t)(raw + slack - start));
  return start;
}

void *__wrap_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset) {
  if (page() == REAL_PAGE || length == 0 || length > SIZE_MAX - page())
    return __real_mmap(addr, length, prot, flags, fd, offset);
  if ((size_t)offset % page() != 0) return errno = EINVAL, MAP_FAILED;
  length = rounded(length);
  if (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) {
    if (!on_page("mmap", addr, length)) return MAP_FAILED;
    return __real_mmap(addr, length, prot, flags, fd, offset);
  }
  if (addr != NULL && (flags & MAP_ANONYMOUS)) { /* a hint */
    char *p = __real_mmap(addr, length, prot, flags, -1, 0);
    if (p == MAP_FAILED || (uintptr_t)p % page() == 0) return p;
    __real_munmap(p, length);
  }
  if (flags & MAP_ANONYMOUS) {
    char *p = map_on_page(length, prot, flags);
    return p == NULL ? MAP_FAILED : p;
  }
  char *room = map_on_page(length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (room == NULL) return MAP_FAILED;
  void *p = __real_mmap(room, length, prot, flags | MAP_FIXED, fd, offset);
  if (p == MAP_FAILED) {
    int saved = errno;
    __real_munmap(room, length);
    errno = saved;
  }
  return p;
}

int __wrap_munmap(void *addr, size_t length) {
  return on_page("munmap", addr, length) ? __real_munmap(addr, rounded(length)) : -1;
}

int __wrap_mprotect(void *addr, size_t length, int prot) {
  if (!on_page("mprotect", addr, length)) return -1;
  whole_pages("mprotect", addr, length);
  return __real_mprotect(addr, rounded(length), prot);
}

int __wrap_madvise(void *addr, size_t length, int advice) {
  if (!on_page("madvise", addr, length)) return -1;
  whole_pages("madvise", addr, length);
  return __real_madvise(addr, rounded(length), advice);
}

void *__wrap_mremap(void *old, size_t old_length, size_t new_length, int flags, ...) {
  if (!on_page("mremap", old, new_length)) return MAP_FAILED;
  whole_pages("mremap", old, old_length);
  old_length = rounded(old_length);
  new_length = rounded(new_length);
  if (flags != MREMAP_MAYMOVE || page() == REAL_PAGE) {
    va_list args;
    va_start(args, flags);
    void *target = flags & MREMAP_FIXED ? va_arg(args, void *) : NULL;
    va_end(args);
    return __real_mremap(old, old_length, new_length, flags, target);
  }
  void *p = __real_mremap(old, old_length, new_length, 0);
  if (p != MAP_FAILED) return p;
  char *room = map_on_page(new_length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (room == NULL) return MAP_FAILED;
  p = __real_mremap(old, old_length, new_length, MREMAP_MAYMOVE | MREMAP_FIXED, room);
  if (p == MAP_FAILED) {
    int saved = errno;
    __real_munmap(room, new_length);
    errno = saved;
  }
  return p;
}

/* A large page is resident when any part of it is. */
int __wrap_mincore(void *addr, size_t length, unsigned char *vector) {
  if (!on_page("mincore", addr, length)) return -1;
  unsigned char parts[65536 / 4096];
  for (size_t done = 0; done < rounded(length); done += page()) {
    if (__real_mincore((char *)addr + done, page(), parts) != 0) return -1;
    unsigned char any = 0;
    for (size_t i = 0; i < page() / REAL_PAGE; i++) any |= parts[i];
    vector[done / page()] = any;
  }
  return 0;
}

static long or_error(long result) { return result == -1 ? -errno : result; }

/* errno stays what it was, as with the call itself. */
long __wrap_hak_os_call6(long number, long a, long b, long c, long d, long e, long f) {
  int saved = errno;
  long result;
  switch (number) {
    case SYS_mmap:
      result = or_error((long)__wrap_mmap((void *)a, (size_t)b, (int)c, (int)d, (int)e, (off_t)f));
      break;
    case SYS_munmap:
      result = or_error(__wrap_munmap((void *)a, (size_t)b));
      break;
    case SYS_mprotect:
      result = or_error(__wrap_mprotect((void *)a, (size_t)b, (int)c));
      break;
    case SYS_madvise:
      result = or_error(__wrap_madvise((void *)a, (size_t)b, (int)c));
      break;
    case SYS_mremap:
      result = or_error((long)__wrap_mremap((void *)a, (size_t)b, (size_t)c, (int)d, (void *)e));
      break;
    default:
      result = __real_hak_os_call6(number, a, b, c, d, e, f);
  }
  errno = saved;
  return result;
}
