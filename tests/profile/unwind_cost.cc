// What a walk costs, printed and not judged: nanoseconds a frame of hak_unwind and of backtrace(), warm, and with caches that
// other work has taken.
#include <execinfo.h>

#include <chrono>
#include <cstdio>
#include <vector>

extern "C" {
#include "frames.h"
#include "profile/unwind.h"
}

namespace {

chain_link *(*const families[])(unsigned) = {o0_frame, o0_bare_frame, o2_frame, o2_bare_frame, os_frame};

struct Cost {
  double ns = 0;
  unsigned frames = 0;
  void add(std::chrono::steady_clock::time_point begin, unsigned n) {
    ns += std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
    frames += n;
  }
  double per_frame() const { return ns / frames; }
};

struct Costs {
  Cost ours, libgcc;
  std::vector<unsigned char> other;  // empty: warm
};

void disturb(Costs *costs) {
  for (size_t i = 0; i < costs->other.size(); i += 64) costs->other[i]++;
}

// Several walks at a time when warm: the clock itself costs as much as a frame.
void measure(void *argument) {
  auto *costs = static_cast<Costs *>(argument);
  static uintptr_t pcs[256];
  static void *frames[256];
  unsigned walks = costs->other.empty() ? 100 : 1, n = 0;
  disturb(costs);
  auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < walks; i++) n += hak_unwind(pcs, 256);
  costs->ours.add(begin, n);
  disturb(costs);
  begin = std::chrono::steady_clock::now();
  n = 0;
  for (unsigned i = 0; i < walks; i++) n += unsigned(backtrace(frames, 256));
  costs->libgcc.add(begin, n);
}

void print(const char *what, unsigned depth, size_t other_bytes, unsigned kinds, int rounds) {
  Costs costs;
  costs.other.resize(other_bytes);
  std::vector<chain_link *> links;
  for (unsigned i = 0; i < depth; i++) links.push_back(families[i % 5](i / 5 % kinds));
  for (int round = 0; round < rounds; round++) {
    chain c = {links.data(), depth, 0, measure, &costs};
    chain_go_on(&c);
    if (round == 0) costs.ours = costs.libgcc = {};
  }
  printf("%-28s %3u frames: %7.1f ns a frame, libgcc %7.1f\n", what, depth, costs.ours.per_frame(), costs.libgcc.per_frame());
}

}  // namespace

int main() {
  hak_unwind_start();
  for (unsigned depth : {10u, 30u, 120u}) {
    print("warm", depth, 0, CHAIN_ALIGNED, 1000);
    print("caches taken (32 MiB)", depth, 32 << 20, CHAIN_ALIGNED, 10);
  }
  print("warm, an eighth aligned", 40, 0, CHAIN_KINDS, 1000);
}
