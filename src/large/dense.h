/* Whether large blocks may have huge pages. One that is touched here and there would hold 2 MiB for each page that it
 * uses; so memory must have proved dense first. Of each block that comes with new memory, some pages are looked at when
 * it is freed, or grows: has the program written to nearly all of them, as many bytes as it has are proof; if not, they
 * count four times against it. A block of up to four times what is proved may have huge pages, and uses up a quarter of
 * its size: so of all that comes, some is looked at again, and a program whose blocks become sparse wastes little. One
 * block at a time, of those that are large beside a huge page, has them on trust, where it is not zeros that were asked
 * for, until it has proved dense, and no more of it than a chunk; while it has not, it is looked at before the next
 * one. Policy by sums that the next look corrects: all words are relaxed. */
#ifndef HAK_LARGE_DENSE_H
#define HAK_LARGE_DENSE_H

#include <stdbool.h>
#include <stddef.h>

#include "region/region.h"

/* So many bytes from the front of a new block may have huge pages; 0: none, or all of it but for one on trust. */
typedef struct hak_dense_grant {
  size_t bytes;
  bool on_trust;
} hak_dense_grant;

/* Of a new block of so many bytes. zeros: they were asked for. hak_dense_note is due. May make system calls; the caller
 * holds no lock. */
hak_dense_grant hak_dense_grants(size_t bytes, bool zeros);
/* Whether blocks of so many bytes have been sparse of late. */
bool hak_dense_is_sparse(size_t bytes);
/* The block came, with new memory and what was granted of huge pages. p NULL: it did not. */
void hak_dense_note(const void *p, size_t bytes, hak_dense_grant granted);
/* Whether nearly all of the block is written to, and it has pages enough to tell; whether a block with huge pages that
 * had old_bytes is, and so may have more. Make system calls. */
bool hak_dense_is_filled(const void *p, size_t bytes);
bool hak_dense_goes_on(const void *p, size_t old_bytes, size_t bytes);
/* It has another place or size now. */
void hak_dense_follow(const void *p, const void *moved, size_t bytes);
extern const void *hak_dense_trusted; /* the block that has huge pages on trust; NULL: none */
extern size_t hak_dense_unseen;       /* bytes of new memory that came since a look */
void hak_dense_look_closely(const void *p, size_t bytes);
/* A block is freed, or grows, and has not been given away: looks at it, if new memory has come since the last look.
 * Makes system calls; the caller holds no lock. */
HAK_INLINE void hak_dense_look(const void *p, size_t bytes) {
  if (HAK_UNLIKELY(p == hak_load_relaxed(&hak_dense_trusted)) || HAK_UNLIKELY(hak_load_relaxed(&hak_dense_unseen) != 0))
    hak_dense_look_closely(p, bytes);
}

#endif
