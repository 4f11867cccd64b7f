#include "fake_os.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>

#include "hak.h"

namespace fake_os {
namespace {

constexpr size_t LOG_MAX = 1 << 16, RANGES_MAX = 1 << 14, VIOLATIONS_MAX = 64;

struct Range {
  uintptr_t lo, hi;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Event events[LOG_MAX];
size_t event_count;
unsigned totals[CALLS];
Range ranges[RANGES_MAX];
size_t range_count;
char violation_texts[VIOLATIONS_MAX][160];
size_t violation_count;
struct {
  unsigned first, last;  // call numbers, 1-based; 0: none
  int error;
} failures[CALLS];
std::function<int(const Event &)> *rule;
std::function<void(const Event &)> *hook;
bool clock_set;
uint64_t clock_ms;
uint64_t touch_ns;
unsigned touches;

const char *const call_names[CALLS] = {"map", "unmap", "protect", "advise", "remap", "name", "barrier"};

struct Guard {
  Guard() { pthread_mutex_lock(&mutex); }
  ~Guard() { pthread_mutex_unlock(&mutex); }
};

void violate(const Event &e, const char *what) {
  if (violation_count == VIOLATIONS_MAX) return;
  snprintf(violation_texts[violation_count++], sizeof violation_texts[0], "%s(%#zx, %zu bytes): %s", call_names[e.call],
           static_cast<size_t>(e.addr), e.size_bytes, what);
}

// Ranges never overlap; neighbours are not merged, so a range that spans two mappings must be put together.
bool covered(uintptr_t lo, uintptr_t hi) {
  while (lo < hi) {
    uintptr_t next = lo;
    for (size_t i = 0; i < range_count; i++) {
      if (ranges[i].lo <= lo && lo < ranges[i].hi) next = ranges[i].hi;
    }
    if (next == lo) return false;
    lo = next;
  }
  return true;
}

void add_range(uintptr_t lo, uintptr_t hi) {
  if (range_count == RANGES_MAX) abort();
  ranges[range_count++] = {lo, hi};
}

void remove_range(uintptr_t lo, uintptr_t hi) {
  for (size_t i = 0; i < range_count;) {
    Range r = ranges[i];
    if (r.hi <= lo || hi <= r.lo) {
      i++;
      continue;
    }
    ranges[i] = ranges[--range_count];
    if (r.lo < lo) add_range(r.lo, lo);
    if (hi < r.hi) add_range(hi, r.hi);
  }
}

// Decides whether the call fails; the hook runs without our mutex so that it may look at the log.
int before(const Event &e) {
  if (hook != nullptr) (*hook)(e);
  Guard guard;
  unsigned n = ++totals[e.call];
  if (failures[e.call].first != 0 && n >= failures[e.call].first && n <= failures[e.call].last)
    return failures[e.call].error;
  return rule != nullptr ? (*rule)(e) : 0;
}

void record(const Event &e) {
  if (event_count < LOG_MAX) events[event_count++] = e;
}

void *map(void *hint, size_t size, hak_os_access access, bool fixed) {
  Event e = {MAP, reinterpret_cast<uintptr_t>(hint), size, access == HAK_OS_ACCESSIBLE, fixed, 0};
  e.error = before(e);
  void *p = e.error != 0 ? nullptr : hak_os_linux.map(hint, size, access, fixed);
  Guard guard;
  uintptr_t at = reinterpret_cast<uintptr_t>(p);
  if (fixed && !covered(e.addr, e.addr + size)) violate(e, "fixed over memory that is not ours");
  if (p != nullptr && !fixed) {
    e.addr = at;
    add_range(at, at + size);
  } else if (p == nullptr && e.error == 0) {
    e.error = ENOMEM;
  }
  record(e);
  return p;
}

int unmap_any(void *addr, size_t size, bool own) {
  Event e = {UNMAP, reinterpret_cast<uintptr_t>(addr), size, own, false, 0};
  e.error = before(e);
  {
    // Before the call: afterwards another thread's mapping may take the addresses.
    Guard guard;
    if (!covered(e.addr, e.addr + size)) violate(e, "outside of what was mapped");
    if (e.error == 0) remove_range(e.addr, e.addr + size);
  }
  if (e.error == 0) e.error = own ? hak_os_linux.unmap_own(addr, size) : hak_os_linux.unmap(addr, size);
  Guard guard;
  record(e);
  return e.error;
}

int unmap(void *addr, size_t size) { return unmap_any(addr, size, false); }

int unmap_own(void *addr, size_t size) { return unmap_any(addr, size, true); }

int protect(void *addr, size_t size, bool accessible) {
  Event e = {PROTECT, reinterpret_cast<uintptr_t>(addr), size, accessible, false, 0};
  e.error = before(e);
  if (e.error == 0) e.error = hak_os_linux.protect(addr, size, accessible);
  Guard guard;
  if (!covered(e.addr, e.addr + size)) violate(e, "outside of what was mapped");
  record(e);
  return e.error;
}

int advise(void *addr, size_t size, int advice) {
  Event e = {ADVISE, reinterpret_cast<uintptr_t>(addr), size, advice, false, 0};
  e.error = before(e);
  if (e.error == 0) e.error = hak_os_linux.advise(addr, size, advice);
  Guard guard;
  if (!covered(e.addr, e.addr + size)) violate(e, "outside of what was mapped");
  record(e);
  return e.error;
}

void *remap(void *addr, size_t old_size, size_t new_size, bool may_move) {
  Event e = {REMAP, reinterpret_cast<uintptr_t>(addr), new_size, 0, false, 0};
  e.error = before(e);
  {
    Guard guard;
    if (!covered(e.addr, e.addr + old_size)) violate(e, "outside of what was mapped");
    if (e.error == 0) remove_range(e.addr, e.addr + old_size);
  }
  void *p = e.error != 0 ? nullptr : hak_os_linux.remap(addr, old_size, new_size, may_move);
  Guard guard;
  if (p != nullptr) {
    e.addr = reinterpret_cast<uintptr_t>(p);
    add_range(e.addr, e.addr + new_size);
  } else if (e.error == 0) {
    add_range(e.addr, e.addr + old_size);
    e.error = ENOMEM;
  }
  record(e);
  return p;
}

// Not handed on: most kernels that tests run on are built without names.
int name(void *addr, size_t size, const char *text) {
  Event e = {NAME, reinterpret_cast<uintptr_t>(addr), size, 0, false, 0, text};
  e.error = before(e);
  Guard guard;
  if (!covered(e.addr, e.addr + size)) violate(e, "outside of what was mapped");
  record(e);
  return e.error;
}

uint64_t now_ms() {
  Guard guard;
  return clock_set ? clock_ms : hak_os_linux.now_ms();
}

int barrier() {
  Event e = {BARRIER, 0, 0, 0, false, 0};
  e.error = before(e);
  if (e.error == 0) e.error = hak_os_linux.barrier();
  Guard guard;
  record(e);
  return e.error;
}

// What the host takes for a page is the test's to say, so that no test depends on it.
uint64_t touch(void *page) {
  *static_cast<volatile char *>(page) = 0;
  Guard guard;
  touches++;
  return touch_ns;
}

const hak_os_ops fake_ops = {map, unmap, protect, advise, remap, name, now_ms, unmap_own, barrier, touch};

// The priority puts it before the allocator's own constructor.
__attribute__((constructor(101))) void install() { hak_os = &fake_ops; }

}  // namespace

void reset() {
  allow_all();
  on_call(nullptr);
  Guard guard;
  event_count = violation_count = 0;
  std::fill(totals, totals + CALLS, 0u);
  clock_set = false;
  touch_ns = touches = 0;
}

void fail_nth(Call call, unsigned n, unsigned count, int error) {
  Guard guard;
  failures[call] = {totals[call] + n, totals[call] + n + count - 1, error};
}

void fail_all(Call call, int error) { fail_nth(call, 1, 1u << 30, error); }

void fail_if(std::function<int(const Event &)> new_rule) {
  Guard guard;
  delete rule;
  rule = new_rule ? new std::function<int(const Event &)>(std::move(new_rule)) : nullptr;
}

void allow_all() {
  fail_if(nullptr);
  Guard guard;
  for (auto &f : failures) f = {0, 0, 0};
}

void on_call(std::function<void(const Event &)> new_hook) {
  Guard guard;
  delete hook;
  hook = new_hook ? new std::function<void(const Event &)>(std::move(new_hook)) : nullptr;
}

void set_clock(uint64_t ms) {
  Guard guard;
  clock_set = true;
  clock_ms = ms;
}

void set_touch_ns(uint64_t ns) {
  Guard guard;
  touch_ns = ns;
}

unsigned touched() {
  Guard guard;
  return touches;
}

std::vector<Event> log() {
  Guard guard;
  return {events, events + event_count};
}

std::vector<Event> names() {
  std::vector<Event> found;
  for (const Event &e : log()) {
    if (e.call == NAME && e.error == 0) found.push_back(e);
  }
  return found;
}

unsigned count(Call call) {
  Guard guard;
  return totals[call];
}

size_t mapped_bytes() {
  Guard guard;
  size_t sum = 0;
  for (size_t i = 0; i < range_count; i++) sum += ranges[i].hi - ranges[i].lo;
  return sum;
}

std::vector<std::string> violations() {
  Guard guard;
  return {violation_texts, violation_texts + violation_count};
}

}  // namespace fake_os

// A fork takes the lock behind the allocator's, whose holders call: so its handlers are there before the allocator's.
namespace {
void before_fork() { pthread_mutex_lock(&fake_os::mutex); }
void after_fork() { pthread_mutex_unlock(&fake_os::mutex); }
void be_first() { pthread_atfork(before_fork, after_fork, after_fork); }
__attribute__((section(".preinit_array"), used)) void (*const first)() = be_first;
}  // namespace
