/* Memory that cannot be given back because of a live block: the free bytes of the pages it lies on, shared with the other blocks
 * there that are handed out. */
#ifndef HAK_PROFILE_PINNED_H
#define HAK_PROFILE_PINNED_H

/* p: a live block of a slab. What threads have cached counts as handed out. */
double hak_pinned_beside(const void *p);

#endif
