/* Frees of blocks that belong to another heap. The protocol and its argument are in docs/locking.md.
 *
 * A packet is filled by one thread, becomes immutable when its release compare-and-swap puts it on the owner's inbox,
 * and is taken with the whole inbox by an acquire exchange. Inboxes are push-only and take-all: no ABA. */
#ifndef HAK_HEAP_REMOTE_H
#define HAK_HEAP_REMOTE_H

#include "heap/heap.h"

#define HAK_PACKET_BLOCKS 61

typedef struct hak_packet {
  struct hak_packet *next; /* first, as in a cell */
  uint32_t home;           /* heap whose cell this is */
  uint32_t owner;          /* heap the blocks belong to */
  uint32_t count;
  uint32_t bytes;
  void *blocks[HAK_PACKET_BLOCKS];
} hak_packet;

/* Queues p, a block of heap `owner`, for its owner. Cannot fail. */
void hak_remote_free(hak_heap *self, uint32_t owner, void *p, unsigned class_code);

/* Sends every packet that self has open. */
void hak_remote_send_open(hak_heap *self);

/* Takes heap's inbox and puts the blocks into its front while there is room (own heap only: to_front), else into
 * their slabs. Caller holds heap->lock. Emptied packets go on *emptied. */
void hak_remote_drain_locked(hak_heap *heap, bool to_front, hak_outcome *outcome, hak_packet **emptied);

/* Drains any heap's inbox into its slabs, taking its slow lock. */
void hak_remote_drain(hak_heap *heap);

/* Sends emptied packets home; those of `self` (may be NULL) are kept. */
void hak_remote_send_home(hak_heap *self, hak_packet *emptied);

HAK_INLINE bool hak_remote_pending(const hak_heap *heap) { return hak_load_relaxed(&heap->inbox) != 0; }

#endif
