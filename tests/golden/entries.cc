/* entries NAME TIMES: a call of an entry beside malloc, and what takes its block back, so many times. */
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "hakmem/hakmem.h"

namespace {

template <typename F>
void repeat(size_t times, F step) {
  for (size_t i = 0; i < times; i++) {
    void *p = step();
    __asm__ volatile("" ::"r"(p) : "memory");
  }
}

void *freed(void *p) {
  __asm__ volatile("" ::"r"(p) : "memory");
  free(p);
  return p;
}

void *aligned(size_t align, size_t size) {
  void *p = nullptr;
  return posix_memalign(&p, align, size) == 0 ? p : nullptr;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const char *name = argv[1];
  size_t times = strtoul(argv[2], nullptr, 10);
  void *kept = malloc(100);
  if (strcmp(name, "realloc_null") == 0)
    repeat(times, [] { return freed(realloc(nullptr, 40)); });
  else if (strcmp(name, "realloc_stays") == 0)
    repeat(times, [&] { return realloc(kept, 100); });
  else if (strcmp(name, "calloc") == 0)
    repeat(times, [] { return freed(calloc(1, 40)); });
  else if (strcmp(name, "usable_size") == 0)
    repeat(times, [&] { return reinterpret_cast<void *>(malloc_usable_size(kept)); });
  else if (strcmp(name, "new_sized_delete") == 0)
    repeat(times, [] {
      void *p = ::operator new(40);
      __asm__ volatile("" ::"r"(p) : "memory");
      ::operator delete(p, 40);
      return p;
    });
  else if (strcmp(name, "new_aligned") == 0)
    repeat(times, [] {
      void *p = ::operator new(64, std::align_val_t(64));
      __asm__ volatile("" ::"r"(p) : "memory");
      ::operator delete(p, std::align_val_t(64));
      return p;
    });
  else if (strcmp(name, "posix_memalign") == 0)
    repeat(times, [] { return freed(aligned(64, 100)); });
  else
    return 2;
  return hakmem_served() > 0 ? 0 : 1;
}
