// What both fuzzers set before anything else runs.
#include <cstdlib>

namespace {

/* A refused commit makes the allocator add a region, and regions are never given back: in a process that sees thousands
 * of inputs, those of 1 TiB would use up the address space. A setting from outside stands. */
__attribute__((constructor(101))) void keep_regions_small() { setenv("HAKMEM_RESERVE_MB", "16384", 0); }

}  // namespace

/* The heap under test is no root for the leak checker, and nothing of it comes from the sanitizer's malloc. */
extern "C" __attribute__((visibility("default"))) const char *__asan_default_options() { return "detect_leaks=0"; }
