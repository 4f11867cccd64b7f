/* What is mapped into the process, as the kernel tells. Nothing allocates, and no lock is taken. */
#ifndef HAK_OS_MAPPINGS_H
#define HAK_OS_MAPPINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Calls line(context, text) for each line of the file of mappings, without its end; lines longer than a path are
 * cut. */
void hak_each_mapping(void (*line)(void *context, char *text), void *context);

typedef struct hak_mapping {
  uintptr_t start, end;
  size_t offset; /* of the file */
  char rights[4];  /* as "r-xp" */
  const char *file; /* its device and number, and its path behind; "": none */
  const char *path;
} hak_mapping;
/* Takes a line apart, which it points into. False: it is none. */
bool hak_mapping_parse(const char *line, hak_mapping *mapping);

/* The build identifier of the module that begins there, in hexadecimal digits; "": it has none, or its memory cannot be
 * read. memory: a descriptor of /proc/self/mem: a module that another thread unmaps meanwhile cannot be read, and is no
 * fault. */
#define HAK_BUILD_ID_TEXT 129
void hak_build_id(int memory, uintptr_t start, char text[HAK_BUILD_ID_TEXT]);

#endif
