/* Fields have the numbers of the public description of the format (github.com/google/pprof, proto/profile.proto). A
 * message is a list of fields in any order, and a list's elements may stand apart: each string, mapping and location is
 * written when it is first met, and then has its number. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "os/mappings.h"
#include "os/os.h"
#include "profile/profile.h"
#include "report/heap_profile.h"

#define MAPPINGS_MOST 4096
#define PATH_BYTES 4096
#define TYPES_MOST (7 + HAK_PROFILE_LIFETIMES)
#define VARINT_BYTES 10
#define PLACES_LEAST 64

enum {
  PROFILE_SAMPLE_TYPE = 1,
  PROFILE_SAMPLE,
  PROFILE_MAPPING,
  PROFILE_LOCATION,
  PROFILE_STRING = 6,
  PROFILE_DROP,
  PROFILE_TIME = 9,
  PROFILE_DURATION,
  PROFILE_PERIOD_TYPE,
  PROFILE_PERIOD,
  PROFILE_COMMENT,
  PROFILE_DEFAULT_TYPE
};

/* One message that stands in another, or the numbers of one packed list. */
typedef struct message {
  size_t used;
  unsigned char data[VARINT_BYTES * (HAK_PROFILE_FRAMES + TYPES_MOST + 16)];
} message;

typedef struct range {
  uintptr_t start, end;
} range;

typedef struct place {
  uintptr_t address; /* 0: none */
  uint64_t id;
} place;

typedef struct writer {
  hak_sink *sink;
  unsigned what;
  uint64_t strings; /* written so far */
  range *ranges;    /* of the mappings, from number 1 on */
  size_t range_count;
  place *places; /* open-addressed; `capacity` of them, a power of two, at most half in use */
  size_t capacity, place_count;
  uint64_t label_key, name_key, heap_key; /* strings */
  /* While mappings are read. */
  int memory;
  bool program_only; /* which pprof takes to be the first */
  const char *program;
  uintptr_t head;    /* where the file whose mappings come is mapped from its beginning; 0: nowhere */
  uint64_t head_file;
} writer;

/* --- wire format --- */

static void put_varint(message *m, uint64_t value) {
  HAK_ASSERT(m->used + VARINT_BYTES <= sizeof m->data);
  for (; value >= 0x80; value >>= 7) m->data[m->used++] = (unsigned char)(value | 0x80);
  m->data[m->used++] = (unsigned char)value;
}

static void put_number(message *m, unsigned field, uint64_t value) {
  put_varint(m, field << 3);
  put_varint(m, value);
}

static void write_bytes(hak_sink *s, unsigned field, const void *bytes, size_t count) {
  message head = {0};
  put_varint(&head, field << 3 | 2);
  put_varint(&head, count);
  hak_sink_bytes(s, head.data, head.used);
  hak_sink_bytes(s, bytes, count);
}

static void write_message(hak_sink *s, unsigned field, const message *m) { write_bytes(s, field, m->data, m->used); }

static void write_number(hak_sink *s, unsigned field, uint64_t value) {
  message m = {0};
  put_number(&m, field, value);
  hak_sink_bytes(s, m.data, m.used);
}

static uint64_t write_string(writer *w, const char *text) {
  write_bytes(w->sink, PROFILE_STRING, text, strlen(text));
  return w->strings++;
}

/* --- sample types --- */

static const char *const freed_names[HAK_PROFILE_LIFETIMES] = {"freed_1ms", "freed_10ms", "freed_100ms", "freed_1s",
                                                               "freed_10s", "freed_100s", "freed_later"};

static void write_value_type(writer *w, unsigned field, uint64_t type, const char *unit) {
  message m = {0};
  put_number(&m, 1, type);
  put_number(&m, 2, write_string(w, unit));
  write_message(w->sink, field, &m);
}

static void write_type(writer *w, const char *name, const char *unit, bool preferred) {
  uint64_t type = write_string(w, name);
  write_value_type(w, PROFILE_SAMPLE_TYPE, type, unit);
  if (preferred) write_number(w->sink, PROFILE_DEFAULT_TYPE, type);
}

/* The default is the first of what is asked for, its bytes. In the order of values_of. */
static void write_types(writer *w) {
  unsigned what = w->what, first = what & -what;
  if (what & HAKMEM_PROFILE_LIVE)
    write_type(w, "inuse_objects", "count", false), write_type(w, "inuse_space", "bytes", first == HAKMEM_PROFILE_LIVE);
  if (what & HAKMEM_PROFILE_TOTAL)
    write_type(w, "alloc_objects", "count", false),
        write_type(w, "alloc_space", "bytes", first == HAKMEM_PROFILE_TOTAL);
  if (what & HAKMEM_PROFILE_PEAK)
    write_type(w, "peak_objects", "count", false), write_type(w, "peak_space", "bytes", first == HAKMEM_PROFILE_PEAK);
  if (what & HAKMEM_PROFILE_PINNED) write_type(w, "pinned_space", "bytes", first == HAKMEM_PROFILE_PINNED);
  if ((what & HAKMEM_PROFILE_LIFETIMES) == 0) return;
  for (unsigned i = 0; i < HAK_PROFILE_LIFETIMES; i++)
    write_type(w, freed_names[i], "count", i == 0 && first == HAKMEM_PROFILE_LIFETIMES);
}

/* Whether any is not 0. */
static bool values_of(const writer *w, const hak_profile_stack *stack, message *values) {
  double all[TYPES_MOST];
  unsigned count = 0;
  bool any = false;
  if (w->what & HAKMEM_PROFILE_LIVE) all[count++] = stack->live.count, all[count++] = stack->live.bytes;
  if (w->what & HAKMEM_PROFILE_TOTAL) all[count++] = stack->total.count, all[count++] = stack->total.bytes;
  if (w->what & HAKMEM_PROFILE_PEAK) all[count++] = stack->peak.count, all[count++] = stack->peak.bytes;
  if (w->what & HAKMEM_PROFILE_PINNED) all[count++] = stack->pinned_bytes;
  for (unsigned i = 0; (w->what & HAKMEM_PROFILE_LIFETIMES) != 0 && i < HAK_PROFILE_LIFETIMES; i++)
    all[count++] = stack->freed[i];
  for (unsigned i = 0; i < count; i++) {
    put_varint(values, hak_profile_rounded(all[i]));
    any = any || hak_profile_rounded(all[i]) != 0;
  }
  return any;
}

/* --- mappings --- */

static uint64_t file_hash(const char *file) {
  uint64_t hash = 1469598103934665603u;
  for (; *file != '\0'; file++) hash = (hash ^ (unsigned char)*file) * 1099511628211u;
  return hash;
}

static void write_mapping(writer *w, const hak_mapping *m) {
  char build_id[HAK_BUILD_ID_TEXT] = "";
  uint64_t file = file_hash(m->file);
  if (m->offset == 0) w->head = m->start, w->head_file = file;
  if (m->rights[2] != 'x' || w->range_count == MAPPINGS_MOST || (strcmp(m->path, w->program) == 0) != w->program_only)
    return;
  if (w->memory >= 0 && w->head != 0 && file == w->head_file && *m->file != '\0')
    hak_build_id(w->memory, w->head, build_id);
  w->ranges[w->range_count++] = (range){m->start, m->end};
  message out = {0};
  put_number(&out, 1, w->range_count);
  put_number(&out, 2, m->start);
  put_number(&out, 3, m->end);
  put_number(&out, 4, m->offset);
  put_number(&out, 5, write_string(w, m->path));
  if (build_id[0] != '\0') put_number(&out, 6, write_string(w, build_id));
  write_message(w->sink, PROFILE_MAPPING, &out);
}

static void on_line(void *context, char *line) {
  hak_mapping m;
  if (hak_mapping_parse(line, &m)) write_mapping(context, &m);
}

static void write_mappings(writer *w) {
  char program[PATH_BYTES];
  w->program = hak_os_program(program, sizeof program);
  w->memory = hak_os_open_own("mem");
  w->program_only = true;
  hak_each_mapping(on_line, w);
  w->program_only = false;
  hak_each_mapping(on_line, w);
  if (w->memory >= 0) hak_os_close(w->memory);
}

static uint64_t mapping_of(const writer *w, uintptr_t address) {
  for (size_t i = 0; i < w->range_count; i++)
    if (address - w->ranges[i].start < w->ranges[i].end - w->ranges[i].start) return i + 1;
  return 0;
}

/* --- samples --- */

/* Of the call, which is before the address that it returns to. */
static uint64_t location_of(writer *w, uintptr_t pc) {
  uintptr_t address = pc - 1;
  size_t i = (size_t)(address * 0x9e3779b97f4a7c15u >> 20) & (w->capacity - 1);
  while (w->places[i].address != 0 && w->places[i].address != address) i = (i + 1) & (w->capacity - 1);
  if (w->places[i].address != 0) return w->places[i].id;
  HAK_ASSERT(2 * w->place_count < w->capacity && address != 0);
  w->places[i] = (place){address, ++w->place_count};
  message m = {0};
  put_number(&m, 1, w->place_count);
  put_number(&m, 2, mapping_of(w, address));
  put_number(&m, 3, address);
  write_message(w->sink, PROFILE_LOCATION, &m);
  return w->place_count;
}

static void put_part(message *m, unsigned field, const message *part) {
  put_varint(m, field << 3 | 2);
  put_varint(m, part->used);
  HAK_ASSERT(m->used + part->used <= sizeof m->data);
  memcpy(m->data + m->used, part->data, part->used);
  m->used += part->used;
}

static void put_text_label(writer *w, message *sample, uint64_t key, const char *text) {
  char plain[HAK_LABEL_TEXT_MAX + 1];
  size_t length = 0;
  message label = {0};
  for (; *text != '\0' && length < HAK_LABEL_TEXT_MAX; text++) plain[length++] = *text;
  plain[length] = '\0';
  for (char *at = plain; *at != '\0';) { /* readers refuse a message with a text that is no UTF-8 */
    unsigned bytes = hak_utf8_length(at);
    if (bytes == 0) *at = '?';
    at += bytes == 0 ? 1 : bytes;
  }
  put_number(&label, 1, key);
  put_number(&label, 2, write_string(w, plain));
  put_part(sample, 3, &label);
}

/* The number, and the text where it has one: pprof knows labels of numbers and of texts. */
static void put_labels(writer *w, message *sample, uint64_t label) {
  const char *text = hak_label_name_locked(label);
  message number = {0};
  put_number(&number, 1, w->label_key);
  put_number(&number, 3, label);
  put_part(sample, 3, &number);
  if (text != NULL) put_text_label(w, sample, w->name_key, text);
}

static void write_sample(writer *w, const hak_profile_stack *stack) {
  message values = {0}, locations = {0}, sample = {0};
  if (!values_of(w, stack, &values)) return;
  for (uint32_t i = 0; i < stack->depth; i++)
    if (stack->pcs[i] > 1) put_varint(&locations, location_of(w, stack->pcs[i]));
  put_part(&sample, 1, &locations);
  put_part(&sample, 2, &values);
  if (stack->label != 0) put_labels(w, &sample, stack->label);
  const char *heap = hak_profile_heap(stack);
  /* An empty text is no label */
  if (heap != NULL) put_text_label(w, &sample, w->heap_key, *heap == '\0' ? "unnamed" : heap);
  write_message(w->sink, PROFILE_SAMPLE, &sample);
}

void hak_pprof_since(const char *prefix, char text[HAK_SINCE_BYTES]) {
  const hak_profile_state *h = &hak_profile;
  char until[40] = "";
  if (!h->sampling) snprintf(until, sizeof until, " and until %" PRIu64, h->stop_unix_ms);
  snprintf(text, HAK_SINCE_BYTES, "%sof what was allocated since %" PRIu64 "%s (ms, Unix time)", prefix,
           h->start_unix_ms, until);
}

/* pprof cuts a stack at the outermost function of such a name. Where the library is linked into the program its frames
 * cannot be told by their addresses (profile/profile.c). Behind hak_ and hakmem_ are those from which entry points are
 * left by a tail call. */
static const char allocator[] =
    "((hak|hakmem)_\\w+|malloc_long|malloc_slowly|calloc_large|alloc_slowly|take_class|take_drawn|take_large|"
    "take_counted_large|aligned_otherwise|move_in_cache|resize_of_heap|resize_large|resize_outside_regions|move_block|"
    "grow_mapped|"
    "malloc|calloc|realloc|reallocarray|aligned_alloc|memalign|posix_memalign|p?valloc|operator "
    "new(\\[\\])?)(\\.[\\w.]+)?";

static void write_head(writer *w) {
  const hak_profile_state *h = &hak_profile;
  write_number(w->sink, PROFILE_DROP, write_string(w, allocator));
  uint64_t now_ms = hak_os_unix_ms(), until_ms = h->sampling ? now_ms : h->stop_unix_ms;
  write_number(w->sink, PROFILE_TIME, now_ms * 1000000);
  write_number(w->sink, PROFILE_DURATION, until_ms > h->start_unix_ms ? (until_ms - h->start_unix_ms) * 1000000 : 0);
  uint64_t space = write_string(w, "space");
  write_value_type(w, PROFILE_PERIOD_TYPE, space, "bytes");
  write_number(w->sink, PROFILE_PERIOD, h->distance);
  char since[HAK_SINCE_BYTES];
  hak_pprof_since("hakmem: ", since);
  write_number(w->sink, PROFILE_COMMENT, write_string(w, since));
}

static size_t frames_locked(void) {
  const hak_profile_stack *stack;
  size_t frames = 0;
  for (size_t at = 0; (stack = hak_profile_next(&at)) != NULL;) frames += stack->depth;
  return frames;
}

static void write_samples_locked(writer *w) {
  const hak_profile_stack *stack;
  hak_assert_held(&hak_profile_lock);
  w->capacity = hak_max_size(PLACES_LEAST, hak_pow2_ceil(2 * (frames_locked() + 1)));
  w->places = hak_os_map(w->capacity * sizeof *w->places, hak_os_page_size());
  if (w->places == NULL) {
    w->sink->error = ENOMEM;
    return;
  }
  hak_profile_settle(hak_os_now_ms());
  write_head(w);
  for (size_t at = 0; (stack = hak_profile_next(&at)) != NULL;) write_sample(w, stack);
  hak_os_unmap_own(w->places, w->capacity * sizeof *w->places);
}

void hak_pprof_render(hak_sink *s, unsigned what) {
  writer w = {.sink = s, .what = what};
  w.ranges = hak_os_map(MAPPINGS_MOST * sizeof *w.ranges, hak_os_page_size());
  if (w.ranges == NULL) {
    s->error = ENOMEM;
    return;
  }
  write_string(&w, "");
  w.label_key = write_string(&w, "label");
  w.name_key = write_string(&w, "label_name");
  w.heap_key = write_string(&w, "heap");
  write_types(&w);
  write_mappings(&w);
  hak_lock_take(&hak_profile_lock);
  write_samples_locked(&w);
  hak_lock_drop(&hak_profile_lock);
  hak_os_unmap_own(w.ranges, MAPPINGS_MOST * sizeof *w.ranges);
}
