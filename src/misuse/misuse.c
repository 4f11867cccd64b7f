#include "misuse/misuse.h"

#include <stdio.h>
#include <stdlib.h>

#include "hakmem/hakmem.h"
#include "os/os.h"
#include "os/print.h"

#define FOUND(name, text) [HAK_VERDICT_##name] = text,
static const char *const found[] = {HAK_VERDICTS(FOUND)};

void hak_misuse_abort(hak_verdict verdict, const void *p, size_t block_size, const char *where) {
  HAK_ASSERT(verdict != HAK_VERDICT_OK && verdict < sizeof found / sizeof found[0] && where != NULL);
  char thread[32], block[40] = "";
  if (block_size != 0) snprintf(block, sizeof block, " (class %zu bytes)", block_size);
  hak_print("hakmem: %s: %p%s, seen %s [process %d, thread %d \"%s\", hakmem %s]\n", found[verdict], p, block, where,
            hak_os_pid(), hak_os_tid(), hak_os_thread_name(thread, sizeof thread), HAKMEM_VERSION_STRING);
  abort();
}

void hak_fatal(const char *what) {
  hak_print("hakmem: %s [process %d, hakmem %s]\n", what, hak_os_pid(), HAKMEM_VERSION_STRING);
  abort();
}
