/* The interface at length, in C and POSIX alone: for targets where the C++ tests cannot be built (musl) or where one
 * static program is the simplest thing to run (an emulated processor). Plain malloc names; the hakmem_… ones are weak,
 * so that one program serves linked and preloaded, and proves by hakmem_served() that it was served.
 *
 * usage: driver [--seed N] [--steps N] [--threads N] [--page-size N] [part …]
 * Without a part all of them run; the seed is printed. --page-size N: fails unless pages have that size. */
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

struct settings settings = {.seed = 1, .steps = 60000, .threads = 4, .page_size = 0};

#pragma weak hakmem_served
#pragma weak hakmem_is_ours
#pragma weak hakmem_heap_check
#pragma weak hakmem_malloc_trim

/* Keeps the compiler from knowing what a value is. */
static size_t opaque(size_t value) {
  __asm__ volatile("" : "+r"(value));
  return value;
}

static void expect_ours(void *p, const char *what) {
  if (p == NULL || !hakmem_is_ours(p)) fail("%s gave %p, which is not hakmem's", what, p);
  free(p);
}

static void part_served(void) {
  char *text = NULL;
  expect_ours(malloc(100), "malloc");
  expect_ours(calloc(3, 7), "calloc");
  expect_ours(realloc(NULL, 5000), "realloc");
  expect_ours(reallocarray(NULL, 10, 10000), "reallocarray");
  expect_ours(valloc(1), "valloc");
  expect_ours(malloc((size_t)40 << 20), "malloc of 40 MiB");
  expect_ours(strdup("a string"), "strdup");
  if (asprintf(&text, "%d", 42) != 2) fail("asprintf failed");
  expect_ours(text, "asprintf");
  free(NULL);
}

static void part_page(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (settings.page_size != 0 && page != settings.page_size)
    fail("pages have %zu bytes here, not %zu", page, settings.page_size);
  for (size_t size = 1; size < 8 * page; size += page / 2 + 1) {
    unsigned char *p = valloc(size);
    if (p == NULL || (uintptr_t)p % page != 0) fail("valloc(%zu) gave %p with pages of %zu bytes", size, (void *)p, page);
    memset(p, 1, size);
    free(p);
  }
}

static void expect_enomem(void *p, const char *what) {
  if (p != NULL || errno != ENOMEM) fail("%s gave %p with errno %d, not NULL with ENOMEM", what, p, errno);
  errno = 4711;
}

static void part_errors(void) {
  size_t huge = opaque((size_t)PTRDIFF_MAX + 1);
  void *mark = &huge, *out = mark;
  errno = 4711;
  expect_enomem(malloc(huge), "malloc");
  expect_enomem(malloc(opaque(SIZE_MAX)), "malloc of SIZE_MAX");
  expect_enomem(calloc(huge, 2), "calloc with a product that overflows");
  expect_enomem(reallocarray(NULL, huge, 2), "reallocarray with a product that overflows");
  expect_enomem(aligned_alloc(64, huge), "aligned_alloc");
  unsigned char *p = malloc(100);
  p[99] = 7;
  expect_enomem(realloc(p, huge), "realloc");
  if (p[99] != 7) fail("a failed realloc touched the block");
  free(p);
  if (posix_memalign(&out, 64, huge) != ENOMEM || out != mark) fail("posix_memalign of too much: not ENOMEM, or out changed");
  if (posix_memalign(&out, opaque(24), 100) != EINVAL || out != mark) fail("posix_memalign aligned to 24: not EINVAL");
  if (errno != 4711) fail("posix_memalign changed errno to %d", errno);
  p = malloc(0);
  unsigned char *q = malloc(0);
  if (p == NULL || q == NULL || p == q) fail("malloc(0) gave %p and %p", (void *)p, (void *)q);
  free(p);
  free(q);
}

static void part_random(void) {
  struct shadow *s = shadow_new(settings.seed);
  for (size_t i = 0; i < settings.steps; i++) {
    shadow_step(s, (size_t)64 << 20);
    if (i % 4096 == 0) {
      shadow_verify(s);
      check_heap("in the random test");
    }
  }
  shadow_delete(s);
}

/* Every pair of sizes around the borders between owners, there and back. */
static void part_realloc(void) {
  static const size_t sizes[] = {1,     16,    17,     100,    1024,   1025,    4096,    5000,     32767,   32768,
                                 32769, 65536, 65537,  200000, 1 << 20, 5 << 20, 32 << 20, (32 << 20) + 1, 40 << 20};
  const size_t n = sizeof sizes / sizeof sizes[0];
  for (size_t i = 0; i < n * n; i++) {
    size_t from = sizes[i / n], to = sizes[i % n];
    /* Only the bytes that a block of either size has are written. */
    struct block b = {malloc(from), from < to ? from : to, settings.seed + i};
    if (b.p == NULL) fail("malloc(%zu) failed", from);
    block_fill(&b);
    b.p = realloc(b.p, to);
    if (b.p == NULL) fail("realloc from %zu to %zu failed", from, to);
    block_verify(&b);
    b.p = realloc(b.p, from);
    if (b.p == NULL) fail("realloc from %zu back to %zu failed", to, from);
    block_free(b);
  }
}

static void part_aligned(void) {
  for (size_t align = 8; align <= (size_t)64 << 20; align *= 2) {
    struct shadow *s = shadow_new(align);
    for (size_t size = 1; size <= (size_t)2 << 20; size = size * 5 + 3) {
      struct block blocks[3] = {{aligned_alloc(align, size), size, 1}, {memalign(align, size), size, 2}, {NULL, size, 3}};
      void *p = NULL;
      if (posix_memalign(&p, align, size) != 0) fail("posix_memalign(%zu, %zu) failed", align, size);
      blocks[2].p = p;
      for (int i = 0; i < 3; i++) {
        if (blocks[i].p == NULL || (uintptr_t)blocks[i].p % align != 0)
          fail("%zu bytes aligned to %zu came at %p", size, align, (void *)blocks[i].p);
        block_fill(&blocks[i]);
        shadow_put(s, blocks[i]);
      }
    }
    shadow_verify(s);
    shadow_delete(s);
  }
}

/* calloc where dirty memory was freed, and after a trim gave some of it back. */
static void part_zero(void) {
  for (int round = 0; round < 2; round++) {
    for (size_t size = 8; size <= (size_t)48 << 20; size = size * 2 + 5) {
      unsigned char *blocks[8];
      for (int i = 0; i < 8; i++) {
        blocks[i] = malloc(size);
        if (blocks[i] == NULL) fail("malloc(%zu) failed", size);
        memset(blocks[i], 0xff, size);
        if (size > (4 << 20)) break;
      }
      for (int i = 0; i < 8; i++) {
        free(blocks[i]);
        if (size > (4 << 20)) break;
      }
      if (round == 1) hakmem_malloc_trim(0);
      unsigned char *p = calloc(1, size);
      for (size_t i = 0; i < size; i++) {
        if (p[i] != 0) fail("calloc(1, %zu): byte %zu is %d", size, i, p[i]);
      }
      free(p);
    }
  }
}

static const struct {
  const char *name;
  void (*run)(void);
} parts[] = {
    {"served", part_served}, {"page", part_page},       {"errors", part_errors},   {"random", part_random},
    {"realloc", part_realloc}, {"aligned", part_aligned}, {"zero", part_zero},       {"threads", part_threads},
    {"exits", part_exits},   {"fork", part_fork},
};
#define PARTS (sizeof parts / sizeof parts[0])

void check_heap(const char *when) {
  size_t faults = hakmem_heap_check();
  if (faults != 0) fail("%zu faults in the heap %s", faults, when);
}

static void run_part(size_t i) {
  parts[i].run();
  check_heap(parts[i].name);
  printf("driver: %s ok\n", parts[i].name);
  fflush(stdout);
}

static size_t number(const char *option, const char *text, size_t most) {
  char *end = NULL;
  errno = 0;
  unsigned long long value = text == NULL || text[0] < '0' || text[0] > '9' ? 0 : strtoull(text, &end, 10);
  if (end == NULL || *end != '\0' || errno != 0 || value > most) {
    fprintf(stderr, "driver: %s wants a number up to %zu, not \"%s\"\n", option, most, text == NULL ? "" : text);
    exit(2);
  }
  return (size_t)value;
}

/* Returns the index of the first argument that is no option. */
static int parse(int argc, char **argv) {
  int i = 1;
  for (; i < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
    const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (strcmp(option, "--seed") == 0)
      settings.seed = number(option, value, INT_MAX);
    else if (strcmp(option, "--steps") == 0)
      settings.steps = number(option, value, INT_MAX);
    else if (strcmp(option, "--threads") == 0)
      settings.threads = number(option, value, THREADS_MAX);
    else if (strcmp(option, "--page-size") == 0)
      settings.page_size = number(option, value, INT_MAX);
    else
      fprintf(stderr, "driver: %s is not an option (--seed, --steps, --threads, --page-size)\n", option), exit(2);
  }
  if (settings.threads == 0) fprintf(stderr, "driver: --threads wants at least 1, not \"0\"\n"), exit(2);
  return i;
}

static size_t part_named(const char *name) {
  for (size_t i = 0; i < PARTS; i++) {
    if (strcmp(parts[i].name, name) == 0) return i;
  }
  fprintf(stderr, "driver: \"%s\" is not a part (", name);
  for (size_t i = 0; i < PARTS; i++) fprintf(stderr, "%s%s", i == 0 ? "" : ", ", parts[i].name);
  fprintf(stderr, ")\n");
  exit(2);
}

int main(int argc, char **argv) {
  int first = parse(argc, argv);
  for (int i = first; i < argc; i++) part_named(argv[i]);
  if (hakmem_served == NULL || hakmem_is_ours == NULL) fail("hakmem is not in this program: link it or preload it");
  printf("driver: --seed %llu --steps %zu --threads %zu, pages of %ld bytes\n", (unsigned long long)settings.seed,
         settings.steps, settings.threads, sysconf(_SC_PAGESIZE));
  for (size_t i = 0; first == argc && i < PARTS; i++) run_part(i);
  for (int i = first; i < argc; i++) run_part(part_named(argv[i]));
  if (hakmem_served() == 0) fail("hakmem served nothing");
  printf("driver: done, %llu spans and runs served\n", (unsigned long long)hakmem_served());
  return 0;
}
