/* Publication of a region: base, limit and page map against frees on other threads. A writer makes the region accessible in
 * two steps, takes a span, writes its byte of the page map (TAG) and passes a block on; a reader frees that block; a second one looks up a pointer that
 * is no block. Each word has a store buffer of its own, so relaxed stores reach memory in any order, a release store after
 * all earlier ones; the reader's two loads come in either order.
 *
 * mirrors src/region/region.c: hak_store_relaxed(&hak_main_base, r->base);
 * mirrors src/region/region.c: hak_store_release(&hak_main_limit, r->limit);
 * mirrors src/region/region.c: while (!commit_step(r, from, from + step)) {
 * mirrors src/region/region.h: if (HAK_LIKELY((uintptr_t)p - hak_load_relaxed(&hak_main_base) < hak_load_acquire(&hak_main_limit)))
 * mirrors src/tcache/cache.h: if (HAK_UNLIKELY(*offset >= hak_load_folded(&hak_main_limit))) return HAK_CODE_NONE;
 * mirrors src/tcache/cache.h: return hak_region_main_code(base, *offset);
 * mirrors src/region/region.h: return hak_load_relaxed((const uint8_t *)base + (offset >> HAK_SPAN_SHIFT));
 * mirrors src/pool/span_pool.c: set_codes(r, index, 1, tags.head_code);
 *
 * finding BASE_STARTS_AT_0: assertion | the lookup of a foreign pointer of less than the first limit (some 9 GiB), while another thread makes the first region, may see the old base with the new limit, and read a byte near address 0
 * mended BASE_STARTS_AT_0 src/region/region.c: uintptr_t hak_main_base =
 *
 * mutant LIMIT_BEFORE_COMMIT: assertion | the limit is stored before the memory is accessible
 * mutant LIMIT_STORE_RELAXED: assertion | the limit's store does not wait for the region's other fields
 * mutant LIMIT_LOAD_RELAXED: assertion | the fields may be read before the limit
 * mutant TAG_AFTER_BLOCK: assertion | the byte is written after the block was passed on
 * mutant BLOCK_PASSED_RELAXED: assertion | the program passes the block on without synchronisation (its own race) */
#define WORDS 5
#define BASE 0
#define LIMIT 1
#define FIELDS 2 /* region->base, region->map … : written before the first limit */
#define TAG 3
#define PASSED 4 /* the program's own flag */
#include "common.inc"
#include "store_buffer.inc"

/* Addresses: the region lies at 8, the first step is one span, the second another. */
#define REGION 8
#define NOWHERE 128 /* no address lies within a limit from there */
#define BLOCK (REGION + 1)
#define FOREIGN_HIGH 100
#define FOREIGN_LOW 1
#define TAGGED 7

chan base_store = [1] of { byte, byte };
chan limit_store = [1] of { byte, byte };
chan fields_store = [1] of { byte, byte };
chan tag_store = [1] of { byte, byte };
chan passed_store = [1] of { byte, byte };
byte accessible; /* spans: changed by a system call, which all see at once */
byte ended;

#define ALL_BEFORE empty(base_store) && empty(limit_store) && empty(fields_store) && empty(tag_store)

inline grow(spans) {
#ifndef LIMIT_BEFORE_COMMIT
  accessible = spans;
#endif
  STORE(base_store, BASE, REGION);
#ifndef LIMIT_STORE_RELAXED
  ALL_BEFORE;
#endif
  STORE(limit_store, LIMIT, spans);
#ifdef LIMIT_BEFORE_COMMIT
  accessible = spans
#endif
}

proctype writer() {
  STORE(fields_store, FIELDS, 1);
  grow(1);
  grow(2);
#ifndef TAG_AFTER_BLOCK
  STORE(tag_store, TAG, TAGGED);
#endif
#ifndef BLOCK_PASSED_RELAXED
  ALL_BEFORE; /* release */
#endif
  STORE(passed_store, PASSED, 1);
#ifdef TAG_AFTER_BLOCK
  STORE(tag_store, TAG, TAGGED);
#endif
  ended++
}

inline load_base_and_limit() {
  if
  :: true -> base = mem[BASE]; limit = mem[LIMIT]
  :: true -> limit = mem[LIMIT]; base = mem[BASE]
  fi;
  offset = (256 + p - base) % 256 /* wraps as the real ones do */
}

/* The fast path of free. */
proctype owner() {
  byte base, limit, offset, p = BLOCK;
  mem[PASSED] == 1;
  load_base_and_limit();
  assert(offset < limit);
  assert(base == REGION && offset < accessible);
  assert(mem[TAG] == TAGGED);
  ended++
}

/* hak_region_find and hak_region_code; of any address. */
proctype wild() {
  byte base, limit, offset, p, fields;
  if
  :: p = BLOCK
  :: p = FOREIGN_HIGH
  :: p = FOREIGN_LOW
  fi;
#ifdef LIMIT_LOAD_RELAXED
  fields = mem[FIELDS];
#endif
  load_base_and_limit();
  if
  :: offset < limit ->
     assert(base == REGION && offset < accessible); /* the byte's address can be read */
#ifndef LIMIT_LOAD_RELAXED
     fields = mem[FIELDS];
#endif
     assert(fields == 1)
  :: else
  fi;
  ended++
}

init {
  atomic {
#ifndef BASE_STARTS_AT_0
    mem[BASE] = NOWHERE;
#endif
    run memory(base_store);
    run memory(limit_store);
    run memory(fields_store);
    run memory(tag_store);
    run memory(passed_store);
    run writer();
    run owner();
    run wild()
  };
  ended == 3
}
