/* The end of a heap beside threads that have something of it: a cache that is emptied, a heap that follows with the same memory and index, the same heap
 * after a reset, a block that is freed while its heap is deleted. The first heap has life 1, what follows life 2; blocks and mappings are numbered as their life. The
 * thread uses a heap between calls alone, as the interface asks; its cache it empties at any time, or a thief does (heap_limit.pml has their protocol, here a lock).
 *
 * mirrors src/heap/cache.h: if (HAK_UNLIKELY(hak_load_folded(&k->open) != owner)) return false;
 * mirrors src/heap/cache.h: if (HAK_LIKELY(hak_load_relaxed(&k->owner) == owner)) return k;
 * mirrors src/heap/registry.c: hak_store_relaxed(&k->open, HAK_HEAP_NOBODY);
 * mirrors src/heap/registry.c: hak_store_relaxed(&k->owner, HAK_HEAP_NOBODY);
 * mirrors src/heap/cache.c: bool exists = hak_heap_cache_has_heap(k);
 * mirrors src/heap/registry.c: hak_store_relaxed(&entry->life, 0);
 * mirrors src/heap/registry.c: h->life = ++latest_life;
 * mirrors src/heap/registry.c: hak_heap_take_locks(h);
 * mirrors src/heap/registry.c: counts && out != 0 && above != NULL; above = above->parent) hak_sub_relaxed(&above->out, out);
 *
 * mutant EMPTIED_WITHOUT_LOCK: assertion | the heap ends between the look and the return of the blocks
 * mutant LIFE_STAYS: assertion | a heap that ends keeps its life until it is given back
 * mutant OWNER_STAYS: assertion | a heap that ends leaves its caches their owner
 * mutant FOUND_BY_INDEX: assertion | a cache is its index's, whoever has that by now
 * mutant RESET_TO_OLD_LIFE: assertion | a heap that is reset goes on with the life it had
 * mutant RESET_IN_PLACE: assertion | a heap that is reset has its next life while it still gives back what it has
 * mutant INDEX_GIVEN_FIRST: assertion | the index is free before the mappings are given back
 * mutant ENDED_WITHOUT_LOCKS: assertion | the memory of a deleted heap goes while who gave its last block back has its lock
 * mutant DELETED_WITHOUT_LOCKS: assertion | a block is freed while its heap leaves the parent */
#include "common.inc"

byte registry, cache_lock, heap_lock;
byte life = 1, entry = 1; /* of the heap's memory; 0: it is none. entry: of the index, 0: the index is free */
byte program_life = 1;    /* of the heap that the program uses; 0: none for now */
byte program_lock;        /* no call is in it when it is destroyed or reset */
byte cached, cached_life = 1; /* a block of that life; the cache's */
bool cached_owned = true; /* the cache has the heap's index for its owner; else nobody */
bool spans[3] = { false, true, false };
byte mapping = 1; /* of the heap with the index: the one whose it is */
byte out = 2, parent_out = 2;
bool has_parent = true, deleted, gone;

inline give_back() {
#ifndef EMPTIED_WITHOUT_LOCK
  TAKE(registry);
#endif
  exists = (entry != 0 && life == cached_life);
  if
  :: exists && cached != 0 ->
    assert(spans[cached]); /* back into a slab that is there */
    assert(cached == life);
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
      :: program_life == 0 -> skip
#ifdef FOUND_BY_INDEX
      :: program_life != 0 && cached != 0 ->
#else
      :: program_life != 0 && cached_owned && cached != 0 ->
#endif
        assert(cached == program_life); /* a block of that heap is the program's */
        if :: cached = 0 :: skip fi
      :: program_life != 0 && cached_owned && cached == 0 -> /* a free */
#ifndef FOUND_BY_INDEX
        assert(cached_life == program_life);
#endif
        cached = program_life
      :: program_life != 0 && !cached_owned -> /* another heap has its place, or none */
        give_back();
        TAKE(registry);
        cached_life = program_life;
        cached_owned = true;
        DROP(registry)
#ifdef FOUND_BY_INDEX
      :: program_life != 0 && cached == 0 -> cached = program_life
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

inline destroy() {
#ifdef INDEX_GIVEN_FIRST
  run next_heap();
#endif
  spans[1] = false;
  give_mappings();
  TAKE(registry); /* release */
  life = 0;
  entry = 0;
  DROP(registry);
#ifndef INDEX_GIVEN_FIRST
  run next_heap()
#endif
}

/* The next life of the same heap, whose blocks are as much others as another heap's. */
inline reset() {
#ifdef RESET_IN_PLACE
  run next_heap();
#endif
  spans[1] = false;
  give_mappings();
#ifdef RESET_TO_OLD_LIFE
  TAKE(registry);
  life = 1;
  entry = 1;
  DROP(registry);
  TAKE(program_lock);
  program_life = 1;
  DROP(program_lock)
#endif
#ifndef RESET_IN_PLACE
#ifndef RESET_TO_OLD_LIFE
  run next_heap()
#endif
#endif
}

proctype program() {
  TAKE(program_lock);
  program_life = 0;
  DROP(program_lock);
  TAKE(registry); /* unlink */
#ifndef LIFE_STAYS
  life = 0;
  entry = 0;
#endif
#ifndef OWNER_STAYS
  cached_owned = false;
#endif
  DROP(registry);
  if
  :: destroy()
  :: reset()
  fi
}

proctype next_heap() {
  TAKE(registry);
  life = 2;
  entry = 1;
  spans[2] = true;
  mapping = 2;
  DROP(registry);
  TAKE(program_lock);
  program_life = 2;
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
