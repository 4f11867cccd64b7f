/* The start of the je box. */
#include "je/conf.h"
#include "je/je.h"

/* Behind the core's constructor, so that fork takes this box's lock before the core's; a mallctl before it finds defaults. */
__attribute__((constructor(103))) static void start(void) {
  hak_je_conf_read();
  hak_je_dirty_ms = hak_je_conf.dirty_decay_ms;
  hak_je_muzzy_ms = hak_je_conf.muzzy_decay_ms;
  hak_je_arenas_start();
}
