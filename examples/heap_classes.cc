// Heaps as objects: a query's heap below its tenant's, a library that cannot be changed in a scope, std::pmr containers in a heap.
//
//   c++ -std=c++17 heap_classes.cc $(pkg-config --cflags --libs hakmem) && ./a.out
#include <cstdio>
#include <hakmem/hakmem.hpp>
#include <memory_resource>
#include <new>
#include <string>
#include <vector>

// Of a library: it allocates with new, and frees only a part.
static std::size_t parse(const char *text) {
  auto *leaked = new std::string(text);
  return leaked->size();
}

int main() {
  hakmem::heap tenant({"tenant", 64 << 20});
  {
    hakmem::heap query({"query", 1 << 20, tenant.get()});
    void *row = query.allocate(1000);  // in any thread; beyond the limit std::bad_alloc
    {
      hakmem::heap_scope scope(query);  // what this thread takes by new and malloc is the query's
      parse("a text that is longer than a small string");
    }
    std::printf("in the query: %zu blocks, its row: %d\n", query.stats().blocks, query.contains(row));
    try {
      (void)query.allocate(2 << 20);
    } catch (const std::bad_alloc &) {
      std::printf("refused: %zu\n", static_cast<std::size_t>(query.stats().refused));
    }
  }  // all its blocks go, freed or not

  hakmem::heap_resource rows({"rows", 16 << 20, tenant.get()});
  std::pmr::vector<std::pmr::string> names(&rows);
  names.emplace_back("a name that is longer than a small string");
  std::printf("live in the tenant's heap: %d\n", tenant.stats().total >= rows.get_heap().stats().live);
}
