// How a harness says that the allocator did something it must not do.
#ifndef HAKMEM_TESTS_FUZZ_FINDING_H
#define HAKMEM_TESTS_FUZZ_FINDING_H

// What a forked child exits with after a finding; its parent prints what the child wrote and ends the run.
constexpr int kFindingExit = 3;

// Prints one line, then ends the process: by abort(), which the fuzzer takes for a crash and keeps the input of, or in
// a forked child by _exit(kFindingExit).
[[noreturn]] __attribute__((format(printf, 1, 2))) void finding(const char *format, ...);

// From now on this process is a child of the fuzzer's.
void findings_end_child();

#endif
