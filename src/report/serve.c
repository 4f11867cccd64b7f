/* Reports that nobody calls for: at exit, on a signal, and the page's turn. */
#include "report/serve.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>

#include "guard/foreign.h"
#include "os/os.h"
#include "os/print.h"
#include "reclaim/decay.h"
#include "report/page.h"
#include "report/render.h"
#include "tcache/tcache.h"

uint32_t hak_report_signal_pending;

/* The handler: everything here may be done in the middle of anything. */
static void on_signal(int number) {
  (void)number;
  hak_store_seq(&hak_report_signal_pending, 1); /* before the helper's word is read: see sleep_until_needed */
  hak_decay_wake_helper();                    /* an exchange and a system call */
}

/* The instruction, or the access to the terminal, that brought it would be tried again for ever. */
static bool comes_again(int number) {
  static const int again[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGTTIN, SIGTTOU};
  for (size_t i = 0; i < sizeof again / sizeof again[0]; i++) {
    if (number == again[i]) return true;
  }
  return false;
}

void hak_report_catch_signal(const char *option, int number, void (*handler)(int)) {
  HAK_ASSERT(option != NULL && number > 0);
  int error = comes_again(number) ? EINVAL : hak_os_catch(number, handler);
  if (error == EBUSY)
    hak_print("hakmem: %s=%d: the program handles or ignores this signal: left alone\n", option, number);
  else if (error != 0)
    hak_print("hakmem: %s=%d: this signal cannot be caught: not used\n", option, number);
}

void hak_report_start(void) {
  if (hak_config.stats_signal != 0)
    hak_report_catch_signal("HAKMEM_STATS_SIGNAL", (int)hak_config.stats_signal, on_signal);
  hak_stats_page_start();
}

void hak_report_figures(bool json) {
  hak_sink sink;
  hak_sink_to_stderr(&sink);
  hak_render_snapshot(&sink, json);
}

static void print_stats(void) { hak_report_figures(hak_config.stats == HAK_STATS_JSON); }

void hak_report_os_stats(void) {
#define FORMAT(name, meaning) " " #name "=%" PRIu64
#define VALUE(name, meaning) , hak_load_relaxed(&hak_os_stats.name)
  hak_print("[SS_OS_STATS]" HAK_OS_LINE_COUNTERS(FORMAT) "\n" HAK_OS_LINE_COUNTERS(VALUE));
}

void hak_report_cache_csv(void) {
  hak_print("class,block_size,aligned,hits,misses,refills,flushes\n");
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    hak_cache_counts sum = hak_tcache_sum_class(c).counts;
    hak_print("%u,%zu,%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", c, hak_class_size(c),
              c >= HAK_PLAIN_CLASSES, sum.hits, sum.misses, sum.refills, sum.flushes);
  }
}

void hak_report_tick(uint64_t now_ms) {
  if (HAK_UNLIKELY(hak_load_relaxed(&hak_report_signal_pending) != 0) &&
      hak_exchange_acquire(&hak_report_signal_pending, 0) != 0)
    print_stats();
  hak_stats_page_refresh(now_ms);
}

bool hak_report_wanted_at_exit(void) {
  return hak_config.front_dump || hak_config.guard_stats || hak_config.os_stats || hak_config.stats != HAK_STATS_OFF;
}

void hak_report_at_exit(bool may_lock) {
  hak_os_use_kept_stderr();
  bool locking = hak_config.front_dump || hak_config.stats != HAK_STATS_OFF;
  if (locking && !may_lock)
    hak_print(
        "hakmem: HAKMEM_STATS, HAKMEM_TINY_FRONT_DUMP: nothing is printed: a signal handler ended the program inside "
        "the allocator\n");
  if (hak_config.front_dump && may_lock && hak_region_count() > 0) hak_report_cache_csv();
  if (hak_config.guard_stats) hak_foreign_print();
  if (hak_config.os_stats) hak_report_os_stats();
  if (hak_config.stats != HAK_STATS_OFF && may_lock) print_stats();
}
