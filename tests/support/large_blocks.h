// Huge blocks as alloc.c and decay.c use them: one that is kept first, then a new mapping.
#ifndef TESTS_LARGE_BLOCKS_H
#define TESTS_LARGE_BLOCKS_H

#include "hak.h"

namespace large_blocks {

inline void *alloc(size_t size, size_t align, bool *zeroed) {
  void *p = hak_large_reuse(size, align);
  *zeroed = p == nullptr;
  return p != nullptr ? p : hak_huge_alloc(size, align, false);
}

inline bool free(void *p) {
  bool purge_due = false;
  return hak_huge_free(p, &purge_due);
}

// Gives back what came until then; the bytes of mappings.
inline size_t release(uint64_t until_ms = UINT64_MAX) {
  bool left;
  return hak_kept_release(until_ms, SIZE_MAX, &left);
}

}  // namespace large_blocks

#endif
