# cmake -DMUTATION=name -DIN=file -DOUT=file -P mutate.cmake
# Copies a source of the core with one step of a protocol changed. The text to replace must occur exactly once: a mutation
# that no longer fits the source has to follow it.

if(MUTATION STREQUAL "claim_is_no_cas")
  # The code is read, and then stored.
  set(from [=[
  bool won = hak_region_change_code(r, hak_region_index(r, p), HAK_CODE_EXTENT, HAK_CODE_EXTENT_FREED);
]=])
  set(to [=[
  bool won = hak_region_code(r, p) == HAK_CODE_EXTENT;
  HAK_SCHEDULE_POINT("extent: read");
  hak_region_set_code(r, hak_region_index(r, p), HAK_CODE_EXTENT_FREED);
]=])
elseif(MUTATION STREQUAL "start_twice")
  # Who has waited for the lock does not look again.
  set(from [=[
  if (start_state != READY) hak_store_release(&start_state, start_locked() ? READY : COLD);
]=])
  set(to [=[
  hak_store_release(&start_state, start_locked() ? READY : COLD);
]=])
elseif(MUTATION STREQUAL "arena_made_twice")
  # The same of an arena.
  set(from [=[
  while (arena_count <= index && make_locked(false)) {}
]=])
  set(to [=[
  for (bool once = true; once && make_locked(false); once = false) {}
]=])
elseif(MUTATION STREQUAL "depot_loses_what_was_there")
  # The magazine before is not behind the new one.
  set(from [=[
  *magazine = b->full;
]=])
  set(to [=[
  *magazine = NULL;
]=])
elseif(MUTATION STREQUAL "steal_keeps_magazine")
  # What is more than wanted is lost.
  set(from [=[
      if (kept < n) hak_arena_flush(blocks + kept, n - kept, c, d);
]=])
  set(to "")
elseif(MUTATION STREQUAL "purge_without_claim")
  # The spans stay free while the system is told.
  set(from [=[
    dirty_spans -= c->dirty_spans;
]=])
  set(to [=[
    dirty_spans -= c->dirty_spans;
    for (size_t i = *first; i < *first + *count; i++)
      r->chunks[chunk_index].free[i % HAK_CHUNK_SPANS / 64] |= (uint64_t)1 << (i % 64);
]=])
elseif(MUTATION STREQUAL "fork_keeps_caches")
  # The caches of threads that are not in the child stay theirs.
  set(from [=[
  hak_tcache_fork_child();
]=])
  set(to "")
elseif(MUTATION STREQUAL "fork_keeps_claimed_spans")
  # What they were purging stays claimed.
  set(from [=[
  hak_pool_fork_child();
]=])
  set(to "")
elseif(MUTATION STREQUAL "fork_keeps_purger")
  # So does the slab whose pages they were purging.
  set(from [=[
  hak_purge_fork_child();
]=])
  set(to "")
elseif(MUTATION STREQUAL "fork_keeps_locks")
  # The child begins with the pool's lock held by nobody.
  set(from [=[
  hak_tcache_fork_child();
  drop_locks();
]=])
  set(to [=[
  hak_tcache_fork_child();
  drop_locks();
  hak_span_pool.lock.state = 1;
]=])
else()
  message(FATAL_ERROR "no mutation \"${MUTATION}\"")
endif()

file(READ "${IN}" text)
string(FIND "${text}" "${from}" first)
string(FIND "${text}" "${from}" last REVERSE)
if(first EQUAL -1 OR NOT first EQUAL last)
  message(FATAL_ERROR "${IN}: does not have exactly once what mutation ${MUTATION} replaces")
endif()
string(REPLACE "${from}" "${to}" text "${text}")
file(WRITE "${OUT}" "${text}")
