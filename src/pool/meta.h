/* Metadata blocks: the allocator's own memory, in units of 1,024 aligned bytes, outside every region so that no
 * overflow of a user's block can reach it. Magazines, arenas and thread caches are made of them. Pages of which all
 * blocks are free are purged; they stay accessible. One lock, leaf rank. */
#ifndef HAK_POOL_META_H
#define HAK_POOL_META_H

#include <stddef.h>

#include "os/lock.h"

#define HAK_META_SIZE 1024

typedef struct hak_meta {
  struct hak_meta *next; /* while on a free list */
  char rest[HAK_META_SIZE - sizeof(void *)];
} hak_meta;

extern hak_lock hak_meta_lock;

/* One, contents undefined; NULL: out of memory. */
hak_meta *hak_meta_take(void);
/* The same, where that takes no system call. */
hak_meta *hak_meta_take_mapped(void);
/* A chain of them linked by next. */
void hak_meta_give(hak_meta *chain);
/* One, whatever it was used as. */
void hak_meta_give_one(void *memory);
/* `count` adjacent zeroed ones that are never given back; NULL: out of memory. */
void *hak_meta_take_block(unsigned count);
/* Purges pages of blocks that nobody has needed since the call before this one, or of all that are free. Returns the
 * bytes. Caller holds no lock. */
size_t hak_meta_purge(bool all);
/* In the child of a fork, with the lock held: puts back what another thread was purging. */
void hak_meta_fork_child(void);
/* Bytes obtained from the system for them. */
unsigned long hak_meta_bytes(void);
/* Where they are: the number-th mapping of them, the latest first. False: there is none. */
bool hak_meta_mapping(size_t number, uintptr_t *address, size_t *bytes);

/* Gives back what is reserved and not accessible. Returns the bytes. */
size_t hak_meta_give_back_reserved(void);

#endif
