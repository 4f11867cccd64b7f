/* What a program should find in its blocks: each carries a pattern made from a key and the offset, checked whenever the
 * block is freed, resized or received, and no two blocks of one shadow map may overlap. The map lies in a mapping of its
 * own, so that it says something about the allocator and does not depend on it. */
#ifndef TESTS_TARGETS_SHADOW_H
#define TESTS_TARGETS_SHADOW_H

#include <stddef.h>
#include <stdint.h>

#define SHADOW_BLOCKS 512

struct block {
  unsigned char *p;
  size_t size;
  uint64_t key;
};

struct shadow {
  struct block live[SHADOW_BLOCKS];
  size_t count, live_bytes;
  uint64_t random;
};

/* Prints what is wrong with one line on stderr and ends the process with status 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t random_next(uint64_t *state);
/* 0 … n - 1 */
size_t random_below(uint64_t *state, size_t n);

/* A new map; shadow_delete frees the blocks that are left in it, after a check of each. */
struct shadow *shadow_new(uint64_t seed);
void shadow_delete(struct shadow *s);

/* One random operation of the malloc family on the map, with blocks of at most max_bytes. */
void shadow_step(struct shadow *s, size_t max_bytes);

/* Takes a random block out of the map, checked; p is NULL when the map is empty. */
struct block shadow_take(struct shadow *s);
/* Puts a block in after a check; false when the map is full. */
int shadow_put(struct shadow *s, struct block b);
/* Checks every block. */
void shadow_verify(const struct shadow *s);

void block_fill(const struct block *b);
void block_verify(const struct block *b);
void block_free(struct block b);

#endif
