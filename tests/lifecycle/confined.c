/* Work in a process that may not read the processor's time counter (word tsc: PR_SET_TSC) or make any system call but
 * read, write and exit (word strict: SECCOMP_MODE_STRICT, which takes the counter away too). Its memory was set up before; with
 * the word other, BYTES, EACH, LIVE and MOST, by blocks of EACH bytes alone, BYTES in all, and what it then works with are LIVE
 * blocks of up to MOST bytes, of classes that were never used.
 * A signal ends it where the allocator does what it may not; 77: this machine does not know the mode. */
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 2000, AT_WORK = 500, STEPS = 3000000 };

static char *slots[SLOTS];

static char *block(size_t size) {
  char *volatile p = malloc(size);
  if (p == NULL) syscall(SYS_exit, 10);
  memset(p, 1, size);
  return p;
}

static void work(void) {
  unsigned s = 1;
  for (long i = 0; i < STEPS; i++) {
    s = s * 1103515245 + 12345;
    char **slot = &slots[(s >> 8) % AT_WORK];
    free(*slot);
    *slot = block(1 + (s >> 20) % 800);
  }
}

static int other_classes(char **argv) {
  enum { MOST_SLOTS = 100000, OTHER_STEPS = 300000 };
  static char *blocks[MOST_SLOTS];
  size_t each = strtoul(argv[1], NULL, 10), count = strtoul(argv[0], NULL, 10) / each, live = strtoul(argv[2], NULL, 10), most = strtoul(argv[3], NULL, 10);
  if (count > MOST_SLOTS || live > count) return 9;
  /* The first look at what is dirty comes when the clock has moved since the first block: here, where nothing is dirty yet. The next
   * comes a fourth of the decay time later. */
  free(block(each));
  struct timespec tick = {0, 20000000};
  nanosleep(&tick, NULL);
  for (size_t i = 0; i < count; i++) blocks[i] = block(each);
  for (size_t i = 0; i < count; i++) {
    free(blocks[i]);
    blocks[i] = NULL;
  }
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 77;
  unsigned s = 1;
  for (long i = 0; i < OTHER_STEPS; i++) {
    s = s * 1103515245 + 12345;
    char **slot = &blocks[(s >> 8) % live];
    free(*slot);
    *slot = block(1 + (s >> 20) % most);
  }
  syscall(SYS_exit, 0);
  return 1;
}

int main(int argc, char **argv) {
  if (argc == 6 && strcmp(argv[1], "other") == 0) return other_classes(argv + 2);
  int strict = argc > 1 && strcmp(argv[1], "strict") == 0;
  for (int i = 0; i < SLOTS; i++) slots[i] = block(1000);
  char *volatile stays = block(1000);
  for (int i = 0; i < SLOTS; i++) {
    free(slots[i]);
    slots[i] = NULL;
  }
  work(); /* so that all the memory it takes is there */
  int refused = strict ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) : prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
  if (refused) return 77;
  work();
  stays[0] = 2;
  syscall(SYS_exit, 0);
}
