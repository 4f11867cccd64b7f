/* leak LOG THREADS BLOCK MIB_PER_SECOND: threads whose leak() takes blocks and never frees them, as fast as they can or at a pace (0: as they
 * can), beside others of which as many are freed, until the kernel ends the process. What is leaked at each millisecond stands in the LOG, a
 * mapping of a file: first the address of leak and its size, then the Unix time in ms of the first
 * of the sums that follow. */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MILLISECONDS = 1 << 17 };

typedef struct record {
  uint64_t leak, leak_bytes, start_ms;
  uint64_t leaked[MILLISECONDS]; /* 0: nothing in this one */
} record;

static record *log_of;
static uint64_t leaked, block, bytes_per_ms;

static uint64_t unix_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Before the block is there. */
static void tell(void) {
  uint64_t sum = __atomic_add_fetch(&leaked, block, __ATOMIC_RELAXED), at = unix_ms() - log_of->start_ms;
  if (at < MILLISECONDS) __atomic_store_n(&log_of->leaked[at], sum, __ATOMIC_RELAXED);
  while (bytes_per_ms != 0 && sum / bytes_per_ms > unix_ms() - log_of->start_ms) usleep(1000);
}

__attribute__((noinline)) void leak(void) {
  void *p = malloc(block);
  if (p == NULL) abort();
  memset(p, 1, block);
  __asm__ volatile("" ::"r"(p) : "memory");
}

__attribute__((noinline)) void use(void) {
  void *p[16];
  for (int i = 0; i < 16; i++) memset(p[i] = malloc(100 + 300 * (size_t)i), 1, 100);
  for (int i = 0; i < 16; i++) free(p[i]);
}

static void *run(void *unused) {
  for (unsigned i = 0;; i++) {
    tell();
    leak();
    if (i % 256 == 0) use();
  }
  return unused;
}

int main(int argc, char **argv) {
  pthread_t thread;
  Dl_info info;
  const ElfW(Sym) *symbol = NULL;
  if (argc != 5) return 2;
  int fd = open(argv[1], O_RDWR);
  log_of = mmap(NULL, sizeof *log_of, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (log_of == MAP_FAILED || dladdr1((void *)leak, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL) return 3;
  log_of->leak = (uint64_t)(uintptr_t)leak;
  log_of->leak_bytes = symbol->st_size;
  block = strtoull(argv[3], NULL, 10);
  bytes_per_ms = strtoull(argv[4], NULL, 10) * 1049;
  log_of->start_ms = unix_ms();
  for (int i = atoi(argv[2]); i > 1; i--)
    if (pthread_create(&thread, NULL, run, NULL) != 0) return 4;
  run(NULL);
}
