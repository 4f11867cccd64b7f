/* Has the library report something: reporting foreign|twice|behind|forbidden|fault. Linked with the allocator, and made setuid by the test. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hakmem/hakmem.h"

const char *hakmem_conf = "external_guard_log=1,guard_sample=1/1,stats=json,external_guard_stats=1";

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  char *volatile block = malloc(40), *volatile another = malloc(4000);
  if (block == NULL || another == NULL) return 3;
  static char outside[64];
  if (strcmp(what, "foreign") == 0) {
    char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 4;
    char *volatile foreign[] = {outside, mapped, (char *)&what, (char *)(uintptr_t)0x1234567};
    for (int i = 0; i < 120; i++) free(foreign[i % 4]);
  } else if (strcmp(what, "twice") == 0) {
    for (int i = 0; i < 2; i++) free(block);
  } else if (strcmp(what, "behind") == 0) {
    memset(another, 1, 9000);
  } else if (strcmp(what, "forbidden") == 0) {
    hakmem_forbid(true);
    free(malloc(50));
    free(another);
    hakmem_forbid(false);
  } else if (strcmp(what, "fault") == 0) {
    for (int i = 0; i < 100; i++) free(malloc(100)); /* behind the first blocks, which are guarded */
    *(volatile char *volatile)NULL = 1;
  } else {
    return 2;
  }
  return 0;
}
