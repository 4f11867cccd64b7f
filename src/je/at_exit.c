/* What is written at exit: statistics, the last profile, and a line on what is live. */
#include <stdlib.h>

#include "entry/usage.h"
#include "je/je.h"
#include "life/thread.h"

void malloc_stats_print(void (*write_cb)(void *, const char *), void *context, const char *options);

static const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

/* False: nothing that was sampled is live. */
static bool say_what_is_live(void) {
  hak_usage_samples s = hak_usage_sampled();
  if (s.bytes == 0) return false;
  hak_je_say("<jemalloc>: Leak approximation summary: ~%llu byte%s, ~%llu object%s, >= %llu context%s\n",
             (unsigned long long)s.bytes, plural(s.bytes), (unsigned long long)s.blocks, plural(s.blocks),
             (unsigned long long)s.stacks, plural(s.stacks));
  hak_je_say("<jemalloc>: Run jeprof on dump output for leak detail\n");
  return true;
}

/* Not where a signal handler ended the program inside the allocator. */
__attribute__((destructor)) static void at_exit(void) {
  const struct hak_je_conf *c = &hak_je_conf;
  if ((!c->stats_print && !(c->prof && c->prof_final)) || !hak_fork_may_lock() || !hak_lock_comes_free(&hak_je_lock))
    return;
  hak_os_use_kept_stderr();
  if (c->stats_print) malloc_stats_print(NULL, NULL, c->stats_print_opts);
  if (!c->prof || !c->prof_final || !hak_je_prof_final() || !c->prof_leak || !say_what_is_live() || !c->prof_leak_error)
    return;
  hak_je_say("<jemalloc>: Exiting with error code because memory leaks were detected\n");
  _Exit(1);
}
