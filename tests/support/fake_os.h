// An operating system under a test's control: it forwards to the real one, logs each call, checks that the allocator
// touches only what it mapped, and fails what the test asks it to fail.
//
// It is installed before any constructor of the allocator runs, so its picture of the mappings is complete. It allocates
// nothing itself (fixed arrays), so it may be called under any lock.
#ifndef HAKMEM_TESTS_FAKE_OS_H
#define HAKMEM_TESTS_FAKE_OS_H

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fake_os {

enum Call { MAP, UNMAP, PROTECT, ADVISE, REMAP, NAME, BARRIER, CALLS };

struct Event {
  Call call;
  uintptr_t addr;     // the argument; for MAP and REMAP the result
  size_t size_bytes;  // for REMAP the new size
  int detail;         // MAP, PROTECT: accessible; ADVISE: the advice
  bool fixed;
  int error;  // 0: the call succeeded
  const char *name = nullptr;  // NAME
};

// Forgets the log and all failures; the picture of the mappings stays.
void reset();

// Fails calls number n … n + count - 1 of this kind from now (n = 1: the next one).
void fail_nth(Call call, unsigned n, unsigned count = 1, int error = ENOMEM);
void fail_all(Call call, int error = ENOMEM);
// Asked before each call; a non-zero answer is the error it fails with.
void fail_if(std::function<int(const Event &)> rule);
void allow_all();

// Called at the beginning of each call, for checks such as "no lock is held here".
void on_call(std::function<void(const Event &)> hook);

// From the first set_clock on, the clock stands still between calls of it.
void set_clock(uint64_t ms);

// What a first touch is said to cost from now on; 0 until then, and after a reset.
void set_touch_ns(uint64_t ns);
// First touches since the reset.
unsigned touched();

std::vector<Event> log();
// The names given so far, one event each.
std::vector<Event> names();
unsigned count(Call call);
// Bytes now mapped through the fake and not unmapped again.
size_t mapped_bytes();

// One line for each rule broken so far: commits, advice or unmapping outside of known mappings; a fixed mapping over
// anything but our own. Empty: all was well.
std::vector<std::string> violations();

}  // namespace fake_os

#endif
