// The last words of a program that misused its heap.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <csignal>

#include "hak.h"

namespace {

void *const P = reinterpret_cast<void *>(0x1230);
const testing::KilledBySignal ABORTED(SIGABRT);

TEST(Misuse, ReportsNameAddressClassPlaceProcessThreadVersion) {
  EXPECT_EXIT(hak_misuse_abort(HAK_VERDICT_DOUBLE_FREE, P, 64, "at the call"), ABORTED,
              "hakmem: double free: the block is already free: 0x1230 \\(class 64 bytes\\), seen at the call "
              "\\[process [0-9]+, thread [0-9]+ \"test_unit_misus\", hakmem " HAKMEM_VERSION_STRING "\\]\n");
}

TEST(Misuse, EveryVerdictHasItsWords) {
  EXPECT_EXIT(hak_misuse_abort(HAK_VERDICT_NO_BLOCK_START, P, 64, "x"), ABORTED, "invalid free: .*not the start of a block");
  EXPECT_EXIT(hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, P, 0, "x"), ABORTED, "invalid or double free: .*free memory: 0x1230, seen x");
  EXPECT_EXIT(hak_misuse_abort(HAK_VERDICT_SIZE_MISMATCH, P, 64, "x"), ABORTED, "sized free: ");
}

TEST(Misuse, FatalErrors) { EXPECT_EXIT(hak_fatal("no way on"), ABORTED, "hakmem: no way on \\[process [0-9]+, hakmem "); }

TEST(Misuse, OddThreadNamesDoNoHarm) {
  EXPECT_EXIT(
      {
        prctl(PR_SET_NAME, "a%s%n b");
        hak_misuse_abort(HAK_VERDICT_DOUBLE_FREE, P, 16, "x");
      },
      ABORTED, "thread [0-9]+ \"a%s%n b\"");
  EXPECT_EXIT(
      {
        prctl(PR_SET_NAME, "");
        hak_misuse_abort(HAK_VERDICT_DOUBLE_FREE, P, 16, "x");
      },
      ABORTED, "thread [0-9]+ \"\"");
}

// The report comes when no lock is held: a handler of SIGABRT may allocate.
TEST(Misuse, HandlersMayAllocate) {
  EXPECT_EXIT(
      {
        signal(SIGABRT, [](int) {
          for (int i = 0; i < 1000; i++) hakmem_free(hakmem_malloc(size_t(i) * 100));
          _exit(42);
        });
        void *p = hakmem_malloc(100);
        hakmem_free(p);
        hakmem_free(p);
      },
      testing::ExitedWithCode(42), "double free");
}

}  // namespace
