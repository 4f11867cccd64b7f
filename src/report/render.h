/* A snapshot as JSON and as text; docs/figures.md names every field. */
#ifndef HAK_REPORT_RENDER_H
#define HAK_REPORT_RENDER_H

#include "report/figures.h"
#include "report/sink.h"

/* The JSON's stats_version: another one when a field changes its name or meaning. */
#define HAK_JSON_VERSION 2

/* A name and a value, of the JSON or of the text. */
typedef struct hak_member {
  const char *name; /* NULL: the last one */
  uint64_t value;
} hak_member;
#define HAK_MEMBERS(...) (const hak_member[]){__VA_ARGS__, {NULL, 0}}
#define HAK_FIELD(object, field) {#field, (object)->field} /* named like the field of a structure */

/* Takes a snapshot and writes it; 0 or the sink's error. For callers with 7 KiB of stack. */
int hak_render_snapshot(hak_sink *sink, bool json);
void hak_render_text(hak_sink *sink, const hak_figures *figures);
/* map_offset: where the span map lies in the page; 0: no page, and no list of addresses. */
void hak_render_json(hak_sink *sink, const hak_figures *figures, uint64_t map_offset);

#endif
