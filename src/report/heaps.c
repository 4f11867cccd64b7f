#include "report/heaps.h"

#include "heap/heap.h"

/* --- which ones --- */

/* What the `most` heaps have charged that have charged most, as a binary heap with the least first. */
typedef struct largest {
  size_t *out; /* the caller's, for `most` */
  size_t count, most;
} largest;

static void sift_down(largest *l, size_t out) {
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < l->count; i = child) {
    if (child + 1 < l->count && l->out[child + 1] < l->out[child]) child++;
    if (l->out[child] >= out) break;
    l->out[i] = l->out[child];
  }
  l->out[i] = out;
}

static void sift_up(largest *l, size_t out) {
  size_t i = l->count++;
  for (; i > 0 && l->out[(i - 1) / 2] > out; i = (i - 1) / 2) l->out[i] = l->out[(i - 1) / 2];
  l->out[i] = out;
}

static void note(largest *l, size_t out) {
  HAK_ASSERT(l->count <= l->most);
  if (l->count < l->most)
    sift_up(l, out);
  else if (out > l->out[0])
    sift_down(l, out);
}

/* What a heap has charged that is just among the `most` largest. */
static size_t least_of(size_t *room, size_t most) {
  largest l = {.out = room, .most = most};
  uint64_t id = 0;
  size_t out;
  if (hak_heap_count() <= most) return 0;
  while (hak_heap_next(&id, &out)) note(&l, out);
  return l.count < most ? 0 : l.out[0];
}

/* Calls write for at most so many; returns how many are left out. What has grown meanwhile may take the place of another. room: for so many. */
static size_t each_of_largest(hak_sink *s, size_t *room, size_t most, void (*write)(hak_sink *s, const hak_heap_row *row)) {
  size_t least = least_of(room, most), written = 0, left_out = 0, out;
  uint64_t id = 0;
  hak_heap_row row;
  while (hak_heap_next(&id, &out)) {
    bool shown = out >= least && written < most;
    if (shown && hak_heap_read_after(id - 1, &row) && row.stats.id == id) { /* it may be gone */
      write(s, &row);
      written++;
    }
    left_out += !shown;
  }
  return left_out;
}

/* --- JSON --- */

static void json_row(hak_sink *s, const hak_heap_row *row) {
  const hakmem_heap_stats *h = &row->stats;
  hak_sink_open(s, NULL, '{');
  hak_sink_escaped(s, "name", row->name);
  hak_sink_member(s, "id", h->id);
  hak_sink_member(s, "parent", row->parent);
  hak_sink_member(s, "live", h->live);
  hak_sink_member(s, "peak", h->peak);
  hak_sink_member(s, "blocks", h->blocks);
  hak_sink_member(s, "held", h->held);
  hak_sink_member(s, "limit", h->limit);
  hak_sink_member(s, "total", h->total);
  hak_sink_member(s, "refused", h->refused);
  hak_sink_member(s, "requests", h->requests);
  hak_sink_close(s, '}');
}

/* Apart: reports that are no page are for callers with little stack. */
static HAK_NOINLINE size_t page_rows(hak_sink *s) {
  size_t room[HAK_HEAPS_IN_PAGE];
  return each_of_largest(s, room, HAK_HEAPS_IN_PAGE, json_row);
}

void hak_heaps_json(hak_sink *s, bool in_page) {
  hak_sink_open(s, "heaps", '[');
  size_t left_out = in_page ? page_rows(s) : each_of_largest(s, NULL, SIZE_MAX, json_row);
  hak_sink_close(s, ']');
  hak_sink_member(s, "heaps_left_out", left_out);
}

/* --- text --- */

/* A name can hold what a terminal obeys. */
static void plain_name(hak_sink *s, const char *name) {
  for (unsigned length; *name != '\0'; name += hak_max_size(length, 1)) {
    length = hak_utf8_length(name);
    bool is_plain = length > 0 && (unsigned char)*name >= ' ' && *name != 0x7f;
    hak_sink_bytes(s, is_plain ? name : "?", is_plain ? length : 1);
  }
}

static void text_row(hak_sink *s, const hak_heap_row *row) {
  const hakmem_heap_stats *h = &row->stats;
  const uint64_t values[] = {h->live, h->total, h->peak, h->blocks, h->held, h->limit, h->refused};
  static const unsigned widths[] = {13, 13, 13, 11, 13, 13, 9};
  hak_sink_column(s, h->id, 7);
  for (unsigned i = 0; i < sizeof values / sizeof values[0]; i++) hak_sink_column(s, values[i], widths[i]);
  hak_sink_text(s, "  ");
  plain_name(s, row->name);
  hak_sink_text(s, "\n");
}

void hak_heaps_text(hak_sink *s) {
  size_t room[HAK_HEAPS_IN_TEXT];
  if (hak_heap_count() == 0) return;
  hak_sink_text(s, "   heap         live        total         peak     blocks         held        limit  refused  name\n");
  size_t left_out = each_of_largest(s, room, HAK_HEAPS_IN_TEXT, text_row);
  if (left_out == 0) return;
  hak_sink_text(s, "and ");
  hak_sink_number(s, left_out);
  hak_sink_text(s, " heaps with less\n");
}
