#include "harden/trailer.h"

#include "os/os.h"

uint64_t hak_trailer_secret[2]; /* never 0 once drawn; the second is set last (release) and read first (acquire) */
const uint8_t hak_fill_masks[2 * HAK_FILL_MAX] = {[HAK_FILL_MAX ... 2 * HAK_FILL_MAX - 1] = 0xff};

void hak_trailer_start(void) {
  if (HAK_LIKELY(hak_load_acquire(&hak_trailer_secret[1]) != 0)) return;
  uint64_t drawn[2] = {0};
  hak_os_random(drawn, sizeof drawn);
  for (unsigned i = 0; i < 2; i++) {
    uint64_t none = 0;
    uint64_t value = drawn[i] | 1;
    /* Two first calls at once: one of the values stays. */
    __atomic_compare_exchange_n(&hak_trailer_secret[i], &none, value, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }
}

static char rest_byte(const void *p, size_t at) { return (char)(hak_trailer_key_of(p).fill >> at % 8 * 8); }

void hak_trailer_fill_rest(void *p, size_t size, size_t to_size, size_t end) {
  for (size_t at = size + HAK_FILL_MAX; at < hak_min_size(to_size + HAK_FILL_MAX, end); at++)
    ((char *)p)[at] = rest_byte(p, at);
}

/* The walk looks while another thread resizes the block again, or frees it: it looks again then. */
HAK_RACY bool hak_trailer_rest_is_still(const void *p, size_t size, size_t to_size, size_t end) {
  for (size_t at = size + HAK_FILL_MAX; at < hak_min_size(to_size + HAK_FILL_MAX, end); at++) {
    if (((const char *)p)[at] != rest_byte(p, at)) return false;
  }
  return true;
}

bool hak_trailer_rest_is_whole(const void *p, size_t block_size, size_t size) {
  size_t end = block_size - HAK_TRAILER_BYTES;
  return hak_trailer_rest_is_still(p, size, end, end);
}
