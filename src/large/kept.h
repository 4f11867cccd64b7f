/* Freed mappings that are kept for the next large requests. One list, the latest last; under hak_huge_lock, and taken
 * out of it before anything is done with them.
 *
 * They go back when they have been there for a decay time, and at once near a target. Keeping them never makes the
 * process larger by more than a quarter of what it was: so much may be kept that it and what is in use are at most 5/4
 * of the most that was in use in the last two decay times; a new mapping takes the place of kept ones beyond that. */
#ifndef HAK_LARGE_KEPT_H
#define HAK_LARGE_KEPT_H

#include "large/mapping.h"

extern hak_freed_list hak_kept;
HAK_INLINE size_t hak_kept_bytes(void) { return hak_load_relaxed(&hak_kept.bytes); }
/* Relaxed: none may be kept, as the system limits the process, whose own mmap counts too. */
extern bool hak_kept_no_mappings;

/* A mapping that has left the table. False: no room; it is the caller's to unmap. *over: more is kept than may be;
 * hak_kept_release takes it back, in steps. */
bool hak_kept_put(void *p, size_t bytes, bool huge_pages, bool *over);
/* Takes one out for `size` bytes, at most a quarter larger. */
hak_freed hak_kept_take(size_t size, size_t align);
/* Before a mapping that reads as zero comes: gives back the one that would have served but for its contents. A new one
 * has pages only where the program touches it; to clear what is kept would make all of it resident. */
void hak_kept_replace(size_t size, size_t align);
/* Before a mapping of so many bytes comes: gives back what is too much beside it. */
void hak_kept_make_room(size_t bytes);
/* Gives back what came until then, and what is kept beyond the bound; the oldest first, and at most `most_bytes`: what
 * is left of one waits, by its front. *left: there is more. Returns the bytes that went. */
size_t hak_kept_release(uint64_t until_ms, size_t most_bytes, bool *left);
/* Once a decay time: the most that was in use before the last one is forgotten. */
void hak_kept_turn(void);

#endif
