/* Packets: filling, sending, draining, homecoming. */
#include "heap/remote.h"

#include "base/schedule.h"
#include "os/os.h"
#include "pool/release.h"

_Static_assert(sizeof(hak_packet) == HAK_CELL_SIZE, "a packet is one cell");

/* A packet leaves when it holds this many bytes: bounds what a producer of large blocks has in flight. */
#define PACKET_BYTES_MAX ((uint32_t)(128 * HAK_KIB))
/* An inbox weighs its packets: 1 each, and 1 more for every 4 KiB in it. Past this weight a sender drains it for the
 * owner: at most 1 MiB is pinned by an owner that sleeps, and a busy one has 15,000 small blocks to catch up with. */
#define WEIGHT_BYTES (4 * HAK_KIB)
#define BACKLOG_WEIGHT 256

/* Packets a heap keeps whole, all classes together: what an owner that goes to sleep after a drain can pin. */
#define RETURNED_BYTES_MAX ((uint32_t)(512 * HAK_KIB))

#define INBOX_WEIGHT_MASK ((uintptr_t)HAK_CELL_SIZE - 1)

/* Returns the weight of what is now waiting, at most 511. */
static unsigned push(hak_heap *owner, hak_packet *packet) {
  uintptr_t old = hak_load_relaxed(&owner->inbox), new;
  size_t own = 1 + packet->bytes / WEIGHT_BYTES, weight;
  do {
    packet->next = (hak_packet *)(old & ~INBOX_WEIGHT_MASK);
    weight = hak_min_size((old & INBOX_WEIGHT_MASK) + own, INBOX_WEIGHT_MASK);
    new = (uintptr_t)packet | weight;
  } while (!hak_cas_weak_seq(&owner->inbox, &old, new));
  return (unsigned)weight;
}

/* The heap's lock is held on entry, not on return. */
static void drain_and_drop(hak_heap *heap) {
  hak_outcome outcome = {0};
  hak_packet *emptied = NULL;
  hak_remote_drain_locked(heap, false, &outcome, &emptied);
  /* An active or warm heap keeps its empty carving slabs at hand; a parked one has no use for them. */
  if (hak_load_relaxed(&heap->state) == HAK_HEAP_PARKED) hak_heap_trim_slabs_locked(heap, outcome.classes, &outcome);
  hak_lock_drop(&heap->lock);
  hak_remote_send_home(hak_tls_front.heap, emptied);
  hak_outcome_settle(&outcome, "in a batch freed by another thread");
}

/* A program that has freed most of what it had may be about to rest: then a few blocks would pin as many slabs. */
static unsigned backlog(void) { return hak_load_relaxed(&hak_release_subsided) ? 1 : BACKLOG_WEIGHT; }

/* For an owner that may sleep. Of two senders one may find the lock taken by the other, which has emptied the inbox before,
 * and go on: so the other looks once more when it has dropped the lock. By a read-modify-write: either it finds the packet,
 * or the packet's push reads from it and the sender then finds the lock dropped. */
static void drain_backlog(hak_heap *owner, unsigned waiting) {
  while (waiting >= backlog() && hak_lock_try(&owner->lock)) {
    drain_and_drop(owner);
    waiting = (unsigned)(hak_or_seq(&owner->inbox, 0) & INBOX_WEIGHT_MASK);
  }
}

void hak_remote_look_again(hak_heap *heap) {
  drain_backlog(heap, (unsigned)(hak_or_seq(&heap->inbox, 0) & INBOX_WEIGHT_MASK));
}

static void send(hak_packet *packet) {
  hak_heap *owner = hak_heap_by_id(packet->owner);
  HAK_SCHEDULE_POINT("send: before push");
  unsigned waiting = push(owner, packet);
  HAK_SCHEDULE_POINT("send: pushed, state not read");
  /* Sequentially consistent push then load, against the parker's store then exchange: one of the two sees the
   * other, so no packet is left behind in a parked heap. */
  if (hak_load_seq(&owner->state) != HAK_HEAP_ACTIVE)
    hak_remote_drain(owner);
  else
    drain_backlog(owner, waiting); /* where the owner has the lock it is awake */
}

static hak_packet **open_slot(hak_heap *self, uint32_t owner) { return &self->open[owner % HAK_OPEN_PACKETS]; }

/* Writes what went through the cursor into its packet's header. */
HAK_INLINE void cool(hak_heap *self) {
  if (HAK_LIKELY(self->hot_tag == HAK_TAG_NONE)) return;
  hak_packet *packet = *open_slot(self, HAK_TAG_OWNER(self->hot_tag));
  unsigned count = (unsigned)(self->hot_cursor - packet->blocks);
  packet->bytes += (count - packet->count) * hak_class_table[packet->class_code].size;
  packet->count = (uint8_t)count;
  self->hot_tag = HAK_TAG_NONE;
}

/* Two frees in a row of one owner and class: the next ones go through the cursor. */
static void heat(hak_heap *self, hak_packet *packet) {
  uint32_t size = hak_class_table[packet->class_code].size;
  size_t room = (PACKET_BYTES_MAX - packet->bytes + size - 1) / size;
  self->hot_tag = HAK_TAG(packet->owner, packet->class_code);
  self->hot_cursor = packet->blocks + packet->count;
  self->hot_end = self->hot_cursor + hak_min_size(room, (size_t)HAK_PACKET_BLOCKS - packet->count);
}

void hak_remote_repeated(void *p, uint32_t tag) {
  hak_misuse_abort(HAK_VERDICT_DOUBLE_FREE, p, hak_class_size(HAK_TAG_CODE(tag)), "at the call");
}

void hak_remote_finish_hot(hak_heap *self) {
  hak_packet **slot = open_slot(self, HAK_TAG_OWNER(self->hot_tag)), *packet = *slot;
  cool(self);
  *slot = NULL;
  send(packet);
  hak_heap_tick(self, HAK_FRONT_CLASSES, hak_os_now_ms());
}

/* Without a packet, which would pin a slab with each block in it for as long as it stays open: shared heaps' blocks, of
 * which a thread has few, and all while the program may be about to rest. */
static bool free_at_once(hak_heap *owner, void *p, unsigned class_code) {
  if (owner->shared) {
    hak_heap_free_direct(owner, p, class_code);
    return true;
  }
  return hak_load_relaxed(&hak_release_subsided) && hak_heap_try_free_direct(owner, p, class_code);
}

/* True when a packet was sent. */
HAK_INLINE bool queue(hak_heap *self, uint32_t owner, void *p, unsigned class_code) {
  cool(self);
  hak_packet **slot = open_slot(self, owner);
  hak_packet *packet = *slot;
  if (packet == NULL || packet->owner != owner) {
    if (free_at_once(hak_heap_by_id(owner), p, class_code)) return false;
    if (packet != NULL) {
      *slot = NULL;
      send(packet);
    }
    packet = (hak_packet *)hak_heap_take_cell(self);
    if (packet == NULL) {
      hak_heap_free_direct(hak_heap_by_id(owner), p, class_code);
      return false;
    }
    packet->home = self->id;
    packet->owner = owner;
    packet->count = 0;
    packet->bytes = 0;
    packet->class_code = (uint8_t)class_code;
    *slot = packet;
  }
  if (packet->class_code != class_code) packet->class_code = HAK_PACKET_MIXED;
#if HAK_CHECKS
  if (HAK_UNLIKELY(packet->count > 0 && packet->blocks[packet->count - 1] == p))
    hak_remote_repeated(p, HAK_TAG(owner, class_code));
#endif
  packet->blocks[packet->count++] = p;
  packet->bytes += hak_class_table[class_code].size;
  if (packet->count == HAK_PACKET_BLOCKS || packet->bytes >= PACKET_BYTES_MAX) {
    *slot = NULL;
    send(packet);
    return true;
  }
  if (packet->count > 1 && packet->class_code == class_code) heat(self, packet);
  return false;
}

void hak_remote_free(hak_heap *self, uint32_t owner, void *p, unsigned class_code) {
  if (queue(self, owner, p, class_code)) hak_heap_tick(self, HAK_FRONT_CLASSES, hak_os_now_ms());
}

unsigned hak_remote_sort_out(hak_heap *self, void **blocks, unsigned count, unsigned class_code) {
  if ((hak_class_whole_lines >> class_code & 1) == 0) return count;
  unsigned own = 0;
  for (unsigned i = 0; i < count; i++) {
    void *p = blocks[i];
    uint32_t tag = hak_region_tag_of(p), owner = HAK_TAG_OWNER(tag);
    if (owner == self->id || owner == 0 || HAK_TAG_CODE(tag) != class_code)
      blocks[own++] = p;
    else
      queue(self, owner, p, class_code);
  }
  return own;
}

void hak_remote_send_open(hak_heap *self) {
  cool(self);
  for (unsigned i = 0; i < HAK_OPEN_PACKETS; i++) {
    hak_packet *packet = self->open[i];
    if (packet == NULL) continue;
    self->open[i] = NULL;
    send(packet);
  }
}

static void note_gone(hak_outcome *outcome, void *p) {
  if (outcome->verdict != HAK_VERDICT_OK) return;
  outcome->verdict = HAK_VERDICT_FREE_MEMORY;
  outcome->bad = p;
  outcome->bad_class = 0;
}

/* Class of a block that was sent to heap, or no class. The tag is read again: a block freed twice may lie in a slab
 * that has gone since. */
HAK_INLINE uint32_t class_now(const hak_heap *heap, const void *p) {
  return hak_region_tag_of(p) ^ HAK_TAG(heap->id, 0);
}

/* Blocks of a packet of several classes. */
static void take_back(hak_heap *heap, void *p, bool to_front, hak_outcome *outcome) {
  uint32_t class_code = class_now(heap, p);
  if (HAK_UNLIKELY(class_code >= HAK_FRONT_CLASSES)) {
    note_gone(outcome, p);
    return;
  }
  if (to_front) {
    void **top = heap->front->top[class_code] + 1;
    if (((uintptr_t)top & (HAK_MAGAZINE_BYTES - 1)) != 0 || hak_heap_push_full(heap, class_code)) {
      top = heap->front->top[class_code] + 1;
      *top = p;
      heap->front->top[class_code] = top;
      return;
    }
  }
  hak_heap_put_locked(heap, p, class_code, outcome);
}

static bool keep_returned(hak_heap *heap, hak_packet *packet) {
  if (packet->class_code == HAK_PACKET_MIXED) return false;
  hak_bin *bin = &heap->bins[packet->class_code];
  if (heap->returned_bytes + packet->bytes > RETURNED_BYTES_MAX) return false;
  packet->next = bin->returned;
  bin->returned = packet;
  bin->returned_blocks += packet->count;
  heap->returned_bytes += packet->bytes;
  return true;
}

bool hak_remote_load_returned(hak_heap *heap, unsigned class_code) {
  hak_bin *bin = &heap->bins[class_code];
  hak_packet *packet = bin->returned;
  if (packet == NULL) return false;
  hak_outcome outcome = {0};
  unsigned n = (unsigned)hak_min_size(packet->count, bin->usable), left = packet->count - n;
  void **top = heap->front->top[class_code], *const *first = packet->blocks + left;
  uint32_t tag = HAK_TAG(heap->id, class_code);
  for (void *const *at = first + n; at-- > first;) {
    if (HAK_LIKELY(hak_region_tag_of(*at) == tag))
      *++top = *at;
    else
      note_gone(&outcome, *at);
  }
  heap->front->top[class_code] = top;
  uint32_t bytes = n * hak_class_table[class_code].size;
  packet->count = (uint8_t)left;
  packet->bytes -= bytes;
  heap->returned_bytes -= bytes;
  bin->returned_blocks -= n;
  if (left == 0) {
    bin->returned = packet->next;
    packet->next = NULL;
    hak_remote_send_home(heap, packet);
  }
  hak_outcome_settle(&outcome, "in a batch freed by another thread");
  return true;
}

void hak_remote_flush_returned(hak_heap *heap, unsigned class_code) {
  hak_bin *bin = &heap->bins[class_code];
  hak_packet *emptied = bin->returned;
  if (emptied == NULL) return;
  hak_outcome outcome = {0};
  hak_lock_take(&heap->lock);
  for (hak_packet *packet = emptied; packet != NULL; packet = packet->next) {
    heap->returned_bytes -= packet->bytes;
    hak_heap_put_all_locked(heap, packet->blocks, packet->count, class_code, &outcome);
  }
  hak_lock_drop(&heap->lock);
  bin->returned = NULL;
  bin->returned_blocks = 0;
  hak_remote_send_home(heap, emptied);
  hak_outcome_settle(&outcome, "in a batch freed by another thread");
}

const hak_packet *hak_remote_first_waiting(const hak_heap *heap) {
  /* Acquire pairs with the push. */
  return (const hak_packet *)(hak_load_acquire(&heap->inbox) & ~INBOX_WEIGHT_MASK);
}

void hak_remote_drain_locked(hak_heap *heap, bool to_front, hak_outcome *outcome, hak_packet **emptied) {
  /* Acquire pairs with the push: the packets' contents are visible. Sequentially consistent for the park argument. */
  uintptr_t all = hak_exchange_seq(&heap->inbox, 0);
  hak_packet *packet = (hak_packet *)(all & ~INBOX_WEIGHT_MASK);
  while (packet != NULL) {
    hak_packet *next = packet->next;
    if (to_front && keep_returned(heap, packet)) {
      packet = next;
      continue;
    }
    if (packet->class_code != HAK_PACKET_MIXED)
      hak_heap_put_all_locked(heap, packet->blocks, packet->count, packet->class_code, outcome);
    else
      for (uint32_t i = 0; i < packet->count; i++) take_back(heap, packet->blocks[i], to_front, outcome);
    packet->next = *emptied;
    *emptied = packet;
    packet = next;
  }
}

void hak_remote_send_home(hak_heap *self, hak_packet *emptied) {
  while (emptied != NULL) {
    hak_packet *packet = emptied;
    emptied = packet->next;
    if (self != NULL && packet->home == self->id) {
      hak_heap_give_cell(self, packet);
      continue;
    }
    hak_heap *home = hak_heap_by_id(packet->home);
    hak_packet *old = hak_load_relaxed(&home->homecoming);
    do packet->next = old;
    while (!hak_cas_weak_release(&home->homecoming, &old, packet));
  }
}

void hak_remote_drain(hak_heap *heap) {
  HAK_SCHEDULE_POINT("drain: before lock");
  hak_lock_take(&heap->lock);
  drain_and_drop(heap);
  drain_backlog(heap, (unsigned)(hak_or_seq(&heap->inbox, 0) & INBOX_WEIGHT_MASK));
}
