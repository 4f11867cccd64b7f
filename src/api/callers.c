/* dl_iterate_phdr */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "api/callers.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"

hak_callers hak_program_code, hak_libc_code;
hak_family hak_program_family = HAK_FAMILY_ANY;

/* The entries of an object's dynamic section that are needed; NULL: there is none. */
typedef struct dynamic {
  const ElfW(Sym) *symbols;
  const char *names;
  const uint32_t *hash, *gnu_hash;
} dynamic;

static dynamic dynamic_of(const struct dl_phdr_info *object) {
  dynamic d = {0};
  const ElfW(Dyn) *entry = NULL;
  for (unsigned i = 0; i < object->dlpi_phnum; i++) {
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  }
  for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
    uintptr_t at = entry->d_un.d_ptr;
    if (at < object->dlpi_addr) at += object->dlpi_addr; /* not every loader relocates these */
    if (entry->d_tag == DT_SYMTAB) d.symbols = (const ElfW(Sym) *)at;
    if (entry->d_tag == DT_STRTAB) d.names = (const char *)at;
    if (entry->d_tag == DT_HASH) d.hash = (const uint32_t *)at;
    if (entry->d_tag == DT_GNU_HASH) d.gnu_hash = (const uint32_t *)at;
  }
  return d;
}

/* Whether the object takes operator new, and operator delete, from outside. What is undefined stands before what GNU's table hashes. */
static bool imports_operators(const struct dl_phdr_info *object) {
  dynamic d = dynamic_of(object);
  if (d.symbols == NULL || d.names == NULL || (d.hash == NULL && d.gnu_hash == NULL)) return false;
  size_t count = d.gnu_hash != NULL ? d.gnu_hash[1] : d.hash[1];
  bool takes_new = false, takes_delete = false;
  for (size_t i = 1; i < count; i++) {
    if (d.symbols[i].st_shndx != SHN_UNDEF) continue;
    const char *name = d.names + d.symbols[i].st_name;
    takes_new |= strncmp(name, "_Znw", 4) == 0 || strncmp(name, "_Zna", 4) == 0;
    takes_delete |= strncmp(name, "_Zdl", 4) == 0 || strncmp(name, "_Zda", 4) == 0;
  }
  return takes_new && takes_delete;
}

static hak_callers extent_of(const struct dl_phdr_info *object) {
  uintptr_t start = UINTPTR_MAX, end = 0;
  for (unsigned i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *h = &object->dlpi_phdr[i];
    if (h->p_type != PT_LOAD || (h->p_flags & PF_X) == 0) continue;
    uintptr_t from = object->dlpi_addr + h->p_vaddr;
    start = hak_min_size(start, from);
    end = hak_max_size(end, from + h->p_memsz);
  }
  return end > start ? (hak_callers){start, end - start} : (hak_callers){0, 0};
}

static bool contains(hak_callers object, uintptr_t address) { return address - object.start < object.bytes; }

static int look(struct dl_phdr_info *object, size_t size, void *number) {
  (void)size;
  bool is_program = (*(unsigned *)number)++ == 0;
  hak_callers extent = extent_of(object);
  bool has_us = contains(extent, (uintptr_t)look); /* linked into it: its operators are ours */
  if (is_program) {
    hak_program_family = has_us || imports_operators(object) ? HAK_FAMILY_MALLOC : HAK_FAMILY_ANY;
    hak_program_code = extent;
  } else if (contains(extent, (uintptr_t)qsort)) {
    hak_libc_code = extent;
  }
  return 0;
}

void hak_callers_start(void) {
  unsigned number = 0;
  dl_iterate_phdr(look, &number);
}
