// When a profile is due near a limit, on made-up figures of the system and of what is in use.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fake_files.h"
#include "hak.h"

namespace {

constexpr size_t MIB = HAK_MIB;

class BlackBox : public testing::Test {
 protected:
  void SetUp() override {
    hak_config.heap_profile = 1;
    files.write("/proc/meminfo", "MemTotal: 8388608 kB\n");
    files.write("/proc/thread-self/cgroup", "0::/box\n");
    set_group(0);
    hak_black_box_start(nullptr);
  }

  void set_group(size_t used_mib, size_t limit_mib = 1000) {
    files.write("/sys/fs/cgroup/box/memory.max", std::to_string(limit_mib * MIB));
    files.write("/sys/fs/cgroup/box/memory.current", std::to_string(used_mib * MIB));
  }
  static void grow(size_t mib) { hak_span_pool.live_spans += mib * MIB / HAK_SPAN_SIZE; }
  static void shrink(size_t mib) { hak_span_pool.live_spans -= mib * MIB / HAK_SPAN_SIZE; }
  bool look(uint64_t after_ms = 100) { return hak_black_box_look(now_ms += after_ms); }

  FakeFiles files;
  uint64_t now_ms = 1000000;
};

TEST_F(BlackBox, FarFromTheLimitNothingIsDue) {
  for (size_t used = 0; used <= 740; used += 20) {
    grow(20);
    set_group(used);
    EXPECT_FALSE(look()) << used;
  }
  EXPECT_FALSE(hak_black_box_is_due());
}

TEST_F(BlackBox, NearItOne) {
  set_group(760);
  grow(700);
  EXPECT_TRUE(look());
  for (int i = 0; i < 500; i++) EXPECT_FALSE(look());
}

TEST_F(BlackBox, SamplesRingBeforeTheLimitIsReached) {
  set_group(500);
  grow(300);
  EXPECT_FALSE(look());
  grow(240);
  EXPECT_FALSE(hak_black_box_is_due());
  grow(10);
  EXPECT_TRUE(hak_black_box_is_due()) << "as much more is in use as what was left until it is near";
  EXPECT_TRUE(look()) << "although nothing of it has been touched yet";
  EXPECT_FALSE(hak_black_box_is_due());
  EXPECT_FALSE(look());
}

// From far below, looked at each 4 MiB or only when a sample rings: the last profile has nearly all.
TEST_F(BlackBox, GrowthUpToTheLimit) {
  for (bool rings : {false, true}) {
    std::vector<size_t> written;
    set_group(0);
    hak_black_box_start(nullptr);
    EXPECT_FALSE(look());
    for (size_t used = 4; used <= 1000; used += 4) {
      grow(4);
      if (rings && !hak_black_box_is_due()) continue;
      set_group(used);
      if (look(1)) written.push_back(used);
    }
    ASSERT_GE(written.size(), 8u) << rings;
    EXPECT_LE(written.size(), 12u) << rings;
    EXPECT_NEAR(double(written.front()), 750, 4) << rings;
    EXPECT_GE(written.back(), 1000u - 1000 / 64 - 4) << rings;
    shrink(1000);
  }
}

TEST_F(BlackBox, OneAMinuteWhereNothingGrows) {
  set_group(900);
  unsigned written = 0;
  for (int seconds = 0; seconds < 600; seconds++) written += look(1000);
  EXPECT_EQ(written, 10u);
}

// What comes and goes is written once a minute, and where it comes higher than it was.
TEST_F(BlackBox, Swings) {
  unsigned written = 0;
  for (int i = 0; i < 200; i++) {
    set_group(400);
    written += look(500);
    grow(450);
    set_group(850);
    written += look(500);
    shrink(450);
  }
  EXPECT_EQ(written, 4u);
  grow(600);
  set_group(950);
  EXPECT_TRUE(look());
}

TEST_F(BlackBox, GroupsPagesOfFilesDoNotCount) {
  set_group(990);
  files.write("/sys/fs/cgroup/box/memory.stat", "anon 1\nfile 2\ninactive_file 209715200\nactive_file 104857600\n");
  EXPECT_FALSE(look());
  files.write("/sys/fs/cgroup/box/memory.stat", "anon 1\nfile 2\ninactive_file 104857600\nactive_file 104857600\n");
  EXPECT_TRUE(look());
}

TEST_F(BlackBox, WithoutALimitOneLine) {
  files.remove("/sys/fs/cgroup/box/memory.max");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(look());
  std::string first = testing::internal::GetCapturedStderr();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; i++) EXPECT_FALSE(look());
  EXPECT_EQ(first, "") << "of a program that does not last";
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "hakmem: HAKMEM_HEAP_PROFILE_NEAR_LIMIT: there is no limit of a cgroup, HAKMEM_RSS_TARGET or HAKMEM_LIMIT to be near to\n");
  set_group(900);
  EXPECT_TRUE(look()) << "one that comes later";
}

TEST_F(BlackBox, NothingWhileTheProfileIsOff) {
  set_group(700);
  EXPECT_FALSE(look());
  hak_config.heap_profile = 0;
  set_group(990);
  EXPECT_FALSE(look());
  grow(900);
  EXPECT_FALSE(hak_black_box_is_due());
  hak_config.heap_profile = 1;
  EXPECT_TRUE(look());
}

TEST_F(BlackBox, AChildBeginsAnew) {
  set_group(900);
  grow(800);
  EXPECT_TRUE(look());
  EXPECT_FALSE(look());
  hak_black_box_start(nullptr);
  EXPECT_TRUE(look());
}

// --- with the profile's thread ---

TEST(BlackBoxThreads, SeveralMeetTheLimitAtOnce) {
  FakeFiles files;  // which have no cgroup
  char folder[] = "/tmp/hakmem-black-box-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  snprintf(hak_config.heap_profile_prefix, sizeof hak_config.heap_profile_prefix, "%s/p", folder);
  hak_config.heap_profile_near_limit = 2;
  hak_config.heap_profile_format = 2;
  hak_config.limit = 128 * MIB;
  hakmem_free(hakmem_malloc(1));
  ASSERT_EQ(hakmem_option_set("HEAP_PROFILE_MOST", 0), 0);
  ASSERT_EQ(hakmem_profile_start(65536), 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([] {
      for (size_t held = 0; held < 27 * MIB; held += 30000) hakmem_malloc(30000);
    });
  }
  for (std::thread &t : threads) t.join();
  std::vector<std::string> names;
  // What is written now has counted already as written.
  for (int tries = 0; tries < 3000 && (names.empty() || hak_black_box_is_due()); tries++) {
    names.clear();
    for (const auto &entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".json") names.push_back(entry.path());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_FALSE(names.empty());
  EXPECT_LE(names.size(), 3u) << "the oldest goes when the next one is whole";
  for (const std::string &name : names) {
    std::stringstream text;
    text << std::ifstream(name).rdbuf();
    std::string whole = text.str();
    if (!whole.empty()) EXPECT_EQ(whole.substr(whole.size() - 2), "}\n") << name;  // it may have gone meanwhile
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

// --- which limit ---

TEST_F(BlackBox, TheNearestLimitCounts) {
  auto nearest = [] { return hak_budget_nearest(); };
  set_group(100, 400);
  EXPECT_EQ(nearest().limit, 400 * MIB);
  hak_config.limit = 200 * MIB;
  EXPECT_EQ(nearest().limit, 200 * MIB);
  hak_budget_count_mapped(150 * MIB);
  EXPECT_GE(nearest().used, 150 * MIB);
  hak_config.limit = 0;
  files.set_resident(90 * MIB, 10 * MIB);
  hak_config.rss_target = 100 * MIB;
  hak_budget_look(now_ms);
  EXPECT_EQ(nearest().limit, 100 * MIB);
  EXPECT_EQ(nearest().used, 90 * MIB);
  hak_config.rss_target = -50;
  hak_budget_look(now_ms += 60000);
  EXPECT_EQ(nearest().used, 80 * MIB) << "as the target does";
  hak_config.rss_target = HAK_SIZE_AUTO;
  hak_budget_look(now_ms += 60000);
  EXPECT_EQ(nearest().limit, 400 * MIB) << "the group itself";
  hak_span_pool.dirty_spans = 30 * MIB / HAK_SPAN_SIZE;
  EXPECT_EQ(nearest().used, 70 * MIB);
}

}  // namespace
