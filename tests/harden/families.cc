// Takes a block by one family and frees it by another. What the words mean is in `made` and `freed`; the block's address is
// printed first. usage: families malloc|new|new[]|new-aligned|new[]-aligned free|delete|delete-sized|delete-sized-wrong|… BYTES
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>

namespace {

constexpr std::align_val_t kAlign{64};

const std::map<std::string, std::function<void *(size_t)>> made = {
    {"malloc", [](size_t n) { return std::malloc(n); }},
    {"new", [](size_t n) { return operator new(n); }},
    {"new[]", [](size_t n) { return operator new[](n); }},
    {"new-aligned", [](size_t n) { return operator new(n, kAlign); }},
    {"new[]-aligned", [](size_t n) { return operator new[](n, kAlign); }},
};
const std::map<std::string, std::function<void(void *, size_t)>> freed = {
    {"free", [](void *p, size_t) { std::free(p); }},
    {"delete", [](void *p, size_t) { operator delete(p); }},
    {"delete[]", [](void *p, size_t) { operator delete[](p); }},
    {"delete-sized", [](void *p, size_t n) { operator delete(p, n); }},
    {"delete[]-sized", [](void *p, size_t n) { operator delete[](p, n); }},
    {"delete-aligned", [](void *p, size_t n) { operator delete(p, n, kAlign); }},
    {"delete[]-aligned", [](void *p, size_t n) { operator delete[](p, n, kAlign); }},
    {"delete-sized-wrong", [](void *p, size_t n) { operator delete(p, n + 1); }},
    {"delete[]-sized-wrong", [](void *p, size_t n) { operator delete[](p, n - 1); }},
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4 || made.count(argv[1]) == 0 || freed.count(argv[2]) == 0) {
    std::fprintf(stderr, "usage: families HOW-MADE HOW-FREED BYTES\n");
    return 2;
  }
  size_t bytes = std::strtoul(argv[3], nullptr, 10);
  void *p = made.at(argv[1])(bytes);
  std::memset(p, 1, bytes);
  std::fprintf(stderr, "victim %p\n", p);
  freed.at(argv[2])(p, bytes);
  return 0;
}
