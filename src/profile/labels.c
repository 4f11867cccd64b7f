#include "profile/profile.h"

#include <string.h>

#include "os/os.h"

#define TABLE_BYTES (16 * HAK_MIB) /* of address space */
#define GROW_BYTES (64 * HAK_KIB)
#define BUCKETS 1024
#define FIRST_PLACE (BUCKETS * sizeof(uint32_t))

/* The buckets, and names one behind the other. A name that has no room for its new text leaves its bucket and stays,
 * with label 0. */
static char *table;
static size_t used, ready;

static bool make_room(size_t bytes) {
  if (table == NULL) {
    table = hak_os_reserve(TABLE_BYTES, hak_os_page_size());
    if (table == NULL) return false;
    hak_os_leave_out_of_dumps(table, TABLE_BYTES);
    hak_os_name(table, TABLE_BYTES, HAK_NAME_TABLES);
    used = FIRST_PLACE;
  }
  while (used + bytes > ready) {
    if (ready + GROW_BYTES > TABLE_BYTES || !hak_os_commit(table + ready, GROW_BYTES)) return false;
    hak_os_put_into_dumps(table + ready, GROW_BYTES);
    ready += GROW_BYTES;
  }
  return true;
}

static uint32_t *bucket_of(uint64_t label) { return (uint32_t *)table + (label * 0x9e3779b97f4a7c15u >> 32) % BUCKETS; }

static hak_label_name *name_at(uint32_t place) { return place == 0 ? NULL : (hak_label_name *)(table + place); }

/* The link to it; a link to nothing where there is none. */
static uint32_t *link_to(uint64_t label) {
  uint32_t *link = bucket_of(label);
  while (*link != 0 && name_at(*link)->label != label) link = &name_at(*link)->next;
  return link;
}

bool hak_label_set_name_locked(uint64_t label, const char *text) {
  size_t length = strlen(text) + 1, bytes = hak_align_up(sizeof(hak_label_name) + length, 16);
  HAK_ASSERT(label != 0 && length <= HAK_LABEL_TEXT_MAX + 1);
  hak_assert_held(&hak_profile_lock);
  if (!make_room(bytes)) return false;
  uint32_t *link = link_to(label);
  hak_label_name *n = name_at(*link);
  if (n == NULL || n->room < length) {
    if (n != NULL) {
      *link = n->next;
      n->label = 0;
    }
    n = (hak_label_name *)(table + used);
    uint32_t *bucket = bucket_of(label);
    *n = (hak_label_name){.next = *bucket, .room = (uint32_t)(bytes - sizeof *n), .label = label};
    *bucket = (uint32_t)used;
    used += bytes;
  }
  memcpy(n->text, text, length);
  return true;
}

const char *hak_label_name_locked(uint64_t label) {
  hak_assert_held(&hak_profile_lock);
  hak_label_name *n = ready == 0 ? NULL : name_at(*link_to(label));
  return n == NULL ? NULL : n->text;
}

const hak_label_name *hak_label_next_locked(size_t *place) {
  size_t at = *place == 0 ? FIRST_PLACE : *place;
  while (at < used) {
    const hak_label_name *n = (const hak_label_name *)(table + at);
    at += sizeof *n + n->room;
    *place = at;
    if (n->label != 0) return n;
  }
  return NULL;
}

const void *hak_labels_memory_locked(size_t *bytes) {
  *bytes = ready;
  return table;
}
