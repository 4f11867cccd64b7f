// Whether the blocks that a compiler's own calls make (hot_cold.ll) are ours.
#include <cstdio>

#include "hakmem/hakmem.h"

extern "C" void make();
extern "C" void *made[8];

int main() {
  make();
  int ours = 0;
  for (void *p : made) ours += hakmem_is_ours(p);
  std::printf("ours %d\n", ours);
}
