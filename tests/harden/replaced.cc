// A program that replaces the two plain operators and the two aligned ones, and leaves the other forms to call them, as
// [new.delete] says they do. Prints how many blocks went through each.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>

namespace {

unsigned news, deletes, aligned_news, aligned_deletes;
constexpr std::align_val_t kAlign{64};

}  // namespace

void *operator new(std::size_t n) {
  news++;
  return std::malloc(n);
}
void operator delete(void *p) noexcept {
  deletes++;
  std::free(p);
}
void *operator new(std::size_t n, std::align_val_t) {
  aligned_news++;
  return std::aligned_alloc(64, (n + 63) / 64 * 64);
}
void operator delete(void *p, std::align_val_t) noexcept {
  aligned_deletes++;
  std::free(p);
}

int main() {
  const std::nothrow_t &quiet = std::nothrow;
  for (std::size_t n : {8, 4096, 300000}) {
    operator delete(operator new(n), n);
    operator delete(operator new(n, quiet), quiet);
    operator delete[](operator new[](n));
    operator delete[](operator new[](n), n);
    operator delete[](operator new[](n, quiet), quiet);
    operator delete(operator new(n, kAlign), n, kAlign);
    operator delete(operator new(n, kAlign, quiet), kAlign, quiet);
    operator delete[](operator new[](n, kAlign), kAlign);
    operator delete[](operator new[](n, kAlign), n, kAlign);
    operator delete[](operator new[](n, kAlign, quiet), kAlign, quiet);
  }
  std::printf("%u %u %u %u\n", news, deletes, aligned_news, aligned_deletes);
}
