#include "shadow.h"

#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Larger blocks are written at both ends and once in each 4 KiB. */
#define WHOLE_BYTES ((size_t)16 << 10)
#define EDGE_BYTES ((size_t)512)
#define STRIDE_BYTES ((size_t)4096)
#define LIVE_BYTES_MAX ((size_t)96 << 20)

void fail(const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "driver: %s\n", text);
  _exit(1);
}

/* splitmix64 */
uint64_t random_next(uint64_t *state) {
  uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

size_t random_below(uint64_t *state, size_t n) { return (size_t)(random_next(state) % n); }

static uint64_t word_at(const struct block *b, size_t offset) {
  return (b->key ^ (offset + 1)) * UINT64_C(0x9fb21c651e98df25);
}

static size_t next_offset(const struct block *b, size_t at) {
  if (b->size <= WHOLE_BYTES || at < EDGE_BYTES || at + EDGE_BYTES >= b->size) return at + 8;
  size_t last_edge = (b->size - EDGE_BYTES + 7) & ~(size_t)7;
  return at + STRIDE_BYTES < last_edge ? at + STRIDE_BYTES : last_edge;
}

static size_t word_bytes(const struct block *b, size_t offset) {
  return b->size - offset < 8 ? b->size - offset : 8;
}

void block_fill(const struct block *b) {
  for (size_t at = 0; at < b->size; at = next_offset(b, at)) {
    uint64_t word = word_at(b, at);
    memcpy(b->p + at, &word, word_bytes(b, at));
  }
}

/* The words of the pattern of `b` that lie whole in the first `end` bytes, read at `now`. */
static void verify_prefix(const struct block *b, const unsigned char *now, size_t end) {
  for (size_t at = 0; at < b->size; at = next_offset(b, at)) {
    size_t bytes = word_bytes(b, at);
    if (at + bytes > end) return;
    uint64_t word = word_at(b, at);
    if (memcmp(now + at, &word, bytes) != 0)
      fail("block %p of %zu bytes: byte %zu is not what was written there", (void *)b->p, b->size, at);
  }
}

void block_verify(const struct block *b) { verify_prefix(b, b->p, b->size); }

void block_free(struct block b) {
  block_verify(&b);
  if (b.size > 0) b.p[0] = (unsigned char)~b.p[0]; /* a stale pattern must not satisfy a later check */
  errno = 4711;
  free(b.p);
  if (errno != 4711) fail("free(%p) changed errno to %d", (void *)b.p, errno);
}

struct shadow *shadow_new(uint64_t seed) {
  struct shadow *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) fail("no memory for the shadow map");
  s->random = seed;
  return s;
}

void shadow_delete(struct shadow *s) {
  for (size_t i = 0; i < s->count; i++) block_free(s->live[i]);
  munmap(s, sizeof *s);
}

void shadow_verify(const struct shadow *s) {
  for (size_t i = 0; i < s->count; i++) block_verify(&s->live[i]);
}

static struct block take_at(struct shadow *s, size_t at) {
  struct block b = s->live[at];
  s->live[at] = s->live[--s->count];
  s->live_bytes -= b.size;
  return b;
}

struct block shadow_take(struct shadow *s) {
  if (s->count == 0) return (struct block){NULL, 0, 0};
  struct block b = take_at(s, random_below(&s->random, s->count));
  block_verify(&b);
  return b;
}

static void check_apart(const struct shadow *s, const struct block *b) {
  size_t bytes = b->size > 0 ? b->size : 1;
  for (size_t i = 0; i < s->count; i++) {
    const struct block *other = &s->live[i];
    size_t other_bytes = other->size > 0 ? other->size : 1;
    if (b->p < other->p + other_bytes && other->p < b->p + bytes)
      fail("block %p of %zu bytes overlaps block %p of %zu bytes", (void *)b->p, b->size, (void *)other->p, other->size);
  }
}

int shadow_put(struct shadow *s, struct block b) {
  if (s->count == SHADOW_BLOCKS) return 0;
  block_verify(&b);
  check_apart(s, &b);
  s->live[s->count++] = b;
  s->live_bytes += b.size;
  return 1;
}

/* Log-uniform, so that every size class and every owner of larger blocks gets its share. */
static size_t random_size(struct shadow *s, size_t max_bytes) {
  size_t dice = random_below(&s->random, 4096);
  unsigned bits = dice < 2 ? 26 : dice < 40 ? 22 : dice < 400 ? 17 : 12;
  size_t limit = (size_t)1 << random_below(&s->random, bits + 1);
  size_t size = random_below(&s->random, limit + 1);
  return size <= max_bytes ? size : size % (max_bytes + 1);
}

static void *allocate_zeroed(struct shadow *s, size_t size) {
  size_t count = 1 + random_below(&s->random, 8), each = size / count;
  if (each * count != size) count = 1, each = size;
  unsigned char *p = calloc(count, each);
  struct block b = {p, size, 0};
  for (size_t at = 0; p != NULL && at < size; at = next_offset(&b, at)) {
    if (p[at] != 0) fail("calloc of %zu bytes: byte %zu is %d", size, at, p[at]);
  }
  return p;
}

static void *allocate(struct shadow *s, size_t size, size_t *align) {
  void *p = NULL;
  *align = 16;
  switch (random_below(&s->random, 8)) {
    case 0:
    case 1:
      return allocate_zeroed(s, size);
    case 2:
      *align = (size_t)1 << random_below(&s->random, 14);
      return aligned_alloc(*align, size);
    case 3:
      *align = sizeof(void *) << random_below(&s->random, 15);
      return posix_memalign(&p, *align, size) == 0 ? p : NULL;
    case 4:
      *align = (size_t)1 << random_below(&s->random, 18);
      return memalign(*align, size);
    default:
      return malloc(size);
  }
}

static void add(struct shadow *s, unsigned char *p, size_t size) {
  struct block b = {p, size, random_next(&s->random)};
  if (malloc_usable_size(p) < size) fail("%zu usable bytes in a block of %zu", malloc_usable_size(p), size);
  block_fill(&b);
  if (!shadow_put(s, b)) block_free(b);
}

static void resize(struct shadow *s, size_t max_bytes) {
  struct block old = shadow_take(s);
  size_t size = random_below(&s->random, 2) ? random_size(s, max_bytes) : old.size / 2 + random_below(&s->random, old.size + 9);
  if (size == 0) size = 1; /* realloc(p, 0) frees */
  if (size > max_bytes) size = max_bytes;
  unsigned char *p = realloc(old.p, size);
  if (p == NULL) fail("realloc of %p from %zu to %zu bytes failed", (void *)old.p, old.size, size);
  verify_prefix(&old, p, old.size < size ? old.size : size);
  add(s, p, size);
}

void shadow_step(struct shadow *s, size_t max_bytes) {
  size_t dice = random_below(&s->random, 16);
  int full = s->count == SHADOW_BLOCKS || s->live_bytes > LIVE_BYTES_MAX;
  if (s->count == 0 || (dice < 8 && !full)) {
    size_t size = random_size(s, max_bytes), align;
    unsigned char *p = allocate(s, size, &align);
    if (p == NULL) fail("out of memory for %zu bytes aligned to %zu", size, align);
    if ((uintptr_t)p % (align < 16 ? 16 : align) != 0) fail("%p is not aligned to %zu", (void *)p, align);
    add(s, p, size);
  } else if (dice < 11) {
    resize(s, max_bytes);
  } else {
    block_free(shadow_take(s));
  }
}
