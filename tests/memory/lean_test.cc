// Memory-lean mode: what is freed goes back at once, down to the target.
#include <gtest/gtest.h>

#include "loads.h"

namespace {

TEST(Lean, KeepsTheTargetAtMost) {
  size_t before = resident();
  {
    Blocks blocks(128 * MIB, 64, 200000);
    blocks.free_to(0);
    EXPECT_LE(resident(), before + 40 * MIB) << "10 MiB and what the caches pin";
  }
  EXPECT_TRUE(comes_to([=] { return resident() <= before + 4 * MIB; }, light_work)) << (resident() - before) / MIB << " MiB";
  EXPECT_EQ(heap_faults(), 0u);
}

TEST(Lean, HugeBlocksAreNotKept) {
  size_t before = resident();
  for (int i = 0; i < 3; i++) {
    char *p = static_cast<char *>(malloc(40 * MIB));
    memset(p, 1, 40 * MIB);
    free(p);
    EXPECT_LE(resident(), before + MIB);
  }
}

}  // namespace
