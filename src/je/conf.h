/* jemalloc's settings as this process has them: what mallctl shows as opt.*. Written once, at the start. */
#ifndef HAK_JE_CONF_H
#define HAK_JE_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/print.h"

typedef bool hak_conf_BOOL;
typedef unsigned hak_conf_UNSIGNED;
typedef size_t hak_conf_SIZE;
typedef ptrdiff_t hak_conf_SSIZE;
typedef uint64_t hak_conf_U64;
typedef int64_t hak_conf_I64;
typedef const char *hak_conf_STRING;

struct hak_je_conf {
#define CONF(kind, name, initial) hak_conf_##kind name;
#include "je/conf.def"
};
extern struct hak_je_conf hak_je_conf;

/* Reads malloc_conf, /etc/malloc.conf and MALLOC_CONF, the later ones above the earlier, and sets hakmem's options by them. Called once, before the
 * core reads its own settings, which are above these. */
void hak_je_conf_read(char **variables);
/* The core has: what opt.* shows is what holds. */
void hak_je_conf_settle(void);
/* Where something is to be written at exit, keeps the place (at_exit.c). */
void hak_je_at_exit_start(void);
/* In jemalloc's form, for malloc_message. */
void hak_je_say(const char *format, ...) HAK_PRINTF(1, 2);

/* Writes the file of opt.prof_final; false: there is to be none (ctl_prof.c). */
bool hak_je_prof_final(void);

extern void (*malloc_message)(void *context, const char *text);

#endif
