// HAKMEM_RSS_TARGET, measured from inside a program that would take much more: load.c, with the library linked.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "run_program.h"

namespace {

// A figure that the load prints; -1: it did not.
long figure(const ProgramResult &r, const std::string &name) {
  size_t at = r.out.find(name + "=");
  return at == std::string::npos ? -1 : atol(r.out.c_str() + at + name.size() + 1);
}

// In profile speed, which keeps as much as is in use.
ProgramResult load(std::vector<std::string> environment, const char *rounds = "4", const char *live_mib = "210") {
  environment.push_back("HAKMEM_PROFILE=speed");
  ProgramResult r = run_program({LOAD, rounds, live_mib, "1"}, environment);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r;
}

TEST(Target, WithoutOneTheLoadTakesMore) { EXPECT_GT(figure(load({}), "peak_mib"), 310); }

TEST(Target, IsHeldWithinFivePercent) {
  for (int target : {240, 256, 300}) {
    ProgramResult r = load({"HAKMEM_RSS_TARGET=" + std::to_string(target) + "M"});
    EXPECT_LE(figure(r, "peak_mib"), target + target / 20) << r.out;
    EXPECT_GE(figure(r, "peak_mib"), target * 80 / 100) << "and used: " << r.out;
  }
}

TEST(Target, BelowWhatIsInUseNothingIsRefused) {
  ProgramResult r = load({"HAKMEM_RSS_TARGET=64M"}, "2");
  EXPECT_LE(figure(r, "peak_mib"), 270) << "what is in use at most, and little besides";
}

// --- without an option ---

// How often it was looked for a cgroup's limit, with 70 MiB in use; -1: nobody may trace.
long looks_for_a_limit(const char *turns) {
  char name[] = "/tmp/hakmem-trace-XXXXXX";
  int fd = mkstemp(name);
  if (fd < 0) return -1;
  ProgramResult r = run_program({"/usr/bin/env", "strace", "-f", "-e", "trace=openat", "-o", name, CHURN, "70", turns}, {});
  long looks = 0;
  std::ifstream trace(name);
  for (std::string line; std::getline(trace, line);) looks += line.find("\"/proc/thread-self/cgroup\"") != std::string::npos;
  close(fd);
  unlink(name);
  return r.exit_code == 0 ? looks : -1;
}

TEST(Target, TheLimitIsNotLookedForInASteadyState) {
  long few = looks_for_a_limit("4"), many = looks_for_a_limit("24");
  if (few < 0 || many < 0) GTEST_SKIP() << "cannot trace here";
  EXPECT_GT(few, 0) << "at 32 MiB";
  EXPECT_EQ(few, many);
}

// --- in a cgroup ---

// A memory cgroup below this process's own, where such a one can be made.
class Cgroup {
 public:
  explicit Cgroup(const std::string &limit) {
    std::ifstream cgroups("/proc/self/cgroup");
    for (std::string line; path_.empty() && std::getline(cgroups, line);) {
      size_t first = line.find(':'), second = line.find(':', first + 1);
      std::string controllers = line.substr(first + 1, second - first - 1), own = line.substr(second + 1);
      if (own == "/") own.clear();
      if (("," + controllers + ",").find(",memory,") != std::string::npos)
        make("/sys/fs/cgroup/memory" + own, "/memory.limit_in_bytes", limit);
      else if (controllers.empty())
        make("/sys/fs/cgroup" + own, "/memory.max", limit);
    }
  }
  ~Cgroup() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  Cgroup(const Cgroup &) = delete;
  Cgroup &operator=(const Cgroup &) = delete;

  bool usable() const { return !path_.empty(); }
  const std::string &path() const { return path_; }

 private:
  void make(const std::string &parent, const std::string &file, const std::string &limit) {
    std::string path = parent + "/hakmem-budget-" + std::to_string(getpid());
    if (mkdir(path.c_str(), 0755) != 0) return;
    std::ofstream out(path + file);
    if (out << limit && out.flush())
      path_ = path;
    else
      rmdir(path.c_str());
  }
  static int mkdir(const char *path, unsigned) { return std::filesystem::create_directory(path, ignored()) ? 0 : -1; }
  static std::error_code &ignored() {
    static std::error_code error;
    return error;
  }
  std::string path_;
};

ProgramResult run_inside(const Cgroup &cgroup, const std::string &command, const std::vector<std::string> &environment) {
  return run_program({"/bin/sh", "-c", "echo $$ > " + cgroup.path() + "/cgroup.procs && exec " + command}, environment);
}

// Both hold 200 MB in use at most. With no target at all the kernel ends them.
class InACgroupOf256MB : public testing::TestWithParam<const char *> {};

TEST_P(InACgroupOf256MB, NoOutOfMemoryKill) {
  Cgroup cgroup("268435456");
  if (!cgroup.usable()) GTEST_SKIP() << "cannot make a memory cgroup here";
  ProgramResult without{};
  // The kernel may just get by, by splitting huge pages that are in use in part.
  for (int i = 0; i < 4 && without.signal != 9; i++) {
    without = run_inside(cgroup, GetParam(), {"HAKMEM_RSS_TARGET=off"});
    if (without.exit_code == 2) GTEST_SKIP() << "cannot enter it: " << without.err;
  }
  EXPECT_EQ(without.signal, 9) << "the load is to be more than the cgroup holds: " << without.out;
  for (const std::vector<std::string> &environment : {std::vector<std::string>{}, {"HAKMEM_RSS_TARGET=90%"}}) {
    ProgramResult r = run_inside(cgroup, GetParam(), environment);
    EXPECT_EQ(r.signal, 0) << "with " << environment.size() << " options";
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_GT(figure(r, "peak_mib"), 200);
  }
}

INSTANTIATE_TEST_SUITE_P(Target, InACgroupOf256MB, testing::Values(LOAD " 20 170 1", CHURN " 200 50"),
                         [](const auto &info) { return info.index == 0 ? "Load" : "Churn"; });

// Where memory that is not malloc's leaves little room below the target, giving back only costs. Without a target there is
// not one call in a thousand blocks.
class Beside : public testing::TestWithParam<const char *> {};

TEST_P(Beside, LittleIsGivenBackInVain) {
  Cgroup cgroup("536870912");
  if (!cgroup.usable()) GTEST_SKIP() << "cannot make a memory cgroup here";
  // Some 10; where the processors are busy with others now and then some thousand, since it looks by the clock.
  constexpr long MOST = 300000 / 100;
  long calls = MOST + 1;
  for (int run = 0; run < 3 && calls > MOST; run++) {
    ProgramResult r = run_inside(cgroup, std::string(BESIDE " ") + GetParam(), {});
    if (r.exit_code == 2) GTEST_SKIP() << "cannot enter it: " << r.err;
    EXPECT_EQ(r.signal, 0);
    calls = figure(r, "calls");
    EXPECT_GE(calls, 0) << r.err;
  }
  EXPECT_LE(calls, MOST) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Target, Beside, testing::Values("file 450", "anon 380", "anon 420", "anon 440"),
                         [](const auto &info) {
                           std::string name = info.param;
                           name[name.find(' ')] = '_';
                           return name;
                         });

}  // namespace
