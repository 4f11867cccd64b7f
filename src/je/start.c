/* The start of the je box. */
#include "je/conf.h"
#include "je/je.h"

/* Before the core's constructor, which settles what can be set at the start alone. */
__attribute__((constructor(101))) static void read_settings(int argc, char **argv, char **variables) {
  (void)argc, (void)argv;
  hak_je_conf_read(hak_os_environment(variables));
}

/* Behind the core's constructor, so that fork takes this box's lock before the core's; a mallctl before it finds defaults. */
__attribute__((constructor(103))) static void start(void) {
  hak_je_conf_settle();
  hak_je_at_exit_start();
  hak_empty_realloc_does = hak_je_conf.zero_realloc[0] == 'a' ? (hak_je_conf.zero_realloc[1] == 'l' ? HAK_EMPTY_ALLOCATES : HAK_EMPTY_ABORTS) : HAK_EMPTY_FREES;
  hak_je_dirty_ms = hak_je_conf.dirty_decay_ms;
  hak_je_muzzy_ms = hak_je_conf.muzzy_decay_ms;
  hak_je_arenas_start();
}
