/* Freed mappings that are kept for the next large requests. One list, the latest last; under hak_huge_lock, and taken out of it before
 * anything is done with them.
 *
 * They go back when they have been there for a decay time, and at once near a target. Keeping them never makes the process larger by more than
 * a quarter of what it was: so much may be kept that it and what is in use are at most 5/4 of the most that was in
 * use in the last two decay times; a new mapping takes the place of kept ones beyond that. */
#ifndef HAK_LARGE_KEPT_H
#define HAK_LARGE_KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAK_KEPT_MAX 128

/* A mapping that has left the table. False: no room; it is the caller's to unmap. *over: more is kept than may be; hak_kept_release takes it
 * back, in steps. */
bool hak_kept_put(void *p, size_t bytes, bool *over);
typedef struct hak_kept_range {
  void *p; /* NULL: there is none */
  size_t bytes;
  uint64_t since_ms;
} hak_kept_range;
/* Takes one out for `size` bytes, at most a quarter larger. */
hak_kept_range hak_kept_take(size_t size, size_t align);
/* Before a mapping of so many bytes comes: gives back what is too much beside it. */
void hak_kept_make_room(size_t bytes);
/* Gives back what came until then, and what is kept beyond the bound; the oldest first, and at most `most_bytes`: what is left
 * of one waits, by its front. *left: there is more. Returns the bytes that went. */
size_t hak_kept_release(uint64_t until_ms, size_t most_bytes, bool *left);
/* Once a decay time: the most that was in use before the last one is forgotten. */
void hak_kept_turn(void);

/* Relaxed: bytes that are kept; and that none may be, as the system limits the process, whose own mmap counts too. */
extern size_t hak_kept_bytes;
extern bool hak_kept_no_mappings;

/* Under hak_huge_lock. Whether p lies in what is kept; the number-th range, false: there is none. */
bool hak_kept_contains(const void *p);
bool hak_kept_at(size_t number, hak_kept_range *range);

#endif
