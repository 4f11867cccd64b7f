// A cache whose memory comes from hakmem by name: hakmem::allocator in standard containers.
//
// The cache's blocks are hakmem's whichever malloc the program has: one that links hakmem gets it everywhere, and one that
// keeps another malloc (a plugin, or a hakmem built with HAKMEM_OVERRIDE=OFF) gets it here alone.
//
//   c++ -std=c++17 allocator.cc $(pkg-config --cflags --libs hakmem) && ./a.out
#include <cstdint>
#include <cstdio>
#include <functional>
#include <hakmem/hakmem.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

template <typename T>
using vector = std::vector<T, hakmem::allocator<T>>;
using string = std::basic_string<char, std::char_traits<char>, hakmem::allocator<char>>;

// std::hash is defined for strings of the standard allocator; a view has it for all.
struct hash {
  std::size_t operator()(const string &s) const { return std::hash<std::string_view>()(s); }
};
template <typename Key, typename Value>
using map = std::unordered_map<Key, Value, hash, std::equal_to<Key>, hakmem::allocator<std::pair<const Key, Value>>>;

// The alignment of a type is kept, here that of a cache line.
struct alignas(64) counter {
  std::uint64_t hits = 0;
};

int main() {
  map<string, vector<unsigned char>> pages;
  for (int i = 0; i < 10000; i++)
    pages.emplace("/page/of/a/site/with/long/names/" + string(std::to_string(i)), vector<unsigned char>(4000));

  const auto &[name, content] = *pages.begin();
  std::printf("pages %zu, name hakmem's: %d, content hakmem's: %d\n", pages.size(), hakmem_is_ours(name.data()),
              hakmem_is_ours(content.data()));

  vector<counter> counters(8);
  std::printf("counters aligned: %d\n", reinterpret_cast<std::uintptr_t>(counters.data()) % alignof(counter) == 0);

  // Freed memory goes back to the system by itself after a second (HAKMEM_DECAY_MS); this is for who knows that nothing of it is needed soon.
  pages = {};
  std::printf("purged at once: %d\n", hakmem_purge() > 0);
}
