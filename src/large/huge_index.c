#include "large/huge_index.h"

#include "pool/meta.h"

#define NODES (HAK_META_SIZE / sizeof(hak_huge_node)) /* of a metadata block */

static hak_huge_node *root;  /* of all */
static hak_huge_node *spare; /* linked by lower[0] */

void hak_huge_node_give_locked(hak_huge_node *n) {
  hak_assert_held(&hak_huge_lock);
  n->lower[0] = spare;
  spare = n;
}

static hak_huge_node *take_spare(void) {
  hak_lock_take(&hak_huge_lock);
  hak_huge_node *n = spare;
  if (n != NULL) spare = n->lower[0];
  hak_lock_drop(&hak_huge_lock);
  return n;
}

hak_huge_node *hak_huge_node_take(void) {
  hak_huge_node *n = take_spare();
  if (n == NULL) {
    n = (hak_huge_node *)(void *)hak_meta_take();
    if (n == NULL) return NULL;
    hak_lock_take(&hak_huge_lock);
    for (size_t i = 1; i < NODES; i++) hak_huge_node_give_locked(&n[i]);
    hak_lock_drop(&hak_huge_lock);
  }
  *n = (hak_huge_node){0};
  return n;
}

/* --- one tree --- */

/* Its bits are mixed (two rounds of multiply and shift, with odd constants): blocks often lie at equal distances. */
static uint64_t priority(const hak_huge_node *n) {
  uint64_t x = n->start;
  x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 29) * UINT64_C(0xd1342543de82ef95);
  return x ^ x >> 32;
}

/* Nodes of the tree at *link below the node, and above it, become its own two subtrees. */
static void split(hak_huge_node *tree, hak_huge_node *n, hak_huge_order o) {
  hak_huge_node **lower = &n->lower[o], **higher = &n->higher[o];
  while (tree != NULL) {
    if (tree->start < n->start) {
      *lower = tree;
      lower = &tree->higher[o];
      tree = *lower;
    } else {
      *higher = tree;
      higher = &tree->lower[o];
      tree = *higher;
    }
  }
  *lower = *higher = NULL;
}

static void put(hak_huge_node **link, hak_huge_node *n, hak_huge_order o) {
  uint64_t mine = priority(n);
  while (*link != NULL && priority(*link) >= mine) {
    HAK_ASSERT((*link)->start != n->start);
    link = n->start < (*link)->start ? &(*link)->lower[o] : &(*link)->higher[o];
  }
  split(*link, n, o);
  *link = n;
}

static void take_out(hak_huge_node **link, hak_huge_node *n, hak_huge_order o) {
  while (*link != n) {
    HAK_ASSERT(*link != NULL);
    link = n->start < (*link)->start ? &(*link)->lower[o] : &(*link)->higher[o];
  }
  hak_huge_node *low = n->lower[o], *high = n->higher[o];
  while (low != NULL && high != NULL) {
    bool is_low = priority(low) > priority(high);
    *link = is_low ? low : high;
    link = is_low ? &low->higher[o] : &high->lower[o];
    if (is_low)
      low = *link;
    else
      high = *link;
  }
  *link = low != NULL ? low : high;
}

/* --- both --- */

void hak_huge_index_put(hak_huge_node *n) {
  hak_assert_held(&hak_huge_lock);
  HAK_ASSERT(n->start != 0 && n->bytes > 0);
  n->mover = NULL;
  put(&root, n, HAK_HUGE_OF_ALL);
  if (n->set != NULL) put(&n->set->root, n, HAK_HUGE_OF_SET);
}

void hak_huge_index_remove(hak_huge_node *n) {
  hak_assert_held(&hak_huge_lock);
  take_out(&root, n, HAK_HUGE_OF_ALL);
  if (n->set != NULL) take_out(&n->set->root, n, HAK_HUGE_OF_SET);
}

hak_huge_node *hak_huge_index_find(const void *p) {
  hak_assert_held(&hak_huge_lock);
  hak_huge_node *n = root;
  while (n != NULL && n->start != (uintptr_t)p) n = (uintptr_t)p < n->start ? n->lower[0] : n->higher[0];
  return n;
}

hak_huge_node *hak_huge_index_above(const hak_huge_set *set, uintptr_t address) {
  hak_assert_held(&hak_huge_lock);
  hak_huge_order o = set == NULL ? HAK_HUGE_OF_ALL : HAK_HUGE_OF_SET;
  hak_huge_node *found = NULL;
  for (hak_huge_node *n = set == NULL ? root : set->root; n != NULL;) {
    if (n->start > address) found = n;
    n = n->start > address ? n->lower[o] : n->higher[o];
  }
  return found;
}

hak_huge_node *hak_huge_index_upto(uintptr_t address) {
  hak_assert_held(&hak_huge_lock);
  hak_huge_node *found = NULL;
  for (hak_huge_node *n = root; n != NULL;) {
    if (n->start <= address) found = n;
    n = n->start <= address ? n->higher[0] : n->lower[0];
  }
  return found;
}
