/* Prints every option as NAME=value, after HAKMEM_… variables were applied; then the answers to NAME=value arguments,
 * each of which is set and read back. With --list, what hakmem_option_list tells of each option. PROBE_CONF, if it is there, is the
 * program's hakmem_conf. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "hakmem/hakmem.h"

const char *hakmem_conf;

/* Before the allocator's. */
__attribute__((constructor(101))) static void bring(void) { hakmem_conf = getenv("PROBE_CONF"); }

static bool print(const hak_option_row *row, void *context) {
  (void)context;
  if (row->kind != HAK_KIND_TEXT) printf("%s=%" PRId64 "\n", row->name, *row->value);
  return true;
}

static bool list(const hakmem_option *o, void *context) {
  (void)context;
  printf("%s=%s|%s|%d|%d|%d\n", o->name, o->value, o->initial, o->origin, o->live, o->text);
  return true;
}

int main(int argc, char **argv) {
  if (!hak_config_load(environ)) return 1;
  if (argc > 1 && strcmp(argv[1], "--list") == 0) return hakmem_option_list(list, NULL) == 0;
  hak_config_visit(print, NULL);
  for (int i = 1; i < argc; i++) {
    char name[64];
    const char *equals = strchr(argv[i], '=');
    snprintf(name, sizeof name, "%.*s", (int)(equals - argv[i]), argv[i]);
    int set = hakmem_option_set(name, atoll(equals + 1));
    int64_t value = -1;
    int get = hakmem_option_get(name, &value);
    printf("%s: set %d, get %d, value %" PRId64 "\n", name, set, get, value);
  }
  return 0;
}
