// Which large blocks have huge pages, in a control group of 64 MiB.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "fake_files.h"
#include "fake_os.h"
#include "hak.h"

namespace {

class Dense : public testing::Test {
 protected:
  void SetUp() override {
    fake_os::reset();
    files.write("/proc/meminfo", "MemTotal: 4194304 kB\n");
    files.write("/proc/thread-self/cgroup", "0::/box\n");
    files.write("/sys/fs/cgroup/box/memory.max", "67108864\n");
  }
  void TearDown() override {
    hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX);
    hak_config.rss_target = HAK_SIZE_AUTO;
  }
  // The group's limit is near enough to be measured against.
  static void come_near() {
    hak_config.rss_target = -95;
    hak_store_relaxed(&hak_budget_ceiling, 60 * HAK_MIB);
  }
  static void *alloc(size_t mib) { return hak_huge_alloc(mib * HAK_MIB, hak_os_page_size(), false); }
  static bool has_huge_pages(const void *p) {
    for (const fake_os::Event &e : fake_os::log())
      if (e.call == fake_os::ADVISE && e.detail == MADV_HUGEPAGE && e.addr == uintptr_t(p)) return true;
    return false;
  }
  static void prove() {
    void *p = alloc(9);
    memset(p, 1, 9 * HAK_MIB);
    bool due;
    EXPECT_TRUE(hak_huge_free(p, &due));
  }
  FakeFiles files;
};

TEST_F(Dense, OnTrustNoMoreThanAQuarterOfWhatTheGroupMayUse) {
  EXPECT_FALSE(has_huge_pages(alloc(17)));
  EXPECT_TRUE(has_huge_pages(alloc(16)));
}

TEST_F(Dense, NoneAreTrustedNearTheGroupsLimit) {
  come_near();
  EXPECT_FALSE(has_huge_pages(alloc(16)));
}

TEST_F(Dense, WhatHasProvedDenseHasNoneThereEither) {
  prove();
  EXPECT_TRUE(has_huge_pages(alloc(12)));
  prove();
  come_near();
  EXPECT_FALSE(has_huge_pages(alloc(12)));
}

}  // namespace
