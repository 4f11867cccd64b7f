#include "report/page.h"

#include <string.h>

#include "base/sequence.h"
#include "os/os.h"
#include "os/print.h"
#include "pool/span_pool.h"
#include "report/render.h"

#define FILE_BYTES (64 * HAK_MIB)
#define JSON_BYTES (512 * HAK_KIB)
/* Two areas, written in turn: what the header names is not touched until the next header has been written. They are as
 * long as the heap needs them, because mlockall makes all of them resident. */
#define AREAS 2
#define FIRST_AREA ((size_t)4096)
#define AREA_BYTES_FIRST (HAK_MIB - 4 * HAK_KIB) /* doubled five times, and the header: just less than the file */
#define AREA_BYTES_MOST ((FILE_BYTES - FIRST_AREA) / AREAS)
#define SOONEST_MS 20
#define CHANGE_PART 32 /* what is held has changed much when it has by this part … */
#define LEAST_CHANGE 16 /* … and so many spans */

static hak_page_header *page; /* stays mapped once it is */
static bool on;
static uint32_t busy;         /* 1: a thread is at it. Taking is an acquire, dropping a release */
/* By the thread that is at it. */
static hak_os_shared shared;
static unsigned area;
static size_t area_bytes = AREA_BYTES_FIRST;
static hak_figures figures;
static hak_class_row rows[HAK_CLASS_COUNT];
/* Relaxed. */
static uint64_t due_ms, soonest_ms;
static size_t held_then, held_most; /* spans held and dirty at the last snapshot, and at any */
static uint32_t owner_pid;

/* A new file under the same address: whoever is in the middle of a refresh goes on in the new one. */
static bool make(void *at) {
  hak_page_header *made = hak_os_share("hakmem-stats", FILE_BYTES, FIRST_AREA + AREAS * area_bytes, at, &shared);
  if (made == NULL) return false;
  memcpy(made->magic, HAK_PAGE_MAGIC, sizeof made->magic);
  made->version = HAK_PAGE_VERSION;
  made->pid = (uint32_t)hak_os_pid();
  hak_store_relaxed(&owner_pid, made->pid);
  page = made;
  hak_store_release(&on, true);
  return true;
}

/* After a fork. Where no file is to be had there is private memory in its place, for whoever is in the middle of a
 * refresh, and no page. */
static bool make_own(void) {
  hak_os_shared parents = shared;
  bool made = make(page);
  hak_os_close_shared(&parents);
  if (!made) hak_store_relaxed(&on, false);
  return made;
}

/* The header is guarded by its sequence (base/sequence.h), and the area that it names with it: a writer fills the other
 * area first. A reader that sees a byte of the writer after that in its area sees another number behind it: the writer
 * between had stored that, and then dropped `busy`, before the area was touched. */
static void publish(uint64_t json_offset, uint64_t json_bytes, uint64_t map_offset) {
  hak_sequence_begin(&page->sequence);
  hak_store_relaxed(&page->time_ms, figures.stats.time_ms);
  hak_store_relaxed(&page->json_offset, json_offset);
  hak_store_relaxed(&page->json_bytes, json_bytes);
  hak_store_relaxed(&page->map_offset, map_offset);
  hak_store_relaxed(&page->map_entries, figures.map_entries);
  hak_sequence_end(&page->sequence);
}

static size_t map_bytes_now(void) {
  size_t bytes = 0;
  for (unsigned i = 0; i < hak_region_count(); i++)
    bytes += hak_load_acquire(&hak_region_at(i)->limit) >> HAK_SPAN_SHIFT;
  return bytes;
}

/* Areas twice as long: the second one then begins where the earlier two end, and the published one is whole until the
 * next is published. The length is noted before more is accessible: a signal handler may fork in between, and the child
 * makes so much so. Where the system refuses, the map is cut, as where the file is full. */
static bool lengthen_areas(void) {
  size_t before = FIRST_AREA + AREAS * area_bytes;
  size_t from = hak_align_down(before, hak_os_page_size());
  area_bytes *= 2;
  if (hak_os_commit((char *)page + from, before - from + AREAS * area_bytes / 2)) return true;
  area_bytes /= 2;
  return false;
}

static void choose_area(void) {
  size_t needed = JSON_BYTES + map_bytes_now();
  area = (area + 1) % AREAS;
  while (needed > area_bytes && 2 * area_bytes <= AREA_BYTES_MOST && lengthen_areas()) area = 1;
}

static void write_snapshot(void) {
  choose_area();
  size_t json_offset = FIRST_AREA + area * area_bytes, map_offset = json_offset + JSON_BYTES;
  figures.rows = rows;
  figures.process = true;
  figures.map = (uint8_t *)page + map_offset;
  figures.map_capacity = area_bytes - JSON_BYTES;
  hak_figures_take(&figures);
  hak_sink sink;
  char *json = (char *)page + json_offset;
  hak_sink_to_memory(&sink, json, JSON_BYTES);
  hak_render_json(&sink, &figures, map_offset);
  if (hak_sink_finish(&sink) == 0) publish(json_offset, (uint64_t)(sink.at - json), map_offset);
}

void hak_stats_page_start(void) {
  if (hak_config.stats_page == 0 || on) return;
  if (!make(NULL)) {
    hak_print("hakmem: HAKMEM_STATS_PAGE: no shared memory for the page: switched off\n");
    return;
  }
  hak_stats_page_refresh(hak_os_now_ms());
}

static size_t held_now(void) {
  return hak_load_relaxed(&hak_span_pool.live_spans) + hak_load_relaxed(&hak_span_pool.dirty_spans);
}

/* A program that takes much memory at once and then goes to sleep is not to be shown as it was before: growth beyond
 * what there ever was does not wait at all, and a program can grow so only some hundred times. */
static bool is_due(uint64_t now_ms) {
  size_t now = held_now(), then = hak_load_relaxed(&held_then), most = hak_load_relaxed(&held_most);
  if (now_ms >= hak_load_relaxed(&due_ms) || now > most + most / CHANGE_PART + LEAST_CHANGE) return true;
  return now_ms >= hak_load_relaxed(&soonest_ms) && (now > then ? now - then : then - now) > then / CHANGE_PART;
}

void hak_stats_page_refresh(uint64_t now_ms) {
  /* Acquire pairs with make(). */
  if (HAK_LIKELY(!hak_load_acquire(&on)) || !is_due(now_ms) || hak_exchange_acquire(&busy, 1) != 0) return;
  bool own = hak_load_relaxed(&on) && is_due(now_ms);
  /* _Fork runs no handlers. */
  if (own && (uint32_t)hak_os_pid() != hak_load_relaxed(&owner_pid)) own = make_own();
  if (own) {
    size_t held = held_now();
    hak_store_relaxed(&held_then, held);
    hak_store_relaxed(&held_most, hak_max_size(held, hak_load_relaxed(&held_most)));
    write_snapshot();
    hak_store_relaxed(&due_ms, now_ms + HAK_PAGE_REFRESH_MS);
    hak_store_relaxed(&soonest_ms, now_ms + SOONEST_MS);
  }
  hak_store_release(&busy, 0);
}

void hak_stats_page_fork_child(void) {
  if (!hak_load_relaxed(&on)) return;
  hak_store_relaxed(&due_ms, 0); /* the child's first slow path makes its page */
  hak_store_relaxed(&owner_pid, 0);
  if (hak_load_relaxed(&busy) == 0) return;
  /* Another thread's refresh, which is not in the child; or that of this thread, which forks in a signal handler and is
   * going to go on with it. */
  make_own();
  hak_store_relaxed(&busy, 0);
}
