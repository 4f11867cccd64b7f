/* What is done where memory is out. */
#ifndef HAK_API_RECLAIM_H
#define HAK_API_RECLAIM_H

/* Frees what caches hold, for a caller that is about to fail. */
void hak_reclaim(void);

#endif
