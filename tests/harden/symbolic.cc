// A program beside a library that has its own operators (own_operators.cc): each frees what the other made. And classes that have an
// operator delete of their own only, whose constructors throw. Prints how many threw.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

std::string *library_text(std::size_t length);
char *library_bytes(std::size_t count);
void library_drop(std::string *text);
void library_drop_bytes(char *bytes);

namespace {

template <class T>
T *opaque(T *p) {
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

template <std::size_t Bytes>
struct FreedByC {
  FreedByC() { throw opaque(this)->bytes[0]; }
  static void operator delete(void *p) { std::free(opaque(p)); }
  char bytes[Bytes];
};

template <std::size_t Bytes>
struct ArrayDeletedAsOne {
  ArrayDeletedAsOne() { throw opaque(this)->bytes[0]; }
  ~ArrayDeletedAsOne() {}
  static void operator delete[](void *p) { ::operator delete(opaque(p)); }
  char bytes[Bytes];
};

template <class Make>
int throws(Make make) {
  try {
    make();
  } catch (char) {
    return 1;
  }
  return 0;
}

}  // namespace

int main() {
  for (std::size_t n : {0, 3, 90, 5000, 300000}) {
    std::string *text = library_text(n);
    if (text->size() != n) return 1;
    delete text;
    library_drop(new std::string(n + 1, 'p'));
    delete[] library_bytes(n);
    library_drop_bytes(new char[n + 1]);
  }
  int thrown = 0;
  for (int i = 0; i < 20; i++) {
    thrown += throws([] { opaque(new FreedByC<24>); }) + throws([] { opaque(new FreedByC<7000>); });
    thrown += throws([] { opaque(new ArrayDeletedAsOne<32>[3]); }) + throws([] { opaque(new ArrayDeletedAsOne<500000>[2]); });
  }
  std::printf("%d\n", thrown);
}
