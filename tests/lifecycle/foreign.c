/* Under preload: pointers that are not the allocator's are ignored, whatever they are. The one argument says which part
 * runs; the CMake tests compare what is printed. Expectations hold for glibc's realloc and malloc_usable_size contract:
 * NULL with EINVAL and the block left alone; 0. */
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <dlfcn.h>

static int faults;

static void expect(int holds, const char *what, const char *pointer) {
  if (holds) return;
  printf("%s: %s\n", pointer, what);
  faults++;
}

/* The compiler knows some of these pointers are wrong. */
static void *hide(const void *p) {
  const void *volatile hidden = p;
  return (void *)(uintptr_t)hidden;
}

static void try_all(const void *p, const char *name) {
  errno = 7777;
  free(hide(p));
  expect(errno == 7777, "free changed errno", name);
  errno = 0;
  expect(realloc(hide(p), 100) == NULL && errno == EINVAL, "realloc did not fail with EINVAL", name);
  errno = 0;
  expect(realloc(hide(p), 0) == NULL && errno == EINVAL, "realloc to 0 did not fail with EINVAL", name);
  expect(malloc_usable_size(hide(p)) == 0, "malloc_usable_size is not 0", name);
}

static char static_bytes[100] = "static";
static const char constant_bytes[100] = "constant";

static void try_every_kind(void) {
  char stack_bytes[100] = "stack";
  try_all(stack_bytes, "stack");
  expect(strcmp(stack_bytes, "stack") == 0, "contents changed", "stack");
  try_all(static_bytes, "static");
  expect(strcmp(static_bytes, "static") == 0, "contents changed", "static");
  try_all(constant_bytes, "constant");
  try_all((const void *)(uintptr_t)&try_every_kind, "function");

  char *mapped = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  strcpy(mapped, "mapped");
  try_all(mapped, "mmap");
  try_all(mapped + 16, "inside mmap");
  expect(strcmp(mapped, "mapped") == 0, "contents changed", "mmap");
  munmap(mapped, 65536);
  try_all(mapped, "unmapped");

  void *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  try_all(closed, "no access");

  char *brk_bytes = sbrk(4096);
  try_all(brk_bytes, "brk");
  try_all(&errno, "thread-local");
  try_all(stdin, "a FILE of libc");

  static const uintptr_t wild[] = {0x1, 0x10, 0xfff, 0x1000, 0xdeadbeef, 0x7fffffffffff, 0x800000000000, 0x8000000000000000,
                                   0xdeadbeefdeadbeef, (uintptr_t)-16, (uintptr_t)-1, (uintptr_t)-4096};
  for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) {
    char name[32];
    snprintf(name, sizeof name, "%#lx", (unsigned long)wild[i]);
    try_all((const void *)wild[i], name);
  }

  /* A block of glibc's own malloc, from a second copy of libc with its own heap. */
  void *other_libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL);
  if (other_libc != NULL) {
    void *(*other_malloc)(size_t) = (void *(*)(size_t))dlsym(other_libc, "malloc");
    void (*other_free)(void *) = (void (*)(void *))dlsym(other_libc, "free");
    char *p = other_malloc(100);
    strcpy(p, "glibc's");
    try_all(p, "glibc's block");
    expect(strcmp(p, "glibc's") == 0, "contents changed", "glibc's block");
    other_free(p); /* still its own: nothing was freed above */
  }

  /* Inside a huge block, whose free or realloc would end in a report; and the block once its mapping has gone. */
  char *huge = malloc((size_t)40 << 20);
  expect(malloc_usable_size(hide(huge + 4096)) == 0, "malloc_usable_size is not 0", "inside a huge block");
  huge[0] = huge[4096] = 1;
  expect(malloc_usable_size(huge) >= (size_t)40 << 20, "huge block lost", "huge");
  const void *freed = hide(huge);
  free(huge);
  expect(malloc_usable_size(hide(freed)) == 0, "malloc_usable_size is not 0", "a freed huge block");
  malloc_trim(0);
  try_all(freed, "an unmapped huge block");
}

int main(int argc, char **argv) {
  size_t (*check)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "hakmem_heap_check");
  if (check == NULL) return 3;
  if (argc > 1 && strcmp(argv[1], "one") == 0) {
    free(hide(static_bytes));
  } else if (argc > 1 && strcmp(argv[1], "count") == 0) {
    int n = atoi(argv[2]);
    for (volatile int i = 0; i < n; i++) free(hide(static_bytes));
  } else if (argc > 1 && strcmp(argv[1], "mixed") == 0) {
    /* Volatile counts: unrolled loops would be several callers. */
    for (volatile int i = 0; i < 3; i++) free(hide(static_bytes));
    for (volatile int i = 0; i < 2; i++) expect(realloc(hide(static_bytes), 5) == NULL, "realloc", "static");
    expect(malloc_usable_size(hide(static_bytes)) == 0, "size", "static");
  } else {
    try_every_kind();
  }
  for (size_t i = 0; i < 1000; i++) free(malloc(i));
  expect(check() == 0, "heap check", "heap");
  return faults == 0 ? 0 : 1;
}
