/* Maps through libc, which a sanitizer watches: so it knows that memory which the allocator maps is not the one that was at its addresses
 * before, such as the stack of a thread that has ended. */
#include <errno.h>
#include <sys/mman.h>

#include "os/os.h"

static void *map(void *hint, size_t size, hak_os_access access, bool fixed) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (fixed ? MAP_FIXED : 0) | (access == HAK_OS_RESERVED ? MAP_NORESERVE : 0);
  void *p = mmap(hint, size, access == HAK_OS_ACCESSIBLE ? PROT_READ | PROT_WRITE : PROT_NONE, flags, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static int unmap(void *addr, size_t size) { return munmap(addr, size) == 0 ? 0 : errno; }

static struct hak_os_ops ops;

__attribute__((constructor)) static void start(void) {
  ops = hak_os_linux;
  ops.map = map;
  ops.unmap = ops.unmap_own = unmap;
  hak_os = &ops;
}
