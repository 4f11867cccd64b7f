/* The front cache: the fast path of malloc and free, a few instructions each, shared by every entry point.
 *
 * Each thread has, in initial-exec TLS, `key` (its heap's id << 8) and for every class `top`, a pointer to the last
 * filled slot of the loaded magazine. A magazine is 64 slots aligned to 512 bytes; the slot below its lowest usable
 * one holds NULL. So a pop that finds NULL is an empty magazine, and a push whose slot would lie on a 512-byte
 * boundary is a full one.
 *
 * A thread without a heap (not started, ended, front switched off or counted) has every top at the last slot of a
 * read-only empty magazine and a key that matches no tag: both tests then lead to the slow path, which sorts it out.
 *
 * Only the owning thread touches its front; there is no lock and no fence here. */
#ifndef HAK_HEAP_FRONT_H
#define HAK_HEAP_FRONT_H

#include "region/region.h"

#define HAK_MAGAZINE_SLOTS 64
#define HAK_MAGAZINE_BYTES (HAK_MAGAZINE_SLOTS * sizeof(void *))
#define HAK_KEY_NONE 0xffffff00u /* owner id 0xffffff is never assigned */

struct hak_heap;

typedef enum hak_front_phase {
  HAK_FRONT_FRESH, /* no heap yet: a shared one serves it, or the slow path makes one */
  HAK_FRONT_LIVE,
  HAK_FRONT_ENDED, /* the thread's destructor has run: the emergency heap serves it */
} hak_front_phase;

typedef struct hak_front {
  void **top[HAK_FRONT_CLASSES]; /* first: an index alone addresses it */
  uint32_t key;
  uint16_t phase;
  uint16_t calls; /* slow paths without a heap; counted while the thread is young */
  struct hak_heap *heap;
} hak_front;

extern HAK_HIDDEN HAK_TLS hak_front hak_tls_front;

/* The read-only empty magazine. Slot 63 is where idle tops point. */
extern HAK_HIDDEN void *const hak_null_magazine[HAK_MAGAZINE_SLOTS];
#define HAK_NULL_TOP ((void **)&hak_null_magazine[HAK_MAGAZINE_SLOTS - 1])

/* Pops a block of the class, or NULL when the front has none. */
HAK_INLINE void *hak_front_pop_class(hak_front *front, unsigned class_code) {
  void **top = front->top[class_code];
  void *p = *top;
  if (HAK_LIKELY(p != 0)) front->top[class_code] = top - 1;
  return p;
}

/* Pops a block that holds `size` bytes; NULL: take the slow path. */
HAK_INLINE void *hak_front_pop(size_t size) {
  if (HAK_UNLIKELY(size > HAK_SMALL_MAX)) return 0;
  return hak_front_pop_class(&hak_tls_front, hak_class_for(size));
}

#define HAK_NO_DIFFERENCE ((size_t)0xffffffffu) /* no class code, whatever key it is taken with */

/* Whether p is a block of this thread's heap, with the difference of tag and key (the class code where it is,
 * HAK_NO_DIFFERENCE outside the main region) and its offset in the main region. */
HAK_INLINE bool hak_front_owns(const void *p, size_t *difference, size_t *offset) {
  *difference = HAK_NO_DIFFERENCE;
  uintptr_t base = hak_load_folded(&hak_main_base);
  *offset = (uintptr_t)p - base;
  if (HAK_UNLIKELY(*offset >= hak_load_folded(&hak_main_limit))) return false;
  uint32_t tag = hak_load_relaxed((const uint32_t *)base + (*offset >> HAK_SPAN_SHIFT));
  *difference = tag ^ hak_tls_front.key;
  return HAK_LIKELY(*difference < HAK_FRONT_CLASSES);
}

/* Pushes a block of this thread's heap if the magazine has room. */
HAK_INLINE bool hak_front_push_class(void *p, size_t class_code) {
  void **top = hak_tls_front.top[class_code];
#if HAK_CHECKS
  /* The block freed last: the slow path reports the double free. */
  if (!HAK_HARD(CHECKED_FREE) && HAK_UNLIKELY(*top == p)) return false;
#endif
  top++;
  if (HAK_UNLIKELY(((uintptr_t)top & (HAK_MAGAZINE_BYTES - 1)) == 0)) return false;
  *top = p;
  hak_tls_front.top[class_code] = top;
  return true;
}

/* Pushes p if it is a block of this thread's heap and the magazine has room. False: take the slow path, with
 * hak_front_owns' difference. */
HAK_INLINE bool hak_front_push(void *p, size_t *difference) {
  size_t offset;
  return hak_front_owns(p, difference, &offset) && hak_front_push_class(p, *difference);
}

#endif
