// A server's requests: each has an arena of its own, and all arenas take their memory from hakmem by hakmem::resource().
//
// What a request allocates is freed in one step at its end. std::pmr containers take the resource as an argument, so one
// type serves with any: no template of the program knows the allocator.
//
//   c++ -std=c++17 pmr.cc $(pkg-config --cflags --libs hakmem) && ./a.out
#include <cstdio>
#include <hakmem/hakmem.hpp>
#include <map>
#include <memory_resource>
#include <string>
#include <thread>
#include <vector>

// Knows std::pmr alone: it runs on the caller's resource.
static std::pmr::map<std::pmr::string, int> count_words(const char *text, std::pmr::memory_resource *memory) {
  std::pmr::map<std::pmr::string, int> counts(memory);
  std::pmr::string word(memory);
  for (const char *c = text;; c++) {
    if (*c != ' ' && *c != '\0') {
      word += *c;
    } else {
      if (!word.empty()) counts[word]++;
      word.clear();
      if (*c == '\0') return counts;
    }
  }
}

static std::size_t serve(const char *text) {
  // The arena takes whole pieces from hakmem, each larger than the one before it, and returns them all in its destructor. It has
  // no locks; a resource that threads share is hakmem::resource() itself.
  std::pmr::monotonic_buffer_resource arena(4096, hakmem::resource());
  return count_words(text, &arena).size();
}

int main() {
  std::vector<std::thread> workers;
  std::vector<std::size_t> distinct(4);
  for (std::size_t i = 0; i < distinct.size(); i++)
    workers.emplace_back([&distinct, i] {
      for (int request = 0; request < 1000; request++)
        distinct[i] = serve("a request has many words and many of the words of a request are not new words of considerable length");
    });
  for (auto &worker : workers) worker.join();
  std::printf("distinct words: %zu %zu %zu %zu\n", distinct[0], distinct[1], distinct[2], distinct[3]);

  // As the default resource it serves every std::pmr container that names none.
  std::pmr::set_default_resource(hakmem::resource());
  std::pmr::vector<int> numbers(1000);
  std::printf("default resource hakmem's: %d\n", hakmem_is_ours(numbers.data()));
  std::pmr::set_default_resource(nullptr);
}
