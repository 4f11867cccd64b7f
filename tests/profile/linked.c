/* The library is linked into the program: its frames are in the stacks of what the program writes, a profile on standard output. Each
 * function here holds some megabytes that it got in its own way. */
#include <hakmem/hakmem.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOLDER __attribute__((noinline)) static void

static void *held[1 << 17];
static size_t count;

HOLDER hold(void *p) {
  if (p == NULL || count == sizeof held / sizeof held[0]) abort();
  held[count++] = p;
}

HOLDER by_malloc(void) {
  for (int i = 0; i < 40000; i++) hold(malloc(300));
}
HOLDER by_calloc(void) {
  for (int i = 0; i < 20000; i++) hold(calloc(3, 100));
}
HOLDER by_aligned_alloc(void) {
  for (int i = 0; i < 3000; i++) hold(aligned_alloc(128, 1024));
}
HOLDER by_realloc(void) {
  for (int i = 0; i < 2000; i++) hold(realloc(malloc(10), 2000));
}
HOLDER by_growing(void) {
  for (int i = 0; i < 4; i++) {
    char *p = NULL;
    for (size_t size = 100; size < 2000000; size += size / 2) {
      p = realloc(p, size);
      if (p == NULL) abort();
      p[size - 1] = 1;
    }
    hold(p);
  }
}
HOLDER by_large(void) {
  for (int i = 0; i < 20; i++) hold(malloc(400000));
}
HOLDER by_huge(void) {
  hold(realloc(malloc(70 << 20), 80 << 20));
}

static int give(void *unused, const void *data, size_t bytes) {
  (void)unused;
  return write(1, data, bytes) == (ssize_t)bytes ? 0 : 1;
}

int main(void) {
  if (hakmem_profile_start(64 << 10) != 0 || hakmem_option_set("HEAP_PROFILE_MOST", 0) != 0) return 1;
  by_malloc();
  by_calloc();
  by_aligned_alloc();
  by_realloc();
  by_growing();
  by_large();
  by_huge();
  return hakmem_profile_write(HAKMEM_PROFILE_LIVE, HAKMEM_PROFILE_PROTO, give, NULL);
}
