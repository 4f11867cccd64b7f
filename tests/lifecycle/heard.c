/* What registers memory with a device (MPI and RDMA libraries) writes into the code of libc's munmap, mremap, madvise and mmap to
 * hear when pages of a buffer go. Here each of these notes its range, and allocates. Every page of a block that goes, however
 * it goes, is to be announced before. Word purged: blocks freed and trimmed; moved: realloc; pieces: free pages of slabs. 77: libc's code cannot
 * be written to. */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "os/call.h"

enum { PAGE = 4096, RANGES_MAX = 1 << 16 };
static struct {
  uintptr_t at;
  size_t bytes;
} ranges[RANGES_MAX];
static unsigned range_count;
static volatile int inside; /* malloc is declared as one that does not call back */

static void note(void *at, size_t bytes) {
  if (range_count < RANGES_MAX) {
    ranges[range_count].at = (uintptr_t)at;
    ranges[range_count++].bytes = bytes;
  }
  if (inside) return;
  inside = 1;
  for (size_t size = 16; size < 3000000; size *= 3) free(malloc(size)); /* what the cache forgets */
  inside = 0;
}

static long answer(long result) {
  if (hak_os_call_failed(result)) errno = (int)-result;
  return hak_os_call_failed(result) ? -1 : result;
}

static int heard_munmap(void *at, size_t n) {
  note(at, n);
  return (int)answer(hak_os_call(SYS_munmap, at, n));
}

static int heard_madvise(void *at, size_t n, int advice) {
  if (advice == MADV_DONTNEED || advice == MADV_FREE) note(at, n);
  return (int)answer(hak_os_call(SYS_madvise, at, n, advice));
}

static void *heard_mremap(void *at, size_t before, size_t n, int flags, void *to) {
  note(at, before);
  return (void *)answer(hak_os_call(SYS_mremap, at, before, n, flags, to));
}

static void *heard_mmap(void *at, size_t n, int access, int flags, int fd, off_t from) {
  if ((flags & MAP_FIXED) != 0) note(at, n);
  return (void *)answer(hak_os_call(SYS_mmap, at, n, access, flags, fd, from));
}

static void patch(const char *name, uintptr_t to) {
#ifdef __x86_64__
  unsigned char code[13] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3}; /* mov $to, %r11; jmp *%r11 */
  memcpy(code + 2, &to, sizeof to);
  void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  unsigned char *function = libc == NULL ? NULL : dlsym(libc, name);
  uintptr_t page = (uintptr_t)function & ~(uintptr_t)(PAGE - 1);
  if (function == NULL || sysconf(_SC_PAGESIZE) != PAGE || mprotect((void *)page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
    exit(77);
  memcpy(function, code, sizeof code);
  if (mprotect((void *)page, 2 * PAGE, PROT_READ | PROT_EXEC) != 0) exit(77);
#else
  (void)name, (void)to;
  exit(77);
#endif
}

static int is_resident(uintptr_t at) {
  unsigned char in = 0;
  return hak_os_call(SYS_mincore, at, PAGE, &in) == 0 && (in & 1) != 0;
}

static int is_heard(uintptr_t at, unsigned from) {
  for (unsigned i = range_count; i-- > from;)
    if (at - ranges[i].at < ranges[i].bytes) return 1;
  return 0;
}

static size_t gone, unheard;

static void look(uintptr_t block, size_t size, unsigned from) {
  for (uintptr_t at = (block + PAGE - 1) & ~(uintptr_t)(PAGE - 1); at + PAGE <= block + size; at += PAGE) {
    if (is_resident(at)) continue;
    gone++;
    unheard += !is_heard(at, from);
  }
}

static uintptr_t filled(size_t size) {
  char *volatile p = malloc(size);
  if (p == NULL) exit(10);
  memset(p, 1, size);
  return (uintptr_t)p;
}

enum { BLOCKS_MAX = 8192 };
static uintptr_t blocks[BLOCKS_MAX];

/* All but each `stays`-th goes; 0: all. */
static void free_and_trim(size_t size, unsigned count, unsigned stays) {
  unsigned from = range_count;
  for (unsigned i = 0; i < count; i++) blocks[i] = filled(size);
  for (unsigned i = 0; i < count; i++)
    if (stays == 0 || i % stays != 0) free((void *)blocks[i]);
  malloc_trim(0);
  for (unsigned i = 0; i < count; i++) look(blocks[i], size, from);
  for (unsigned i = 0; i < count; i += stays == 0 ? count : stays)
    if (stays != 0) free((void *)blocks[i]);
}

static void resize(size_t before, size_t after) {
  unsigned from = range_count;
  uintptr_t p = filled(before);
  void *end = (void *)((p + before + 2 * PAGE - 1) & ~(uintptr_t)(PAGE - 1));
  hak_os_call(SYS_mmap, end, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* where there is room: so that it moves */
  char *volatile q = realloc((void *)p, after);
  if (q == NULL) exit(11);
  look(p, before, from);
  free(q);
}

int main(int argc, char **argv) {
  alarm(50);
  free(malloc(5000));
  patch("munmap", (uintptr_t)heard_munmap);
  patch("madvise", (uintptr_t)heard_madvise);
  patch("mremap", (uintptr_t)heard_mremap);
  patch("mmap", (uintptr_t)heard_mmap);
  const char *word = argc > 1 ? argv[1] : "";
  if (strcmp(word, "purged") == 0) {
    free_and_trim(90000, 300, 0);
    free_and_trim(700000, 60, 0);
    free_and_trim(24 << 20, 2, 0);
    free_and_trim(70 << 20, 1, 0);
  } else if (strcmp(word, "moved") == 0) {
    resize(36 << 20, 90 << 20);
    resize(90 << 20, 50 << 20);
    resize(35 << 20, 400000);
    resize(500000, 40 << 20);
  } else {
    free_and_trim(1500, 8000, 50);
    free_and_trim(9000, 2000, 9);
  }
  printf("%zu pages gone, %zu not announced, %u ranges\n", gone, unheard, range_count);
  return unheard != 0 || gone < 1000;
}
