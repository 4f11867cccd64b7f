// Sampled guards: each fault ends the program as it would have ended, with the block, its size and both stacks named;
// programs without a fault run as ever; off, there is nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <tuple>
#include <vector>

#include "hak.h"
#include "run_program.h"

using testing::HasSubstr;
using testing::Not;

namespace {

ProgramResult run(const std::string &fault, const std::string &rate = "1/1", size_t size_bytes = 1000) {
  return run_program({SAMPLE_VICTIM, fault, std::to_string(size_bytes)}, {"HAKMEM_GUARD_SAMPLE=" + rate});
}

std::string address(const std::string &text) {
  size_t at = text.find("victim ") + 7;
  return text.substr(at, text.find('\n', at) - at);
}

struct Case {
  const char *fault, *says;
  int signal;
  bool freed;
};
void PrintTo(const Case &c, std::ostream *out) { *out << c.fault; }
class Sample : public testing::TestWithParam<std::tuple<Case, size_t>> {};

TEST_P(Sample, IsReportedAndEndsTheProgram) {
  const auto &[c, size] = GetParam();
  if (size % 16 == 0 && std::string(c.fault) == "overflow-in-page") GTEST_SKIP() << "the block ends where its page does";
  ProgramResult result = run(c.fault, "1/1", size);
  EXPECT_EQ(result.signal, c.signal) << "exit code " << result.exit_code << "\n" << result.err;
  EXPECT_THAT(result.err, HasSubstr(std::string("hakmem: ") + c.says + ": "));
  EXPECT_THAT(result.err, HasSubstr("block " + address(result.err) + " of " + std::to_string(size) + " bytes"));
  EXPECT_THAT(result.err, HasSubstr("hakmem: allocated by thread "));
  EXPECT_THAT(result.err, HasSubstr("sample_victim+0x")) << "the stacks name the program";
  EXPECT_THAT(result.err, c.freed ? HasSubstr("hakmem: freed by thread ") : testing::Matcher<std::string>(Not(HasSubstr("freed by"))));
}

INSTANTIATE_TEST_SUITE_P(
    Faults, Sample,
    testing::Combine(
        testing::Values(Case{"overflow", "access outside of a block", SIGSEGV, false},
                        Case{"overflow-in-page", "overflow, seen when the block was freed", SIGABRT, false},
                        Case{"overread", "access outside of a block", SIGSEGV, false},
                        Case{"underflow", "access outside of a block", SIGSEGV, false},
                        Case{"read-after-free", "use after free", SIGSEGV, true},
                        Case{"write-after-free", "use after free", SIGSEGV, true},
                        Case{"double-free", "double free", SIGABRT, true},
                        Case{"double-free-by-thread", "double free", SIGABRT, true},
                        Case{"inside", "invalid free", SIGABRT, false}, Case{"realloc-freed", "double free", SIGABRT, true}),
        testing::Values(8, 1000, 4096)),
    [](const auto &info) {
      std::string name = std::get<0>(info.param).fault;
      for (char &c : name)
        if (c == '-') c = '_';
      return name + "_" + std::to_string(std::get<1>(info.param));
    });

TEST(SampleRun, ASignalThatSomebodySendsEndsTheProgram) {
  ProgramResult result = run("sent", "1/1", 0);
  EXPECT_EQ(result.signal, SIGSEGV) << "exit code " << result.exit_code;
  EXPECT_THAT(result.err, Not(HasSubstr("hakmem:")));
}

// Blocks above 32 KiB are not sampled: what the build finds anyway is found.
TEST(SampleRun, LargeBlocksAreAsWithoutGuards) {
  ProgramResult result = run("double-free", "1/1", 600000);
  EXPECT_EQ(result.signal, SIGABRT) << result.err;
  EXPECT_THAT(result.err, HasSubstr("hakmem: invalid or double free: the address lies in free memory: " + address(result.err)));
  result = run("read-after-free", "1/1", 600000);
  EXPECT_EQ(result.signal, 0) << result.err;
}

TEST(SampleRun, ForeignPointersAreLeftAlone) {
  for (const char *rate : {"1/1", "1/3"}) {
    ProgramResult result = run("foreign", rate);
    EXPECT_EQ(result.exit_code, 0) << rate << ": signal " << result.signal << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr("[EXTERNAL_GUARD] total=100 ")) << "the warning that comes unasked";
    EXPECT_THAT(result.err, Not(HasSubstr("hakmem: ")));
  }
}

TEST(SampleRun, CopiedBytesAreNoFault) {
  for (const char *rate : {"1/1", "1/3"}) {
    ProgramResult result = run("copies", rate);
    EXPECT_EQ(result.exit_code, 0) << rate << ": signal " << result.signal << "\n" << result.err;
    EXPECT_EQ(result.err, "") << rate;
  }
}

TEST(SampleRun, ProgramsWithoutAFaultRun) {
  for (const char *rate : {"1/1", "1/2", "1/7", "1/1000"}) {
    ProgramResult result = run("none", rate);
    EXPECT_EQ(result.exit_code, 0) << rate << ": " << result.err;
    EXPECT_EQ(result.err, "") << rate;
  }
}

TEST(SampleRun, OffNothingIsWatched) {
  ProgramResult result = run("overflow-in-page", "0");
  EXPECT_THAT(result.err, Not(HasSubstr("overflow")));
}

TEST(SampleRun, WrongRatesAreNamed) {
  for (const char *rate : {"5", "1/0", "1/0x", "2/3", "1/", "-1", "1/99999999999"}) {
    ProgramResult result = run("none", rate);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr(std::string("hakmem: HAKMEM_GUARD_SAMPLE=") + rate + " is neither 0 nor 1/N")) << rate;
  }
}

// One of N blocks on average, also where each is freed at once and would be handed out again: of 15,000, some 150.
TEST(SampleRun, TheRateIsKept) {
  hak_config.guard_sample = 100;
  hak_sampling_start();
  ASSERT_TRUE(hak_sample_on());
  hak_counting_rates no_pace = {};
  no_pace.guard_blocks = 100;
  hak_counting_start(&no_pace);
  int sampled = 0;
  for (int i = 0; i < 15000; i++) {
    void *p = hakmem_malloc(100);
    ASSERT_NE(p, nullptr);
    if (hak_sample_contains(p)) sampled++;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 16, 0u);
    hakmem_free(p);
  }
  EXPECT_GT(sampled, 90);
  EXPECT_LT(sampled, 210);
}

TEST(SampleRun, AFullTableLeavesBlocksUnguarded) {
  hak_config.guard_sample = 1;
  hak_sample_start(HAK_SAMPLE_SLOTS, true);
  std::vector<void *> blocks;
  void *p;
  while ((p = hak_sample_alloc(50, 8)) != nullptr) blocks.push_back(p);
  EXPECT_EQ(blocks.size(), 1024u);
  EXPECT_EQ(hak_sample_size(blocks[7]), 50u);
  hak_sample_free(blocks[7]);
  EXPECT_EQ(hak_sample_size(blocks[7]), 0u);
  EXPECT_NE(hak_sample_alloc(50, 8), nullptr);
  EXPECT_EQ(hak_sample_alloc(HAK_SMALL_MAX + 1, 8), nullptr);
  EXPECT_EQ(hak_sample_alloc(1, 8192), nullptr);
}

}  // namespace
