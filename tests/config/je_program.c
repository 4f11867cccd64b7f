/* Asks a library with jemalloc's interface, each argument a step: b:, u:, z:, i: or s: and a name of mallctl (bool, unsigned, size_t, ssize_t, text)
 * prints name=value; h:NAME an option of hakmem; fill: bytes of blocks; leak: 100 blocks of 10,000 bytes, which nothing points to; threads: their number. */
#include <dirent.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "hakmem/hakmem.h"

int mallctl(const char *name, void *old, size_t *old_bytes, void *given, size_t given_bytes);

#ifdef CONF
const char *malloc_conf = CONF;
#endif
#ifdef MESSAGES
static void message(void *unused, const char *text) {
  (void)unused;
  ssize_t written = write(1, "told: ", 6) + write(1, text, strlen(text));
  (void)written;
}
void (*malloc_message)(void *, const char *) = message;
#endif

static void print(char type, const char *name) {
  union {
    bool b;
    unsigned u;
    size_t z;
    ssize_t i;
    const char *s;
  } value = {0};
  size_t bytes = type == 'b' ? 1 : type == 'u' ? 4 : 8;
  if (mallctl(name, &value, &bytes, NULL, 0) != 0)
    printf("%s: none\n", name);
  else if (type == 's')
    printf("%s=%s\n", name, value.s);
  else if (type == 'i')
    printf("%s=%zd\n", name, value.i);
  else
    printf("%s=%zu\n", name, type == 'b' ? (size_t)value.b : type == 'u' ? (size_t)value.u : value.z);
}

static void print_threads(void) {
  unsigned count = 0;
  DIR *directory = opendir("/proc/self/task");
  for (struct dirent *d; (d = readdir(directory)) != NULL;) count += d->d_name[0] != '.';
  closedir(directory);
  printf("threads=%u\n", count);
}

/* The last usable byte of a new block, of a zeroed one and of what a block has grown by, and one of a small block that is free. */
static void print_bytes(size_t size) {
  unsigned char *volatile p = malloc(size);
  unsigned last = p[malloc_usable_size(p) - 1];
  memset(p, 1, size);
  free(p);
  unsigned freed = size > 1000 ? 0 : ((volatile unsigned char *)p)[50];
  unsigned char *volatile zeroed = calloc(1, size);
  unsigned zero = zeroed[size - 1];
  memset(zeroed, 1, size);
  unsigned char *volatile grown = realloc(zeroed, 3 * size);
  printf("%02x %02x %02x %02x\n", last, zero, grown[3 * size - 1], freed);
  free(grown);
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IONBF, 0);
  for (int i = 1; i < argc; i++) {
    int64_t value = -1;
    if (strcmp(argv[i], "leak") == 0) {
      for (int n = 0; n < 100; n++) *(volatile char *)malloc(10000) = 1;
    } else if (strcmp(argv[i], "fill") == 0) {
      for (int round = 0; round < 2; round++)
        for (size_t size = 100; size < 10000000; size *= 50) print_bytes(size);
    } else if (strcmp(argv[i], "threads") == 0) {
      print_threads();
    } else if (argv[i][0] == 'h') {
      hakmem_option_get(argv[i] + 2, &value);
      printf("%s=%lld\n", argv[i] + 2, (long long)value);
    } else {
      print(argv[i][0], argv[i] + 2);
    }
  }
  return 0;
}
