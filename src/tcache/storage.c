/* What threads find their caches by: thread-local storage, the magazine that all start with, and the list of caches. */
#include "tcache/tcache.h"

void *const hak_null_magazine[HAK_MAGAZINE_SLOTS] HAK_ALIGNED(HAK_MAGAZINE_BYTES);

HAK_TLS hak_thread hak_tls = {.top = {[0 ... HAK_CODES - 1] = HAK_NULL_TOP}};

hak_tcache *hak_tcache_latest;
