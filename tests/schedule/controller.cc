#include "controller.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

extern "C" {
void (*hak_schedule_hook)(const char *point);
}

namespace {

constexpr int kMaxSteps = 200;
/* A step is microseconds of work; this only has to be longer than any stall of the machine. */
constexpr auto kDeadlock = std::chrono::seconds(20);

/* What a child tells its parent, in shared memory. */
struct Record {
  int steps;
  int chosen[kMaxSteps], options[kMaxSteps];
  char trace[8192];
  char failure[1024];
};

enum class State { kSettingUp, kStopped, kRunning, kDone };

struct Slot {
  State state = State::kSettingUp;
  const char *point = "start";
  bool may_end = false;
};

std::mutex mutex;
std::condition_variable changed;
thread_local Slot *self; /* nullptr: points do not stop this thread */

void stop_here(Slot *slot, State state, const char *point) {
  std::unique_lock<std::mutex> lock(mutex);
  slot->state = state;
  slot->point = point;
  changed.notify_all();
  changed.wait(lock, [slot, state] { return state == State::kDone ? slot->may_end : slot->state == State::kRunning; });
}

void at_point(const char *point) {
  if (self != nullptr) stop_here(self, State::kStopped, point);
}

void run_actor(const Actor &actor, Slot *slot) {
  actor.set_up();
  self = slot;
  stop_here(slot, State::kStopped, "start");
  actor.body();
  self = nullptr;
  stop_here(slot, State::kDone, "done");
}

[[noreturn]] void give_up(Record *record, const std::string &what) {
  std::snprintf(record->failure, sizeof record->failure, "%s", what.c_str());
  _exit(1);
}

void wait_until_not(Slot *slot, State state, Record *record) {
  std::unique_lock<std::mutex> lock(mutex);
  if (!changed.wait_for(lock, kDeadlock, [=] { return slot->state != state; }))
    give_up(record, std::string("deadlock: no further point after \"") + slot->point + "\"");
}

void append_trace(Record *record, const std::string &text) {
  size_t used = std::strlen(record->trace);
  std::snprintf(record->trace + used, sizeof record->trace - used, "%s", text.c_str());
}

/* Which thread goes next: a given beginning and then always the first (depth-first search), or at random. */
class Choices {
 public:
  explicit Choices(const std::vector<int> &prefix) : prefix_(prefix) {}
  explicit Choices(uint64_t seed) : random_(seed), at_random_(true) {}
  int next(size_t options) {
    if (at_random_) return static_cast<int>(random_() % options);
    return at_ < prefix_.size() ? prefix_[at_++] : 0;
  }

 private:
  std::vector<int> prefix_;
  size_t at_ = 0;
  std::mt19937_64 random_;
  bool at_random_ = false;
};

[[noreturn]] void run_schedule(const std::function<Scenario()> &make, Choices choices, Record *record) {
  Scenario scenario = make();
  size_t n = scenario.actors.size();
  std::vector<Slot> slots(n);
  std::vector<std::thread> threads;
  hak_schedule_hook = at_point;
  for (size_t i = 0; i < n; i++) {
    threads.emplace_back(run_actor, std::cref(scenario.actors[i]), &slots[i]);
    wait_until_not(&slots[i], State::kSettingUp, record);
  }
  for (;;) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < n; i++) {
      if (slots[i].state == State::kStopped) ready.push_back(i);
    }
    if (ready.empty()) break;
    if (record->steps == kMaxSteps) give_up(record, "more steps than this test can follow");
    int choice = choices.next(ready.size());
    if (choice >= static_cast<int>(ready.size())) give_up(record, "the same choices led to another state");
    record->chosen[record->steps] = choice;
    record->options[record->steps] = static_cast<int>(ready.size());
    record->steps++;
    Slot *slot = &slots[ready[static_cast<size_t>(choice)]];
    append_trace(record, "  " + scenario.actors[ready[static_cast<size_t>(choice)]].name + " from \"" + slot->point + "\"\n");
    {
      std::lock_guard<std::mutex> lock(mutex);
      slot->state = State::kRunning;
      changed.notify_all();
    }
    wait_until_not(slot, State::kRunning, record);
  }
  std::string wrong = scenario.when_stopped ? scenario.when_stopped() : "";
  if (!wrong.empty()) give_up(record, "with the threads stopped: " + wrong);
  for (size_t i = 0; i < n; i++) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      slots[i].may_end = true;
      changed.notify_all();
    }
    threads[i].join();
  }
  wrong = scenario.at_end ? scenario.at_end() : "";
  if (!wrong.empty()) give_up(record, "at the end: " + wrong);
  _exit(0);
}

/* The next schedule in depth-first order, or false. */
bool next_schedule(const Record &record, std::vector<int> *prefix) {
  int at = record.steps;
  while (at > 0 && record.chosen[at - 1] + 1 >= record.options[at - 1]) at--;
  if (at == 0) return false;
  prefix->assign(record.chosen, record.chosen + at);
  prefix->back()++;
  return true;
}

}  // namespace

void stop_scheduling_here() {
  self = nullptr;
  hak_schedule_hook = nullptr;
}

Exploration explore(const std::function<Scenario()> &make, size_t samples) {
  auto *record = static_cast<Record *>(
      mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (record == MAP_FAILED) std::abort();
  Exploration result;
  std::vector<int> prefix;
  do {
    std::memset(record, 0, sizeof *record);
    std::fflush(nullptr);
    pid_t child = fork();
    if (child < 0) std::abort();
    if (child == 0) run_schedule(make, samples == 0 ? Choices(prefix) : Choices(result.schedules), record);
    int status = 0;
    waitpid(child, &status, 0);
    result.schedules++;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      std::string what = record->failure;
      if (WIFSIGNALED(status)) what = std::string("the program died: ") + strsignal(WTERMSIG(status));
      result.failure = what + "\nafter this order:\n" + record->trace;
      break;
    }
  } while (samples == 0 ? next_schedule(*record, &prefix) : result.schedules < samples);
  munmap(record, sizeof(Record));
  return result;
}
