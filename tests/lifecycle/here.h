/* What the lifecycle programs share. They do not link the allocator: it is preloaded (or linked as a shared library by
 * CMake), so its own functions are looked up at run time and their absence fails the test. */
#ifndef TESTS_LIFECYCLE_HERE_H
#define TESTS_LIFECYCLE_HERE_H

#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hakmem/stats.h"

namespace here {

template <class Function>
Function look_up(const char *name) {
  void *p = dlsym(RTLD_DEFAULT, name);
  if (p == nullptr) {
    std::fprintf(stderr, "%s: the allocator under test is not loaded\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(p);
}

inline size_t heap_check() {
  static auto check = look_up<size_t (*)()>("hakmem_heap_check");
  return check();
}

inline uint64_t served() {
  static auto count = look_up<uint64_t (*)()>("hakmem_served");
  return count();
}

inline bool is_ours(const void *p) {
  static auto ours = look_up<bool (*)(const void *)>("hakmem_is_ours");
  return ours(p);
}

/* Bytes handed out, those in thread caches included. */
inline size_t live_bytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

inline hakmem_stats stats() {
  static auto get = look_up<int (*)(hakmem_stats *, size_t)>("hakmem_stats_get");
  hakmem_stats s;
  if (get(&s, sizeof s) != 0) std::abort();
  return s;
}

/* Thread caches made so far: those that threads have, and those that ended threads have left for the next. */
inline uint64_t caches() {
  hakmem_stats s = stats();
  return s.caches_used + s.caches_unused;
}

inline size_t resident_bytes() {
  FILE *f = std::fopen("/proc/self/statm", "re");
  unsigned long size = 0, resident = 0;
  if (f == nullptr || std::fscanf(f, "%lu %lu", &size, &resident) != 2) std::abort();
  std::fclose(f);
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

/* Waits for a child; true when it exited with 0. Says what happened otherwise. */
inline bool ended_well(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return false;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  std::fprintf(stderr, "child %d: %s %d\n", static_cast<int>(child), WIFSIGNALED(status) ? "signal" : "exit code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  return false;
}

/* In a forked child: a deadlock becomes SIGALRM. */
inline void limit_child() { alarm(20); }

inline unsigned char *filled(size_t size, int value) {
  auto *p = static_cast<unsigned char *>(std::malloc(size));
  if (p == nullptr) std::abort();
  std::memset(p, value, size);
  return p;
}

inline bool holds(const unsigned char *p, size_t size, int value) {
  for (size_t i = 0; i < size; i++) {
    if (p[i] != static_cast<unsigned char>(value)) return false;
  }
  return true;
}

}  // namespace here

#endif
