# cmake -DMUTATION=name -DIN=file -DOUT=file -P mutate.cmake
# Copies a source of the core with one step of a protocol changed. The text to replace must occur exactly once: a mutation
# that no longer fits the source has to follow it.

if(MUTATION STREQUAL "park_without_drain")
  # The parker does not look into its inbox again after it stored PARKED.
  set(from [=[
  HAK_SCHEDULE_POINT("park: parked, inbox not read");
  hak_remote_drain(h);
]=])
  set(to "")
elseif(MUTATION STREQUAL "park_drains_too_early")
  # It looks, but before the store.
  set(from [=[
  HAK_SCHEDULE_POINT("park: flushed, still active");
]=])
  set(to [=[
  hak_remote_drain(h);
  HAK_SCHEDULE_POINT("park: drained, still active");
  hak_lock_take(&hak_registry_lock);
  list_heap(&parked, h, HAK_HEAP_WARM);
  hak_lock_drop(&hak_registry_lock);
  return;
]=])
elseif(MUTATION STREQUAL "send_reads_state_first")
  set(from [=[
  HAK_SCHEDULE_POINT("send: before push");
]=])
  set(to [=[
  uint32_t early = hak_load_seq(&owner->state);
  HAK_SCHEDULE_POINT("send: state read, not pushed");
  push(owner, packet);
  if (early != HAK_HEAP_ACTIVE) hak_remote_drain(owner);
  return;
]=])
elseif(MUTATION STREQUAL "adopt_leaves_heap_on_list")
  # Two threads get the same heap.
  set(from [=[
    h = unlist_heap(&parked);
]=])
  set(to [=[
    h = parked;
]=])
elseif(MUTATION STREQUAL "fork_keeps_states")
  # The heaps of threads that are not in the child stay ACTIVE there.
  set(from [=[
  hak_heap_init_bins(h);
  list_parked(h);
]=])
  set(to [=[
  hak_heap_init_bins(h);
]=])
elseif(MUTATION STREQUAL "fork_keeps_locks")
  # The child begins with the pool's lock held by nobody.
  set(from [=[
  hak_pool_fork_child();
  drop_locks();
]=])
  set(to [=[
  hak_pool_fork_child();
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
