// hakmem::resource() from the destructor of an object that is older than the resource, and so is destroyed after all that
// came with it. The program says so when the destructor has come through.
#include <unistd.h>

#include <memory_resource>
#include <new>
#include <string>
#include <vector>

#include "hakmem/hakmem.hpp"

namespace {

struct Late {
  std::pmr::vector<std::pmr::string> *lines = nullptr;
  ~Late() {
    std::pmr::memory_resource *resource = hakmem::resource();
    if (lines->get_allocator().resource() != resource) _exit(1);
    for (int i = 0; i < 1000; i++) lines->emplace_back("a line that is too long for the string's own buffer");
    if (!hakmem_is_ours(lines->back().data())) _exit(2);
    if (!resource->is_equal(hakmem::memory_resource())) _exit(3);
    lines->~vector();
    resource->deallocate(lines, sizeof *lines, alignof(decltype(*lines)));
    // A default resource is used by whatever else is destroyed later.
    std::pmr::vector<int> numbers(1000);
    if (!hakmem_is_ours(numbers.data())) _exit(4);
    constexpr char done[] = "all destroyed\n";
    _exit(write(STDOUT_FILENO, done, sizeof done - 1) < 0);
  }
} late;

}  // namespace

int main() {
  std::pmr::memory_resource *resource = hakmem::resource();  // after `late` was made
  std::pmr::set_default_resource(resource);
  late.lines = ::new (resource->allocate(sizeof *late.lines, alignof(std::pmr::vector<std::pmr::string>)))
      std::pmr::vector<std::pmr::string>(resource);
  late.lines->emplace_back("a line that is too long for the string's own buffer");
  return 0;
}
