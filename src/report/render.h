/* A snapshot as JSON and as text; docs/figures.md names every field. */
#ifndef HAK_REPORT_RENDER_H
#define HAK_REPORT_RENDER_H

#include "report/figures.h"
#include "report/sink.h"

/* The JSON's stats_version: another one when a field changes its name or meaning. */
#define HAK_JSON_VERSION 2

/* Takes a snapshot and writes it; 0 or the sink's error. For callers with 7 KiB of stack. */
int hak_render_snapshot(hak_sink *sink, bool json);
/* map_offset: where the span map lies in the page; 0: no page, and no list of addresses. */
void hak_render_json(hak_sink *sink, const hak_figures *figures, uint64_t map_offset);

/* heaps.c */
#define HAK_HEAPS_IN_PAGE 100
#define HAK_HEAPS_IN_TEXT 20
/* The members `heaps` and `heaps_left_out`: all heaps; `in_page`: the largest, with the heaps below them: one that has
 * a limit for others is not hidden by them. Oldest first. */
void hak_heaps_json(hak_sink *sink, bool in_page);
/* A table of the largest in this sense; nothing where there is no heap. */
void hak_heaps_text(hak_sink *sink);

#endif
