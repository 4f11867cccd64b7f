/* Opens a plugin with RTLD_DEEPBIND by a name that only this program's RUNPATH leads to, twice, and frees what the plugin
 * allocates and the other way round. deepbind ours|theirs: whose blocks the plugin is expected to make. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_ours(const void *p) {
  bool (*ask)(const void *) = (bool (*)(const void *))dlsym(RTLD_DEFAULT, "hakmem_is_ours");
  return ask != NULL && ask(p);
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  void *plugin = dlopen("libdeepbind_plugin.so", RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND);
  void *again = dlopen("libdeepbind_plugin.so", RTLD_NOW | RTLD_DEEPBIND);
  if (plugin == NULL || again != plugin) {
    puts(dlerror());
    return 3;
  }
  char *(*make)(void) = (char *(*)(void))dlsym(plugin, "deepbind_make");
  char *(*exchange)(char *) = (char *(*)(char *))dlsym(plugin, "deepbind_exchange");
  if (is_ours(make()) != (strcmp(argv[1], "ours") == 0)) return 4;
  if (strcmp(argv[1], "ours") != 0) return 0;
  for (int i = 0; i < 1000; i++) {
    char *got = exchange(strdup("what is exchanged"));
    if (!is_ours(got) || strcmp(got, "what is exchanged") != 0) return 5;
    free(got);
  }
  return dlopen("no such library", RTLD_NOW | RTLD_DEEPBIND) == NULL && dlerror() != NULL ? 0 : 6;
}
