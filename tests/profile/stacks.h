// One place of a program, as hak_unwind sees it and as libgcc does.
#ifndef HAKMEM_TESTS_STACKS_H
#define HAKMEM_TESTS_STACKS_H

#include <unwind.h>

#include <cstdint>
#include <sstream>
#include <string>

extern "C" {
#include "profile/unwind.h"
}

struct Stacks {
  static constexpr unsigned MAX = 1024;
  uintptr_t ours[MAX], theirs[MAX];
  unsigned ours_count = 0, theirs_count = 0;
  unsigned times = 0, differing = 0;  // over all records

  bool same() const {
    if (ours_count != theirs_count) return false;
    for (unsigned i = 0; i < ours_count; i++)
      if (ours[i] != theirs[i]) return false;
    return true;
  }

  std::string text() const {
    std::ostringstream out;
    out << std::hex;
    for (unsigned i = 0; i < ours_count || i < theirs_count; i++)
      out << "\n" << (i < ours_count ? ours[i] : 0) << " " << (i < theirs_count ? theirs[i] : 0);
    return out.str();
  }
};

inline _Unwind_Reason_Code note_frame(_Unwind_Context *context, void *argument) {
  auto *s = static_cast<Stacks *>(argument);
  int interrupted = 0;
  uintptr_t pc = _Unwind_GetIPInfo(context, &interrupted);
  if (pc != 0 && s->theirs_count < Stacks::MAX) s->theirs[s->theirs_count++] = pc + (interrupted != 0);
  return _URC_NO_REASON;
}

// Both stacks of the callers. A difference stays to be looked at.
__attribute__((noinline)) inline void record(void *argument) {
  auto *s = static_cast<Stacks *>(argument);
  if (s->differing != 0) return;
  s->times++;
  s->ours_count = hak_unwind(s->ours, Stacks::MAX);
  s->theirs_count = 0;
  _Unwind_Backtrace(note_frame, s);
  for (unsigned i = 1; i < s->theirs_count; i++) s->theirs[i - 1] = s->theirs[i];  // the first is this function
  if (s->theirs_count > 0) s->theirs_count--;
  if (!s->same()) s->differing++;
}

#define EXPECT_SAME_STACKS(s, least) \
  do { \
    EXPECT_TRUE((s).same()) << (s).text(); \
    EXPECT_GE((s).ours_count, unsigned(least)); \
    EXPECT_GT((s).times, 0u); \
    EXPECT_EQ((s).differing, 0u); \
  } while (0)

#endif
