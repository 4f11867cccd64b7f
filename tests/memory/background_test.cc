// The helper thread: what nobody else would come to do, no more than that, and in children too.
#include <dirent.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

// Its name is the first thing that the thread sets.
std::vector<std::string> named_helpers() {
  std::vector<std::string> found;
  DIR *dir = opendir("/proc/self/task");
  while (dirent *entry = readdir(dir))
    if (entry->d_name[0] != '.' && task_file(entry->d_name, "comm") == "hakmem\n") found.push_back(entry->d_name);
  closedir(dir);
  return found;
}

std::vector<std::string> helpers() {
  std::vector<std::string> found = named_helpers();
  for (int tries = 0; found.empty() && tries < 1000; tries++) {
    usleep(1000);
    found = named_helpers();
  }
  return found;
}

std::string status_field(const std::string &tid, const std::string &name) {
  std::string status = task_file(tid, "status"), field = "\n" + name + ":\t";
  size_t at = status.find(field);
  if (at == std::string::npos) return "";
  at += field.size();
  return status.substr(at, status.find('\n', at) - at);
}

// How often it has gone to sleep.
long sleeps(const std::string &tid) {
  std::string count = status_field(tid, "voluntary_ctxt_switches");
  return count.empty() ? -1 : std::stol(count);
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
    rest(4500);  // more than its three decay times: to look takes memory, which may be new each time, and is work for it
    long now = sleeps(tid);
    rest(1000);  // four periods
    bool same = now == sleeps(tid);
    last = now;
    return same;
  };
  bool slept = false;
  for (int i = 0; i < 6 && !slept; i++) slept = asleep();
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

/* --- of a program that gives up what it may do --- */

uint64_t permitted(const std::string &tid) { return std::stoull("0" + status_field(tid, "CapPrm"), nullptr, 16); }

constexpr uint64_t FOLLOWING = UINT64_C(1) << CAP_SETUID | UINT64_C(1) << CAP_SETGID;
constexpr unsigned NOBODY = 65534;

// In a child, which has a helper of its own. 77: not permitted here.
template <class F>
void in_child(F body) {
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::string tid = helpers().at(0);
    if (!comes_to([&] { return status_field(tid, "NoNewPrivs") == "1" && (permitted(tid) & ~FOLLOWING) == 0; })) _exit(2);
    _exit(body(tid));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "SKIPPED: only root may";
  EXPECT_EQ(status, 0);
}

// Keeps the helper awake.
void work() { Blocks blocks(MIB, 64, 200000); }

TEST(Background, HasNoPrivilegesButToFollow) {
  std::string before = status_field(std::to_string(getpid()), "CapEff");
  in_child([&](const std::string &tid) {
    std::string self = std::to_string(getpid());
    if (status_field(self, "NoNewPrivs") == "1" || status_field(self, "CapEff") != before) return 3;
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    if (syscall(SYS_capset, &header, none) != 0) return 4;
    return comes_to([&] { return work(), permitted(tid) == 0; }) ? 0 : 5;
  });
}

TEST(Background, FollowsAChangeOfUserAndGroup) {
  in_child([](const std::string &tid) {
    if (geteuid() != 0) return 77;
    gid_t group = NOBODY;
    if (seteuid(NOBODY) != 0 || seteuid(0) != 0) return 3;
    if (setgroups(1, &group) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0) return 4;
    std::string self = std::to_string(getpid());
    for (const char *name : {"Uid", "Gid", "Groups", "CapPrm"})
      if (status_field(tid, name) != status_field(self, name)) return 5;
    return setuid(0) == 0 ? 6 : 0;
  });
}

// A filter of its own would make this fail.
TEST(Background, MayBePutUnderTheProgramsFilter) {
  in_child([](const std::string &tid) {
    sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog filter = {1, allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 3;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) return 4;
    return status_field(tid, "Seccomp") == "2" ? 0 : 5;
  });
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
