// Core dumps: what is live is in them, what is free takes no room on the disk, and reserved addresses are left out.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <string>

#include "loads.h"

namespace {

constexpr size_t HEAP = 512 * MIB;
const char MARK[] = "what the program would have looked for in its core";

struct Load {
  size_t block_bytes;
  bool scattered;  // every tenth block stays; else the last tenth
  bool purged;     // before the dump
};

// Fills the heap, frees nine tenths of it and dies.
[[noreturn]] void die(const Load &load) {
  rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_CORE, &all);
  size_t count = HEAP / load.block_bytes;
  auto **blocks = static_cast<char **>(malloc(count * sizeof(char *)));
  for (size_t i = 0; i < count; i++) {
    blocks[i] = static_cast<char *>(malloc(load.block_bytes));
    memset(blocks[i], int(i % 251 + 1), load.block_bytes);
  }
  for (size_t i = 0; i < count; i++) {
    if (load.scattered ? i % 10 != 9 : i < count * 9 / 10) free(blocks[i]);
  }
  for (size_t at = 0; at < sizeof MARK; at++) blocks[count - 1 - (count - 1) % 10 - 1][at] = MARK[at];
  if (load.purged) purge();
  signal(SIGABRT, SIG_DFL);
  abort();
}

class Core : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_), nullptr);
    std::string pattern;
    std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), pattern);
    if (pattern.empty() || pattern[0] == '|' || pattern.find('/') != std::string::npos)
      GTEST_SKIP() << "SKIPPED: cores are not written to the working directory (core_pattern " << pattern << ")";
    rlimit now;
    if (getrlimit(RLIMIT_CORE, &now) != 0 || now.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "SKIPPED: ulimit -Hc";
    if (!has_holes()) GTEST_SKIP() << "SKIPPED: this file system has no files with holes";
  }
  void TearDown() override {
    std::string name = core();
    if (!name.empty()) unlink(name.c_str());
    rmdir(folder_);
  }

  bool has_holes() {
    std::string name = std::string(folder_) + "/holes";
    int fd = open(name.c_str(), O_CREAT | O_WRONLY, 0600);
    struct stat file = {};
    bool has = fd >= 0 && ftruncate(fd, 8 * MIB) == 0 && fstat(fd, &file) == 0 && file.st_blocks < 100;
    close(fd);
    unlink(name.c_str());
    return has;
  }

  // The one file of the folder.
  std::string core() const {
    std::string found;
    DIR *folder = opendir(folder_);
    while (const dirent *entry = folder == nullptr ? nullptr : readdir(folder)) {
      if (entry->d_name[0] != '.') found = std::string(folder_) + "/" + entry->d_name;
    }
    if (folder != nullptr) closedir(folder);
    return found;
  }

  void dump(const Load &load) {
    pid_t child = fork();
    if (child == 0) {
      if (chdir(folder_) != 0) _exit(1);
      die(load);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WCOREDUMP(status)) << "status " << status;
    struct stat file;
    ASSERT_EQ(stat(core().c_str(), &file), 0);
    apparent = size_t(file.st_size);
    on_disk = size_t(file.st_blocks) * 512;
    printf("core of %zu MiB in blocks of %zu bytes, a tenth live%s%s: %zu MiB, on the disk %zu MiB\n", HEAP / MIB, load.block_bytes,
           load.scattered ? ", scattered" : "", load.purged ? ", purged" : "", apparent / MIB, on_disk / MIB);
    EXPECT_GE(on_disk, HEAP / 10) << "what is live is missing";
    EXPECT_LT(apparent, 2 * HEAP) << "reserved addresses";
    int fd = open(core().c_str(), O_RDONLY);
    void *text = mmap(nullptr, apparent, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    ASSERT_NE(text, MAP_FAILED);
    EXPECT_NE(memmem(text, apparent, MARK, sizeof MARK), nullptr) << "a live block is missing";
    munmap(text, apparent);
  }

  size_t apparent = 0, on_disk = 0;

 private:
  char folder_[32] = "core_test_XXXXXX";
};

// What tables, program and libraries take.
constexpr size_t REST = 24 * MIB;

// Not purged yet: as in memory.Spike.FreedBlocksGoBackAtOnce.
TEST_F(Core, FreedInBulkAndDumpedAtOnce) {
  dump({4000, false, false});
  EXPECT_LE(on_disk, HEAP / 10 + 64 * MIB + 16 * MIB + REST);
}

TEST_F(Core, FreedInBulkAndPurged) {
  dump({4000, false, true});
  EXPECT_LE(on_disk, HEAP / 10 + REST);
}

TEST_F(Core, FreedHereAndThereAndDumpedAtOnce) {
  dump({100000, true, false});
  EXPECT_LE(on_disk, HEAP / 10 + 64 * MIB + 16 * MIB + REST);
}

TEST_F(Core, FreedHereAndThereAndPurged) {
  dump({100000, true, true});
  EXPECT_LE(on_disk, HEAP / 10 * 12 / 10 + REST);
}

// gcore writes what the kernel would not: each reservation, unless it is marked. With HAKMEM_STATS_PAGE and HAKMEM_HEAP_PROFILE too.
TEST(Reservations, AreMarked) {
  free(malloc(1));
  std::ifstream smaps("/proc/self/smaps");
  std::string head;
  size_t bytes = 0, found = 0;
  for (std::string line; std::getline(smaps, line);) {
    size_t from, to;
    char access[8];
    if (sscanf(line.c_str(), "%zx-%zx %7s", &from, &to, access) == 3) {
      head = line;
      bytes = access[0] == '-' || line.find("hakmem-stats") != std::string::npos ? to - from : 0;
    }
    if (line.rfind("VmFlags:", 0) != 0 || bytes < 16 * MIB) continue;
    found++;
    EXPECT_NE((line + " ").find(" dd "), std::string::npos) << head;
  }
  EXPECT_GE(found, 1u) << "the reservation of the heap";
}

}  // namespace
