// Fails unless the package is what its options say.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <hakmem/hakmem.hpp>
#include <thread>
#include <vector>

static int failures;

static void expect(bool holds, const char *what) {
  if (holds) return;
  std::printf("not so: %s\n", what);
  failures++;
}

int main() {
  expect(std::strcmp(hakmem_version(), EXPECTED_VERSION) == 0, "the library has the package's version");
  expect(std::strcmp(HAKMEM_VERSION_STRING, EXPECTED_VERSION) == 0, "the header has the package's version");

  void *from_malloc = std::malloc(100);
  int *from_new = new int(1);
  void *from_thread = nullptr;
  std::thread([&] { from_thread = std::malloc(100); }).join();
  expect(hakmem_is_ours(from_malloc) == EXPECTED_OVERRIDE, "malloc is hakmem's with override=True alone");
  expect(hakmem_is_ours(from_new) == EXPECTED_OVERRIDE, "new is hakmem's with override=True alone");
  expect(hakmem_is_ours(from_thread) == EXPECTED_OVERRIDE, "so is malloc of another thread");
  std::free(from_malloc);
  delete from_new;
  std::free(from_thread);

  std::vector<int, hakmem::allocator<int>> numbers(1000);
  expect(hakmem_is_ours(numbers.data()), "hakmem::allocator is hakmem's");
  std::pmr::vector<int> other(1000, hakmem::resource());
  expect(hakmem_is_ours(other.data()), "hakmem::resource() is hakmem's");

  // The hardened build alone has no byte beyond what was asked for: a canary lies there.
  void *block = hakmem_malloc(13);
  expect((hakmem_malloc_usable_size(block) == 13) == EXPECTED_HARDENED, "the library is the hardened one with hardened=True alone");
  hakmem_free(block);
  if (failures == 0) std::printf("hakmem %s: as packaged\n", hakmem_version());
  return failures;
}
