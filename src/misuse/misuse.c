#include "misuse/misuse.h"

#include <stdio.h>
#include <stdlib.h>

#include "hakmem/hakmem.h"
#include "os/os.h"
#include "os/print.h"

static const char *const found[] = {
    [HAK_VERDICT_OK] = "no misuse",
    [HAK_VERDICT_DOUBLE_FREE] = "double free: the block is already free",
    [HAK_VERDICT_NO_BLOCK_START] = "invalid free: the address is not the start of a block",
    [HAK_VERDICT_FREE_MEMORY] = "invalid or double free: the address lies in free memory",
    [HAK_VERDICT_SIZE_MISMATCH] = "sized free: the size given is not that of the block",
    [HAK_VERDICT_NO_HEAP] = "invalid heap: it is none, or it was destroyed or deleted before",
    [HAK_VERDICT_KIND_MISMATCH] = "mismatched free: malloc, new and new[] each have a free of their own",
    [HAK_VERDICT_FOREIGN] = "invalid free: no block of hakmem's is there",
    [HAK_VERDICT_OVERFLOW] = "overflow: bytes behind the block were written",
    [HAK_VERDICT_UNDERFLOW] = "underflow: bytes before the block were written",
    [HAK_VERDICT_WRITTEN_AFTER_FREE] = "use after free: the block was written after it was freed",
};

void hak_misuse_abort(hak_verdict verdict, const void *p, size_t block_size, const char *where) {
  HAK_ASSERT(verdict != HAK_VERDICT_OK && verdict < sizeof found / sizeof found[0] && where != NULL);
  char thread[32], block[40] = "";
  if (block_size != 0) snprintf(block, sizeof block, " (class %zu bytes)", block_size);
  hak_print("hakmem: %s: %p%s, seen %s [process %d, thread %d \"%s\", hakmem %s]\n", found[verdict], p, block, where, hak_os_pid(),
            hak_os_tid(), hak_os_thread_name(thread, sizeof thread), HAKMEM_VERSION_STRING);
  abort();
}

void hak_fatal(const char *what) {
  hak_print("hakmem: %s [process %d, hakmem %s]\n", what, hak_os_pid(), HAKMEM_VERSION_STRING);
  abort();
}
