/* A line for each heap, in the JSON and in the text. Each is of a moment of its own. No state and no lock of its own,
 * no memory but the caller's stack: heaps come and go while others are written. */
#include "heap/heap.h"
#include "report/render.h"

/* --- which ones --- */

/* What a heap has charged that is just among the `most` largest, and of how many that have as much there is room.
 * largest: room for so many, the most first. */
static size_t least_of(size_t *largest, size_t most, size_t *equal) {
  size_t count = 0;
  *equal = SIZE_MAX;
  if (hak_heap_count() <= most) return 0;
  for (hak_heap *h = NULL; (h = hak_heap_show_next(h, false)) != NULL;) {
    size_t out = hak_load_relaxed(&h->out);
    if (count == most && out <= largest[most - 1]) continue;
    size_t i = count < most ? count++ : most - 1;
    HAK_ASSERT(i < most && count <= most);
    for (; i > 0 && largest[i - 1] < out; i--) largest[i] = largest[i - 1];
    largest[i] = out;
  }
  if (count < most) return 0;
  for (*equal = 1; *equal < most && largest[most - 1 - *equal] == largest[most - 1];) ++*equal;
  return largest[most - 1];
}

/* Calls write for at most so many; returns how many are left out. What has grown meanwhile may take the place of
 * another. room: for so many. */
static size_t each_of_largest(hak_sink *s, size_t *room, size_t most,
                              void (*write)(hak_sink *s, const hak_heap_row *row)) {
  size_t equal, least = least_of(room, most, &equal), written = 0, left_out = 0;
  hak_heap_row row;
  for (hak_heap *h = NULL; (h = hak_heap_show_next(h, false)) != NULL;) {
    size_t out = hak_load_relaxed(&h->out);
    bool shown = written < most && (out > least || (out == least && equal > 0));
    equal -= shown && out == least;
    if (shown && hak_heap_read_row(h, &row)) { /* it may be gone */
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
  hak_sink_string(s, "name", row->name);
  hak_sink_members(s, HAK_MEMBERS(HAK_FIELD(h, id), HAK_FIELD(row, parent), HAK_FIELD(h, live), HAK_FIELD(h, peak),
                                  HAK_FIELD(h, blocks), HAK_FIELD(h, held), HAK_FIELD(h, limit), HAK_FIELD(h, total),
                                  HAK_FIELD(h, refused), HAK_FIELD(h, requests)));
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
  hak_sink_text(s,
                "   heap         live        total         peak     blocks         held        limit  refused  name\n");
  size_t left_out = each_of_largest(s, room, HAK_HEAPS_IN_TEXT, text_row);
  if (left_out == 0) return;
  hak_sink_text(s, "and ");
  hak_sink_number(s, left_out);
  hak_sink_text(s, " heaps with less\n");
}
