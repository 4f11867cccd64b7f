// A program with operators of its own, which hand out memory that no other delete may have.
#include <cstdio>

#include "hot_cold.h"

namespace {
alignas(256) char pool[1 << 16];
size_t used;
bool from_pool(void *p) { return p >= pool && p < pool + sizeof pool; }
}  // namespace

void *operator new(size_t n) {
  void *p = pool + used;
  used += (n + 255) & ~size_t(255);
  return p;
}
void *operator new[](size_t n) { return operator new(n); }
void *operator new(size_t n, std::align_val_t) { return operator new(n); }
void operator delete(void *) noexcept {}
void operator delete(void *, size_t) noexcept {}

int main() {
  void *hot = operator new(10, __hot_cold_t(254)), *array = operator new[](10, __hot_cold_t(1));
  __sized_ptr_t sized = __size_returning_new(100), aligned = __size_returning_new_aligned_hot_cold(100, std::align_val_t(256), __hot_cold_t(1));
  std::printf("hot %d array %d sized %d of %zu aligned %d of %zu\n", from_pool(hot), from_pool(array), from_pool(sized.p), sized.n,
              from_pool(aligned.p), aligned.n);
}
