/* A program with a malloc of its own, complete by glibc's manual: malloc, calloc, realloc and free. What else of the family
 * it uses is the preloaded allocator's, and has to leave its blocks to it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char heap[16 << 20] __attribute__((aligned(16)));
static size_t used;
static unsigned frees;

void *malloc(size_t size) {
  size_t *p = (size_t *)(heap + __atomic_fetch_add(&used, ((size + 15) & ~(size_t)15) + 16, __ATOMIC_RELAXED));
  if ((char *)p + size + 16 > heap + sizeof heap) abort();
  *p = size;
  return p + 2;
}

static int is_own(const void *p) { return (uintptr_t)p - (uintptr_t)heap < sizeof heap; }

void free(void *p) {
  if (p != NULL && !is_own(p)) abort();
  if (p != NULL) frees++;
}

void *calloc(size_t count, size_t size) { return malloc(count * size); /* never used twice */ }

void *realloc(void *p, size_t size) {
  void *q = malloc(size);
  if (p == NULL) return q;
  size_t old_size = ((size_t *)p)[-2];
  memcpy(q, p, old_size < size ? old_size : size);
  free(p);
  return q;
}

static int frees_by(const char *name, void *argument) {
  union {
    void *address;
    void (*plain)(void *);
    void (*sized)(void *, size_t);
    void (*aligned)(void *, size_t, size_t);
  } entry = {dlsym(RTLD_DEFAULT, name)};
  unsigned before = frees;
  if (entry.address == NULL) return 0;
  if (strcmp(name, "cfree") == 0) entry.plain(argument);
  if (strcmp(name, "free_sized") == 0) entry.sized(argument, 100);
  if (strcmp(name, "free_aligned_sized") == 0) entry.aligned(argument, 16, 100);
  return frees == before + 1;
}

int main(void) {
  if (dlsym(RTLD_DEFAULT, "hakmem_served") == NULL) return 2;
  int *numbers = malloc(4 * sizeof *numbers);
  numbers[3] = 7;
  numbers = reallocarray(numbers, 100, sizeof *numbers);
  if (numbers == NULL || !is_own(numbers) || numbers[3] != 7) return 3;
  free(numbers);
  void *fresh = reallocarray(NULL, 10, 4);
  if (!is_own(fresh)) return 4;
  free(fresh);
  volatile size_t many = SIZE_MAX / 2;
  if (reallocarray(NULL, many, 3) != NULL) return 5;
  static const char *const entries[] = {"cfree", "free_sized", "free_aligned_sized"};
  for (int i = 0; i < 3; i++) {
    if (!frees_by(entries[i], malloc(100))) return 6 + i;
  }
  char *copy = strdup("libc's own use");
  if (!is_own(copy)) return 9;
  free(copy);
  return 0;
}
