/* Looks into what only its owner may touch: fronts, open packets, kept packets. The owner takes no lock and makes no
 * store for this, so what is seen may be of different moments, or of a cell's next use; every value is bounded, and the
 * caller bounds the sums by what the slabs have handed out. What makes it safe to look at all:
 * - another thread's front lies in its TLS, which is unmapped with its stack at any moment: not every thread that ends parks its
 *   heap (hak_heap_park_current). The kernel copies the front, which fails where there is no memory;
 * - everything else lies in cells, which are never given back to the system;
 * - an inbox is emptied under the heap's slow lock only, and what is in it does not change. */
#include "heap/remote.h"
#include "os/os.h"
#include "report/figures.h"

#define INBOX_MAX 100000 /* packets looked at, where nobody drains */

/* Not a load that the compiler may repeat: what is bounded has to be what is used. */
#define PEEK(place) (*(const volatile __typeof__(place) *)&(place))

static HAK_RACY unsigned loaded_blocks(const hak_front *front, const hak_bin *bin, unsigned c) {
  uintptr_t top = (uintptr_t)PEEK(front->top[c]);
  if (top == (uintptr_t)HAK_NULL_TOP) return 0;
  unsigned slot = (unsigned)(top & (HAK_MAGAZINE_BYTES - 1)) / sizeof(void *);
  unsigned empty = HAK_MAGAZINE_SLOTS - 1 - (PEEK(bin->usable) & (HAK_MAGAZINE_SLOTS - 1));
  return slot > empty ? slot - empty : 0;
}

static HAK_RACY void count_packet(const hak_packet *packet, unsigned count, uint64_t *packets) {
  unsigned class_code = PEEK(packet->class_code);
  count = (unsigned)hak_min_size(count, HAK_PACKET_BLOCKS);
  if (class_code < HAK_FRONT_CLASSES) {
    packets[class_code] += count;
    return;
  }
  for (unsigned i = 0; i < count; i++) {
    const void *p = PEEK(packet->blocks[i]);
    const hak_region *r = hak_region_find(p);
    uint32_t code = r == NULL ? HAK_FRONT_CLASSES : HAK_TAG_CODE(hak_region_tag(r, p));
    if (code < HAK_FRONT_CLASSES) packets[code]++;
  }
}

static HAK_RACY void count_open(const hak_heap *h, uint64_t *packets) {
  uint32_t hot_tag = PEEK(h->hot_tag);
  uintptr_t cursor = (uintptr_t)PEEK(h->hot_cursor);
  for (unsigned i = 0; i < HAK_OPEN_PACKETS; i++) {
    const hak_packet *packet = PEEK(h->open[i]);
    if (packet == NULL || PEEK(packet->home) != h->id) continue;
    unsigned count = PEEK(packet->count);
    uintptr_t offset = cursor - (uintptr_t)packet->blocks;
    bool hot = hot_tag != HAK_TAG_NONE && HAK_TAG_OWNER(hot_tag) % HAK_OPEN_PACKETS == i;
    if (hot && offset <= HAK_PACKET_BLOCKS * sizeof(void *)) count = (unsigned)(offset / sizeof(void *));
    count_packet(packet, count, packets);
  }
}

/* The heap's front, copied into `copy` where it is another thread's; or NULL. Memory of a thread that has ended may be another's
 * by now, whose front names another heap. */
static const hak_front *find_front(const hak_heap *h, int *memory, hak_front *copy) {
  const hak_front *front = hak_load_relaxed(&h->front);
  if (front == NULL || front == &h->shadow || front == &hak_tls_front) return front;
  if (*memory == HAK_PEEK_UNOPENED) *memory = hak_os_open("/proc/thread-self/mem");
  bool whole = hak_os_read_at(*memory, copy, sizeof *copy, (uintptr_t)front) == (long)sizeof *copy;
  return whole && copy->heap == h ? copy : NULL;
}

HAK_RACY void hak_peek_heap(const hak_heap *h, int *memory, uint64_t *cached, uint64_t *packets) {
  hak_front copy;
  const hak_front *front = find_front(h, memory, &copy);
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    const hak_bin *bin = &h->bins[c];
    if (front != NULL) cached[c] += loaded_blocks(front, bin, c);
    cached[c] += (uint64_t)PEEK(bin->full_count) * (HAK_MAGAZINE_SLOTS - 1);
    packets[c] += PEEK(bin->returned_blocks);
  }
  count_open(h, packets);
}

void hak_peek_inbox(hak_heap *h, uint64_t *packets) {
  if (!hak_remote_pending(h)) return;
  hak_lock_take(&h->lock);
  const hak_packet *packet = hak_remote_first_waiting(h);
  for (unsigned n = 0; packet != NULL && n < INBOX_MAX; packet = packet->next, n++)
    count_packet(packet, packet->count, packets);
  hak_lock_drop(&h->lock);
}

HAK_RACY uint64_t hak_peek_slow_paths(const hak_heap *h) { return PEEK(h->slow_count); }
