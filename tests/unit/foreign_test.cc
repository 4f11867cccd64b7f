// Pointers that are not ours: counted by call and by caller, reported once past the threshold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "hak.h"

using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;

namespace {

const void *address(uintptr_t v) { return reinterpret_cast<const void *>(v); }

std::string stderr_of(const std::function<void()> &body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST(Foreign, CountsSilentlyAndKeepsErrno) {
  int local;
  errno = 4711;
  std::string text = stderr_of([&] {
    hak_foreign_note(HAK_FOREIGN_FREE, &local, address(0x1000));
    hak_foreign_note(HAK_FOREIGN_REALLOC, &local, address(0x1000));
    hak_foreign_note(HAK_FOREIGN_USABLE_SIZE, &local, address(0x2000));
  });
  EXPECT_EQ(errno, 4711);
  EXPECT_THAT(text, IsEmpty());
  EXPECT_EQ(hak_foreign_total(), 3u);
}

TEST(Foreign, LogNamesCallCallerBandAndMapping) {
  hak_config.guard_log = 1;
  static int in_data = 1;  // in the file's own mapping, not in .bss
  int on_stack;
  errno = 4711;
  EXPECT_THAT(stderr_of([&] { hak_foreign_note(HAK_FOREIGN_FREE, &in_data, address(0xabc)); }),
              MatchesRegex("hakmem: external pointer: free\\(0x[0-9a-f]+\\) from 0xabc, address user space, mapping: .*test_unit_foreign.*; left alone\n"));
  EXPECT_THAT(stderr_of([&] { hak_foreign_note(HAK_FOREIGN_REALLOC, &on_stack, address(0xabc)); }), HasSubstr("[stack]"));
  EXPECT_THAT(stderr_of([] { hak_foreign_note(HAK_FOREIGN_USABLE_SIZE, address(0x10), address(1)); }),
              testing::AllOf(HasSubstr("malloc_usable_size(0x10)"), HasSubstr("below 4 KiB"), HasSubstr("not mapped")));
  EXPECT_THAT(stderr_of([] { hak_foreign_note(HAK_FOREIGN_FREE, address(0x10000000), address(1)); }), HasSubstr("below 4 GiB"));
  EXPECT_THAT(stderr_of([] { hak_foreign_note(HAK_FOREIGN_FREE, address(0xdeadbeefdeadbeef), address(1)); }),
              HasSubstr("not a user address"));
  EXPECT_EQ(errno, 4711);
}

TEST(Foreign, OneReportPastTheThreshold) {
  EXPECT_THAT(stderr_of([] {
                for (int i = 0; i < 99; i++) hak_foreign_note(HAK_FOREIGN_FREE, address(64), address(0x77));
              }),
              IsEmpty());
  EXPECT_THAT(stderr_of([] { hak_foreign_note(HAK_FOREIGN_FREE, address(64), address(0x77)); }),
              HasSubstr("[EXTERNAL_GUARD] total=100 free=100 realloc=0 malloc_usable_size=0\n"));
  EXPECT_THAT(stderr_of([] {
                for (int i = 0; i < 500; i++) hak_foreign_note(HAK_FOREIGN_FREE, address(64), address(0x77));
              }),
              IsEmpty());
}

TEST(Foreign, TopCallersInOrder) {
  for (uintptr_t caller = 1; caller <= 8; caller++)
    for (uintptr_t i = 0; i < caller * 3; i++) hak_foreign_note(HAK_FOREIGN_FREE, address(64), address(caller << 4));
  std::string text = stderr_of([] { hak_foreign_print(); });
  size_t last = 0;
  for (unsigned caller = 8; caller > 3; caller--) {
    char line[64];
    snprintf(line, sizeof line, "caller=0x%x count=%u ", caller << 4, caller * 3);
    size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << line << " in\n" << text;
    EXPECT_GT(at, last);
    last = at;
  }
  EXPECT_EQ(text.find("caller=0x30 "), std::string::npos) << "five are enough";
}

TEST(Foreign, MoreCallersThanSlotsAreStillCounted) {
  for (uintptr_t caller = 1; caller <= 90; caller++) hak_foreign_note(HAK_FOREIGN_FREE, address(64), address(caller << 3));
  EXPECT_EQ(hak_foreign_total(), 90u);
}

TEST(Foreign, ThreadsCountTogether) {
  std::string text = stderr_of([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
      threads.emplace_back([] {
        for (int i = 0; i < 1000; i++) hak_foreign_note(HAK_FOREIGN_FREE, address(64), address(uintptr_t(i % 5 + 1) << 4));
      });
    for (auto &t : threads) t.join();
  });
  EXPECT_EQ(hak_foreign_total(), 4000u);
  size_t reports = 0;
  for (size_t at = text.find("total="); at != std::string::npos; at = text.find("total=", at + 1)) reports++;
  EXPECT_EQ(reports, 1u);
  text = stderr_of([] { hak_foreign_print(); });
  EXPECT_THAT(text, HasSubstr("caller=0x10 count=800 "));
}

}  // namespace
