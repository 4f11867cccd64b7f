// main for the allocator's tests: each test in a process of its own, because the allocator's state is global and some
// tests change it for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

// "Suite.Test" of every test that the filter selects; GoogleTest itself is asked, so that its rules hold.
std::vector<std::string> selected_tests() {
  std::vector<std::string> names;
  const testing::UnitTest *all = testing::UnitTest::GetInstance();
  std::string filter = testing::GTEST_FLAG(filter);
  if (filter != "*") return names;
  for (int s = 0; s < all->total_test_suite_count(); s++) {
    const testing::TestSuite *suite = all->GetTestSuite(s);
    for (int t = 0; t < suite->total_test_count(); t++) {
      std::string test = suite->GetTestInfo(t)->name();
      if (test.rfind("DISABLED_", 0) != 0) names.push_back(std::string(suite->name()) + "." + test);
    }
  }
  return names;
}

int run_apart(const std::vector<std::string> &names) {
  int failed = 0;
  for (const std::string &name : names) {
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
      testing::GTEST_FLAG(filter) = name;
      exit(RUN_ALL_TESTS());
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      fprintf(stderr, "FAILED: %s\n", name.c_str());
      failed++;
    }
  }
  printf("%zu tests, %d failed\n", names.size(), failed);
  return failed != 0;
}

}  // namespace

int main(int argc, char **argv) {
  testing::InitGoogleMock(&argc, argv);
  /* Death tests re-run the binary: forked children of a process with threads are not safe. */
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  std::vector<std::string> names = selected_tests();
  if (testing::GTEST_FLAG(list_tests) || names.size() <= 1) return RUN_ALL_TESTS();
  return run_apart(names);
}
