// The fake operating system itself: a check that never fires would prove nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "fake_os.h"
#include "hak.h"
#include "run_program.h"

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace {

const size_t PAGE = hak_os_page_size();

TEST(FakeOs, IsInPlaceBeforeMain) { EXPECT_NE(hak_os, &hak_os_linux); }

TEST(FakeOs, LogsAndForwards) {
  fake_os::reset();
  char *p = static_cast<char *>(hak_os->map(nullptr, 4 * PAGE, HAK_OS_ACCESSIBLE, false));
  ASSERT_NE(p, nullptr);
  p[0] = 1;
  EXPECT_EQ(hak_os->unmap(p, 4 * PAGE), 0);
  auto log = fake_os::log();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[0].call, fake_os::MAP);
  EXPECT_EQ(log[1].call, fake_os::UNMAP);
  EXPECT_EQ(log[1].addr, reinterpret_cast<uintptr_t>(p));
  EXPECT_THAT(fake_os::violations(), IsEmpty());
}

TEST(FakeOs, FailsTheNthCall) {
  fake_os::reset();
  fake_os::fail_nth(fake_os::MAP, 2);
  void *a = hak_os->map(nullptr, PAGE, HAK_OS_ACCESSIBLE, false), *b = hak_os->map(nullptr, PAGE, HAK_OS_ACCESSIBLE, false),
       *c = hak_os->map(nullptr, PAGE, HAK_OS_ACCESSIBLE, false);
  EXPECT_NE(a, nullptr);
  EXPECT_EQ(b, nullptr);
  EXPECT_NE(c, nullptr);
}

TEST(FakeOs, FailsByRule) {
  fake_os::reset();
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::PROTECT && e.size_bytes > PAGE ? EAGAIN : 0; });
  void *p = hak_os->map(nullptr, 4 * PAGE, HAK_OS_RESERVED, false);
  EXPECT_EQ(hak_os->protect(p, 2 * PAGE, true), EAGAIN);
  EXPECT_EQ(hak_os->protect(p, PAGE, true), 0);
}

TEST(FakeOs, SeesCallsOutsideOfMappings) {
  fake_os::reset();
  char *p = static_cast<char *>(hak_os->map(nullptr, 4 * PAGE, HAK_OS_RESERVED, false));
  hak_os->unmap(p + 2 * PAGE, 2 * PAGE);
  EXPECT_THAT(fake_os::violations(), IsEmpty());
  hak_os->protect(p, 3 * PAGE, true);
  EXPECT_THAT(fake_os::violations(), ElementsAre(HasSubstr("protect")));
  hak_os->advise(p + 2 * PAGE, PAGE, MADV_DONTNEED);
  hak_os->unmap(p + 2 * PAGE, PAGE);
  fake_os::fail_all(fake_os::MAP);
  hak_os->map(p + 2 * PAGE, PAGE, HAK_OS_ACCESSIBLE, true);
  EXPECT_EQ(fake_os::violations().size(), 4u);
}

TEST(FakeOs, FollowsRemap) {
  fake_os::reset();
  size_t before = fake_os::mapped_bytes();
  void *p = hak_os->map(nullptr, PAGE, HAK_OS_ACCESSIBLE, false);
  p = hak_os->remap(p, PAGE, 64 * PAGE, true);
  EXPECT_EQ(fake_os::mapped_bytes() - before, 64 * PAGE);
  EXPECT_EQ(hak_os->unmap(p, 64 * PAGE), 0);
  EXPECT_EQ(fake_os::mapped_bytes(), before);
  EXPECT_THAT(fake_os::violations(), IsEmpty());
}

TEST(FakeOs, ClockStandsStill) {
  fake_os::set_clock(1000);
  EXPECT_EQ(hak_os_now_ms(), 1000u);
  fake_os::set_clock(1250);
  EXPECT_EQ(hak_os_now_ms(), 1250u);
}

TEST(RunProgram, CollectsOutputAndStatus) {
  ProgramResult r = run_program({"sh", "-c", "echo $HAKMEM_X; echo b >&2; exit 3"}, {"HAKMEM_X=a"});
  EXPECT_EQ(r.out, "a\n");
  EXPECT_EQ(r.err, "b\n");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(run_program({"sh", "-c", "kill -9 $$"}).signal, 9);
}

}  // namespace
