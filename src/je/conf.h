/* jemalloc's settings as this process has them: what mallctl shows as opt.*. Written once, at the start. */
#ifndef HAK_JE_CONF_H
#define HAK_JE_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef bool hak_conf_BOOL;
typedef unsigned hak_conf_UNSIGNED;
typedef size_t hak_conf_SIZE;
typedef ssize_t hak_conf_SSIZE;
typedef uint64_t hak_conf_U64;
typedef int64_t hak_conf_I64;
typedef const char *hak_conf_STRING;

struct hak_je_conf {
#define CONF(kind, name, initial) hak_conf_##kind name;
#include "je/conf.def"
};
extern struct hak_je_conf hak_je_conf;

/* Reads malloc_conf, /etc/malloc.conf and MALLOC_CONF. Called once, before the first block is served. */
void hak_je_conf_read(void);

#endif
