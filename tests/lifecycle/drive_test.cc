/* Runs the lifecycle programs and compares what they print. The paths of the programs come from CMake. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "run_program.h"

namespace {

const std::string kPreload = std::string("LD_PRELOAD=") + HAKMEM_LIBRARY;

std::vector<std::string> with_preload(std::vector<std::string> environment = {}) {
  environment.push_back(kPreload);
  return environment;
}

size_t count(const std::string &text, const std::string &what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) n++;
  return n;
}

/* --- start and end of a program --- */

void expect_all_stages(const ProgramResult &r, const char *stages) {
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out << r.err;
  EXPECT_EQ(r.out, stages);
  EXPECT_EQ(r.err, "");
}

/* The program's destructors come first, then the allocator's, then the late library's. */
const char kDynamicStages[] = "preinit\nconstructor\nmain\natexit\ndestructor\nlate destructor\n";
const char kStaticStages[] = "preinit\nconstructor\nmain\natexit\nlate destructor\ndestructor\n";

TEST(Startup, Preloaded) { expect_all_stages(run_program({STARTUP_PLAIN}, with_preload()), kDynamicStages); }

TEST(Startup, LinkedWithTheSharedLibrary) { expect_all_stages(run_program({STARTUP_LINKED}), kDynamicStages); }

TEST(Startup, LinkedStatically) { expect_all_stages(run_program({STARTUP_STATIC}), kStaticStages); }

/* Options that make the start do more. */
TEST(Startup, WithEveryKindOfFront) {
  for (const char *option : {"HAKMEM_PROFILE=speed", "HAKMEM_TINY_PREWARM_ALL=100", "HAKMEM_TINY_HOT_RING_ENABLE=0",
                             "HAKMEM_TINY_FRONT_METRICS=1", "HAKMEM_RESERVE_MB=16"}) {
    SCOPED_TRACE(option);
    expect_all_stages(run_program({STARTUP_PLAIN}, with_preload({option})), kDynamicStages);
    expect_all_stages(run_program({STARTUP_STATIC}, {option}), kStaticStages);
  }
}

/* The allocator's constructor runs before the program's first allocation, and has the environment that libc has not yet. */
TEST(Startup, OptionsAreReadInTime) {
  ProgramResult r = run_program({STARTUP_PLAIN}, with_preload({"HAKMEM_TINY_MAX_CLASS=3", "HAKMEM_VERBOSE=1"}));
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_EQ(r.out, kDynamicStages);
  EXPECT_EQ(count(r.err, "hakmem: HAKMEM_TINY_MAX_CLASS=3\n"), 1u) << r.err;
  EXPECT_EQ(count(r.err, "was read after"), 0u) << r.err;
}

/* Another library's constructor runs first and the program allocates before ours: what can no longer change is said. */
TEST(Startup, OptionReadTooLate) {
  ProgramResult r = run_program({STARTUP_PLAIN}, {"LD_PRELOAD=" HAKMEM_LIBRARY ":" FIRST_LIBRARY, "HAKMEM_TINY_MAX_CLASS=3"});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_EQ(r.out, kDynamicStages);
  EXPECT_EQ(r.err, "hakmem: HAKMEM_TINY_MAX_CLASS was read after the first allocation: using 7\n");
}

/* Settings and reports reach a static program too: the constructor and destructor are linked. */
TEST(Startup, StaticProgramReportsAtExit) {
  ProgramResult r = run_program({STARTUP_STATIC}, {"HAKMEM_SS_OS_STATS=1", "HAKMEM_VERBOSE=1"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(count(r.err, "[SS_OS_STATS] alloc="), 1u) << r.err;
  EXPECT_EQ(count(r.err, "hakmem: HAKMEM_SS_OS_STATS=1\n"), 1u);
}

/* --- RTLD_DEEPBIND --- */

TEST(Deepbind, LeftOutAndSaidOnce) {
  for (const char *library : {HAKMEM_LIBRARY, HARDENED_LIBRARY}) {
    SCOPED_TRACE(library);
    ProgramResult r = run_program({DEEPBIND, "ours"}, {std::string("LD_PRELOAD=") + library});
    EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out;
    EXPECT_EQ(r.err,
              "hakmem: libdeepbind_plugin.so is loaded without RTLD_DEEPBIND, to have the program's malloc "
              "(HAKMEM_DEEPBIND=quiet: not said, keep: not done)\n");
  }
}

TEST(Deepbind, LeftOutWithoutAWord) {
  ProgramResult r = run_program({DEEPBIND, "ours"}, with_preload({"HAKMEM_DEEPBIND=quiet"}));
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out;
  EXPECT_EQ(r.err, "");
}

TEST(Deepbind, KeptOnRequest) {
  ProgramResult r = run_program({DEEPBIND, "theirs"}, with_preload({"HAKMEM_DEEPBIND=keep"}));
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out;
  EXPECT_EQ(r.err, "");
}

/* --- pointers that are not ours --- */

const char kCaller[] = "0x[0-9a-f]+";

TEST(Foreign, NeverCrashes) {
  ProgramResult r = run_program({FOREIGN}, with_preload());
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out << r.err;
  EXPECT_EQ(r.out, "");
}

TEST(Foreign, NeverCrashesWithEverythingReported) {
  ProgramResult r =
      run_program({FOREIGN}, with_preload({"HAKMEM_EXTERNAL_GUARD_LOG=1", "HAKMEM_EXTERNAL_GUARD_STATS=1"}));
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out << r.err;
  EXPECT_GT(count(r.err, "hakmem: external pointer: free("), 20u);
  EXPECT_GT(count(r.err, "hakmem: external pointer: realloc("), 40u);
  EXPECT_GT(count(r.err, "hakmem: external pointer: malloc_usable_size("), 20u);
  for (const char *band : {"below 4 KiB", "below 4 GiB", "user space", "not a user address"})
    EXPECT_GT(count(r.err, std::string("address ") + band + ", mapping: "), 0u) << band;
  for (const char *mapping : {"mapping: not mapped; left alone\n", "[stack]; left alone\n", "[heap]; left alone\n"})
    EXPECT_GT(count(r.err, mapping), 0u) << mapping;
}

TEST(Foreign, IsSilentByDefault) {
  ProgramResult r = run_program({FOREIGN, "count", "99"}, with_preload());
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.err, "");
}

TEST(Foreign, LogNamesCallerBandAndMapping) {
  ProgramResult r = run_program({FOREIGN, "one"}, with_preload({"HAKMEM_EXTERNAL_GUARD_LOG=1"}));
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_THAT(r.err, testing::MatchesRegex(std::string("hakmem: external pointer: free\\(0x[0-9a-f]+\\) from ") + kCaller +
                                           ", address user space, mapping: [0-9a-f]+-[0-9a-f]+ rw-p [^\n]*; left alone\n"));
}

TEST(Foreign, StatsGiveTotalsAndCallersAtExit) {
  ProgramResult r = run_program({FOREIGN, "mixed"}, with_preload({"HAKMEM_EXTERNAL_GUARD_STATS=1"}));
  EXPECT_EQ(r.exit_code, 0);
  std::string caller = std::string("\\[EXTERNAL_GUARD\\] caller=") + kCaller + " count=";
  std::string mapping = " mapping: [0-9a-f]+-[0-9a-f]+ r-xp [^\n]*\n";
  EXPECT_THAT(r.err, testing::MatchesRegex("\\[EXTERNAL_GUARD\\] total=6 free=3 realloc=2 malloc_usable_size=1\n" + caller +
                                           "3" + mapping + caller + "2" + mapping + caller + "1" + mapping));
}

TEST(Foreign, OneReportByItselfAtTheHundredth) {
  ProgramResult r = run_program({FOREIGN, "count", "100"}, with_preload());
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(count(r.err, "[EXTERNAL_GUARD] total=100 free=100 realloc=0 malloc_usable_size=0\n"), 1u) << r.err;
  r = run_program({FOREIGN, "count", "5000"}, with_preload());
  EXPECT_EQ(count(r.err, "[EXTERNAL_GUARD] total="), 1u) << r.err;
  EXPECT_EQ(count(r.err, "[EXTERNAL_GUARD] total=100 free=100"), 1u);
  EXPECT_EQ(count(r.err, "[EXTERNAL_GUARD] caller="), 1u);
}

}  // namespace
