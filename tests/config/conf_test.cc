// hakmem_conf in programs that are linked to the libraries or run under them, and options that change while the program runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hakmem/hakmem.h"
#include "run_program.h"

using testing::IsEmpty;

namespace {

class Libraries : public testing::TestWithParam<std::string> {
 protected:
  static std::vector<std::string> program(const std::string &kind, const std::string &argument = "") {
    std::vector<std::string> command = {(kind == "preloaded" ? PROGRAMS "plain" : PROGRAMS + kind)};
    if (!argument.empty()) command.push_back(argument);
    return command;
  }
  static ProgramResult run(std::vector<std::string> environment, const std::string &argument = "") {
    if (GetParam() == "preloaded") environment.push_back("LD_PRELOAD=" HAKMEM_LIBRARY);
    ProgramResult r = run_program(program(GetParam(), argument), environment);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r;
  }
};

INSTANTIATE_TEST_SUITE_P(Conf, Libraries, testing::Values("shared", "hardened", "static", "preloaded"),
                         [](const auto &parameter) { return parameter.param; });

TEST_P(Libraries, ReadWhatTheProgramBrings) {
  ProgramResult r = run({});
  EXPECT_EQ(r.err, "hakmem: hakmem_conf: HAKMEM_BOGUS is not an option of this version: ignored\n");
  EXPECT_EQ(r.out,
            "HAKMEM_HEAP_PROFILE_PREFIX=/tmp/a b|4\n"
            "HAKMEM_THP=off|4\n"
            "HAKMEM_DECAY_MS=3600000|4\n");
}

TEST_P(Libraries, TheEnvironmentIsAboveIt) {
  EXPECT_EQ(run({"HAKMEM_DECAY_MS=5"}).out,
            "HAKMEM_HEAP_PROFILE_PREFIX=/tmp/a b|4\n"
            "HAKMEM_THP=off|4\n"
            "HAKMEM_DECAY_MS=5|2\n");
}

TEST_P(Libraries, DecayChangesWhileTheProgramRuns) {
  EXPECT_EQ(run({}, "decay").out, "long: 1\nset 0: 0\nat once: 0\nset 0, long again: 1\n");
}

TEST_P(Libraries, TheHelperComesAndEndsWhileTheProgramRuns) {
  EXPECT_EQ(run({"HAKMEM_DECAY_MS=250"}, "background").out,
            "none: 1\n1, set 0: 1\n1, set 0: 1\nit purges: 0\n0, set 0: 1\n1, set 0: 1\n0, set 0: 1\n");
}

}  // namespace
