/* The end of a heap beside threads that have something of it: a cache that is emptied, a heap that follows with the same memory and index, a block that is
 * freed while its heap is deleted. The first heap has id 1, the next one id 2; blocks and mappings are numbered as their heap. The thread uses a heap
 * between calls alone, as the interface asks; its cache it empties at any time, or a thief does (reach.pml has their protocol, here a lock).
 *
 * mirrors src/heap/cache.h: return HAK_LIKELY(k != NULL) && HAK_LIKELY(k->id == h->id) ? k : NULL;
 * mirrors src/heap/cache.c: bool exists = hak_heap_cache_has_heap(k);
 * mirrors src/heap/registry.c: hak_store_relaxed(&entry->id, 0);
 * mirrors src/heap/registry.c: hak_heap_take_locks(h);
 * mirrors src/heap/registry.c: for (hak_heap *above = h->parent; above != NULL; above = above->parent) hak_sub_relaxed(&above->out, hak_load_relaxed(&h->out));
 *
 * mutant EMPTIED_WITHOUT_LOCK: assertion | the heap ends between the look and the return of the blocks
 * mutant ID_STAYS: assertion | a heap that ends keeps its id until it is given back
 * mutant FOUND_BY_INDEX: assertion | a cache is its index's, whatever its id
 * mutant INDEX_GIVEN_FIRST: assertion | the index is free before the mappings are given back
 * mutant ENDED_WITHOUT_LOCKS: assertion | the memory of a deleted heap goes while who gave its last block back has its lock
 * mutant DELETED_WITHOUT_LOCKS: assertion | a block is freed while its heap leaves the parent */
#include "common.inc"

byte registry, cache_lock, heap_lock;
byte id = 1, entry = 1; /* of the heap's memory; 0: it is none. entry: of the index, 0: the index is free */
byte program_id = 1;    /* the heap that the program uses; 0: none for now */
byte program_lock;      /* no call is in it when it is destroyed */
byte cached, cached_id = 1; /* a block of that heap; the cache's id */
bool spans[3] = { false, true, false };
byte mapping = 1; /* of the heap with the index: the one whose it is */
byte out = 2, parent_out = 2;
bool has_parent = true, deleted, gone;

inline give_back() {
#ifndef EMPTIED_WITHOUT_LOCK
  TAKE(registry);
#endif
  exists = (entry != 0 && id == cached_id);
  if
  :: exists && cached != 0 ->
    assert(spans[cached]); /* back into a slab that is there */
    assert(cached == id);
    cached = 0
  :: else -> cached = 0
  fi;
#ifndef EMPTIED_WITHOUT_LOCK
  DROP(registry)
#endif
}

proctype thread() {
  byte calls = 0;
  bool exists;
  do
  :: calls == 4 -> break
  :: calls < 4 ->
    calls++;
    if
    :: TAKE(program_lock); /* a call */
      TAKE(cache_lock);
      if
      :: program_id == 0 -> skip
#ifdef FOUND_BY_INDEX
      :: program_id != 0 && cached != 0 ->
#else
      :: program_id != 0 && cached_id == program_id && cached != 0 ->
#endif
        assert(cached == program_id); /* a block of that heap is the program's */
        if :: cached = 0 :: skip fi
      :: program_id != 0 && cached_id == program_id && cached == 0 -> cached = program_id /* a free */
      :: program_id != 0 && cached_id != program_id -> /* another heap has its place */
        give_back();
        cached_id = program_id
#ifdef FOUND_BY_INDEX
      :: program_id != 0 && cached == 0 -> cached = program_id
#endif
      fi;
      DROP(cache_lock);
      DROP(program_lock)
    :: TAKE(cache_lock); /* the thread ends, or its cache decays */
      give_back();
      DROP(cache_lock)
    fi
  od
}

proctype thief() {
  bool exists;
  TAKE(cache_lock);
  give_back();
  DROP(cache_lock)
}

inline give_mappings() {
  if
  :: mapping != 0 -> assert(mapping == 1); mapping = 0
  :: else
  fi
}

proctype program() {
  TAKE(program_lock);
  program_id = 0;
  DROP(program_lock);
  TAKE(registry); /* unlink */
#ifndef ID_STAYS
  id = 0;
  entry = 0;
#endif
  DROP(registry);
#ifdef INDEX_GIVEN_FIRST
  run next_heap();
#endif
  spans[1] = false;
  give_mappings();
  TAKE(registry); /* release */
  id = 0;
  entry = 0;
  DROP(registry);
#ifndef INDEX_GIVEN_FIRST
  run next_heap()
#endif
}

proctype next_heap() {
  TAKE(registry);
  id = 2;
  entry = 1;
  spans[2] = true;
  mapping = 2;
  DROP(registry);
  TAKE(program_lock);
  program_id = 2;
  DROP(program_lock)
}

/* Another heap, with two blocks, below a parent. It ends with the last of them. */
proctype freer() {
  TAKE(heap_lock);
  out--;
  if :: has_parent -> parent_out-- :: else fi;
  assert(!gone);
  DROP(heap_lock)
}

proctype ender() {
  deleted && out == 0;
#ifndef ENDED_WITHOUT_LOCKS
  TAKE(heap_lock);
  DROP(heap_lock);
#endif
  gone = true
}

proctype deleter() {
  byte seen;
#ifndef DELETED_WITHOUT_LOCKS
  TAKE(heap_lock);
#endif
  seen = out;
  parent_out = parent_out - seen;
  has_parent = false;
  deleted = true;
#ifndef DELETED_WITHOUT_LOCKS
  DROP(heap_lock)
#else
  skip
#endif
}

init {
  atomic {
    run thread();
    run thief();
    run program();
    run freer();
    run freer();
    run ender();
    run deleter()
  }
  _nr_pr == 1 -> assert(parent_out == 0 && out == 0 && gone)
}
