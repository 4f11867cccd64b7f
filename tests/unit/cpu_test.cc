// Which CPU a thread runs on: the word that is read, what is read where there is none, and that any answer will do.
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "fake_cpu.h"
#include "hak.h"

extern "C" {
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));
}

namespace {

constexpr ptrdiff_t CPU_ID = 4, MM_CID = 24;

bool libc_has_rseq() { return &__rseq_size != nullptr && __rseq_size != 0; }
bool kernel_has_cid() { return getauxval(27 /* AT_RSEQ_FEATURE_SIZE */) >= MM_CID + 4; }

std::vector<uint32_t> numbers_of_threads(int n) {
  std::vector<uint32_t> numbers(static_cast<size_t>(n));
  for (uint32_t &number : numbers) std::thread([&number] { number = hak_os_cpu(); }).join();
  return numbers;
}

TEST(Cpu, ReadsTheConcurrencyIdWhereTheKernelHasOne) {
  hak_os_cpu_start();
  if (!libc_has_rseq()) GTEST_SKIP() << "libc has registered nothing";
  EXPECT_EQ(hak_os_cpu_offset, __rseq_offset + (kernel_has_cid() ? MM_CID : CPU_ID));
}

TEST(Cpu, ThreadsThatRunAtTheSameTimeHaveNumbersBelowTheCpus) {
  hak_os_cpu_start();
  long configured = sysconf(_SC_NPROCESSORS_CONF);
  std::vector<std::thread> threads;
  std::atomic<uint32_t> most{0};
  for (int t = 0; t < 8; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; i++) {
        uint32_t number = hak_os_cpu(), seen = most;
        while (seen < number && !most.compare_exchange_weak(seen, number)) continue;
      }
    });
  for (std::thread &t : threads) t.join();
  EXPECT_LT(most, static_cast<uint32_t>(configured));
}

// Under glibc.pthread.rseq=0, and in other libcs.
TEST(Cpu, WithoutTheWordEachThreadKeepsANumberOfItsOwn) {
  hak_os_cpu_start();
  hak_os_cpu_offset = 0;
  uint32_t mine = hak_os_cpu();
  for (int i = 0; i < 10; i++) EXPECT_EQ(hak_os_cpu(), mine);
  uint32_t cpus = static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  auto numbers = numbers_of_threads(64);
  for (uint32_t n : numbers) EXPECT_LT(n, cpus);
  EXPECT_EQ(std::set<uint32_t>(numbers.begin(), numbers.end()).size(), std::min(cpus, 64u)) << "one after the other";
}

// The kernel's words for "not registered" (-1) and "registration failed" (-2).
TEST(Cpu, AThreadThatIsNotRegisteredHasANumberOfItsOwn) {
  hak_os_cpu_start();
  fake_cpu::install();
  uint32_t cpus = static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  for (uint32_t word : {UINT32_MAX, UINT32_MAX - 1}) {
    fake_cpu::number = word;
    EXPECT_LT(hak_os_cpu(), cpus);
  }
  fake_cpu::number = 7;
  EXPECT_EQ(hak_os_cpu(), 7u);
}

// A program's own rseq area, or an emulator's, may say anything.
TEST(Cpu, AnyNumberServes) {
  void *p = hakmem_malloc(1);
  fake_cpu::install();
  for (uint32_t word : {0u, 1u, 63u, 64u, 1000u, 0x7fffffffu, 0x80000000u, UINT32_MAX}) {
    fake_cpu::number = word;
    std::vector<void *> blocks(1000);
    for (void *&b : blocks) ASSERT_NE(b = hakmem_malloc(100), nullptr);
    for (void *b : blocks) hakmem_free(b);
  }
  hakmem_free(p);
  EXPECT_EQ(hak_heap_check(), 0u);
}

}  // namespace
