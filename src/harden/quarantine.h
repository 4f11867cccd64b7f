/* Hardened build: each thread's ring of freed blocks, which the oldest leaves first. It is metadata that the thread's
 * cache keeps, for the cache's next thread too; only the owner touches it. Blocks are of slabs, and whole: the checks
 * of a free come before. */
#ifndef HAK_HARDEN_QUARANTINE_H
#define HAK_HARDEN_QUARANTINE_H

#include "os/os.h"
#include "tcache/tcache.h"

#define HAK_QUARANTINE_BLOCKS 256
#define HAK_QUARANTINE_BYTES ((size_t)1 << 20)

typedef struct hak_quarantine {
  uint32_t first, count; /* first: number of the oldest block, counting all there were */
  size_t bytes;
  uint64_t blocks[HAK_QUARANTINE_BLOCKS]; /* address | class code << 56 */
} hak_quarantine;

/* p leaves the quarantine, and its magazine has no room. */
void hak_quarantine_release_slow(hak_tcache *cache, void *p);

HAK_INLINE void hak_quarantine_release_oldest(hak_tcache *t, hak_quarantine *q) {
  HAK_ASSERT(q->count > 0 && q->count <= HAK_QUARANTINE_BLOCKS);
  uint64_t oldest = q->blocks[q->first++ % HAK_QUARANTINE_BLOCKS];
  void *p = (void *)(oldest & ~((uint64_t)0xff << 56));
  q->count--;
  q->bytes -= hak_class_size((unsigned)(oldest >> 56));
  HAK_ASSERT((q->count == 0) == (q->bytes == 0));
  size_t offset;
  if (HAK_UNLIKELY(!hak_tcache_push_code(p, hak_tcache_code(p, &offset)))) hak_quarantine_release_slow(t, p);
}

/* Takes a block in. False: there is no memory for a quarantine, and the block is the caller's to free. */
HAK_INLINE bool hak_quarantine_put(hak_tcache *t, void *p, unsigned class_code) {
  if (HAK_UNLIKELY(t->quarantine == NULL))
    t->quarantine = (hak_quarantine *)hak_meta_take_block((sizeof(hak_quarantine) + HAK_META_SIZE - 1) / HAK_META_SIZE);
  hak_quarantine *q = t->quarantine;
  if (HAK_UNLIKELY(q == NULL)) return false;
  size_t block_size = hak_class_size(class_code);
  while (q->count == HAK_QUARANTINE_BLOCKS || (q->count > 0 && q->bytes + block_size > HAK_QUARANTINE_BYTES))
    hak_quarantine_release_oldest(t, q);
  q->blocks[(q->first + q->count++) % HAK_QUARANTINE_BLOCKS] = (uintptr_t)p | (uint64_t)class_code << 56;
  q->bytes += block_size;
  return true;
}

/* Frees what the calling thread's quarantine holds; false: it is empty. */
bool hak_quarantine_flush(void);

#endif
