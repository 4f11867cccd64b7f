/* Frees of blocks that belong to another heap. The protocol and its argument are in docs/locking.md.
 *
 * A packet is filled by one thread, becomes immutable when its release compare-and-swap puts it on the owner's inbox,
 * and is taken with the whole inbox by an acquire exchange. Inboxes are push-only and take-all: no ABA. */
#ifndef HAK_HEAP_REMOTE_H
#define HAK_HEAP_REMOTE_H

#include "heap/heap.h"

#define HAK_PACKET_BLOCKS 61
#define HAK_PACKET_MIXED 0xffu

typedef struct hak_packet {
  struct hak_packet *next; /* first, as in a cell */
  uint32_t home;           /* heap whose cell this is */
  uint32_t owner;          /* heap the blocks belong to */
  uint8_t count;
  uint8_t class_code; /* of all blocks, or HAK_PACKET_MIXED */
  uint16_t unused;
  uint32_t bytes;
  void *blocks[HAK_PACKET_BLOCKS];
} hak_packet;

/* Queues p, a block of heap `owner`, for its owner. Cannot fail. */
void hak_remote_free(hak_heap *self, uint32_t owner, void *p, unsigned class_code);

/* Reports a block that was freed twice in a row. */
__attribute__((noreturn)) HAK_COLD void hak_remote_repeated(void *p, uint32_t tag);

/* The same where the block's tag is that of the last two: a compare and a store. False: not so. */
void hak_remote_finish_hot(hak_heap *self);
HAK_INLINE bool hak_remote_free_hot(hak_heap *self, uint32_t tag, void *p) {
  if (tag != self->hot_tag) return false;
  void **cursor = self->hot_cursor;
#if HAK_CHECKS
  if (HAK_UNLIKELY(cursor[-1] == p)) hak_remote_repeated(p, tag); /* a hot packet holds two blocks at least */
#endif
  *cursor++ = p;
  self->hot_cursor = cursor;
  if (HAK_UNLIKELY(cursor == self->hot_end)) hak_remote_finish_hot(self);
  return true;
}

/* Puts a block of another heap, tagged `tag`, into self's own front, for self's next allocation of that class: it saves
 * the way to its owner and back, and the lines it lies on are warm here. Only classes of whole lines, or threads would
 * come to share lines, and only while the loaded magazine has room; a thread that only frees has none. */
HAK_INLINE bool hak_remote_keep(hak_heap *self, uint32_t tag, void *p) {
  unsigned class_code = HAK_TAG_CODE(tag);
  if ((hak_class_whole_lines >> class_code & 1) == 0) return false;
  void **top = self->front->top[class_code];
#if HAK_CHECKS
  if (HAK_UNLIKELY(*top == p)) hak_remote_repeated(p, tag);
#endif
  top++;
  if (((uintptr_t)top & (HAK_MAGAZINE_BYTES - 1)) == 0) return false;
  *top = p;
  self->front->top[class_code] = top;
  return true;
}

/* Sends blocks of a class that belong to other heaps on their way home; for flush, which holds no lock then. Those of
 * self, and bad ones, are moved to the front of the list; returns their number. */
unsigned hak_remote_sort_out(hak_heap *self, void **blocks, unsigned count, unsigned class_code);

/* Sends every packet that self has open. */
void hak_remote_send_open(hak_heap *self);

/* Takes heap's inbox. Own heap only (to_front): packets of one class are kept whole for the class's next refills,
 * blocks of mixed packets go into the front, both while there is room. All others go into their slabs. Caller holds
 * heap->lock. Emptied packets go on *emptied. */
void hak_remote_drain_locked(hak_heap *heap, bool to_front, hak_outcome *outcome, hak_packet **emptied);

/* The packets that wait in heap's inbox, linked by next; NULL: none. Caller holds heap->lock: they stay there. */
const hak_packet *hak_remote_first_waiting(const hak_heap *heap);

/* For whoever has held another heap's slow lock and dropped it: drains a backlog whose sender has found the lock taken. */
void hak_remote_look_again(hak_heap *heap);

/* Drains any heap's inbox into its slabs, taking its slow lock. */
void hak_remote_drain(hak_heap *heap);

/* Loads blocks of a kept packet into the class's empty loaded magazine; false when none is kept. Owner only. */
bool hak_remote_load_returned(hak_heap *heap, unsigned class_code);
/* Returns the blocks of kept packets to their slabs. Owner only, no lock held. */
void hak_remote_flush_returned(hak_heap *heap, unsigned class_code);

/* Sends emptied packets home; those of `self` (may be NULL) are kept. */
void hak_remote_send_home(hak_heap *self, hak_packet *emptied);

HAK_INLINE bool hak_remote_pending(const hak_heap *heap) { return hak_load_relaxed(&heap->inbox) != 0; }

#endif
