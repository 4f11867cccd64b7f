// stats.* against the truth: what the program has counted itself, and what the kernel says is resident.
#include "je.h"

#include <cstdio>
#include <random>

namespace {

// Of the process: "Anonymous", or "AnonHugePages".
size_t kernel_says(const char *what) {
  size_t sum = 0, kb;
  std::string format = std::string(what) + ": %zu kB";
  char line[512];
  FILE *f = fopen("/proc/self/smaps_rollup", "r");
  while (fgets(line, sizeof line, f) != nullptr) {
    if (sscanf(line, format.c_str(), &kb) == 1) sum += kb * 1024;
  }
  fclose(f);
  return sum;
}

size_t resident() { return kernel_says("Anonymous"); }

void expect_within_percent(size_t said, size_t truth, const char *what, double percent = 1) {
  double part = static_cast<double>(said) / static_cast<double>(truth);
  EXPECT_GT(part, 1 - percent / 100) << what << " " << said << " of " << truth;
  EXPECT_LT(part, 1 + percent / 100) << what << " " << said << " of " << truth;
}

class Truth : public testing::TestWithParam<unsigned> {};

TEST_P(Truth, WithinOnePercent) {
  std::mt19937 random(GetParam());
  std::vector<void *> blocks(60000);
  size_t own = 0;
  refresh();
  size_t before = get<size_t>("stats.allocated");
  auto drop = [&](void *&p) {
    if (p == nullptr) return;
    own -= malloc_usable_size(p);
    free(p);
    p = nullptr;
  };
  for (void *&p : blocks) {
    unsigned r = random() % 1000;
    size_t size = r < 950 ? 16 + random() % 3000 : r < 997 ? 3000 + random() % 60000 : 100000 + random() % 9000000;
    p = malloc(size);
    memset(p, 1, malloc_usable_size(p));
    own += malloc_usable_size(p);
    if (random() % 3 == 0) drop(blocks[random() % blocks.size()]);
  }
  for (int round = 0; round < 3; round++) {
    refresh();
    size_t allocated = get<size_t>("stats.allocated"), active = get<size_t>("stats.active"), said = get<size_t>("stats.resident");
    expect_within_percent(allocated - before, own, "allocated");
    expect_within_percent(said, resident(), "resident");
    EXPECT_GE(active, allocated);
    EXPECT_EQ(active % 4096, 0u);
    EXPECT_GT(said, active);
    EXPECT_GT(get<size_t>("stats.mapped"), active);
    EXPECT_GT(get<size_t>("stats.metadata"), 0u);
    EXPECT_EQ(get<size_t>("stats.arenas.4096.pactive") * 4096, active);
    EXPECT_EQ(get<size_t>("stats.arenas.0.small.allocated") + get<size_t>("stats.arenas.0.large.allocated"), allocated);
    if (round == 2) {
      EXPECT_LT(get<size_t>("stats.arenas.0.pdirty"), 256u);
      /* Huge pages hold what is between blocks, too. */
      expect_within_percent(active, resident(), "active, once all else is purged", kernel_says("AnonHugePages") == 0 ? 1 : 4);
    }
    if (round == 0)
      for (size_t i = 0; i < blocks.size(); i += 2) drop(blocks[i]);
    if (round == 1) {
      EXPECT_GT(get<size_t>("stats.arenas.0.pdirty") * 4096 + get<size_t>("stats.retained"), own / 4);
      ASSERT_EQ(act("arena.0.purge"), 0);
    }
  }
  for (void *&p : blocks) drop(p);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Truth, testing::Values(1u, 2u, 3u));

TEST(Stats, AreAsOfTheEpoch) {
  refresh();
  size_t before = get<size_t>("stats.allocated");
  uint64_t epoch = get<uint64_t>("epoch");
  void *p = malloc(5000000);
  EXPECT_EQ(get<size_t>("stats.allocated"), before);
  uint64_t next = 0, one = 1;
  size_t bytes = sizeof next;
  ASSERT_EQ(mallctl("epoch", &next, &bytes, &one, sizeof one), 0);
  EXPECT_EQ(next, epoch + 1);
  EXPECT_GE(get<size_t>("stats.allocated"), before + 5000000);
  free(p);
}

TEST(Stats, ClassesAddUp) {
  std::vector<void *> blocks;
  for (size_t size = 16; size < 3000000; size = size * 9 / 8) blocks.push_back(malloc(size));
  refresh();
  uint64_t small = 0, regions = 0, extents = 0;
  unsigned bins = get<unsigned>("arenas.nbins");
  for (unsigned j = 0; j < bins; j++) {
    std::string bin = "stats.arenas.0.bins." + std::to_string(j), constant = "arenas.bin." + std::to_string(j);
    size_t current = get<size_t>(bin + ".curregs"), slabs = get<size_t>(bin + ".curslabs"), nonfull = get<size_t>(bin + ".nonfull_slabs");
    small += current * get<size_t>(constant + ".size");
    regions += current;
    EXPECT_LE(current, slabs * get<unsigned>(constant + ".nregs"));
    EXPECT_LE(nonfull, slabs);
    EXPECT_EQ(get<uint64_t>(bin + ".nmalloc") - get<uint64_t>(bin + ".ndalloc"), current);
  }
  for (unsigned j = 0; j < get<unsigned>("arenas.nlextents"); j++) extents += get<size_t>("stats.arenas.0.lextents." + std::to_string(j) + ".curlextents");
  /* Regions in caches are no longer, or not yet, the program's. */
  EXPECT_GE(small, get<size_t>("stats.arenas.0.small.allocated"));
  EXPECT_LE(small, get<size_t>("stats.arenas.0.small.allocated") + get<size_t>("stats.arenas.0.tcache_bytes") + 100000);
  EXPECT_GE(extents, 40u);
  EXPECT_EQ(get<uint64_t>("stats.arenas.0.small.nmalloc") - get<uint64_t>("stats.arenas.0.small.ndalloc"), regions);
  for (void *p : blocks) free(p);
}

TEST(Utilization, SaysHowFullASlabIs) {
  std::vector<void *> blocks;
  for (int i = 0; i < 10000; i++) blocks.push_back(malloc(200));
  for (size_t i = 0; i < blocks.size(); i++)
    if (i % 4 != 0) dallocx(blocks[i], kNoCache);
  refresh();
  struct { size_t free, regions, bytes; } use[2] = {};
  void *large = malloc(5000000), *asked[2] = {blocks[4000], large};
  size_t bytes = sizeof use;
  ASSERT_EQ(mallctl("experimental.utilization.batch_query", use, &bytes, asked, sizeof asked), 0);
  EXPECT_EQ(use[0].bytes, get<size_t>("arenas.bin.12.slab_size"));
  EXPECT_NEAR(static_cast<double>(use[0].regions), get<unsigned>("arenas.bin.12.nregs"), 5);
  EXPECT_NEAR(static_cast<double>(use[0].free) / static_cast<double>(use[0].regions), 0.75, 0.05);
  EXPECT_EQ(use[1].free, 0u);
  EXPECT_EQ(use[1].regions, 1u);
  EXPECT_EQ(use[1].bytes, malloc_usable_size(large));
  struct { void *current; size_t free, regions, bytes, bin_free, bin_regions; } one = {};
  bytes = sizeof one;
  ASSERT_EQ(mallctl("experimental.utilization.query", &one, &bytes, asked, sizeof asked[0]), 0);
  EXPECT_EQ(one.free, use[0].free);
  EXPECT_EQ(one.regions, use[0].regions);
  EXPECT_GT(one.bin_free, 7000u);
  EXPECT_GT(one.bin_regions, 10000u);
  void *next = mallocx(200, kNoCache);
  EXPECT_TRUE(next >= one.current && next < static_cast<char *>(one.current) + one.bytes);
  bytes--;
  EXPECT_EQ(mallctl("experimental.utilization.query", &one, &bytes, asked, sizeof asked[0]), EINVAL);
  EXPECT_EQ(mallctl("experimental.utilization.batch_query", use, &bytes, asked, sizeof asked), EINVAL);
}

// A program that moves blocks of sparse slabs together, as Redis does.
TEST(Utilization, ABlockThatIsMovedLeavesSparseSlabs) {
  std::vector<void *> blocks;
  for (int i = 0; i < 100000; i++) blocks.push_back(malloc(80));
  std::mt19937 random(1);
  std::vector<void *> left;
  for (void *p : blocks) {
    if (random() % 4 == 0)
      left.push_back(p);
    else
      free(p);
  }
  refresh();
  size_t before = get<size_t>("stats.active");
  for (void *&p : left) {
    struct { size_t free, regions, bytes; } use = {};
    size_t bytes = sizeof use;
    ASSERT_EQ(mallctl("experimental.utilization.batch_query", &use, &bytes, &p, sizeof p), 0);
    if (use.free * 3 < use.regions) continue;
    void *q = mallocx(80, kNoCache);
    memcpy(q, p, 80);
    dallocx(p, kNoCache);
    p = q;
  }
  refresh();
  EXPECT_LT(get<size_t>("stats.active") + 3500000, before);
}

}  // namespace
