/* The walk. For each frame it finds the rule that gives the caller's registers from the present ones: in the cache, or
 * from the module's call frame information. Nothing that a rule points at is read before it is known to be readable.
 *
 * The cache is keyed by instruction and module, and knows no lock. An entry is two words, its rule and a check over
 * both key and rule. A reader that meets halves of two writes, or an entry of another key, sees a check that does not
 * fit and does the work again. One word of 64 bits keeps them apart; were it to fail once, a walk would read wrong,
 * though readable, words. Entries never expire: two contents of the same addresses have two keys, see identify(). */
#include "profile/unwind.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <sys/auxv.h>

#include "os/os.h"
#include "profile/cfi.h"

#define STACK_BYTES_MAX ((uintptr_t)8 << 20) /* what is kept as readable, and how far a register may lead */
#define FRAME_BYTES_MAX ((uintptr_t)1 << 20) /* on other stacks */
#define RED_ZONE_BYTES 128
#define MODULES_MAX 128
#define CACHE_BITS 12

/* On what reads words of other functions' frames. */
#define READS_FRAMES __attribute__((no_sanitize("address")))

typedef struct module {
  uintptr_t start, end;
  const uint8_t *eh_frame_hdr; /* NULL: none */
  uint64_t identity;           /* 0: not known, so that no rule of the module is kept */
} module;

typedef struct walk {
  hak_registers now;
  bool exact; /* pc was interrupted; else it is a return address, which may be the next function's first byte */
  uintptr_t readable, readable_end;
  uintptr_t code_page; /* readable too; 0: none yet */
  module module;       /* that pc was in last */
} walk;

/* What a rule makes of the registers. */
typedef struct frame {
  uintptr_t cfa;
  uintptr_t saved[HAK_REGISTER_SP]; /* the addresses where the caller's values are; 0: in the register */
} frame;

/* --- what may be read --- */

/* How many pages below the top of a stack can be read, and at which one there was a page that cannot (0: none). What
 * lies between the stack pointer and the top is mapped for as long as the thread runs on it, so it is asked for
 * once. */
typedef struct extent {
  uint16_t pages, hole;
} extent;

/* Of the first thread: where its stack ends, its thread pointer; written once */
static uintptr_t main_top, main_pointer;
static extent main_extent; /* written by the first thread alone */
static HAK_TLS extent thread_extent;

/* Whether all between the stack pointer and `top` can be read. A page that cannot shows that this is another stack,
 * below. */
static bool all_readable(extent *known, uintptr_t sp, uintptr_t top) {
  uintptr_t pages = (top - hak_align_down(sp, HAK_PAGE_LEAST)) / HAK_PAGE_LEAST;
  if (known->hole != 0 && pages >= known->hole) return false;
  while (known->pages < pages) {
    uint16_t next = (uint16_t)(known->pages + 1);
    if (!hak_os_is_readable((const uint32_t *)(top - next * HAK_PAGE_LEAST))) {
      known->hole = next;
      return false;
    }
    known->pages = next;
  }
  return true;
}

/* glibc and musl put the control block of each further thread above its stack. */
static void enter_stack(walk *w) {
  uintptr_t sp = w->now.at[HAK_REGISTER_SP], pointer = (uintptr_t)hak_thread_pointer();
  uintptr_t thread_top = pointer == main_pointer ? 0 : hak_align_up(pointer, HAK_PAGE_LEAST), top = 0;
  if (main_top - sp < STACK_BYTES_MAX && all_readable(&main_extent, sp, main_top))
    top = main_top;
  else if (thread_top - sp < STACK_BYTES_MAX && all_readable(&thread_extent, sp, thread_top))
    top = thread_top;
  w->readable = top == 0 ? 0 : hak_align_down(sp, HAK_PAGE_LEAST);
  w->readable_end = top;
}

READS_FRAMES static bool read_word(walk *w, uintptr_t address, uintptr_t *value) {
  if (address % sizeof *value != 0) return false;
  if (HAK_UNLIKELY(address - w->readable >= w->readable_end - w->readable)) {
    if (address - (w->now.at[HAK_REGISTER_SP] - RED_ZONE_BYTES) >= FRAME_BYTES_MAX ||
        !hak_os_is_readable((const uint32_t *)address))
      return false;
    uintptr_t page = hak_align_down(address, HAK_PAGE_LEAST);
    if (page != w->readable_end) w->readable = page;
    w->readable_end = page + HAK_PAGE_LEAST;
  }
  *value = *(const uintptr_t *)address;
  return true;
}

static bool code_readable(walk *w, uintptr_t first, uintptr_t last) {
  if (last < first) return false;
  for (uintptr_t page = hak_align_down(first, HAK_PAGE_LEAST); page <= last; page += HAK_PAGE_LEAST) {
    if ((page == 0 || page != w->code_page) && !hak_os_is_readable((const uint32_t *)page)) return false;
    w->code_page = page;
  }
  return true;
}

/* --- modules --- */

/* glibc 2.35 and later: without a lock, in signal handlers too. The type has the public fields, and room for more. */
typedef struct found {
  uint64_t flags;
  uintptr_t start, end;
  void *link_map;
  const uint8_t *eh_frame_hdr;
  uint64_t reserved[9];
} found;
extern int find_object(uintptr_t address, found *out) __asm__("_dl_find_object") __attribute__((weak));

/* Elsewhere those of the start. They stay: neither musl nor older glibc unloads what was there before main. */
static module start_modules[MODULES_MAX];
static unsigned start_module_count;
static uintptr_t program_entry;

static uint64_t mix(uint64_t x) {
  x *= UINT64_C(0x9e3779b97f4a7c15);
  return (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
}

/* The build id is in a note, which linkers put behind the program headers at the beginning. 0: not there. */
static uint64_t build_id(const module *m) {
  const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)m->start;
  if (memcmp(header, ELFMAG, SELFMAG) != 0 || header->e_phoff != sizeof *header || header->e_phnum > 48) return 0;
  const uint32_t *word = (const uint32_t *)((const ElfW(Phdr) *)(header + 1) + header->e_phnum);
  const uint32_t *end = word + 96; /* still in the first 4 KiB */
  for (; word < end; word++) {
    /* lengths of name and content, type, name */
    if (word[0] != 4 || word[1] < 8 || word[2] != NT_GNU_BUILD_ID || memcmp(&word[3], "GNU", 4) != 0) continue;
    return mix(word[4] | (uint64_t)word[5] << 32) + (word[1] >= 16 ? mix(word[6] | (uint64_t)word[7] << 32) : 0);
  }
  return 0;
}

/* A library that was closed may have left its addresses to another one, or to another build of itself, which a program
 * that loads its parts anew makes often. So rules are kept for modules that tell who they are, and for the two that
 * stay. */
static void identify(module *m) {
  bool stays = program_entry - m->start < m->end - m->start || (uintptr_t)&hak_unwind - m->start < m->end - m->start;
  uint64_t id = stays ? 1 : build_id(m);
  m->identity = id == 0 ? 0 : mix(mix(m->start) + (uintptr_t)m->eh_frame_hdr) ^ id;
}

/* A frame of the module is on this stack, so it stays loaded during the walk. */
static void enter_module(module *m, uintptr_t pc) {
  if (pc - m->start < m->end - m->start) return;
  *m = (module){0};
  found f;
  if (find_object != NULL && find_object(pc, &f) == 0) {
    *m = (module){.start = f.start, .end = f.end, .eh_frame_hdr = f.eh_frame_hdr};
    identify(m);
  }
  for (unsigned i = 0; i < start_module_count; i++) {
    if (pc - start_modules[i].start < start_modules[i].end - start_modules[i].start) *m = start_modules[i];
  }
}

static int note_module(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size, (void)context;
  module m = {.start = UINTPTR_MAX};
  for (unsigned i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) m.eh_frame_hdr = (const uint8_t *)start;
    if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
    if (start < m.start) m.start = start;
    if (start + part->p_memsz > m.end) m.end = start + part->p_memsz;
  }
  m.identity = mix(mix(m.start)); /* they stay */
  if (m.start < m.end) start_modules[start_module_count++] = m;
  return start_module_count == MODULES_MAX;
}

void hak_unwind_note_main(void) {
  program_entry = getauxval(AT_ENTRY);
  /* The kernel puts these bytes above the first thread's stack. */
  main_top = hak_align_up(getauxval(AT_RANDOM), HAK_PAGE_LEAST);
  main_pointer = (uintptr_t)hak_thread_pointer();
}

void hak_unwind_start(void) {
  static uint32_t begun;
  if (hak_exchange_acquire(&begun, 1) != 0) return;
  if (main_pointer == 0) hak_unwind_note_main();
  if (find_object == NULL && start_module_count == 0) dl_iterate_phdr(note_module, NULL);
  uintptr_t pc;
  hak_unwind(&pc, 1); /* so that libc's function is bound now, where that is done by the first call */
}

/* --- rules --- */

/* What to do with a frame, in 64 bits: the lowest three say what the CFA is measured from, a register + 1, or one of
 * those below. Then, in words, 14 bits for each register, how far below the CFA it is saved (0: not), and 19 for the
 * CFA's offset. */
enum { RULE_NONE, RULE_END = HAK_REGISTERS + 1, RULE_FRAME_POINTER, RULE_SIGNAL };
#define PLACE_BITS 14
#define CFA_SHIFT (3 + PLACE_BITS * HAK_REGISTER_SP)

static uint64_t pack(const hak_cfi_row *row) {
  int64_t cfa = row->cfa_offset / 8;
  if (row->saved[HAK_REGISTER_RA].kind == HAK_CFI_LOST) return RULE_END;
  if (row->cfa_expression != NULL || row->cfa_register == HAK_REGISTERS || row->cfa_offset % 8 != 0) return RULE_NONE;
  uint64_t rule = (row->cfa_register + 1) | (uint64_t)cfa << CFA_SHIFT;
  if ((int64_t)rule >> CFA_SHIFT != cfa) return RULE_NONE;
  for (unsigned i = 0; i < HAK_REGISTER_SP; i++) {
    const hak_cfi_place *place = &row->saved[i];
    if (place->kind == HAK_CFI_EXPRESSION) return RULE_NONE;
    if (place->kind != HAK_CFI_OFFSET) continue;
    int64_t words = -(int64_t)place->offset / 8;
    if (place->offset % 8 != 0 || words <= 0 || words >= 1 << PLACE_BITS) return RULE_NONE;
    rule |= (uint64_t)words << (3 + PLACE_BITS * i);
  }
  return rule;
}

static void apply(const walk *w, uint64_t rule, frame *f) {
  f->cfa = w->now.at[(rule & 7) - 1] + (uintptr_t)((int64_t)rule >> CFA_SHIFT) * 8;
  for (unsigned i = 0; i < HAK_REGISTER_SP; i++) {
    uint64_t words = rule >> (3 + PLACE_BITS * i) & ((1 << PLACE_BITS) - 1);
    f->saved[i] = words == 0 ? 0 : f->cfa - words * 8;
  }
}

static struct {
  uint64_t check, rule; /* relaxed */
} cache[1 << CACHE_BITS];

static uint64_t key_of(const module *m, uintptr_t pc) { return (pc ^ m->identity) * UINT64_C(0x9e3779b97f4a7c15); }
static uint64_t check_of(uint64_t key, uint64_t rule) { return key ^ rule * UINT64_C(0xc2b2ae3d27d4eb4f); }

static uint64_t kept_rule(uint64_t key) {
  uint64_t rule = hak_load_relaxed(&cache[key >> (64 - CACHE_BITS)].rule);
  return hak_load_relaxed(&cache[key >> (64 - CACHE_BITS)].check) == check_of(key, rule) ? rule : RULE_NONE;
}

static void keep_rule(uint64_t key, uint64_t rule) {
  hak_store_relaxed(&cache[key >> (64 - CACHE_BITS)].rule, rule);
  hak_store_relaxed(&cache[key >> (64 - CACHE_BITS)].check, check_of(key, rule));
}

/* --- expressions --- */

#define DEPTH_MAX 8

/* The operators that call frame information has: of procedure linkage tables, and of functions that align their
 * stack. */
static bool evaluate(walk *w, const uint8_t *p, uintptr_t *cfa, uintptr_t *result) {
  uintptr_t stack[DEPTH_MAX + 1];
  unsigned depth = 0;
  if (cfa != NULL) stack[depth++] = *cfa;
  uint64_t bytes = hak_cfi_uleb(&p);
  for (const uint8_t *end = p + bytes; p < end;) {
    uint8_t op = *p++;
    if (op >= 0x30 && op < 0x50) { /* lit */
      stack[depth++] = op - 0x30u;
    } else if (op >= 0x70 && op < 0x90) { /* breg */
      unsigned reg = hak_register_of_dwarf(op - 0x70u);
      if (reg == HAK_REGISTERS) return false;
      stack[depth++] = w->now.at[reg] + (uintptr_t)hak_cfi_sleb(&p);
    } else if (depth > 0 && op == 0x06) { /* deref */
      if (!read_word(w, stack[depth - 1], &stack[depth - 1])) return false;
    } else if (depth > 0 && op == 0x23) { /* plus_uconst */
      stack[depth - 1] += hak_cfi_uleb(&p);
    } else if (depth > 1) {
      uintptr_t right = stack[--depth], *left = &stack[depth - 1];
      switch (op) {
        case 0x1a: *left &= right; break;
        case 0x22: *left += right; break;
        case 0x24: *left = right < 64 ? *left << right : 0; break;
        case 0x2a: *left = (intptr_t)*left >= (intptr_t)right; break;
        default: return false;
      }
    } else {
      return false;
    }
    if (depth > DEPTH_MAX) return false;
  }
  if (depth == 0) return false;
  *result = stack[depth - 1];
  HAK_ASSERT(depth <= DEPTH_MAX);
  return true;
}

static bool apply_row(walk *w, const hak_cfi_row *row, frame *f) {
  if (row->cfa_expression != NULL) {
    if (!evaluate(w, row->cfa_expression, NULL, &f->cfa)) return false;
  } else {
    if (row->cfa_register == HAK_REGISTERS) return false;
    f->cfa = w->now.at[row->cfa_register] + (uintptr_t)(intptr_t)row->cfa_offset;
  }
  for (unsigned i = 0; i < HAK_REGISTER_SP; i++) {
    const hak_cfi_place *place = &row->saved[i];
    f->saved[i] = place->kind == HAK_CFI_OFFSET ? f->cfa + (uintptr_t)(intptr_t)place->offset : 0;
    if (place->kind == HAK_CFI_EXPRESSION && !evaluate(w, place->expression, &f->cfa, &f->saved[i])) return false;
  }
  return true;
}

/* --- steps --- */

static bool enter_caller(walk *w, const frame *f) {
  /* A function that was interrupted before it used its stack may have nothing there. */
  if (f->cfa <= w->now.at[HAK_REGISTER_SP] && !(w->exact && f->cfa == w->now.at[HAK_REGISTER_SP])) return false;
  for (unsigned i = 0; i < HAK_REGISTER_SP; i++) {
    if (f->saved[i] != 0 && !read_word(w, f->saved[i], &w->now.at[i])) return false;
  }
  w->now.pc = w->now.at[HAK_REGISTER_RA] = hak_without_signature(w->now.at[HAK_REGISTER_RA]);
  w->now.at[HAK_REGISTER_SP] = f->cfa;
  w->exact = false;
  return w->now.pc != 0;
}

/* Of code that says nothing of itself. It may use the frame pointer for something else: the caller has to look like
 * one. */
static bool enter_caller_by_frame_pointer(walk *w) {
  uintptr_t fp = w->now.at[HAK_REGISTER_FP];
  frame f = {.cfa = fp + 16, .saved = {[HAK_REGISTER_FP] = fp, [HAK_REGISTER_RA] = fp + 8}};
  w->now.at[HAK_REGISTER_OTHER] = 0; /* not known from here on */
  if (fp < w->now.at[HAK_REGISTER_SP] || !enter_caller(w, &f)) return false;
  return code_readable(w, w->now.pc - HAK_CALL_BYTES, w->now.pc - 1) &&
         hak_follows_call((const unsigned char *)w->now.pc);
}

static bool enter_interrupted(walk *w) {
  static const uint16_t offsets[HAK_REGISTERS + 1] = HAK_SIGRETURN_OFFSETS;
  uintptr_t sp = w->now.at[HAK_REGISTER_SP];
  hak_registers interrupted;
  for (unsigned i = 0; i < HAK_REGISTERS; i++) {
    if (!read_word(w, sp + offsets[i], &interrupted.at[i])) return false;
  }
  if (!read_word(w, sp + offsets[HAK_REGISTERS], &interrupted.pc)) return false;
  w->now = interrupted;
  w->exact = true;
  enter_stack(w); /* the handler may have had one of its own */
  return true;
}

/* For a place that no rule is kept for. RULE_NONE: none can be; `f` has what the row gives this time, a CFA of 0 where
 * that is nothing. */
static HAK_COLD uint64_t find_rule(walk *w, uintptr_t pc, frame *f) {
  hak_cfi_row row;
  enum hak_cfi_found kind =
      w->module.eh_frame_hdr == NULL ? HAK_CFI_NONE : hak_cfi_find(w->module.eh_frame_hdr, pc, &row);
  if (kind == HAK_CFI_ROW) {
    uint64_t rule = pack(&row);
    if (rule == RULE_NONE && !apply_row(w, &row, f)) f->cfa = 0;
    return rule;
  }
  bool signal =
      code_readable(w, w->now.pc, w->now.pc + HAK_SIGRETURN_BYTES - 1) && hak_is_sigreturn((const void *)w->now.pc);
  return signal ? RULE_SIGNAL : kind == HAK_CFI_SIGNAL ? RULE_END : RULE_FRAME_POINTER;
}

/* False: there is no caller, or none that can be found. */
static bool step(walk *w) {
  uintptr_t pc = w->exact ? w->now.pc : w->now.pc - 1;
  enter_module(&w->module, pc);
  frame f;
  uint64_t key = key_of(&w->module, pc), rule = w->module.identity == 0 ? RULE_NONE : kept_rule(key);
  if (HAK_UNLIKELY(rule == RULE_NONE)) {
    rule = find_rule(w, pc, &f);
    if (rule == RULE_NONE) return enter_caller(w, &f);
    if (w->module.identity != 0) keep_rule(key, rule);
  }
  switch (rule & 7) {
    case RULE_END: return false;
    case RULE_FRAME_POINTER: return enter_caller_by_frame_pointer(w);
    case RULE_SIGNAL: return enter_interrupted(w);
    default: apply(w, rule, &f); return enter_caller(w, &f);
  }
}

HAK_NOINLINE unsigned hak_unwind(uintptr_t *pcs, unsigned capacity) {
  walk w = {.exact = true};
  hak_registers_capture(&w.now);
  enter_stack(&w);
  unsigned n = 0;
  if (!step(&w)) return 0;
  while (n < capacity && step(&w)) pcs[n++] = w.now.pc + w.exact;
  return n;
}
