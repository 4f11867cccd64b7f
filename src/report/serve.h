/* Reports that nobody calls for: at exit, on a signal (HAKMEM_STATS_SIGNAL), and the statistics page's turn. */
#ifndef HAK_REPORT_SERVE_H
#define HAK_REPORT_SERVE_H

#include <stdbool.h>
#include <stdint.h>

/* Once, in the constructor: installs the signal's handler, makes the page. */
void hak_report_start(void);

/* Installs a handler for the option's signal, and says why where it may not. */
void hak_report_catch_signal(const char *option, int number, void (*handler)(int));

/* Every so many slow paths of any thread, with no lock held. A relaxed load or two when there is nothing to do. */
void hak_report_tick(uint64_t now_ms);

/* 1 from the signal until somebody prints: the next thread that comes by, or the helper thread. */
extern uint32_t hak_report_signal_pending;

/* All figures to stderr. For callers with 7 KiB of stack. */
void hak_report_figures(bool json);
/* The lines that HAKMEM_SS_OS_STATS and HAKMEM_TINY_FRONT_DUMP ask for. */
void hak_report_os_stats(void);
void hak_report_cache_csv(void);

/* Whether the settings ask for a report at exit, and that report; without may_lock, what needs no lock of it. */
bool hak_report_wanted_at_exit(void);
void hak_report_at_exit(bool may_lock);

#endif
