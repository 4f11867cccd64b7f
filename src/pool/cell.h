/* Cells: the allocator's own memory, in units of 512 aligned bytes, outside every region so that no overflow of a
 * user's block can reach it. Magazines, arenas and thread caches are made of cells. Never returned to the system.
 * One lock, leaf rank. */
#ifndef HAK_POOL_CELL_H
#define HAK_POOL_CELL_H

#include <stddef.h>

#include "os/lock.h"

#define HAK_CELL_SIZE 512

typedef struct hak_cell {
  struct hak_cell *next; /* while on a free list */
  char rest[HAK_CELL_SIZE - sizeof(void *)];
} hak_cell;

extern hak_lock hak_cell_lock;

/* One cell, contents undefined; NULL: out of memory. */
hak_cell *hak_cell_take(void);
/* A chain of cells linked by next. */
void hak_cell_give(hak_cell *chain);
/* One cell, whatever it was used as. */
void hak_cell_give_one(void *cell);
/* `count` adjacent zeroed cells that are never given back; NULL: out of memory. */
void *hak_cell_take_block(unsigned count);
/* Bytes obtained from the system for cells. */
unsigned long hak_cell_bytes(void);
/* Where they are: the number-th block of them, the latest first. False: there is none. */
bool hak_cell_block(size_t number, uintptr_t *address, size_t *bytes);

#endif
