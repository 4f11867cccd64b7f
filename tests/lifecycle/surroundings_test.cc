/* Programs in surroundings that somebody else made: file descriptors closed when reports are due, a filter of system calls,
 * and privileged (setuid, setgid) with an environment that tries every option. The paths of the programs come from CMake. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "run_program.h"

using testing::HasSubstr;
using testing::Not;

namespace {

/* --- file descriptors --- */

const std::string kPreload = std::string("LD_PRELOAD=") + HAKMEM_LIBRARY;
const std::vector<std::string> kEveryReport = {kPreload,
                                               "HAKMEM_SS_OS_STATS=1",
                                               "HAKMEM_EXTERNAL_GUARD_LOG=1",
                                               "HAKMEM_EXTERNAL_GUARD_STATS=1",
                                               "HAKMEM_TINY_FRONT_DUMP=1"};
const char kStats[] = "[SS_OS_STATS] alloc=", kWarning[] = "hakmem: external pointer: free(",
           kTotals[] = "[EXTERNAL_GUARD] total=150 free=150";

TEST(Descriptors, Kept) {
  ProgramResult r = run_program({CLOSED, "none"}, kEveryReport);
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
  for (const char *text : {kStats, kWarning, kTotals}) EXPECT_THAT(r.err, HasSubstr(text));
}

/* Reports at exit reach the stderr that the program began with; what is due earlier has nowhere to go. */
TEST(Descriptors, ZeroToTwoClosed) {
  ProgramResult r = run_program({CLOSED, "012"}, kEveryReport);
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
  EXPECT_THAT(r.err, HasSubstr(kStats));
  EXPECT_THAT(r.err, HasSubstr(kTotals));
  EXPECT_THAT(r.err, Not(HasSubstr(kWarning)));
}

TEST(Descriptors, AllClosed) {
  ProgramResult r = run_program({CLOSED, "all"}, kEveryReport);
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
  EXPECT_EQ(r.out + r.err, "");
  r = run_program({CLOSED, "all"}, {kPreload});
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
}

TEST(Descriptors, AllClosedAndABlockFreedTwice) {
  ProgramResult r = run_program({CLOSED, "misuse"}, kEveryReport);
  EXPECT_EQ(r.signal, SIGABRT) << "exit code " << r.exit_code;
  EXPECT_EQ(r.out + r.err, "");
}

/* Closed before the program began: the shell's >&-. */
TEST(Descriptors, ClosedFromTheStart) {
  for (const char *closed : {"2>&-", "0<&- 1>&- 2>&-"}) {
    for (const char *word : {"none", "all"}) {
      SCOPED_TRACE(std::string(closed) + " " + word);
      ProgramResult r = run_program({"sh", "-c", std::string("exec \"$0\" \"$1\" ") + closed, CLOSED, word}, kEveryReport);
      EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
      EXPECT_EQ(r.err, "");
    }
  }
}

/* A database under the number of the copy, or under 2, is not written into. */
TEST(Descriptors, AFileUnderTheCopysNumber) {
  std::string path = std::string(SCRATCH) + "/lifecycle_file_" + std::to_string(getpid());
  std::ofstream(path) << "the program's own";
  for (const char *closed : {"", " 2>&-"}) {
    ProgramResult r = run_program({"sh", "-c", std::string("exec \"$0\" file \"$1\"") + closed, CLOSED, path}, kEveryReport);
    EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal;
    std::string text;
    std::getline(std::ifstream(path), text, '\0');
    EXPECT_EQ(text, "the program's own");
  }
  unlink(path.c_str());
}

/* Nobody reads the reports: the program is not to die of that. */
TEST(Descriptors, APipeWithoutReader) {
  ProgramResult r = run_program({CLOSED, "pipe"}, kEveryReport);
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal;
}

/* Heap profiles that begin so; they are removed. */
size_t profiles_beginning(const std::string &prefix) {
  std::vector<std::filesystem::path> found;
  for (const auto &file : std::filesystem::directory_iterator(SCRATCH)) {
    if (file.path().string().compare(0, prefix.size(), prefix) == 0) found.push_back(file.path());
  }
  for (const auto &path : found) std::filesystem::remove(path);
  return found.size();
}

/* --- addresses --- */

/* Of each thing that apart.c prints, the values that several runs gave. */
std::map<std::string, std::set<std::string>> places(const std::vector<std::string> &command, const std::string &setting, int runs) {
  std::map<std::string, std::set<std::string>> found;
  for (int i = 0; i < runs; i++) {
    ProgramResult r = run_program(command, {kPreload, setting});
    EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
    std::istringstream lines(r.out);
    for (std::string what, at, libc, program, stack; lines >> what >> at >> libc >> program >> stack;) {
      found[what].insert(at);
      found[what + " from libc"].insert(libc);
      found[what + " from the program"].insert(program);
      found[what + " from the stack"].insert(stack);
    }
  }
  return found;
}

/* Of 2^24 distances three of 40 are the same in none of a million runs. Further regions lie apart too; with 16 MiB each block of the end is in one. */
TEST(Addresses, DistancesAreDrawn) {
  constexpr int kRuns = 40;
  for (const char *program : {APART, APART_STATIC}) {
    for (const char *setting : {"HAKMEM_RESERVE_MB=1048576", "HAKMEM_RESERVE_MB=16"}) {
      auto found = places({program}, setting, kRuns);
      if (found["first"].size() < kRuns / 2) GTEST_SKIP() << "SKIPPED: addresses are not random here";
      EXPECT_EQ(found.size(), 8u);
      for (const auto &[what, values] : found) EXPECT_GE(values.size(), size_t(kRuns - 1)) << program << " " << setting << ": " << what;
    }
  }
}

/* Counts of instructions and debuggers want that. */
TEST(Addresses, AreTheSameWhereTheKernelDrawsNone) {
  for (const char *program : {APART, APART_STATIC}) {
    auto found = places({"setarch", "-R", program}, "HAKMEM_RESERVE_MB=16", 5);
    for (const auto &[what, values] : found) EXPECT_EQ(values.size(), 1u) << program << ": " << what;
  }
}

/* --- jemalloc's names --- */

/* Only who asks for figures is told, or at a terminal; and once. libhakmem-je.so has the names itself. */
TEST(JemallocsNames, TheOtherLibraryIsNamed) {
  const std::string line = "hakmem: the program has jemalloc's mallctl";
  EXPECT_EQ(run_program({ASKS_JEMALLOC}, {kPreload}).err, "");
  ProgramResult r = run_program({ASKS_JEMALLOC}, {kPreload, "HAKMEM_STATS=text"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  size_t first = r.err.find(line);
  ASSERT_NE(first, std::string::npos) << r.err;
  EXPECT_EQ(r.err.find(line, first + 1), std::string::npos);
  EXPECT_THAT(r.err, HasSubstr("libhakmem-je.so answers it"));
  EXPECT_THAT(run_program({CLOSED, "none"}, {kPreload, "HAKMEM_STATS=text"}).err, Not(HasSubstr(line)));
  if (strlen(HAKMEM_JE) == 0) return;
  r = run_program({ASKS_JEMALLOC}, {std::string("LD_PRELOAD=") + HAKMEM_JE, "HAKMEM_STATS=text"});
  EXPECT_THAT(r.err, Not(HasSubstr(line)));
}

TEST(JemallocsNames, AtATerminal) {
  ProgramResult r = run_program({"script", "-qec", ASKS_JEMALLOC, "/dev/null"}, {kPreload});
  if (r.exit_code == 127) GTEST_SKIP() << "SKIPPED: there is no script(1)";
  EXPECT_THAT(r.out, HasSubstr("libhakmem-je.so answers it"));
}

/* --- filters of system calls --- */

/* The program forks from eight allocating threads' midst; docs/deploying.md has the list. */
TEST(Filtered, MakesOnlyTheCallsThatAreDocumented) {
  const char *const settings[] = {"HAKMEM_PROFILE=balanced", "HAKMEM_PROFILE=lean",      "HAKMEM_PROFILE=speed",
                                  "HAKMEM_STATS=json",       "HAKMEM_STATS_PAGE=1",      "HAKMEM_BACKGROUND=1",
                                  "HAKMEM_RSS_TARGET=2M",    "HAKMEM_RSS_TARGET=80%",    "HAKMEM_THP=on",
                                  "HAKMEM_VERBOSE=1",        "HAKMEM_GUARD_SAMPLE=1/5",  "HAKMEM_EXTERNAL_GUARD_LOG=1",
                                  "HAKMEM_LIMIT=4G",         "HAKMEM_STATS_SIGNAL=12",   "HAKMEM_TINY_FRONT_DUMP=1",
                                  "HAKMEM_DEEPBIND=keep",    "HAKMEM_HEAP_PROFILE=1"};
  const std::string prefix = std::string(SCRATCH) + "/lifecycle_filtered_" + std::to_string(getpid());
  for (const char *setting : settings) {
    ProgramResult r = run_program({FILTERED, HAKMEM_LIBRARY, STORM, "forks", "10"},
                                  {setting, "HAKMEM_HEAP_PROFILE_PREFIX=" + prefix, "HAKMEM_HEAP_PROFILE_AT_EXIT=1", "HAKMEM_HEAP_PROFILE_RATE=1K",
                                   "HAKMEM_HEAP_PROFILE_FORMAT=json"});
    EXPECT_EQ(profiles_beginning(prefix) > 0, std::string(setting) == "HAKMEM_HEAP_PROFILE=1");
    if (r.exit_code == 77) GTEST_SKIP() << "SKIPPED: " << r.err;
    EXPECT_EQ(r.exit_code, 0) << setting << ": signal " << r.signal << "\n" << r.err;
  }
}

/* --- privileged programs --- */

std::string privileged_prefix() { return std::string(SCRATCH) + "/lifecycle_privileged_profile_" + std::to_string(getpid()); }

std::vector<std::string> hostile_environment() {
  return {"HAKMEM_PROFILE=speed",          "HAKMEM_VERBOSE=1",
          "HAKMEM_TINY_MAX_CLASS=12",      "HAKMEM_TINY_HOT_RING_ENABLE=0",
          "HAKMEM_TINY_HOT_RING_C5=16384", "HAKMEM_TINY_PREWARM_ALL=4096",
          "HAKMEM_TINY_PREWARM_C3=7",      "HAKMEM_TINY_FRONT_METRICS=1",
          "HAKMEM_TINY_FRONT_DUMP=1",      "HAKMEM_SS_OS_STATS=1",
          "HAKMEM_EXTERNAL_GUARD_LOG=1",   "HAKMEM_EXTERNAL_GUARD_STATS=1",
          "HAKMEM_RESERVE_MB=16",          "HAKMEM_THP=on",
          "HAKMEM_NO_SUCH_OPTION=%s%n",    "HAKMEM_BENCH_FAST_MODE=1",
          "HAKMEM_=",                      "HAKMEM_TINY_PREWARM_C1=" + std::string(100000, '9'),
          "HAKMEM_HEAP_PROFILE=1",         "HAKMEM_HEAP_PROFILE_AT_EXIT=1",
          "HAKMEM_HEAP_PROFILE_RATE=1",    "HAKMEM_HEAP_PROFILE_SIGNAL=12",
          "HAKMEM_HEAP_PROFILE_PREFIX=" + privileged_prefix(),
          kPreload};
}

constexpr unsigned kNobody = 65534;

class Privileged : public testing::TestWithParam<const char *> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can make a program setuid";
    struct statvfs filesystem;
    ASSERT_EQ(statvfs(SCRATCH, &filesystem), 0);
    if (filesystem.f_flag & ST_NOSUID) GTEST_SKIP() << "SKIPPED: the build folder's file system is mounted nosuid";
    copy_ = std::string(SCRATCH) + "/lifecycle_privileged_" + std::to_string(getpid());
    std::filesystem::copy_file(GetParam(), copy_);
  }
  void TearDown() override { unlink(copy_.c_str()); }

  /* In its place: chown takes the bits away, so they come last. */
  void give(unsigned user, unsigned group, unsigned mode) {
    ASSERT_EQ(chown(copy_.c_str(), user, group), 0);
    ASSERT_EQ(chmod(copy_.c_str(), mode), 0);
  }

  /* Other than itself in nothing: values, silence, work done. */
  void expect_environment_is_ignored() {
    ProgramResult plain = run_program({GetParam()});
    ASSERT_EQ(plain.exit_code, 0) << plain.out << plain.err;
    ProgramResult r = run_program({copy_}, hostile_environment());
    if (r.exit_code == 127 && r.err.find("error while loading shared libraries") != std::string::npos)
      GTEST_SKIP() << "SKIPPED: user " << kNobody << " may not read the build folder";
    EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out << r.err;
    EXPECT_EQ(r.err, "");
    EXPECT_EQ(profiles_beginning(privileged_prefix()), 0u);
    std::string expected = plain.out;
    size_t at = expected.find("privileged=0\n");
    ASSERT_EQ(at, 0u);
    EXPECT_EQ(r.out, expected.replace(at, strlen("privileged=0"), "privileged=1"));
  }

  std::string copy_;
};

TEST_P(Privileged, SetuidIgnoresTheEnvironment) {
  give(kNobody, 0, 04755);
  expect_environment_is_ignored();
}

TEST_P(Privileged, SetgidIgnoresTheEnvironment) {
  give(0, kNobody, 02755);
  expect_environment_is_ignored();
}

/* The same environment does something to a program that is not privileged: what the two above ignore is no empty threat. */
TEST_P(Privileged, OrdinaryCopyListens) {
  ProgramResult r = run_program({copy_}, hostile_environment());
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out << r.err;
  for (const char *text : {"privileged=0\n", "HAKMEM_RESERVE_MB=16\n", "HAKMEM_TINY_HOT_RING_ENABLE=0\n"})
    EXPECT_THAT(r.out, HasSubstr(text));
  for (const char *text : {kStats, "[EXTERNAL_GUARD] total=5", "HAKMEM_NO_SUCH_OPTION is not an option"})
    EXPECT_THAT(r.err, HasSubstr(text));
  EXPECT_EQ(profiles_beginning(privileged_prefix()), 1u);
}

/* Addresses, and the ranges of /proc/self/maps, but not offsets. */
std::vector<std::string> addresses_in(const std::string &text) {
  static const std::regex address("(^|[^+])0x[0-9a-f]+|[0-9a-f]{6,}-[0-9a-f]{6,}");
  std::vector<std::string> found;
  for (std::sregex_iterator i(text.begin(), text.end(), address), none; i != none; ++i) found.push_back(i->str());
  return found;
}

using PrivilegedReports = Privileged;

TEST_P(PrivilegedReports, NameNoAddress) {
  struct {
    const char *word, *says;
  } const cases[] = {{"foreign", "free"}, {"twice", "freed"}, {"behind", "hakmem: "}, {"forbidden", "hakmem: forbidden free of"}, {"fault", nullptr}};
  for (const auto &c : cases) {
    SCOPED_TRACE(c.word);
    ProgramResult plain = run_program({GetParam(), c.word});
    if (c.says != nullptr) {
      EXPECT_THAT(plain.err, HasSubstr(c.says));
      EXPECT_GT(addresses_in(plain.err).size(), 0u) << plain.err;
    }
    give(kNobody, 0, 04755);
    ProgramResult r = run_program({copy_, c.word});
    if (r.exit_code == 127 && r.err.find("error while loading shared libraries") != std::string::npos)
      GTEST_SKIP() << "SKIPPED: user " << kNobody << " may not read the build folder";
    EXPECT_EQ(r.signal, plain.signal);
    if (c.says != nullptr) EXPECT_THAT(r.err, HasSubstr(c.says));
    EXPECT_EQ(addresses_in(r.err), std::vector<std::string>()) << r.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Linked, PrivilegedReports, testing::Values(REPORTING_STATIC, REPORTING_SHARED, REPORTING_HARDENED),
                         [](const auto &program) { return program.index == 0 ? "Statically" : program.index == 1 ? "Dynamically" : "Hardened"; });

INSTANTIATE_TEST_SUITE_P(Linked, Privileged, testing::Values(SETTINGS_STATIC, SETTINGS_SHARED),
                         [](const auto &program) { return program.index == 0 ? "Statically" : "Dynamically"; });

}  // namespace
