#include "je/conf.h"

struct hak_je_conf hak_je_conf = {
#define CONF(kind, name, initial) .name = initial,
#include "je/conf.def"
};

void hak_je_conf_read(void) {}
