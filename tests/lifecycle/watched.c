/* Monitors on userfaultfd, as network fabrics have them: large blocks are registered, and a thread for each half of them hears of pages that go
 * and resolves faults. It keeps notes in small blocks. Memory it gets from malloc is never memory whose faults it would have to resolve, and it
 * never gives pages back that it would hear of: it would wait for itself. Word stay: blocks stay registered when they are freed; leave: they do
 * not. 77: userfaultfd is refused. A signal ends what hangs. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MONITORS = 2, BLOCKS = 24, ROUNDS = 3, NOTES = 24 };
static const size_t SIZES[] = {33 << 10, 47000, 65536, 130000, 262144, 410000, 1 << 20, 5000000, 20 << 20, 33 << 20, 100 << 20};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

typedef struct note {
  struct note *next;
  char text[16];
} note;

static int fds[MONITORS];
static unsigned long heard[MONITORS], faults[MONITORS];
static size_t page;

static void write_down(note **notes, unsigned n) {
  size_t text = 16 + n * 37 % 1900;
  note *volatile one = malloc(sizeof *one + text);
  if (one == NULL) _exit(10);
  memset(one->text, 1, text);
  one->next = *notes;
  *notes = one;
  if (n % NOTES != 0) return;
  for (note *next; *notes != NULL; *notes = next) {
    next = (*notes)->next;
    free(*notes);
  }
}

/* Some pages at once, where they are registered and not there: else a thread would be at the faults of 100 MiB for seconds, and take none of the allocator's
 * slow paths, as if it had come to rest. */
static void resolve(int fd, uintptr_t address) {
  for (size_t pages = 16; pages > 0; pages = pages == 16 ? 1 : 0) {
    struct uffdio_zeropage zeros = {{address & ~(page - 1), pages * page}, 0, 0};
    if (ioctl(fd, UFFDIO_ZEROPAGE, &zeros) == 0 || zeros.zeropage > 0) return;
  }
  struct uffdio_zeropage zero = {{address & ~(page - 1), page}, 0, 0};
  struct uffdio_range range = zero.range;
  ioctl(fd, UFFDIO_WAKE, &range); /* the thread tries again */
}

static void *monitor(void *number) {
  size_t m = (size_t)number;
  note *notes = NULL;
  for (;;) {
    struct pollfd wait = {fds[m], POLLIN, 0};
    struct uffd_msg event;
    poll(&wait, 1, -1);
    if (read(fds[m], &event, sizeof event) != sizeof event) continue;
    __atomic_add_fetch(&heard[m], 1, __ATOMIC_RELAXED);
    write_down(&notes, (unsigned)heard[m]);
    if (event.event == UFFD_EVENT_PAGEFAULT) {
      faults[m]++;
      resolve(fds[m], event.arg.pagefault.address);
    }
  }
  return NULL;
}

static struct uffdio_range pages_of(const void *p, size_t size) {
  uintptr_t start = ((uintptr_t)p + page - 1) & ~(page - 1), end = ((uintptr_t)p + size) & ~(page - 1);
  return (struct uffdio_range){start, end > start ? end - start : 0};
}

static void watch(unsigned m, const void *p, size_t size) {
  struct uffdio_register it = {pages_of(p, size), UFFDIO_REGISTER_MODE_MISSING, 0};
  if (it.range.len != 0) ioctl(fds[m], UFFDIO_REGISTER, &it); /* what another monitor has stays its */
}

static void leave(unsigned m, const void *p, size_t size) {
  struct uffdio_range it = pages_of(p, size);
  if (it.len != 0) ioctl(fds[m], UFFDIO_UNREGISTER, &it);
}

static void *block(unsigned how, size_t size) {
  void *volatile p = NULL;
  if (how % 3 == 0) p = malloc(size);
  if (how % 3 == 1) p = calloc(1, size);
  if (how % 3 == 2 && posix_memalign((void **)&p, 4096, size) != 0) p = NULL;
  if (p == NULL) _exit(11);
  return p;
}

static void small_work(void) {
  void *small[200];
  for (unsigned i = 0; i < 200; i++) memset(small[i] = block(0, 40 + i * 160), 2, 40);
  for (unsigned i = 0; i < 200; i++) free(small[i]);
}

static void large_work(size_t size, unsigned how, int leaves) {
  unsigned count = size >= 1 << 20 ? 1 : BLOCKS;
  char *blocks[BLOCKS];
  for (unsigned i = 0; i < count; i++) {
    blocks[i] = block(how + i, size);
    memset(blocks[i], 1, how % 2 == 0 ? size : size / 3); /* the rest may never be touched */
    watch(i % MONITORS, blocks[i], size);
  }
  for (unsigned i = 0; i < count; i++) {
    size_t now = how % 4 < 2 ? size : size + size / 2;
    if (now != size) blocks[i] = realloc(blocks[i], now);
    if (blocks[i] == NULL) _exit(12);
    if (size < 1 << 20) blocks[i][size - 1] = 3; /* a fault, where it is not there */
    if (leaves) leave(i % MONITORS, blocks[i], now);
    free(blocks[i]);
  }
}

static int open_monitor(size_t m) {
  fds[m] = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  struct uffdio_api api = {UFFD_API, UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP, 0};
  return fds[m] >= 0 && ioctl(fds[m], UFFDIO_API, &api) == 0;
}

int main(int argc, char **argv) {
  int leaves = argc > 1 && strcmp(argv[1], "leave") == 0;
  page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t m = 0; m < MONITORS; m++)
    if (!open_monitor(m)) return 77;
  for (size_t m = 0; m < MONITORS; m++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, monitor, (void *)m) != 0) return 9;
  }
  alarm(50);
  for (unsigned round = 0; round < ROUNDS * SIZE_COUNT; round++) {
    large_work(SIZES[round * 7 % SIZE_COUNT], round, leaves);
    for (unsigned i = 0; i < 5; i++) {
      small_work();
      usleep(5000); /* a decay time passes in the course of it */
    }
  }
  printf("%lu and %lu events, %lu and %lu faults\n", heard[0], heard[1], faults[0], faults[1]);
  return 0;
}
