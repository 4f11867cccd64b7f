// Redis's active defragmentation over a libjemalloc.so.2 that has no je_get_defrag_hint: the same question by
// experimental.utilization.query, which a stock jemalloc 5.3 answers too.
//
// Linked into Redis's own sources, which are built with JEMALLOC_FRAG_HINT. A block is to be moved when its slab is not full and
// no fuller than an eighth above the mean of its size class, and when it is not in the slab that new blocks come from.
#include <stddef.h>
#include <jemalloc/jemalloc.h>

typedef struct {
  void *slab_of_new_blocks;
  size_t slab_free, slab_blocks, slab_bytes, class_free, class_blocks;
} utilization_t;

int je_get_defrag_hint(void *block) {
  utilization_t now = {NULL, 0, 0, 0, 0, 0};
  size_t length = sizeof now;
  if (mallctl("experimental.utilization.query", &now, &length, &block, sizeof block) != 0) return 0;
  // One block for itself, or a full slab.
  if (now.slab_blocks < 2 || now.slab_free == 0 || now.class_blocks == 0) return 0;
  char *slab = now.slab_of_new_blocks;
  if (slab != NULL && slab <= (char *)block && (char *)block < slab + now.slab_bytes) return 0;
  double used = (double)(now.slab_blocks - now.slab_free) / (double)now.slab_blocks;
  double mean = (double)(now.class_blocks - now.class_free) / (double)now.class_blocks;
  return used <= mean * 1.125;
}
