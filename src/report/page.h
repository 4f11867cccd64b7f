/* The statistics page (HAKMEM_STATS_PAGE): figures and the span map where other processes can read them at any time
 * without stopping this one. docs/figures.md has the layout. One thread at a time writes, whoever comes by; the
 * allocator's locks are held for moments of the snapshot only. */
#ifndef HAK_REPORT_PAGE_H
#define HAK_REPORT_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#define HAK_PAGE_MAGIC "hakmemS1"
#define HAK_PAGE_VERSION 1
#define HAK_PAGE_REFRESH_MS 250 /* earlier where memory is taken or purged in between */

typedef struct hak_page_header {
  char magic[8];
  uint32_t version;
  uint32_t sequence; /* odd while the header is being rewritten; 0: no snapshot yet */
  uint64_t time_ms;
  uint64_t json_offset, json_bytes;
  uint64_t map_offset, map_entries;
  uint32_t pid;
  uint32_t zero;
} hak_page_header;

/* Makes the page, if the settings ask for one, and its first snapshot. Once, at start. */
void hak_stats_page_start(void);

/* Writes a snapshot if the last one is old enough and nobody else is at it. Any thread, no lock held. */
void hak_stats_page_refresh(uint64_t now_ms);

/* In the child of a fork: the next refresh makes a page of the child's own, and the parent's is not written again. */
void hak_stats_page_fork_child(void);

#endif
