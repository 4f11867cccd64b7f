// hakmem.hpp: the standard allocator and the memory resource.
#include <gtest/gtest.h>

#include <limits>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hakmem/hakmem.hpp"

namespace {

struct alignas(64) Wide {
  char bytes[64];
};
struct alignas(4096) Page {
  char bytes[4096];
};

bool aligned(const void *p, size_t align) { return reinterpret_cast<uintptr_t>(p) % align == 0; }

template <typename T>
using vector = std::vector<T, hakmem::allocator<T>>;

TEST(CxxAllocator, ContainersLiveInOurMemory) {
  vector<int> v;
  for (int i = 0; i < 100000; i++) v.push_back(i);
  EXPECT_TRUE(hakmem_is_ours(v.data()));
  for (int i = 0; i < 100000; i++) ASSERT_EQ(v[size_t(i)], i);
  vector<int> moved = std::move(v);
  EXPECT_EQ(moved.size(), 100000u);

  std::list<std::string, hakmem::allocator<std::string>> l(100, "x");
  EXPECT_TRUE(hakmem_is_ours(&l.front()));
  std::map<int, int, std::less<int>, hakmem::allocator<std::pair<const int, int>>> m;
  for (int i = 0; i < 1000; i++) m[i] = i;
  EXPECT_TRUE(hakmem_is_ours(&m.begin()->first));
  using string = std::basic_string<char, std::char_traits<char>, hakmem::allocator<char>>;
  string s(1000, 'x');
  EXPECT_TRUE(hakmem_is_ours(s.data()));
  auto shared = std::allocate_shared<int>(hakmem::allocator<int>(), 5);
  EXPECT_TRUE(hakmem_is_ours(shared.get()));
}

TEST(CxxAllocator, HonoursAlignment) {
  for (int i = 0; i < 100; i++) {
    vector<Wide> wide(3);
    vector<Page> pages(2);
    EXPECT_TRUE(aligned(wide.data(), 64));
    EXPECT_TRUE(aligned(pages.data(), 4096));
  }
}

TEST(CxxAllocator, ThrowsWhatTheStandardSays) {
  hakmem::allocator<int> a;
  EXPECT_THROW((void)a.allocate(std::numeric_limits<size_t>::max()), std::bad_array_new_length);
  volatile size_t most = std::numeric_limits<size_t>::max() / sizeof(int);  // compilers warn of what they can see
  EXPECT_THROW((void)a.allocate(most), std::bad_alloc);
  EXPECT_THROW((void)hakmem::allocator<Page>().allocate(PTRDIFF_MAX / sizeof(Page)), std::bad_alloc);
}

TEST(CxxAllocator, AllAreEqual) {
  hakmem::allocator<int> a;
  hakmem::allocator<double> b(a);
  EXPECT_TRUE(a == b);
  EXPECT_FALSE(a != b);
  static_assert(std::allocator_traits<hakmem::allocator<int>>::is_always_equal::value);
  int *p = a.allocate(0);
  EXPECT_NE(p, nullptr);
  hakmem::allocator<int>(b).deallocate(p, 0);
}

TEST(MemoryResource, ServesPmrContainers) {
  hakmem::memory_resource own;
  std::pmr::vector<std::pmr::string> v(&own);
  for (int i = 0; i < 1000; i++) v.emplace_back("a string that is too long for its own buffer");
  EXPECT_TRUE(hakmem_is_ours(v.data()));
  EXPECT_TRUE(hakmem_is_ours(v.back().data())) << "the resource is passed on to the elements";
}

TEST(MemoryResource, HonoursAlignment) {
  for (size_t align = 1; align <= 65536; align *= 2) {
    void *p = hakmem::resource()->allocate(100, align);
    EXPECT_TRUE(aligned(p, align));
    EXPECT_TRUE(hakmem_is_ours(p));
    hakmem::resource()->deallocate(p, 100, align);
  }
}

TEST(MemoryResource, EqualityAndFailure) {
  hakmem::memory_resource a, b;
  EXPECT_TRUE(a == b);
  EXPECT_TRUE(a == *hakmem::resource());
  EXPECT_FALSE(a == *std::pmr::new_delete_resource());
  EXPECT_THROW((void)a.allocate(PTRDIFF_MAX, 16), std::bad_alloc);
  EXPECT_THROW((void)a.allocate(PTRDIFF_MAX, 128), std::bad_alloc);
  void *p = a.allocate(100, 16);
  b.deallocate(p, 100, 16);
}

}  // namespace
