/* The start of the je box. */
#include "je/je.h"
#include "life/init.h"

/* The core's start is in the middle: what can be set at the start alone is set before it, by settings that hakmem's own
 * are above; and fork takes this box's lock before the core's, whose handlers are registered first. A mallctl before
 * finds defaults. */
__attribute__((constructor(101))) static void start(int argc, char **argv, char **variables) {
  hak_je_conf_read(hak_os_environment(variables));
  hak_start_first(argc, argv, variables);
  hak_je_conf_settle();
  if (hak_je_conf.stats_print || hak_je_conf.prof_final) hak_os_keep_stderr(); /* at_exit.c */
  hak_empty_realloc_does = hak_je_conf.zero_realloc[0] == 'a'
                               ? (hak_je_conf.zero_realloc[1] == 'l' ? HAK_EMPTY_ALLOCATES : HAK_EMPTY_ABORTS)
                               : HAK_EMPTY_FREES;
  hak_je_dirty_ms = hak_je_conf.dirty_decay_ms;
  hak_je_muzzy_ms = hak_je_conf.muzzy_decay_ms;
  hak_je_arenas_start();
}
