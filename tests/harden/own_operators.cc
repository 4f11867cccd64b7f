// A library with an operator new of its own, which nobody else sees (-Bsymbolic, as with a C++ runtime that was linked statically).
// More is asked for than the program did.
#include <cstdlib>
#include <new>
#include <string>

void *operator new(std::size_t n) {
  void *p = std::malloc(n + 24);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void operator delete(void *p) noexcept { std::free(p); }
void operator delete(void *p, std::size_t) noexcept { std::free(p); }
void *operator new[](std::size_t n) { return operator new(n); }
void operator delete[](void *p) noexcept { operator delete(p); }
void operator delete[](void *p, std::size_t) noexcept { operator delete(p); }

std::string *library_text(std::size_t length) { return new std::string(length, 't'); }
char *library_bytes(std::size_t count) { return new char[count]; }
void library_drop(std::string *text) { delete text; }
void library_drop_bytes(char *bytes) { delete[] bytes; }
