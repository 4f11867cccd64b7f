// Which pages a program's memory may get, by what the system says: made-up files, and the flags of real mappings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fake_files.h"
#include "hak.h"
#include "mapping_flags.h"

using testing::HasSubstr;
using testing::Not;

namespace {

constexpr char ALL[] = "/sys/kernel/mm/transparent_hugepage/enabled";
constexpr char HUGE[] = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
constexpr char SPANS[] = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";

std::string chosen(const std::string &word, std::string words) {
  size_t at = words.find(word);
  return words.replace(at, word.size(), "[" + word + "]") + "\n";
}
std::string of_all(const char *word) { return chosen(word, "always madvise never"); }
std::string of_size(const char *word) { return chosen(word, "always inherit madvise never"); }

struct Said {
  const char *all, *huge, *spans; /* nullptr: the file is missing */
  bool disabled, huge_ones, ones_of_spans;
  const char *larger = nullptr;
};

const Said cases[] = {
    {nullptr, nullptr, nullptr, false, true, false},  // no such kernel, or no /sys
    {"always", nullptr, nullptr, false, true, false}, // before Linux 6.8
    {"madvise", nullptr, nullptr, false, true, false},
    {"never", nullptr, nullptr, false, false, false},
    {"madvise", "inherit", "never", false, true, false},
    {"madvise", "inherit", "always", false, true, true},
    {"madvise", "inherit", "inherit", false, true, false},
    {"madvise", "inherit", "madvise", false, true, false},
    {"never", "inherit", "always", false, false, true},
    {"never", "madvise", "always", false, true, true},
    {"always", "inherit", "always", false, true, false}, // huge ones would come, too
    {"always", "madvise", "inherit", false, true, true},
    {"always", "never", "inherit", false, false, true},
    {"madvise", "inherit", "always", true, true, false}, // PR_SET_THP_DISABLE
    {"madvise", "inherit", "always", false, true, false, "always"},
    {"madvise", "inherit", "always", false, true, true, "madvise"},
};

TEST(PageSizes, AreWhatTheFilesSay) {
  for (const Said &said : cases) {
    SCOPED_TRACE(&said - cases);
    FakeFiles files;
    if (said.all != nullptr) files.write(ALL, of_all(said.all));
    if (said.huge != nullptr) files.write(HUGE, of_size(said.huge));
    if (said.spans != nullptr) files.write(SPANS, of_size(said.spans));
    if (said.larger != nullptr) files.write("/sys/kernel/mm/transparent_hugepage/hugepages-512kB/enabled", of_size(said.larger));
    files.write("/proc/thread-self/status", said.disabled ? "Name:\tx\nTHP_enabled:\t0\n" : "Name:\tx\nTHP_enabled:\t1\n");
    hak_os_page_sizes sizes = hak_os_read_page_sizes();
    EXPECT_EQ(sizes.huge, said.huge_ones);
    EXPECT_EQ(sizes.spans, said.ones_of_spans);
  }
}

// What a program of 100 MB has, in blocks of 1,000 bytes.
class Program {
 public:
  Program() {
    for (int i = 0; i < 100000; i++) {
      void *p = hakmem_malloc(1000);
      if (p == nullptr) abort();
      blocks_.push_back(p);
    }
  }
  std::string first() const { return flags_of(blocks_.front()); }
  std::string last() const { return flags_of(blocks_.back()); }

 private:
  std::vector<void *> blocks_;
};

TEST(Pages, OfManySpansAreTheSystemsToChoose) {
  FakeFiles files;
  files.write(ALL, of_all("never"));
  files.write(SPANS, of_size("always"));
  Program program;
  EXPECT_THAT(program.first(), HasSubstr(" nh ")) << "what a small program has";
  EXPECT_THAT(program.last(), AllOf(HasSubstr(" wr "), Not(HasSubstr(" nh ")), Not(HasSubstr(" hg "))));
}

TEST(Pages, AreSmallWhereTheSystemWouldGiveHugeOnes) {
  FakeFiles files;
  files.write(ALL, of_all("always"));
  files.write(SPANS, of_size("always"));
  Program program;
  EXPECT_THAT(program.last(), testing::AnyOf(HasSubstr(" nh "), HasSubstr(" hg "))) << "either is hakmem's choice";
}

TEST(Pages, AreSmallWhereTheSystemHasNoHugeOnes) {
  FakeFiles files;
  files.write(ALL, of_all("never"));
  Program program;
  EXPECT_THAT(program.last(), AllOf(HasSubstr(" nh "), Not(HasSubstr(" hg "))));
  EXPECT_EQ(hak_span_pool.huge_from_spans, SIZE_MAX);
}

TEST(Pages, AreSmallWhereTheOptionSaysSo) {
  FakeFiles files;
  files.write(ALL, of_all("never"));
  files.write(SPANS, of_size("always"));
  ASSERT_TRUE(hak_start());
  hak_config.thp = HAK_THP_OFF; /* as at the start */
  hak_span_pool.huge_from_spans = SIZE_MAX;
  EXPECT_THAT(Program().last(), HasSubstr(" nh "));
}

TEST(Pages, AreNotAskedAboutWhereNoFilesAreToBeRead) {
  FakeFiles files;
  files.write(ALL, of_all("never"));
  files.write(SPANS, of_size("always"));
  ASSERT_TRUE(hak_start());
  hak_config.rss_target = 0; /* HAKMEM_RSS_TARGET=off */
  EXPECT_THAT(Program().last(), testing::AnyOf(HasSubstr(" nh "), HasSubstr(" hg ")));
  EXPECT_NE(hak_span_pool.huge_from_spans, SIZE_MAX);
}

}  // namespace
