#include "misuse.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace misuse {
namespace {

// No vector: the list of cases must not be on the heap that is misused.
Case cases[512];
size_t case_count;

constexpr int kNeighboursMax = 8;
void *neighbours[kNeighboursMax];
int neighbour_count;

void *in_use[64];
bool ends_at_once;
bool is_fresh;
uint32_t drawn = 20231123;

uint32_t draw(uint32_t below) {
  drawn = drawn * 1664525 + 1013904223;
  return (drawn >> 8) % below;
}

void print_name(const Case &c, char *out, size_t capacity) {
  char size[24] = "";
  if (c.size == k600K) {
    std::strcpy(size, ".600K");
  } else if (c.size == k40M) {
    std::strcpy(size, ".40M");
  } else if (c.size != 0) {
    std::snprintf(size, sizeof size, ".%zu", c.size);
  }
  std::snprintf(out, capacity, "%s.%s%s", c.family, c.what, size);
}

// What a program has done before: blocks of many sizes, some of them still in use.
void begin() {
  ordinary_work(100);
  for (void *&p : in_use) p = take(16 + draw(2000));
  for (size_t i = 0; i < 64; i += 3) {
    std::free(in_use[i]);
    in_use[i] = nullptr;
  }
}

void go_on() {
  ordinary_work(100);
  for (void *&p : in_use) {
    std::free(p);
    p = nullptr;
  }
  ordinary_work(20);
}

void *call_work(void *pair) {
  auto **both = static_cast<void **>(pair);
  reinterpret_cast<void (*)(void *)>(both[0])(both[1]);
  return nullptr;
}

}  // namespace

volatile unsigned long sink;

void add(const char *family, const char *what, std::initializer_list<size_t> sizes, size_t amount,
         void (*run)(const Case &)) {
  for (size_t size : sizes) {
    if (case_count == sizeof cases / sizeof *cases) std::abort();
    cases[case_count++] = {family, what, size, amount, run};
  }
}

unsigned char *take(size_t size) {
  auto *p = static_cast<unsigned char *>(opaque(std::malloc(size)));
  if (p == nullptr) not_done();
  if (size <= kMiB) {
    std::memset(p, 0x31, size);
  } else {
    std::memset(p, 0x31, kPage);
    std::memset(p + size - kPage, 0x31, kPage);
  }
  return p;
}

unsigned char *victim(size_t size) {
  int each_side = is_fresh ? 0 : size <= k20000 ? 4 : size <= kMiB ? 1 : 0;
  for (int i = 0; i < each_side; i++) neighbours[neighbour_count++] = take(size);
  unsigned char *p = take(size);
  for (int i = 0; i < each_side; i++) neighbours[neighbour_count++] = take(size);
  return p;
}

void free_neighbours() {
  for (int i = 0; i < neighbour_count; i++) std::free(neighbours[i]);
  neighbour_count = 0;
}

void ordinary_work(int rounds) {
  void *mine[16] = {};
  for (int i = 0; i < rounds; i++) {
    void *&slot = mine[draw(16)];
    std::free(slot);
    slot = take(8 + draw(draw(4) == 0 ? 4000 : 300));
  }
  for (void *p : mine) std::free(p);
}

void churn(size_t size, int count) {
  void *mine[512];
  if (count > 512) std::abort();
  for (int i = 0; i < count; i++) mine[i] = take(size);
  for (int i = 0; i < count; i++) std::free(mine[i]);
}

void return_at_once() { ends_at_once = true; }

void not_done() { std::exit(kNotDone); }

void refused() { std::exit(kRefused); }

void on_thread(void (*work)(void *), void *argument) {
  void *both[2] = {reinterpret_cast<void *>(work), argument};
  pthread_t thread;
  if (pthread_create(&thread, nullptr, call_work, both) != 0) not_done();
  pthread_join(thread, nullptr);
}

}  // namespace misuse

int main(int argc, char **argv) {
  using namespace misuse;
  add_overflows();
  add_overreads();
  add_fresh();
  add_double_frees();
  add_invalid_frees();
  add_uses_after_free();
  add_reallocs();
  add_zero_sizes();
  add_wrong_deletes();
  add_impossible_sizes();

  char name[128];
  bool is_list = argc == 2 && std::strcmp(argv[1], "--list") == 0;
  for (size_t i = 0; i < case_count; i++) {
    print_name(cases[i], name, sizeof name);
    if (is_list) {
      std::puts(name);
    } else if (argc == 2 && std::strcmp(argv[1], name) == 0) {
      // Most cases end by a signal.
      rlimit none = {0, 0};
      setrlimit(RLIMIT_CORE, &none);
      is_fresh = std::strcmp(cases[i].family, "fresh") == 0;
      if (!is_fresh) begin();
      cases[i].run(cases[i]);
      if (!ends_at_once) go_on();
      return kEnded;
    }
  }
  if (is_list) return 0;
  std::fputs("usage: misuse --list | CASE\n", stderr);
  return kWrongUse;
}
