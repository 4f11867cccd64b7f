/* A C program with the library. Without an argument: no C++ runtime may be loaded. With two: that C++ module is
 * loaded late, operator new must find its runtime then, and the module's function of the second name returns 0. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hakmem/hakmem.h"

static int runtime_loaded(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[1024];
  int found = 0;
  while (fgets(line, sizeof line, maps) != NULL) found |= strstr(line, "libstdc++") != NULL;
  fclose(maps);
  return found;
}

int main(int argc, char **argv) {
  void *p = malloc(100);
  if (!hakmem_is_ours(p)) return puts("malloc is not ours"), 1;
  free(p);
  if (runtime_loaded()) return puts("libstdc++ is loaded"), 1;
  if (argc < 3) return 0;

  void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (module == NULL) return puts(dlerror()), 1;
  int (*check)(void) = (int (*)(void))dlsym(module, argv[2]);
  if (check == NULL) return puts(dlerror()), 1;
  int failed = check();
  if (failed != 0) printf("check %d failed\n", failed);
  return failed;
}
