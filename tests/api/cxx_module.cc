// Loaded by c_only: operator new in a process whose C++ runtime came by dlopen.
#include <cstdint>
#include <new>

extern "C" bool hakmem_is_ours(const void *p) noexcept;

namespace {

volatile std::size_t IMPOSSIBLE = PTRDIFF_MAX;
int handler_calls;

bool throws() {
  try {
    operator delete(operator new(IMPOSSIBLE));
  } catch (const std::bad_alloc &) {
    return true;
  }
  return false;
}

}  // namespace

extern "C" int check_new() {
  void *p = operator new(100);
  if (!hakmem_is_ours(p)) return 1;
  operator delete(p);
  if (!throws()) return 2;
  if (operator new(IMPOSSIBLE, std::nothrow) != nullptr) return 3;
  std::set_new_handler([] {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
  });
  if (!throws()) return 4;
  if (handler_calls != 3) return 5;
  return 0;
}

// The catch inside nothrow new needs the C++ personality routine, which was not there when the library was loaded.
extern "C" int check_throwing_handler() {
  std::set_new_handler([] { throw std::bad_alloc(); });
  return operator new(IMPOSSIBLE, std::nothrow) == nullptr ? 0 : 1;
}
