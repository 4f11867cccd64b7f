// The CPU that the allocator takes the calling thread to be on.
#ifndef HAKMEM_TESTS_FAKE_CPU_H
#define HAKMEM_TESTS_FAKE_CPU_H

#include <cstddef>
#include <cstdint>

#include "hak.h"

namespace fake_cpu {

inline thread_local uint32_t number __attribute__((tls_model("initial-exec"))) = 0;

// From now on threads are on CPU 0 until they say otherwise. After hak_start or hak_arena_start.
inline void install() {
  auto *self = static_cast<char *>(__builtin_thread_pointer());
  hak_os_cpu_offset = reinterpret_cast<char *>(&number) - self;
}

}  // namespace fake_cpu

#endif
