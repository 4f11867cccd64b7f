// HAKMEM_RSS_TARGET=auto: when the cgroup's limit and resident memory are read, and what follows, on made-up files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/mman.h>

#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include "fake_files.h"
#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"
#include "whole_steps.h"
#include "run_program.h"

using testing::Contains;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

namespace {

constexpr size_t MIB = HAK_MIB, SPANS_PER_MIB = HAK_MIB / HAK_SPAN_SIZE;

// Which of the made-up files somebody has opened.
class Opened {
 public:
  Opened() : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {}
  ~Opened() { close(fd_); }
  Opened(const Opened &) = delete;
  Opened &operator=(const Opened &) = delete;

  void watch(const std::string &directory) {
    std::string path = std::string(hak_os_files_root) + directory;
    if (inotify_add_watch(fd_, path.c_str(), IN_OPEN) < 0) abort();
  }
  // Since the last call.
  std::set<std::string> names() {
    std::set<std::string> found;
    alignas(inotify_event) char buf[16384];
    for (long n; (n = read(fd_, buf, sizeof buf)) > 0;) {
      for (char *at = buf; at < buf + n;) {
        auto *event = reinterpret_cast<inotify_event *>(at);
        if (event->len > 0 && (event->mask & IN_ISDIR) == 0) found.insert(event->name);
        at += sizeof *event + event->len;
      }
    }
    return found;
  }

 private:
  int fd_;
};

// As at the end of a slow path, but for the clock.
void keep_to_target() {
  hak_deferred d = {};
  whole_steps::excess(&d);
  if (hak_budget_slab_purge_due()) hak_decay_for_target(&d);
}
void purge_all() {
  hak_deferred d = {};
  hak_decay_all(0, &d);
}

struct Layout {
  const char *name, *cgroups, *directory, *file, *none;
};
const Layout version1 = {"Version1", "4:memory:/box\n", "/sys/fs/cgroup/memory/box", "/memory.limit_in_bytes", "9223372036854771712\n"};
const Layout version2 = {"Version2", "0::/box\n", "/sys/fs/cgroup/box", "/memory.max", "max\n"};

class Auto : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(4 * HAK_GIB));
    fake_os::on_call([this](const fake_os::Event &e) {
      bool grows = e.call == fake_os::PROTECT || (e.call == fake_os::ADVISE && e.detail == MADV_DODUMP);
      if (!grows && hak_load_relaxed(&hak_span_pool.lock.state) != 0) called_under_lock = true;
    });
    files.write("/proc/meminfo", "MemTotal: 4194304 kB\n");
    files.write("/proc/thread-self/cgroup", GetParam().cgroups);
    files.set_resident(1 * MIB);
    set_limit(0);
    opened.watch("/proc");
    opened.watch("/proc/thread-self");
    opened.watch(GetParam().directory);
    fake_os::set_clock(now_ms);
    epoch();  // as at the start
  }
  void TearDown() override {
    EXPECT_FALSE(called_under_lock);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  // 0: none.
  void set_limit(size_t mib) {
    files.write(std::string(GetParam().directory) + GetParam().file,
                mib == 0 ? GetParam().none : std::to_string(mib * MIB) + "\n");
    opened.names();
  }
  void set_resident(size_t mib) {
    files.set_resident(mib * MIB);
    opened.names();
  }
  static std::vector<hak_span *> take(size_t mib) {
    std::vector<hak_span *> runs;
    bool zeroed;
    for (; mib > 0; mib--) runs.push_back(hak_pool_take(SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed));
    return runs;
  }
  static void give(const std::vector<hak_span *> &runs) {
    bool due = false;
    for (hak_span *run : runs) hak_pool_give(run, 0, HELD_TAGS.head, &due);
  }
  unsigned epoch(uint64_t ms = 250) {
    fake_os::set_clock(now_ms += ms);
    hak_deferred d = {};
    whole_steps::tick(now_ms, &d);
    return hak_budget_level();
  }
  static size_t target() {
    hak_budget_figures figures;
    hak_budget_state(&figures);
    return figures.target;
  }
  static size_t percent(size_t mib) { return mib * MIB / 100 * 95; }
  static std::string limit_file() { return GetParam().file + 1; }

  FakeFiles files;
  Opened opened;
  uint64_t now_ms = 1000000;
  bool called_under_lock = false;
};

TEST_P(Auto, IsTheDefault) { EXPECT_EQ(hak_config.rss_target, HAK_SIZE_AUTO); }

TEST_P(Auto, NothingIsReadBelow32MiB) {
  set_limit(16);
  take(32);
  for (int i = 0; i < 100; i++) EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_FAR));
  keep_to_target();
  EXPECT_THAT(opened.names(), IsEmpty());
  EXPECT_EQ(target(), 0u);
}

TEST_P(Auto, ThenTheLimitIsReadOnceByTheTick) {
  set_limit(256);
  take(33);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_FAR));
  EXPECT_THAT(opened.names(), IsSupersetOf({std::string("cgroup"), limit_file()}));
  EXPECT_EQ(target(), percent(256));
  EXPECT_FALSE(hak_budget_targeted()) << "it is far";
  for (int i = 0; i < 100; i++) epoch(1000);
  EXPECT_THAT(opened.names(), IsEmpty());
}

TEST_P(Auto, OrAsMemoryIsTaken) {
  set_limit(256);
  take(33);
  EXPECT_TRUE(hak_budget_slab_purge_due()) << "what the slow paths ask";
  errno = 77;
  keep_to_target();
  EXPECT_EQ(errno, 77);
  EXPECT_THAT(opened.names(), Contains(limit_file()));
  EXPECT_EQ(target(), percent(256));
  keep_to_target();
  EXPECT_THAT(opened.names(), IsEmpty());
}

TEST_P(Auto, WhereThereIsNoneItIsReadAgainAtTwiceAsMuch) {
  take(33);
  epoch();
  EXPECT_THAT(opened.names(), Contains("cgroup"));
  EXPECT_EQ(target(), 0u);
  take(33);
  set_limit(256);
  for (int i = 0; i < 100; i++) epoch(1000);
  EXPECT_THAT(opened.names(), IsEmpty());
  EXPECT_EQ(hak_budget_room(), SIZE_MAX);
  take(1);
  epoch();
  EXPECT_THAT(opened.names(), Contains("cgroup"));
  EXPECT_EQ(target(), percent(256));
}

// lxcfs tells a container its limit as the machine's memory.
TEST_P(Auto, ALimitOfAllTheMachineHasIsOne) {
  set_limit(4096);
  take(64);
  epoch();
  EXPECT_EQ(target(), percent(4096));
}

TEST_P(Auto, ALimitAboveWhatTheMachineHasIsNone) {
  set_limit(4097);
  take(64);
  epoch();
  EXPECT_EQ(target(), 0u);
  EXPECT_THAT(opened.names(), Not(Contains("statm")));
}

TEST_P(Auto, AnotherTargetInBetweenIsNotTakenForTheLimit) {
  set_limit(256);
  take(200);
  set_resident(200);
  epoch();
  ASSERT_EQ(target(), percent(256));
  hak_config.rss_target = int64_t{1} << 40;
  epoch();
  EXPECT_EQ(target(), size_t{1} << 40);
  hak_config.rss_target = HAK_SIZE_AUTO;
  epoch();
  EXPECT_EQ(target(), percent(256));
  hak_config.rss_target = -50;
  epoch();
  hak_config.rss_target = 0;
  epoch();
  hak_config.rss_target = -50;
  epoch();
  EXPECT_EQ(target(), 256 * MIB / 100 * 50) << "half of the limit, at once";
  hak_config.rss_target = HAK_SIZE_AUTO;
}

TEST_P(Auto, WhatWasReadIsToldAndWhatIsPastIsNot) {
  set_limit(400);
  take(100);
  set_resident(110);
  epoch();
  hak_budget_figures figures;
  hak_budget_state(&figures);
  EXPECT_EQ(figures.resident, 110 * MIB) << "asleep, and read all the same";
  std::vector<hak_span *> more = take(290);
  set_resident(400);
  files.write("/proc/pressure/memory", "some avg10=50.00 avg60=1.00 avg300=1.00 total=1\n");
  epoch(2000);
  hak_budget_state(&figures);
  EXPECT_EQ(figures.pressure, 5000u);
  give(more);
  set_resident(100);
  for (int i = 0; i < 8; i++) epoch();
  hak_budget_state(&figures);
  EXPECT_EQ(figures.pressure, 0u);
  EXPECT_EQ(hak_budget_callback_due, 0u);
}

TEST_P(Auto, ResidentMemoryIsReadAboveThreeQuarters) {
  set_limit(400);
  take(100);
  epoch();
  take(190);
  epoch();
  EXPECT_FALSE(hak_budget_targeted());
  opened.names();
  for (int i = 0; i < 10; i++) epoch();
  EXPECT_THAT(opened.names(), IsEmpty());
  take(13);
  set_resident(350);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_NEAR));
  EXPECT_TRUE(hak_budget_targeted());
  EXPECT_THAT(opened.names(), Contains("statm"));
  set_resident(381);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_OVER));
  EXPECT_EQ(hak_budget_room(), HAK_BUDGET_DIRTY_LEAST);
}

TEST_P(Auto, OtherMemoryCountsToo) {
  set_limit(256);
  set_resident(230);
  take(33);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_NEAR));
}

TEST_P(Auto, AFileThatTheProgramMapsDoesNotCount) {
  set_limit(512);
  take(36);
  files.set_resident((450 + 36) * MIB, 450 * MIB);
  epoch();
  EXPECT_EQ(target(), percent(512));
  EXPECT_FALSE(hak_budget_targeted()) << "the kernel takes clean pages back before the group meets its limit";
  hak_budget_figures figures;
  hak_budget_state(&figures);
  EXPECT_EQ(figures.resident, 36 * MIB);
  hak_config.rss_target = -95;
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_FAR)) << "a percentage is of the same";
  hak_config.rss_target = int64_t(486 * MIB);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_NEAR)) << "bytes are what ps shows";
}

TEST_P(Auto, ABurstWithinAnEpochIsHeldToTheLimit) {
  hak_config.profile = HAK_PROFILE_SPEED;  // keeps 256 MiB
  hak_decay_start();
  set_limit(256);
  set_resident(222);
  std::vector<hak_span *> runs = take(220);
  keep_to_target();
  EXPECT_TRUE(hak_budget_targeted());
  take(10);
  set_resident(250);
  give(std::vector<hak_span *>(runs.begin() + 100, runs.end()));
  keep_to_target();
  EXPECT_LE(hak_span_pool.dirty_spans / SPANS_PER_MIB, 120u - (250 - 235));
  EXPECT_GE(hak_span_pool.dirty_spans / SPANS_PER_MIB, 80u);
}

TEST_P(Auto, ARaisedLimitIsSeenWhileItIsNear) {
  set_limit(256);
  take(200);
  set_resident(230);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_NEAR));
  set_limit(512);
  opened.names();
  EXPECT_EQ(epoch(9000), unsigned(HAK_BUDGET_NEAR));
  EXPECT_THAT(opened.names(), Not(Contains(limit_file())));
  EXPECT_EQ(epoch(1000), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(target(), percent(512));
  EXPECT_FALSE(hak_budget_targeted()) << "it is far again";
  opened.names();
  for (int i = 0; i < 100; i++) epoch(1000);
  EXPECT_THAT(opened.names(), IsEmpty());
}

TEST_P(Auto, ALiftedLimitIsNoTarget) {
  set_limit(256);
  take(200);
  set_resident(255);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_OVER));
  set_limit(0);
  EXPECT_EQ(epoch(10000), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(target(), 0u);
  EXPECT_EQ(hak_budget_room(), SIZE_MAX);
}

TEST_P(Auto, ItSleepsOnlyWhenThereIsRoom) {
  set_limit(1000);
  std::vector<hak_span *> runs = take(780);
  set_resident(730);
  epoch();
  ASSERT_TRUE(hak_budget_targeted());
  give(std::vector<hak_span *>(runs.begin(), runs.begin() + 50));
  purge_all();
  epoch();
  EXPECT_TRUE(hak_budget_targeted()) << "between 72 and 75 %";
  give(std::vector<hak_span *>(runs.begin() + 50, runs.begin() + 100));
  purge_all();
  set_resident(680);
  epoch();
  EXPECT_FALSE(hak_budget_targeted());
  opened.names();
  take(50);
  epoch();
  EXPECT_THAT(opened.names(), IsEmpty());
  take(30);
  epoch();
  EXPECT_TRUE(hak_budget_targeted());
}

TEST_P(Auto, WhatCannotBeReadIsNoLimitAndNotWorthAWord) {
  set_limit(64);
  files.remove("/proc/thread-self/cgroup");
  testing::internal::CaptureStderr();
  take(40);
  errno = 77;
  epoch();
  EXPECT_EQ(target(), 0u);
  files.write("/proc/thread-self/cgroup", GetParam().cgroups);
  files.remove("/proc/thread-self/statm");
  take(60);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(target(), percent(64));
  EXPECT_FALSE(hak_budget_targeted()) << "nobody knows how far it is";
  EXPECT_EQ(errno, 77);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_P(Auto, OutOfDescriptorsForAMomentWhatWasMeasuredHolds) {
  set_limit(256);
  take(200);
  set_resident(230);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_NEAR));
  files.remove("/proc/thread-self/cgroup");
  files.remove("/proc/thread-self/statm");
  for (unsigned ms : {250, 250, 11000, 250}) {
    EXPECT_EQ(epoch(ms), unsigned(HAK_BUDGET_NEAR));
    EXPECT_TRUE(hak_budget_targeted());
    EXPECT_EQ(target(), percent(256));
  }
  files.write("/proc/thread-self/cgroup", GetParam().cgroups);
  set_resident(100);
  EXPECT_EQ(epoch(11000), unsigned(HAK_BUDGET_FAR));
}

TEST_P(Auto, OffReadsNothingAndCanBeSetAtAnyTime) {
  ASSERT_EQ(hakmem_option_set("HAKMEM_RSS_TARGET", 0), 0);
  set_limit(64);
  take(100);
  for (int i = 0; i < 10; i++) EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_FAR));
  keep_to_target();
  EXPECT_THAT(opened.names(), IsEmpty());
  ASSERT_EQ(hakmem_option_set("HAKMEM_RSS_TARGET", HAK_SIZE_AUTO), 0);
  set_resident(100);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_OVER));
  ASSERT_EQ(hakmem_option_set("HAKMEM_RSS_TARGET", 0), 0);
  EXPECT_EQ(epoch(), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(target(), 0u);
  EXPECT_EQ(hak_budget_watch, SIZE_MAX);
}

// What was advised of a piece that went back near the target.
std::vector<int> advice_for_a_piece(hak_span *piece) {
  size_t before = fake_os::log().size();
  bool due = false;
  auto at = uintptr_t(span_address(piece));
  hak_pool_give(piece, 0, HELD_TAGS.head, &due);
  purge_all();
  std::vector<int> advice;
  for (const fake_os::Event &e : fake_os::log()) {
    if (before > 0)
      before--;
    else if (e.call == fake_os::ADVISE && e.addr <= at && at < e.addr + e.size_bytes)
      advice.push_back(e.detail);
  }
  return advice;
}

TEST_P(Auto, APieceOfAHugePageIsSplitOffWhereTheGroupCountsIt) {
  set_limit(256);
  std::vector<hak_span *> runs = take(200);
  set_resident(220);
  EXPECT_EQ(advice_for_a_piece(runs[1]), std::vector<int>{MADV_DONTNEED});
  epoch();
  ASSERT_TRUE(hak_budget_targeted());
  EXPECT_EQ(advice_for_a_piece(runs[11]), (std::vector<int>{MADV_FREE, MADV_DONTNEED}));
  hak_config.rss_target = 256 * MIB;
  epoch();
  ASSERT_TRUE(hak_budget_targeted());
  EXPECT_EQ(advice_for_a_piece(runs[21]), std::vector<int>{MADV_DONTNEED}) << "a target of the process's own memory";
}

TEST_P(Auto, PressureIsReadWhereItIsNear) {
  files.write("/proc/pressure/memory", "some avg10=50.00 avg60=0.00 avg300=0.00 total=0\n");
  opened.watch("/proc/pressure");
  set_limit(256);
  take(40);
  EXPECT_EQ(epoch(5000), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(epoch(5000), unsigned(HAK_BUDGET_FAR));
  EXPECT_THAT(opened.names(), Not(Contains("memory")));
  take(160);
  set_resident(200);
  EXPECT_EQ(epoch(5000), unsigned(HAK_BUDGET_NEAR));
}

INSTANTIATE_TEST_SUITE_P(Target, Auto, testing::Values(version1, version2), [](const auto &info) { return info.param.name; });

// --- fork ---

FakeFiles *moved_files;

// The child has been moved to a group with a limit.
int in_child() {
  moved_files->write("/proc/thread-self/cgroup", "0::/box\n");
  hak_budget_figures figures;
  void *few = hakmem_malloc(30 * MIB);
  hak_budget_state(&figures);
  if (few == nullptr || figures.target != 0) return 1;
  void *more = hakmem_malloc(3 * MIB);
  hak_budget_state(&figures);
  return more != nullptr && figures.target == 1 * HAK_GIB / 100 * 95 ? 0 : 2;
}

TEST(AutoFork, AChildThatGrowsReadsItsOwnLimit) {
  FakeFiles files;
  moved_files = &files;
  files.write("/proc/meminfo", "MemTotal: 4194304 kB\n");
  files.write("/proc/thread-self/cgroup", "0::/\n");
  files.write("/sys/fs/cgroup/box/memory.max", "1073741824\n");
  files.set_resident(50 * MIB);
  Opened opened;
  opened.watch("/proc/thread-self");
  void *p = hakmem_malloc(40 * MIB);
  ASSERT_NE(p, nullptr);
  EXPECT_THAT(opened.names(), Contains("cgroup")) << "by the parent, which would read again at 80 MiB";
  ProgramResult r = run_forked(in_child);
  EXPECT_EQ(r.signal, 0);
  EXPECT_EQ(r.exit_code, 0);
  hakmem_free(p);
}

}  // namespace
