/* Texts of labels (hakmem_label_name): by number, for what profiles write. Under the profile's lock. */
#ifndef HAK_PROFILE_LABELS_H
#define HAK_PROFILE_LABELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAK_LABEL_TEXT_MAX 255

typedef struct hak_label_name {
  uint32_t next; /* of the same hash bucket; place in the table, 0: none */
  uint32_t room; /* bytes of the text, with its end */
  uint64_t label;
  char text[];
} hak_label_name;

/* In place of an earlier one. False: no memory. The text has at most HAK_LABEL_TEXT_MAX bytes. */
bool hak_label_set_name_locked(uint64_t label, const char *text);
/* NULL: it has none. */
const char *hak_label_name_locked(uint64_t label);
/* The next name from *place on, which is 0 at first; NULL: no more. */
const hak_label_name *hak_label_next_locked(size_t *place);

/* Memory of the names, from its beginning on. */
const void *hak_labels_memory_locked(size_t *bytes);

#endif
