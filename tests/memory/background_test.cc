// The helper thread: what nobody else would come to do, no more than that, and in children too.
#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "loads.h"

namespace {

std::string task_file(const std::string &tid, const char *name) {
  std::ifstream file("/proc/self/task/" + tid + "/" + name);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> helpers() {
  std::vector<std::string> found;
  DIR *dir = opendir("/proc/self/task");
  while (dirent *entry = readdir(dir))
    if (entry->d_name[0] != '.' && task_file(entry->d_name, "comm") == "hakmem\n") found.push_back(entry->d_name);
  closedir(dir);
  return found;
}

// How often it has gone to sleep.
long sleeps(const std::string &tid) {
  std::string status = task_file(tid, "status"), field = "voluntary_ctxt_switches:";
  size_t at = status.find("\n" + field);
  return at == std::string::npos ? -1 : std::stol(status.substr(at + 1 + field.size()));
}

TEST(Background, GivesBackWhenTheProgramDoesNothing) {
  ASSERT_EQ(helpers().size(), 1u);
  size_t before = resident();
  {
    Blocks blocks(128 * MIB, 64, 200000);
    blocks.free_to(0);
  }
  void *huge = malloc(40 * MIB);
  memset(huge, 1, 40 * MIB);
  free(huge);
  EXPECT_TRUE(comes_to([=] { return resident() <= before + 12 * MIB; })) << (resident() - before) / MIB << " MiB";
  EXPECT_EQ(heap_faults(), 0u);
}

TEST(Background, HolesOfASleepersSlabsToo) {
  size_t before = resident();
  Blocks blocks(128 * MIB, 1500, 2000);
  blocks.free_to(blocks.count() / 100);
  EXPECT_TRUE(comes_to([=] { return resident() <= before + 32 * MIB; })) << (resident() - before) / MIB << " MiB";
  EXPECT_TRUE(blocks.whole());
}

TEST(Background, SleepsWhenNothingHappensAndWakesWhenItDoes) {
  std::string tid = helpers().at(0);
  long last = -1;
  auto asleep = [&] {
    long now = sleeps(tid);
    rest(1000);  // four periods
    bool same = now == sleeps(tid);
    last = now;
    return same;
  };
  bool slept = false;
  for (int i = 0; i < 20 && !slept; i++) slept = asleep();
  ASSERT_TRUE(slept);
  {
    Blocks blocks(64 * MIB, 64, 200000);
  }
  EXPECT_TRUE(comes_to([&] { return sleeps(tid) > last; }));
}

// From its first instruction to its end; the C library blocks its own two signals as well while a thread begins.
TEST(Background, RunsNoHandlerOfTheProgram) {
  std::string tid = helpers().at(0);
  for (int i = 0; i < 50; i++) {
    std::string status = task_file(tid, "status");
    size_t at = status.find("SigBlk:\t");
    ASSERT_NE(at, std::string::npos) << status;
    uint64_t blocked = std::stoull(status.substr(at + 8, 17), nullptr, 16);
    EXPECT_EQ(blocked & UINT64_C(0xfffffffe7ffbfeff), UINT64_C(0xfffffffe7ffbfeff)) << "every signal that can be blocked";
    rest(1);
  }
}

TEST(Background, AChildHasItsOwn) {
  for (int i = 0; i < 2; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      if (helpers().size() != 1) _exit(2);
      size_t before = resident();
      Blocks *blocks = new Blocks(64 * MIB, 64, 200000);
      delete blocks;
      bool gone = comes_to([=] { return resident() <= before + 12 * MIB; });
      _exit(gone && heap_faults() == 0 ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

// Threads allocate, free for each other and end, children come and go, and the helper is at work.
TEST(Background, BesideThreadsAndForks) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++)
    threads.emplace_back([t] {
      for (unsigned round = 0; round < 30; round++) {
        Blocks blocks(2 * MIB, 16, 40000, t * 100 + round);
        blocks.free_to(blocks.count() / 100);
        if (!blocks.whole()) abort();
        pid_t child = fork();
        if (child == 0) {
          alarm(60);
          Blocks own(MIB, 16, 40000, round);
          _exit(own.whole() && heap_faults() == 0 ? 0 : 1);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) abort();
      }
    });
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(heap_faults(), 0u);
}

}  // namespace
