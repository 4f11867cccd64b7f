// mallctl: each name's type, and what a wrong length or direction gets.
#include "je.h"

#include <hakmem/hakmem.h>

#include <algorithm>

namespace {

enum Way { READ, BOTH, WRITE, ACT };
struct Name {
  const char *name;
  size_t bytes;
  Way way;
};

const Name names[] = {
    {"version", 8, READ}, {"epoch", 8, BOTH}, {"background_thread", 1, BOTH}, {"max_background_threads", 8, BOTH},
    {"config.stats", 1, READ}, {"config.malloc_conf", 8, READ},
    {"opt.abort", 1, READ}, {"opt.narenas", 4, READ}, {"opt.dirty_decay_ms", 8, READ}, {"opt.thp", 8, READ}, {"opt.tcache_max", 8, READ},
    {"opt.stats_interval", 8, READ}, {"opt.prof_prefix", 8, READ},
    {"thread.arena", 4, BOTH}, {"thread.allocated", 8, READ}, {"thread.allocatedp", 8, READ}, {"thread.deallocated", 8, READ},
    {"thread.deallocatedp", 8, READ}, {"thread.idle", 0, ACT}, {"thread.tcache.enabled", 1, BOTH}, {"thread.tcache.flush", 0, ACT},
    {"thread.tcache.max", 8, BOTH}, {"arenas.hugepage", 8, READ}, {"approximate_stats.active", 8, READ},
    {"stats.metadata_edata", 8, READ}, {"opt.prof_bt_max", 4, READ}, {"opt.calloc_madvise_threshold", 8, READ}, {"opt.disable_large_size_classes", 1, READ},
    {"thread.peak.read", 8, READ}, {"thread.peak.reset", 0, ACT},
    {"tcache.flush", 4, WRITE}, {"tcache.destroy", 4, WRITE},
    {"arena.0.initialized", 1, READ}, {"arena.0.purge", 0, ACT}, {"arena.4096.decay", 0, ACT}, {"arena.0.dirty_decay_ms", 8, BOTH},
    {"arena.0.muzzy_decay_ms", 8, BOTH}, {"arena.0.retain_grow_limit", 8, BOTH}, {"arena.0.dss", 8, BOTH},
    {"arenas.narenas", 4, READ}, {"arenas.dirty_decay_ms", 8, BOTH}, {"arenas.muzzy_decay_ms", 8, BOTH}, {"arenas.quantum", 8, READ},
    {"arenas.page", 8, READ}, {"arenas.tcache_max", 8, READ}, {"arenas.nbins", 4, READ}, {"arenas.nhbins", 4, READ}, {"arenas.bin.0.size", 8, READ},
    {"arenas.bin.0.nregs", 4, READ}, {"arenas.bin.0.slab_size", 8, READ}, {"arenas.nlextents", 4, READ}, {"arenas.lextent.0.size", 8, READ},
    {"prof.active", 1, BOTH}, {"prof.interval", 8, READ}, {"prof.lg_sample", 8, READ},
    {"stats.allocated", 8, READ}, {"stats.active", 8, READ}, {"stats.metadata", 8, READ}, {"stats.resident", 8, READ}, {"stats.mapped", 8, READ},
    {"stats.retained", 8, READ}, {"stats.background_thread.num_threads", 8, READ}, {"stats.arenas.0.nthreads", 4, READ},
    {"stats.arenas.0.uptime", 8, READ}, {"stats.arenas.4096.pactive", 8, READ}, {"stats.arenas.0.pdirty", 8, READ}, {"stats.arenas.0.small.allocated", 8, READ},
    {"stats.arenas.0.large.nmalloc", 8, READ}, {"stats.arenas.0.bins.3.curregs", 8, READ}, {"stats.arenas.0.lextents.3.curlextents", 8, READ},
};

class Ctl : public testing::TestWithParam<Name> {};

TEST_P(Ctl, ReadsByItsLengthAlone) {
  const Name &n = GetParam();
  for (size_t length = 0; length <= 16; length++) {
    unsigned char room[32];
    memset(room, 0xee, sizeof room);
    size_t given = length;
    int error = mallctl(n.name, room, &given, nullptr, 0);
    if (n.way == WRITE || n.way == ACT) {
      EXPECT_EQ(error, EPERM) << length;
      continue;
    }
    EXPECT_EQ(error, length == n.bytes ? 0 : EINVAL) << length;
    EXPECT_EQ(given, std::min(length, n.bytes));
    EXPECT_TRUE(is_filled(room, 0xee, given, sizeof room));
  }
}

TEST_P(Ctl, IsWrittenByItsLengthAlone) {
  const Name &n = GetParam();
  for (size_t length = 1; length <= 16; length++) {
    unsigned char value[16] = {};
    if (length == n.bytes && (n.way == BOTH || n.way == WRITE)) continue;
    EXPECT_EQ(mallctl(n.name, nullptr, nullptr, value, length), n.way == READ || n.way == ACT ? EPERM : EINVAL) << length;
  }
}

TEST_P(Ctl, WrittenBackIsAsItWas) {
  const Name &n = GetParam();
  if (n.way != BOTH || strcmp(n.name, "epoch") == 0) return;
  unsigned char was[8] = {}, is[8] = {};
  size_t length = n.bytes;
  ASSERT_EQ(mallctl(n.name, was, &length, nullptr, 0), 0);
  EXPECT_EQ(mallctl(n.name, nullptr, nullptr, was, n.bytes), 0);
  EXPECT_EQ(mallctl(n.name, is, &length, was, n.bytes), 0);
  EXPECT_EQ(memcmp(was, is, sizeof is), 0);
}

TEST_P(Ctl, HasAMibThatDoesTheSame) {
  const Name &n = GetParam();
  size_t mib[8], length = 8, components = static_cast<size_t>(std::count(n.name, n.name + strlen(n.name), '.')) + 1;
  ASSERT_EQ(mallctlnametomib(n.name, mib, &length), 0);
  EXPECT_EQ(length, components);
  size_t bytes = n.bytes;
  unsigned char value[16];
  bool reads = n.way == READ || n.way == BOTH;
  EXPECT_EQ(mallctlbymib(mib, length, reads ? value : nullptr, reads ? &bytes : nullptr, nullptr, 0), n.way == WRITE ? EINVAL : 0);
  EXPECT_EQ(mallctlbymib(mib, length - 1, value, &bytes, nullptr, 0), ENOENT);
  mib[length - 1] += 1000;
  EXPECT_EQ(mallctlbymib(mib, length, value, &bytes, nullptr, 0), ENOENT);
}

std::string test_name(const testing::TestParamInfo<Name> &info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Names, Ctl, testing::ValuesIn(names), test_name);

TEST(CtlNames, ThatAreNoneAreNotFound) {
  for (const char *name : {"", ".", "bogus", "stats", "stats.", "stats.bogus", ".epoch", "epoch.", "epoch.x", "arena.x.purge", "arena.99.purge", "arena.0",
                           "stats.arenas.99.pactive", "arenas.bin.999.size", "arenas.bin.-1.size", "arenas.bin.1x.size", "arena.0.extent_hooks",
                           "experimental.hooks.install"})
    EXPECT_EQ(act(name), ENOENT) << name;
}

TEST(CtlNames, CachedBlocksAreToldByTheirSize) {
  size_t bytes = 100, count = 0, length = sizeof count, most = 0;
  const char *name = "thread.tcache.ncached_max.read_sizeclass";
  ASSERT_EQ(mallctl(name, &count, &length, &bytes, sizeof bytes), 0);
  EXPECT_GT(count, 20u);
  bytes = size_t{16} << 20;
  EXPECT_EQ(mallctl(name, &count, &length, &bytes, sizeof bytes), EINVAL);
  EXPECT_EQ(mallctl(name, &count, &length, nullptr, 0), EINVAL);
  for (auto [text, error] : {std::pair{"8-128:3|160-160:11", 0}, {"", 0}, {"8-128", EINVAL}, {"8-128:", EINVAL}, {"x", EINVAL}, {"8-128:3|", EINVAL}})
    EXPECT_EQ(set("thread.tcache.ncached_max.write", text), error) << text;
  most = get<size_t>("thread.tcache.max");
  EXPECT_EQ(most, get<size_t>("opt.tcache_max"));
  EXPECT_EQ(set("thread.tcache.max", SIZE_MAX), 0);
  EXPECT_EQ(get<size_t>("thread.tcache.max"), size_t{8} << 20);
  EXPECT_EQ(set("thread.tcache.max", most), 0);
}

TEST(CtlNames, BlocksComeByTheBatch) {
  void *blocks[50] = {};
  struct { void **at; size_t count, size; int flags; } wanted = {blocks, 50, 1000, kZero};
  size_t filled = 0, length = sizeof filled;
  ASSERT_EQ(mallctl("experimental.batch_alloc", &filled, &length, &wanted, sizeof wanted), 0);
  ASSERT_EQ(filled, 50u);
  for (void *p : blocks) {
    EXPECT_TRUE(is_filled(p, 0, 0, sallocx(p, 0)));
    dallocx(p, 0);
  }
  struct { void *hooks; bool metadata; } config = {nullptr, false};
  unsigned index = 0;
  length = sizeof index;
  ASSERT_EQ(mallctl("experimental.arenas_create_ext", &index, &length, &config, sizeof config), 0);
  EXPECT_EQ(act("arena." + std::to_string(index) + ".destroy"), 0);
  EXPECT_EQ(act("opt.malloc_conf.symlink"), ENOENT);
}

TEST(CtlNames, NumbersMayBeSetInAMib) {
  size_t mib[4], length = 4, part = 2, begin[4];
  ASSERT_EQ(mallctlnametomib("arenas.bin.0.size", mib, &length), 0);
  ASSERT_EQ(mallctlnametomib("arenas.bin.7.size", begin, &part), 0);
  EXPECT_EQ(part, 2u);
  EXPECT_EQ(begin[1], mib[1]);
  size_t before = 0, bins = get<unsigned>("arenas.nbins");
  for (mib[2] = 0; mib[2] < bins; mib[2]++) {
    size_t size, bytes = sizeof size;
    ASSERT_EQ(mallctlbymib(mib, 4, &size, &bytes, nullptr, 0), 0);
    EXPECT_GT(size, before);
    EXPECT_EQ(size, nallocx(before + 1, 0));
    before = size;
  }
  EXPECT_EQ(mallctlbymib(mib, 4, nullptr, nullptr, nullptr, 0), ENOENT);
}

TEST(CtlNames, LargeClassesFollowBins) {
  size_t before = get<size_t>("arenas.bin." + std::to_string(get<unsigned>("arenas.nbins") - 1) + ".size");
  unsigned count = get<unsigned>("arenas.nlextents");
  for (unsigned i = 0; i < count; i++) {
    size_t size = get<size_t>("arenas.lextent." + std::to_string(i) + ".size");
    EXPECT_GT(size, before);
    before = size;
  }
  EXPECT_LE(before, size_t{PTRDIFF_MAX});
}

TEST(CtlTcache, IdentifiersAreGivenOnceAndTakenBack) {
  unsigned first = get<unsigned>("tcache.create"), second = get<unsigned>("tcache.create");
  EXPECT_NE(first, second);
  dallocx(mallocx(100, cache_flag(first)), cache_flag(second));
  EXPECT_EQ(set("tcache.flush", first), 0);
  EXPECT_EQ(set("tcache.destroy", first), 0);
  EXPECT_EQ(set("tcache.flush", first), EFAULT);
  EXPECT_EQ(set("tcache.destroy", first), EFAULT);
  EXPECT_EQ(get<unsigned>("tcache.create"), first);
  uint64_t wide = 7;
  size_t bytes = sizeof wide;
  EXPECT_EQ(mallctl("tcache.create", &wide, &bytes, nullptr, 0), EINVAL);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(wide, 7u);
}

TEST(CtlTcache, GivesItsBlocksTheLatestFirst) {
  unsigned one = get<unsigned>("tcache.create"), other = get<unsigned>("tcache.create");
  for (size_t size : {20, 300, 5000}) {
    void *p = mallocx(size, cache_flag(one)), *q = mallocx(size, cache_flag(other));
    dallocx(p, cache_flag(one));
    dallocx(q, cache_flag(other));
    EXPECT_EQ(mallocx(size, cache_flag(one)), p);
    EXPECT_EQ(mallocx(size, cache_flag(other)), q);
    memset(p, 7, size);
    dallocx(p, cache_flag(one));
    EXPECT_EQ(mallocx(size, cache_flag(one) | kZero), p);
    EXPECT_TRUE(is_filled(p, 0, 0, size));
    dallocx(p, 0);
    dallocx(q, cache_flag(other));
  }
  std::vector<void *> blocks;
  for (int i = 0; i < 100; i++) blocks.push_back(mallocx(100, 0));
  for (void *p : blocks) sdallocx(p, 100, cache_flag(one));
  EXPECT_EQ(set("tcache.flush", one), 0);
  EXPECT_EQ(set("tcache.destroy", one), 0);
  EXPECT_EQ(set("tcache.destroy", other), 0);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(CtlTcache, IsEnabledAndNot) {
  bool was = false, off = false, on = true;
  size_t bytes = sizeof was;
  EXPECT_EQ(mallctl("thread.tcache.enabled", &was, &bytes, &off, sizeof off), 0);
  EXPECT_TRUE(was);
  EXPECT_EQ(act("thread.tcache.flush"), EFAULT);
  EXPECT_EQ(mallctl("thread.tcache.enabled", &was, &bytes, &on, sizeof on), 0);
  EXPECT_FALSE(was);
  EXPECT_EQ(act("thread.tcache.flush"), 0);
}

TEST(CtlDecay, TakesMillisecondsAndNever) {
  for (const char *name : {"arena.0.dirty_decay_ms", "arena.0.muzzy_decay_ms", "arenas.dirty_decay_ms"}) {
    EXPECT_EQ(set<ssize_t>(name, -2), EFAULT) << name;
    for (ssize_t ms : {-1, 0, 5000, 1000}) {
      EXPECT_EQ(set(name, ms), 0);
      EXPECT_EQ(get<ssize_t>(name), ms);
    }
  }
  EXPECT_EQ(set<ssize_t>("arena.4096.dirty_decay_ms", 1), EFAULT);
}

TEST(CtlBackground, StartsAThread) {
  EXPECT_EQ(get<size_t>("stats.background_thread.num_threads"), 0u);
  EXPECT_EQ(set("background_thread", true), 0);
  EXPECT_TRUE(get<bool>("background_thread"));
  EXPECT_EQ(get<size_t>("stats.background_thread.num_threads"), 1u);
  EXPECT_EQ(set("background_thread", false), 0);
  EXPECT_FALSE(get<bool>("background_thread"));
  EXPECT_EQ(set<size_t>("max_background_threads", 0), EINVAL);
  /* What fails leaves the old value alone. */
  bool old = true, on = true;
  size_t bytes = sizeof old;
  EXPECT_EQ(mallctl("prof.active", &old, &bytes, &on, sizeof on), ENOENT);
  EXPECT_TRUE(old);
}

// As where it was not asked for at the start.
TEST(CtlProfile, IsNotThere) {
  EXPECT_FALSE(get<bool>("opt.prof"));
  EXPECT_FALSE(get<bool>("prof.active"));
  EXPECT_EQ(set("prof.active", false), 0);
  EXPECT_EQ(set("prof.active", true), ENOENT);
  const char *path = "/nowhere";
  EXPECT_EQ(set("prof.dump", path), ENOENT);
  EXPECT_EQ(act("prof.reset"), ENOENT);
  EXPECT_EQ(set("prof.gdump", true), ENOENT);
}

}  // namespace
