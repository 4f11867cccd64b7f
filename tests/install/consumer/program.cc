// The same in C++, with threads, operator new and the C++ header.
#include <cstdio>
#include <cstdlib>
#include <hakmem/hakmem.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

int main() {
  std::vector<int, hakmem::allocator<int>> v(1000);
  auto text = std::make_unique<std::string>(1000, 'x');
  std::thread([&] { text = std::make_unique<std::string>(2000, 'y'); }).join();
  bool threw = false;
  try {
    volatile std::size_t impossible = PTRDIFF_MAX;
    // Seen by nobody, gcc 10 takes both calls away.
    void *volatile block = operator new(impossible);
    operator delete(block);
  } catch (const std::bad_alloc &) {
    threw = true;
  }
  void *p = std::malloc(100);
  std::printf("version %s ours %d %d %d served %d threw %d\n", hakmem_version(), hakmem_is_ours(p), hakmem_is_ours(v.data()),
              hakmem_is_ours(text->data()), hakmem_served() > 0, threw);
  std::free(p);
}
