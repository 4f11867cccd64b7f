/* Hardened build: whether all operators new and delete of the process are known. */
#include "harden/harden.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "os/gnu_hash.h"
#include "os/os.h"

/* What is needed of an object's dynamic section. */
typedef struct dynamic {
  const ElfW(Sym) *symbols;
  const char *names;
  const uint32_t *hash, *gnu_hash;
} dynamic;

static dynamic dynamic_of(const struct dl_phdr_info *object) {
  dynamic d = {0};
  const ElfW(Dyn) *entry = NULL;
  for (unsigned i = 0; i < object->dlpi_phnum; i++) {
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
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

static size_t symbol_count(const dynamic *d) {
  return d->hash != NULL ? d->hash[1] : hak_os_gnu_hash_symbols(d->gnu_hash);
}

static bool begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

static bool is_new(const char *name) { return begins(name, "_Znw") || begins(name, "_Zna"); }
static bool is_delete(const char *name) { return begins(name, "_Zdl") || begins(name, "_Zda"); }
static bool is_malloc(const char *name) {
  static const char *const names[] = {"malloc",         "calloc",   "realloc", "aligned_alloc",
                                      "posix_memalign", "memalign", "free"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(name, names[i]) == 0) return true;
  }
  return false;
}

static bool may_hide_operators(const struct dl_phdr_info *object) {
  dynamic d = dynamic_of(object);
  if (d.symbols == NULL || d.names == NULL || (d.hash == NULL && d.gnu_hash == NULL)) return false;
  bool takes_new = false, takes_delete = false, takes_malloc = false, defines = false;
  for (size_t i = 1, count = symbol_count(&d); i < count; i++) {
    const char *name = d.names + d.symbols[i].st_name;
    bool outside = d.symbols[i].st_shndx == SHN_UNDEF;
    takes_new |= outside && is_new(name);
    takes_delete |= outside && is_delete(name);
    takes_malloc |= outside && is_malloc(name);
    defines |= !outside && (is_new(name) || is_delete(name));
  }
  return defines || (takes_malloc && !(takes_new && takes_delete));
}

/* The C++ runtime's own operators are bound to ours, and gcc's support library is written in C. */
static bool is_runtime(const char *path) {
  const char *name = strrchr(path, '/');
  name = name == NULL ? path : name + 1;
  return begins(name, "libstdc++.so") || begins(name, "libc++.so") || begins(name, "libgcc_s.so");
}

static bool is_ours(const struct dl_phdr_info *object) {
  for (unsigned i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *h = &object->dlpi_phdr[i];
    if (h->p_type == PT_LOAD && (uintptr_t)is_ours - (object->dlpi_addr + h->p_vaddr) < h->p_memsz) return true;
  }
  return false;
}

static int look(struct dl_phdr_info *object, size_t size, void *unused) {
  (void)size, (void)unused;
  return object->dlpi_subs > 0 || (!is_ours(object) && !is_runtime(object->dlpi_name) && may_hide_operators(object));
}

bool hak_operators_known(void) {
  static bool unknown; /* relaxed; for good */
  if (hak_load_relaxed(&unknown)) return false;
  if (dl_iterate_phdr(look, NULL) == 0) return true;
  hak_store_relaxed(&unknown, true);
  return false;
}
