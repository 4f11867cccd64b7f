// Memory that a forked child shares with the fuzzer, and the fuzzer's judgement of how the child ended.
//
// Allowed is what docs/security.md promises of misuse: the child went on to its end, or one report of the allocator named
// an address that had been misused, or a block whose memory was written to by somebody who did not hold it, and SIGABRT
// followed. A crash, a hang, a report of any other address, and whatever the
// child found itself, are findings.
#ifndef HAKMEM_TESTS_FUZZ_LEDGER_H
#define HAKMEM_TESTS_FUZZ_LEDGER_H

#include <cstddef>
#include <cstdint>
#include <functional>

constexpr unsigned kMisusedMax = 512;

struct Ledger {
  unsigned count;
  uintptr_t misused[kMisusedMax];  // entered before the call that misuses it
  unsigned written_count;
  struct {
    uintptr_t begin, end;
  } written[kMisusedMax];  // bytes past the end of a block, or in a freed one
};

bool ledger_has(const Ledger *ledger, const void *p);
bool ledger_enter(Ledger *ledger, const void *p);  // false: full
bool ledger_has_written(const Ledger *ledger, const void *p, size_t bytes);  // any of them
bool ledger_enter_written(Ledger *ledger, const void *p, size_t bytes);     // false: full

// Runs the body in a child and judges it; returns when there is nothing to say against it. The code that the child
// covered counts as covered by this process.
void run_in_child(const std::function<void(Ledger *)> &body);

#endif
