#include "watch/profiler.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "base/sequence.h"
#include "os/os.h"
#include "os/place.h"
#include "os/print.h"
#include "profile/profile.h"
#include "report/heap_profile.h"
#include "report/serve.h"
#include "watch/background.h"
#include "watch/black_box.h"

#define PAGE_BYTES (64 * HAK_MIB) /* of a file in memory, as large as it is needed */
#define ANSWER_AT ((size_t)4096)
#define PERIOD_MS 250 /* of looks at signals, the clock and what is live */
#define LIMITS_MS 1000 /* of looks at the system's limits, some fifteen files; samples see what grows between two */
#define PATH_BYTES 4096
#define CLOCK_STEP_MS 10 /* of the clock that files are stamped by, at most: CONFIG_HZ of 100 */
#define NEAR_FILES_MOST 64 /* as the option says */

/* Where `hakmem profile PID` reads: a sealed memfd `hakmem-profile`, little-endian, open to whoever may read
 * /proc/PID/fd. The reader maps it shared and calls FUTEX_WAKE (not private) on the sequence every 50 ms, until that is
 * another even number. Then it copies the JSON at ANSWER_AT, and begins again if the sequence has changed. The error is
 * an errno value; ENOSPC: the answer did not fit. */
typedef struct page_header {
  char magic[8];
  uint32_t pid;
  uint32_t sequence; /* odd: an answer is being written; whoever wants one wakes those that wait on it */
  uint32_t error, unused;
  uint64_t bytes;
} page_header;

static page_header *page; /* by the profile's thread, and where there is none */
static size_t answer_ready; /* bytes of the page that are accessible for the answer; by the same */
static hak_os_shared shared;
static uint32_t signal_pending; /* relaxed */
static uint32_t begun; /* 1: whoever starts is here, or has been */
static bool running;
static unsigned files; /* written so far; relaxed */

/* --- files --- */

static void path_of(unsigned number, char path[PATH_BYTES]) {
  static const char *const endings[] = {"heap", "heap", "json", "pb"};
  snprintf(path, PATH_BYTES, "%s.%d.%u.%s", hak_config.heap_profile_prefix, hak_os_pid(), number,
           endings[hak_config.heap_profile_format]);
}

/* 0 or an errno value, which is said unless it is the `known` one. */
static int write_numbered(unsigned number, int known) {
  char path[PATH_BYTES];
  path_of(number, path);
  int error = hak_heap_profile_write(path, (hak_profile_format)hak_config.heap_profile_format);
  if (error != 0 && error != known)
    hak_print("hakmem: HAKMEM_HEAP_PROFILE: %s: %s: not written\n", path, strerror(error));
  return error;
}

/* A file of this process that is there already is of another hakmem in it, which is linked into the program or a
 * library: it stays. An older one is of a process that had the same number, as in containers. */
static unsigned next_number(void) {
  char path[PATH_BYTES];
  unsigned number;
  for (unsigned tries = 0; tries <= NEAR_FILES_MOST; tries++) {
    number = hak_add_relaxed(&files, 1);
    path_of(number, path);
    if (hak_os_written_ms(path) + CLOCK_STEP_MS <= hak_profile_start_unix_ms()) break;
  }
  return number;
}

static void write_file(void) { write_numbered(next_number(), 0); }

/* By the thread. */
static struct near_files {
  unsigned kept[NEAR_FILES_MOST]; /* their numbers, a ring of as many as are to be kept; 0: none yet */
  unsigned next;
  int error; /* of the last one */
  uint64_t looked_ms;
} near_files;

/* The oldest one goes when the new one is whole. */
static void write_near(void) {
  char path[PATH_BYTES];
  unsigned number = next_number(), *oldest = &near_files.kept[near_files.next];
  if ((near_files.error = write_numbered(number, near_files.error)) != 0) return;
  path_of(*oldest, path);
  if (*oldest != 0) hak_os_remove(path);
  *oldest = number;
  near_files.next = (near_files.next + 1) % (unsigned)hak_config.heap_profile_near_limit;
}

static bool keep_near(void) {
  uint64_t now_ms = hak_os_now_ms();
  if (hak_config.heap_profile_near_limit == 0 || (!hak_black_box_is_due() && now_ms - near_files.looked_ms < LIMITS_MS))
    return false;
  near_files.looked_ms = now_ms;
  bool due = hak_black_box_look(now_ms);
  if (due) write_near();
  hak_black_box_done();
  return due;
}

/* --- the page --- */

static bool make_page(void *at) {
  page_header *made = hak_os_share("hakmem-profile", PAGE_BYTES, ANSWER_AT + answer_ready, at, &shared);
  if (made == NULL) return false;
  memcpy(made->magic, "hakmemP1", sizeof made->magic);
  made->pid = (uint32_t)hak_os_pid();
  page = made;
  return true;
}

static void answer(void) {
  hak_sequence_begin(&page->sequence);
  hak_sink sink;
  char *text = (char *)page + ANSWER_AT;
  hak_sink_to_reservation(&sink, text, PAGE_BYTES - ANSWER_AT, &answer_ready);
  hak_heap_profile_render(&sink, HAK_PROFILE_JSON, HAKMEM_PROFILE_ALL);
  page->error = (uint32_t)hak_sink_finish(&sink);
  page->bytes = (uint64_t)(sink.at - text);
  hak_sequence_end(&page->sequence);
}

/* --- the thread --- */

static void on_signal(int number) {
  (void)number;
  hak_store_relaxed(&signal_pending, 1);
}

/* Between two looks; 0: it waits until it is woken. */
static uint32_t period_ms(void) {
  if (hak_main_has_ended() || hak_config.heap_profile_signal != 0 || hak_config.heap_profile_seconds != 0 ||
      hak_config.heap_profile_growth != 0)
    return PERIOD_MS;
  return hak_config.heap_profile_near_limit != 0 ? LIMITS_MS : 0;
}

static uint32_t nobody; /* where there is no page */
static uint32_t seen_main_end; /* by the thread */

static uint32_t *bell(void) { return page != NULL ? &page->sequence : &nobody; }

/* Until it has heard: it may be on its way to the wait. Not for ever, since it may be writing a file; then it looks
 * after that. */
#define WAKE_MS 500
void hak_profiler_wake(void) {
  for (unsigned tries = 0; running && tries < WAKE_MS && hak_load_relaxed(&seen_main_end) == 0; tries++) {
    hak_os_futex_wake_shared(bell());
    hak_os_sleep_ms(1);
  }
}

static void *serve(void *unused) {
  (void)unused;
  hak_os_name_thread("hakmem-profile");
  uint64_t every_ms = (uint64_t)hak_config.heap_profile_seconds * 1000, due_ms = hak_os_now_ms() + every_ms;
  size_t growth = (size_t)hak_config.heap_profile_growth, grown = growth;
  for (;;) {
    hak_os_drop_privileges();
    if (hak_main_has_ended()) hak_store_relaxed(&seen_main_end, 1);
    hak_end_if_alone();
    uint32_t *word = bell();
    bool woken = !hak_black_box_is_due() && hak_os_futex_wait_shared(word, *word, period_ms());
    if (!keep_near() && woken && page != NULL) answer();
    bool is_time = every_ms != 0 && hak_os_now_ms() >= due_ms,
         has_grown = growth != 0 && hak_profile_live_bytes() >= grown;
    if (has_grown) grown = hak_profile_live_bytes() + growth;
    if (hak_exchange_acquire(&signal_pending, 0) != 0 || is_time || has_grown) write_file();
    if (is_time) due_ms = hak_os_now_ms() + every_ms;
  }
  return NULL;
}

static void start_serving(void) {
  near_files = (struct near_files){0};
  hak_black_box_start(bell());
  int error = hak_thread_of_ours(serve);
  running = error == 0;
  if (running) return;
  hak_black_box_start(NULL);
  hak_print(
      "hakmem: HAKMEM_HEAP_PROFILE: no thread (%s): profiles are written at exit and by hakmem_profile_dump alone\n",
      strerror(error));
}

void hak_profiler_start(void) {
  if (hak_load_relaxed(&hak_config.heap_profile) == 0 || !hak_profile_made() || hak_exchange_acquire(&begun, 1) != 0)
    return;
  if (!make_page(NULL))
    hak_print("hakmem: HAKMEM_HEAP_PROFILE: no shared memory: the process cannot be asked for its profile\n");
  if (hak_config.heap_profile_signal != 0)
    hak_report_catch_signal("HAKMEM_HEAP_PROFILE_SIGNAL", (int)hak_config.heap_profile_signal, on_signal);
  start_serving();
}

/* The parent's page stays its own; the child's is under the same address, where a thread that is in the middle of an
 * answer may go on. */
void hak_profiler_fork_child(bool restart) {
  if (!hak_profile_made()) return;
  if (page != NULL) {
    hak_os_shared parents = shared;
    if (!make_page(page)) page = NULL;
    hak_os_close_shared(&parents);
  }
  hak_store_relaxed(&files, 0);
  hak_store_relaxed(&seen_main_end, 0);
  bool ran = running;
  running = false;
  hak_black_box_start(NULL);
  if (ran && restart) start_serving(); /* the signal's handler is the child's already */
}

bool hak_profiler_wanted_at_exit(void) { return hak_profile_made() && hak_config.heap_profile_at_exit != 0; }

void hak_profiler_at_exit(bool may_lock) {
  if (!hak_profiler_wanted_at_exit()) return;
  if (may_lock)
    write_file();
  else
    hak_print(
        "hakmem: HAKMEM_HEAP_PROFILE_AT_EXIT: nothing is written: a signal handler ended the program inside the "
        "allocator\n");
}
