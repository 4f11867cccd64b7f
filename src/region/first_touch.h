/* Whether fresh memory asks for huge pages. Where a host takes its guests' free pages back (a balloon that reports free
 * pages), the first touch of a huge page costs 5 to 10 ms of processor time when the host has to find its memory, and
 * 0.2 to 0.4 ms when it has not; those of the 512 small pages in its place cost 0.7 to 1.6 ms (071). So whoever takes
 * fresh memory where a huge page begins touches it, and takes the time. When that was dear, what comes next has small
 * pages, until a growing number of bytes has come. Policy by words that the next sample corrects: all are relaxed. */
#ifndef HAK_REGION_FIRST_TOUCH_H
#define HAK_REGION_FIRST_TOUCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/atomic.h"
#include "base/compiler.h"

/* Fresh memory that is to come before huge pages are tried again; 0: they are not known to be dear. */
extern size_t hak_dear_bytes;
HAK_INLINE bool hak_huge_pages_are_dear(void) { return HAK_UNLIKELY(hak_load_relaxed(&hak_dear_bytes) != 0); }

/* Touches the first byte of a huge page's place, which is zero, has no pages, was asked to have huge ones and will be
 * used. True: that was dear. It may take 10 ms, so the pool lock is not held. While huge pages are known to be dear it
 * does nothing, and returns false. */
bool hak_time_first_touch(void *page);
/* So much fresh memory has come, of small pages. */
void hak_note_small_pages(size_t bytes);

#endif
