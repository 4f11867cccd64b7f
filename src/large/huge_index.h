/* Which huge blocks there are: a search tree by address of all, and one of each heap's. Both are treaps of the same
 * nodes, whose priorities are made of addresses: some 2 ln n steps deep, whatever the order in which blocks come and
 * go. Nodes are parts of metadata blocks, which stay: no look-up fails for lack of memory, and a walk goes on from an
 * address, not from a place in a table. All under hak_huge_lock. */
#ifndef HAK_LARGE_HUGE_INDEX_H
#define HAK_LARGE_HUGE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "large/mapping.h"

/* By what a node is in a tree; it has links for each. */
typedef enum hak_huge_order { HAK_HUGE_OF_ALL, HAK_HUGE_OF_SET, HAK_HUGE_ORDERS } hak_huge_order;

typedef enum hak_huge_pages {
  HAK_HUGE_PAGES_NONE,
  HAK_HUGE_PAGES_ALL,
  HAK_HUGE_PAGES_FRONT /* huge ones at the front: two mappings */
} hak_huge_pages;

typedef struct hak_huge_node {
  uintptr_t start;
  size_t bytes;
  hak_huge_pages pages; /* its owner's, while the node is in no tree; constant else */
  struct hak_huge_set *set; /* NULL: the main heap's */
  const void *mover;        /* while it is in no tree: the mark of the thread that resizes the block */
  struct hak_huge_node *lower[HAK_HUGE_ORDERS], *higher[HAK_HUGE_ORDERS];
} hak_huge_node;

/* The blocks of a heap. */
typedef struct hak_huge_set {
  hak_huge_node *root;
  uint32_t owner;
} hak_huge_set;

/* A node that is in no tree; NULL: no memory. Takes the lock, and the metadata's. */
hak_huge_node *hak_huge_node_take(void);
void hak_huge_node_give_locked(hak_huge_node *node);

/* Into the tree of all, and its set's. */
void hak_huge_index_put(hak_huge_node *node);
void hak_huge_index_remove(hak_huge_node *node);
/* The block that starts there; NULL: none does. */
hak_huge_node *hak_huge_index_find(const void *p);
/* The first one that starts above the address, and the last that does not; NULL: there is none. */
hak_huge_node *hak_huge_index_above(const hak_huge_set *set, uintptr_t address); /* set NULL: of all */
hak_huge_node *hak_huge_index_upto(uintptr_t address);

#endif
