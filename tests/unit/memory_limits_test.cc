// Limits, resident memory and pressure as /proc and cgroup files tell them, in every layout that is met; and this
// machine's own files.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <vector>

#include "fake_files.h"
#include "hak.h"

namespace {

constexpr size_t GIB = HAK_GIB, MIB = HAK_MIB;
constexpr char MEMINFO[] = "MemTotal:        8388608 kB\nMemFree:          123456 kB\nMemAvailable:     234567 kB\n";

class MemoryLimits : public testing::Test {
 protected:
  void SetUp() override { files.write("/proc/meminfo", MEMINFO); }
  FakeFiles files;
};

TEST_F(MemoryLimits, WithoutCgroupsTheMachinesMemory) { EXPECT_EQ(hak_os_memory_limit(), 8 * GIB); }

TEST_F(MemoryLimits, NothingToRead) {
  files.remove("/proc/meminfo");
  errno = 77;
  EXPECT_EQ(hak_os_memory_limit(), SIZE_MAX);
  hak_os_resident now = {1, 1};
  EXPECT_FALSE(hak_os_read_resident(&now));
  EXPECT_EQ(now.all + now.anonymous, 0u);
  EXPECT_EQ(hak_os_memory_pressure(), 0u);
  EXPECT_EQ(errno, 77);
}

TEST_F(MemoryLimits, Version2TakesTheLeastOfAllAncestors) {
  files.write("/proc/thread-self/cgroup", "0::/system.slice/app.service/inner\n");
  files.write("/sys/fs/cgroup/system.slice/app.service/inner/memory.max", "max\n");
  EXPECT_EQ(hak_os_memory_limit(), 8 * GIB);
  files.write("/sys/fs/cgroup/system.slice/app.service/memory.max", "1073741824\n");
  EXPECT_EQ(hak_os_memory_limit(), 1 * GIB);
  files.write("/sys/fs/cgroup/system.slice/memory.max", "536870912\n");
  EXPECT_EQ(hak_os_memory_limit(), 512 * MIB);
  files.write("/sys/fs/cgroup/system.slice/app.service/inner/memory.high", "268435456\n");
  EXPECT_EQ(hak_os_memory_limit(), 256 * MIB);
  files.write("/sys/fs/cgroup/other.slice/memory.max", "1048576\n");
  EXPECT_EQ(hak_os_memory_limit(), 256 * MIB) << "another's limit";
}

TEST_F(MemoryLimits, NeverMoreThanTheMachineHas) {
  files.write("/proc/thread-self/cgroup", "0::/a\n");
  files.write("/sys/fs/cgroup/a/memory.max", "1099511627776\n");
  EXPECT_EQ(hak_os_memory_limit(), 8 * GIB);
}

TEST_F(MemoryLimits, OfTheCgroupsAlone) {
  EXPECT_EQ(hak_os_cgroup_limit(), SIZE_MAX);
  files.write("/proc/thread-self/cgroup", "4:memory:/a\n0::/b\n");
  files.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(hak_os_cgroup_limit(), SIZE_MAX) << "version 1 without one";
  files.write("/sys/fs/cgroup/b/memory.max", "8589938688\n");
  EXPECT_EQ(hak_os_cgroup_limit(), SIZE_MAX) << "more than the machine has";
  files.write("/sys/fs/cgroup/b/memory.max", "8589934592\n");
  EXPECT_EQ(hak_os_cgroup_limit(), 8 * GIB);
}

// A container's own view: the path is that of the root, and the mount is its cgroup.
TEST_F(MemoryLimits, Version2InANamespace) {
  files.write("/proc/thread-self/cgroup", "0::/\n");
  files.write("/sys/fs/cgroup/memory.max", "268435456\n");
  EXPECT_EQ(hak_os_memory_limit(), 256 * MIB);
}

TEST_F(MemoryLimits, AProcessOutsideOfItsNamespace) {
  files.write("/proc/thread-self/cgroup", "0::/../../elsewhere\n");
  files.write("/sys/fs/memory.max", "1048576\n");
  files.write("/sys/fs/cgroup/memory.max", "268435456\n");
  EXPECT_EQ(hak_os_memory_limit(), 256 * MIB);
}

TEST_F(MemoryLimits, Version1) {
  files.write("/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "1048576\n");
  files.write("/proc/thread-self/cgroup", "12:cpu,cpuacct:/x\n5:notmemory,memory2,mem:/y\n4:memory:/docker/abc\n1:name=systemd:/z\n0::/\n");
  files.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(hak_os_memory_limit(), 8 * GIB);
  files.write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "268435456\n");
  EXPECT_EQ(hak_os_memory_limit(), 256 * MIB);
  files.write("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "134217728\n");
  EXPECT_EQ(hak_os_memory_limit(), 128 * MIB);
}

// The host's path under a mount that begins at the container's cgroup.
TEST_F(MemoryLimits, Version1InAContainerWithoutNamespace) {
  files.write("/proc/thread-self/cgroup", "3:cpuset:/docker/abc\n2:pids,memory:/docker/abc\n");
  files.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
  EXPECT_EQ(hak_os_memory_limit(), 256 * MIB);
}

TEST_F(MemoryLimits, BothVersionsAtOnce) {
  files.write("/proc/thread-self/cgroup", "4:memory:/a\n0::/b\n");
  files.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n");
  files.write("/sys/fs/cgroup/unified/b/memory.max", "268435456\n");
  EXPECT_EQ(hak_os_memory_limit(), 256 * MIB);
}

// --- what is left ---

TEST_F(MemoryLimits, TheGroupWithTheLeastLeft) {
  EXPECT_EQ(hak_os_cgroup_nearest().limit, SIZE_MAX);
  files.write("/proc/thread-self/cgroup", "0::/a/b\n");
  files.write("/sys/fs/cgroup/a/b/memory.max", "536870912\n");
  EXPECT_EQ(hak_os_cgroup_nearest().limit, SIZE_MAX) << "nobody says what is used";
  files.write("/sys/fs/cgroup/a/b/memory.current", "104857600\n");
  hak_os_bound b = hak_os_cgroup_nearest();
  EXPECT_EQ(b.limit, 512 * MIB);
  EXPECT_EQ(b.used, 100 * MIB);
  files.write("/sys/fs/cgroup/a/b/memory.high", "268435456\n");
  EXPECT_EQ(hak_os_cgroup_nearest().limit, 256 * MIB);
  files.write("/sys/fs/cgroup/a/memory.max", "1073741824\n");
  files.write("/sys/fs/cgroup/a/memory.current", "1063256064\n");
  b = hak_os_cgroup_nearest();
  EXPECT_EQ(b.limit, 1 * GIB);
  EXPECT_EQ(b.used, 1014 * MIB);
  files.write("/sys/fs/cgroup/a/memory.stat", "anon 5\nfile 1\nunevictable 0\ninactive_file 524288000\nactive_file 104857600\n");
  EXPECT_EQ(hak_os_cgroup_nearest().limit, 256 * MIB) << "pages of files go";
  files.write("/sys/fs/cgroup/a/b/memory.current", "304857600\n");
  EXPECT_EQ(hak_os_left(hak_os_cgroup_nearest()), 0u);
}

TEST_F(MemoryLimits, TheNearestGroupOfVersion1) {
  files.write("/proc/thread-self/cgroup", "4:memory:/docker/abc\n0::/\n");
  files.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  files.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "8000000000\n");
  EXPECT_EQ(hak_os_cgroup_nearest().limit, SIZE_MAX) << "more than the machine has";
  files.write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "268435456\n");
  files.write("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "209715200\n");
  files.write("/sys/fs/cgroup/memory/docker/abc/memory.stat", "inactive_file 1\ntotal_rss 4\ntotal_inactive_file 52428800\ntotal_active_file 10485760\n");
  hak_os_bound b = hak_os_cgroup_nearest();
  EXPECT_EQ(b.limit, 256 * MIB);
  EXPECT_EQ(b.used, 140 * MIB);
}

TEST_F(MemoryLimits, NonsenseIsPassedOver) {
  for (const char *cgroups : {"", "\n", "0", "0:", "0::", ":::::", "4:memory", "4:memory:", "0::no-slash\n", "\n\n0::/a"}) {
    files.write("/proc/thread-self/cgroup", cgroups);
    EXPECT_EQ(hak_os_memory_limit(), 8 * GIB) << cgroups;
  }
  files.write("/proc/thread-self/cgroup", "0::/a\n");
  for (const char *limit : {"", "max", "-1", "x", "99999999999999999999999"}) {
    files.write("/sys/fs/cgroup/a/memory.max", limit);
    EXPECT_EQ(hak_os_memory_limit(), 8 * GIB) << limit;
  }
  files.write("/proc/thread-self/cgroup", "0::/" + std::string(3000, 'a') + "\n");
  EXPECT_EQ(hak_os_memory_limit(), 8 * GIB) << "a path too long to read";
  files.write("/proc/thread-self/cgroup", std::string(10000, 'a'));
  EXPECT_EQ(hak_os_memory_limit(), 8 * GIB);
}

size_t resident() {
  hak_os_resident now;
  hak_os_read_resident(&now);
  return now.all;
}

TEST_F(MemoryLimits, Resident) {
  files.set_resident(100 * MIB);
  EXPECT_EQ(resident(), 100 * MIB);
  for (const char *bad : {"", "123", "123 ", "123 x"}) {
    files.write("/proc/thread-self/statm", bad);
    EXPECT_EQ(resident(), 0u) << bad;
  }
}

TEST_F(MemoryLimits, PagesOfFilesAreNotAnonymous) {
  hak_os_resident now;
  files.set_resident(100 * MIB, 30 * MIB);
  ASSERT_TRUE(hak_os_read_resident(&now));
  EXPECT_EQ(now.all, 100 * MIB);
  EXPECT_EQ(now.anonymous, 70 * MIB);
  files.set_resident(100 * MIB, 110 * MIB);
  ASSERT_TRUE(hak_os_read_resident(&now)) << "counters of several processors, read one after the other";
  EXPECT_EQ(now.anonymous, 0u);
  files.write("/proc/thread-self/statm", "123 45");
  ASSERT_TRUE(hak_os_read_resident(&now));
  EXPECT_EQ(now.anonymous, now.all) << "nobody says what is shared";
}

TEST_F(MemoryLimits, ResidentAndItsPeak) {
  const std::string groups(3000, '1'), whole = "Name:\tVmHWM: 1 kB\nGroups:\t" + groups + "\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\nRssAnon:\t 5 kB\n";
  auto read = [&](const std::string &text) {
    files.write("/proc/thread-self/status", text);
    hak_os_resident_peak r = hak_os_read_resident_peak();
    return std::pair<size_t, size_t>(r.now, r.peak);
  };
  using Both = std::pair<size_t, size_t>;
  EXPECT_EQ(read(whole), Both(100 * MIB, 200 * MIB));
  EXPECT_EQ(read("Name:\tx\nThreads:\t1\n"), Both(0, 0)) << "a kernel thread has none";
  EXPECT_EQ(read(""), Both(0, 0));
  EXPECT_EQ(read("Name:\tx\nVmHWM:\t  204800 kB\nVmRSS:\t  1024"), Both(0, 200 * MIB)) << "cut inside of a number";
  EXPECT_EQ(read("Name:\tx\nVmHWM:\t  many kB\nVmRSS:\t  99999999999999999999 kB\n"), Both(0, 0));
  EXPECT_EQ(read("Groups:\t" + std::string(10000, '1') + "\nVmHWM:\t 4 kB\n"), Both(0, 0)) << "beyond what is read";
}

// Of a process whose first thread has ended, and before Linux 3.17.
TEST_F(MemoryLimits, TheThreadsFilesAreReadBeforeTheProcesss) {
  files.write("/proc/self/statm", "0 0 0 0 0 0 0\n");
  files.set_resident(100 * MIB);
  EXPECT_EQ(resident(), 100 * MIB);
  files.remove("/proc/thread-self/statm");
  files.write("/proc/self/statm", "9999 512 0 0 0 0 0\n");
  EXPECT_EQ(resident(), 512 * hak_os_page_size());
}

TEST_F(MemoryLimits, PressureOfTheCgroupBeforeThatOfTheMachine) {
  files.write("/proc/pressure/memory", "some avg10=12.34 avg60=5.00 avg300=1.00 total=18994347\nfull avg10=0.00\n");
  EXPECT_EQ(hak_os_memory_pressure(), 1234u);
  files.write("/proc/thread-self/cgroup", "0::/a\n");
  EXPECT_EQ(hak_os_memory_pressure(), 1234u) << "a kernel without pressure in cgroups";
  files.write("/sys/fs/cgroup/a/memory.pressure", "some avg10=0.05 avg60=0.00 avg300=0.00 total=0\n");
  EXPECT_EQ(hak_os_memory_pressure(), 5u);
  for (const char *bad : {"", "some avg10=", "some avg10=x", "some avg10=1", "some avg10=500.00", "full avg10=3.00"}) {
    files.write("/sys/fs/cgroup/a/memory.pressure", bad);
    EXPECT_EQ(hak_os_memory_pressure(), 1234u) << bad;
  }
}

TEST(MemoryLimitsHere, AreReadable) {
  size_t before = resident();
  EXPECT_GT(before, 1 * MIB);
  std::vector<char> touched(64 * MIB, 1);
  EXPECT_GE(resident(), before + 60 * MIB);
  EXPECT_LT(resident(), before + (HAKMEM_TEST_SANITIZED ? 500 : 200) * MIB) << "a sanitizer's shadow is touched too";
  EXPECT_NE(hak_os_memory_limit(), SIZE_MAX);
  EXPECT_GT(hak_os_memory_limit(), before);
  EXPECT_LE(hak_os_memory_pressure(), 10000u);
}

TEST(MemoryLimitsHere, PeakIsTheKernels) {
  constexpr size_t most = 64 * MIB;
  void *p = mmap(nullptr, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  memset(p, 1, most);
  hak_os_resident_peak with = hak_os_read_resident_peak();
  munmap(p, most);
  hak_os_resident_peak without = hak_os_read_resident_peak();
  EXPECT_GE(with.now, most);
  EXPECT_GE(with.peak, with.now);
  EXPECT_GE(without.peak, with.now - 4 * MIB) << "the kernel sums up what each processor counts, some pages late";
  EXPECT_LE(without.now, with.now - most / 2);
}

}  // namespace
