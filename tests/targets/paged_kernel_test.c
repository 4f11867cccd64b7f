/* paged_kernel.c against what Linux promises for large pages, and that it sees what fits 4 KiB pages only: each such call
 * is made in a child of its own, which must end with status 1. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)65536)

#define EXPECT(condition)                                                                     \
  do {                                                                                        \
    if (!(condition)) fprintf(stderr, "paged_kernel_test:%d: not so: %s\n", __LINE__, #condition), exit(3); \
  } while (0)

static char *map_pages(size_t count) {
  char *p = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(p != MAP_FAILED);
  EXPECT((uintptr_t)p % PAGE == 0);
  return p;
}

static void sizes(void) {
  EXPECT(getauxval(AT_PAGESZ) == PAGE);
  EXPECT(sysconf(_SC_PAGESIZE) == (long)PAGE);
  EXPECT(getpagesize() == (int)PAGE);
  EXPECT(sysconf(_SC_NPROCESSORS_ONLN) > 0);
}

static void moves(void) {
  char *p = map_pages(2), *wall = map_pages(1);
  p[0] = 1;
  p[2 * PAGE - 1] = 2;
  char *q = mremap(p, 2 * PAGE, 40 * PAGE, MREMAP_MAYMOVE);
  EXPECT(q != MAP_FAILED && (uintptr_t)q % PAGE == 0);
  EXPECT(q[0] == 1 && q[2 * PAGE - 1] == 2 && q[2 * PAGE] == 0);
  q[40 * PAGE - 1] = 3;
  EXPECT(munmap(q, 40 * PAGE) == 0);
  EXPECT(munmap(wall, PAGE) == 0);
}

static void residency(void) {
  char *p = map_pages(2);
  unsigned char resident[2] = {9, 9};
  p[PAGE + 20000] = 1; /* in the middle of the second page */
  EXPECT(mincore(p, 2 * PAGE, resident) == 0);
  EXPECT((resident[0] & 1) == 0 && (resident[1] & 1) == 1);
  EXPECT(madvise(p + PAGE, PAGE, MADV_DONTNEED) == 0);
  EXPECT(p[PAGE + 20000] == 0);
}

static void mistake_of_the_test(void) {
  EXPECT(munmap((void *)1, PAGE) == -1 && errno == EINVAL);
}

static void commit_inside_a_page(void) { mprotect(map_pages(2) + 4096, PAGE, PROT_READ); }
static void advise_part_of_a_page(void) { madvise(map_pages(2), 4096, MADV_DONTNEED); }
static void fixed_inside_a_page(void) {
  mmap(map_pages(2) + 8192, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
static void unmap_inside_a_page(void) { munmap(map_pages(2) + 32768, PAGE); }

/* What lies on the same large page is lost too, as on such a kernel. */
static void advice_reaches_the_page_end(void) {
  char *p = map_pages(1);
  memset(p, 1, PAGE);
  madvise(p, 4096, MADV_DONTNEED);
  EXPECT(p[PAGE - 1] == 0);
}

static int status_of(void (*body)(void)) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    body();
    exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void) {
  static const struct {
    const char *name;
    void (*body)(void);
    int status;
  } cases[] = {
      {"sizes", sizes, 0},
      {"moves", moves, 0},
      {"residency", residency, 0},
      {"mistake_of_the_test", mistake_of_the_test, 0},
      {"commit_inside_a_page", commit_inside_a_page, 1},
      {"advise_part_of_a_page", advise_part_of_a_page, 1},
      {"fixed_inside_a_page", fixed_inside_a_page, 1},
      {"unmap_inside_a_page", unmap_inside_a_page, 1},
      {"advice_reaches_the_page_end", advice_reaches_the_page_end, 1},
  };
  int failed = 0;
  setenv("PAGED_KERNEL_PAGE_SIZE", "65536", 1);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int status = status_of(cases[i].body);
    printf("%s: status %d%s\n", cases[i].name, status, status == cases[i].status ? "" : ", WRONG");
    failed += status != cases[i].status;
  }
  return failed != 0;
}
