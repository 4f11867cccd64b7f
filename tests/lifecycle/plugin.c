/* Frees what it is given and returns a block of its own; keeps some memory from its constructor to its destructor. */
#include <stdlib.h>
#include <string.h>

static void *kept[50];
static __thread char thread_local_bytes[200];

__attribute__((constructor)) static void load(void) {
  for (size_t i = 0; i < 50; i++) kept[i] = malloc(i * 100);
}

__attribute__((destructor)) static void unload(void) {
  for (size_t i = 0; i < 50; i++) free(kept[i]);
}

void *plugin_exchange(void *p, size_t size) {
  free(p);
  thread_local_bytes[0] = 1;
  return strdup(size > 150 ? "a block of the plugin's" : "another");
}
