// libhakmem-hardened.so as users get it, and libhakmem.so beside it: the operators of C++ each with the free of another
// family, and with a wrong size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "run_program.h"

using testing::HasSubstr;

namespace {

ProgramResult run(const char *library, const std::string &made, const std::string &freed, size_t bytes) {
  return run_program({FAMILIES, made, freed, std::to_string(bytes)}, {std::string("LD_PRELOAD=") + library});
}

class Families : public testing::TestWithParam<size_t> {
 protected:
  void expect_report(const std::string &made, const std::string &freed, const std::string &found) {
    SCOPED_TRACE(made + " and " + freed);
    ProgramResult result = run(HARDENED, made, freed, GetParam());
    EXPECT_EQ(result.signal, SIGABRT) << "exit code " << result.exit_code << "\n" << result.err;
    std::string victim = result.err.substr(7, result.err.find('\n') - 7);
    EXPECT_THAT(result.err, HasSubstr("hakmem: " + found + ": " + victim + " "));
    EXPECT_THAT(result.err, HasSubstr("seen at the call"));
  }
  void expect_silence(const char *library, const std::string &made, const std::string &freed) {
    SCOPED_TRACE(made + " and " + freed + ", " + library);
    ProgramResult result = run(library, made, freed, GetParam());
    EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal;
    EXPECT_THAT(result.err, testing::Not(HasSubstr("hakmem: ")));
  }
};

// How each family's blocks may be freed.
const struct {
  std::vector<std::string> made, freed;
} families[] = {
    {{"malloc"}, {"free"}},
    {{"new", "new-aligned"}, {"delete", "delete-sized", "delete-aligned"}},
    {{"new[]", "new[]-aligned"}, {"delete[]", "delete[]-sized", "delete[]-aligned"}},
};

TEST_P(Families, EachHasItsFree) {
  for (const auto &one : families) {
    for (const auto &other : families) {
      for (const std::string &made : one.made) {
        for (const std::string &freed : other.freed) {
          if (&one == &other)
            expect_silence(HARDENED, made, freed);
          else
            expect_report(made, freed, "mismatched free: malloc, new and new[] each have a free of their own");
        }
      }
    }
  }
}

TEST_P(Families, SizedDeleteKnowsTheExactSize) {
  expect_report("new", "delete-sized-wrong", "sized free: the size given is not that of the block");
  expect_report("new[]", "delete[]-sized-wrong", "sized free: the size given is not that of the block");
}

// What programs get away with by other allocators is no fault in the default build.
TEST_P(Families, TheDefaultBuildTakesThemAll) {
  for (const char *freed : {"free", "delete", "delete[]", "delete-sized-wrong"}) {
    for (const char *made : {"malloc", "new", "new[]"}) expect_silence(DEFAULT, made, freed);
  }
}

// The first block of all comes from a front that was filled before main.
TEST(Prewarmed, BlocksAreLikeOthers) {
  for (const char *setting : {"HAKMEM_PROFILE=speed", "HAKMEM_TINY_PREWARM_ALL=100"}) {
    ProgramResult result = run_program({FIRST_BLOCK}, {std::string("LD_PRELOAD=") + HARDENED, setting});
    EXPECT_EQ(result.exit_code, 0) << setting << ": signal " << result.signal << "\n" << result.err;
    EXPECT_EQ(result.err, "") << setting;
  }
}

// A block that a thread resizes in place at the moment of a fork is in the child for ever as it was then.
TEST(Resized, InPlaceWhileOthersFork) {
  ProgramResult r = run_program({RESIZED}, {std::string("LD_PRELOAD=") + HARDENED});
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << ", children that did not exit well: " << r.out << r.err;
  EXPECT_EQ(r.err, "");
}

void expect_large(const char *what) {
  ProgramResult r = run_program({LARGE, what}, {std::string("LD_PRELOAD=") + HARDENED});
  if (r.exit_code == 77) GTEST_SKIP() << "this machine does not allow the setting";
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.out << r.err;
  EXPECT_EQ(r.err, "");
}

// Each is three mappings with its guard pages, of which a process may have 65,530.
TEST(Large, ManyBlocksLeaveMappings) { expect_large("blocks"); }

// Not even one, which the last blocks are cut from: that was reserved at the start.
TEST(Large, AreServedWhereTheProgramTookAllMappings) { expect_large("exhausted"); }
TEST(Large, MakeNothingResidentThatIsLocked) { expect_large("locked"); }
TEST(Large, FreedBlocksLeaveAddresses) { expect_large("limited"); }
TEST(Large, PagesKeptFromAChildAreNotLookedAtThere) { expect_large("kept"); }
TEST(Large, PagesOfSlabsToo) { expect_large("kept-small"); }
TEST(Large, PagesThatAChildProtectsToo) { expect_large("protected"); }

INSTANTIATE_TEST_SUITE_P(Sizes, Families, testing::Values(8, 4096, 100000, 600000, 50000000));

/* The forms that a program has not replaced call those that it has. */
TEST(Replaced, OperatorsInPart) {
  ProgramResult r = run_program({REPLACED}, {std::string("LD_PRELOAD=") + HARDENED});
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
  EXPECT_EQ(r.out, "15 15 15 15\n");
}

// What a library's own operators, which are malloc and free to us, made or free is not judged.
TEST(Symbolic, OperatorsOfALibraryThatNobodySees) {
  ProgramResult r = run_program({SYMBOLIC}, {std::string("LD_PRELOAD=") + HARDENED});
  EXPECT_EQ(r.exit_code, 0) << "signal " << r.signal << "\n" << r.err;
  EXPECT_EQ(r.out, "80\n");
  EXPECT_EQ(r.err, "");
}

// Of 2^20 distances from libc two of 24 are the same in one run of 3,800.
TEST(Layout, DistancesFromLibrariesAreDrawn) {
  std::map<std::string, std::set<std::string>> found;
  constexpr int kRuns = 24;
  for (int i = 0; i < kRuns; i++) {
    ProgramResult r = run_program({LARGE, "distances"}, {std::string("LD_PRELOAD=") + HARDENED});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    std::istringstream lines(r.out);
    for (std::string what, distance; lines >> what >> distance;) found[what].insert(distance);
  }
  if (found["libc"].size() < kRuns / 2) GTEST_SKIP() << "addresses are not random here";
  for (const char *what : {"small", "huge", "empty", "huge-from-small"}) EXPECT_EQ(found[what].size(), size_t(kRuns)) << what;
}

}  // namespace
