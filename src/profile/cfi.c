#include "profile/cfi.h"

#include <stddef.h>
#include <string.h>

/* Encodings of pointers (DW_EH_PE_…). */
#define FORMAT 0x0f
#define UDATA4 0x03
#define SDATA4 0x0b
#define PC_RELATIVE 0x10
#define DATA_RELATIVE 0x30

#define REMEMBERED_MAX 4 /* compilers nest one deep */

/* --- numbers --- */

static uint64_t fixed(const uint8_t **p, size_t bytes) {
  uint64_t value = 0;
  memcpy(&value, *p, bytes); /* little-endian, as all that this runs on */
  *p += bytes;
  return value;
}

uint64_t hak_cfi_uleb(const uint8_t **p) {
  uint64_t value = 0;
  uint8_t byte;
  unsigned shift = 0;
  do {
    byte = *(*p)++;
    if (shift < 64) value |= (uint64_t)(byte & 0x7f) << shift;
    shift += 7;
  } while ((byte & 0x80) != 0);
  return value;
}

int64_t hak_cfi_sleb(const uint8_t **p) {
  const uint8_t *begin = *p;
  uint64_t value = hak_cfi_uleb(p);
  unsigned bits = 7 * (unsigned)(*p - begin);
  if (bits < 64 && ((*p)[-1] & 0x40) != 0) value |= ~(uint64_t)0 << bits;
  return (int64_t)value;
}

/* False: an encoding that linkers do not write here. */
static bool pointer(const uint8_t **p, uint8_t encoding, uintptr_t *value) {
  uintptr_t base = (encoding & 0xf0) == PC_RELATIVE ? (uintptr_t)*p : 0;
  if ((encoding & 0xf0) != PC_RELATIVE && (encoding & 0xf0) != 0) return false;
  switch (encoding & FORMAT) {
    case UDATA4: *value = base + fixed(p, 4); return true;
    case SDATA4: *value = base + (uintptr_t)(intptr_t)(int32_t)fixed(p, 4); return true;
    case 0x00: case 0x04: case 0x0c: *value = base + fixed(p, 8); return true; /* of 8 bytes, signed or not */
    default: return false;
  }
}

/* --- what is common to functions, and what each has --- */

/* A common information entry (CIE). */
typedef struct common {
  const uint8_t *instructions, *end;
  uint64_t code_align;
  int64_t data_align;
  uint8_t encoding;
  bool augmented, signal;
} common;

static bool read_common(const uint8_t *p, common *c) {
  uint32_t length = (uint32_t)fixed(&p, 4);
  *c = (common){.end = p + length};
  uint32_t id = (uint32_t)fixed(&p, 4);
  uint8_t version = *p++;
  if (length == 0 || length == UINT32_MAX || id != 0 || (version != 1 && version != 3)) return false;
  const char *letters = (const char *)p;
  while (*p++ != '\0') continue;
  c->code_align = hak_cfi_uleb(&p);
  c->data_align = hak_cfi_sleb(&p);
  hak_cfi_uleb(&p); /* the column of the return address: always HAK_REGISTER_RA. Below 128, in version 1 too */
  if (*letters != 'z') return (c->instructions = p, *letters == '\0');
  uint64_t bytes = hak_cfi_uleb(&p);
  c->augmented = true;
  c->instructions = p + bytes;
  for (letters++; *letters != '\0'; letters++) {
    uintptr_t personality;
    switch (*letters) {
      case 'R': c->encoding = *p++; break;
      case 'L': p++; break;
      case 'S': c->signal = true; break;
      case 'P': {
        uint8_t encoding = *p++ & 0x7f; /* without the bit for "where the pointer is" */
        if (!pointer(&p, encoding, &personality)) return false;
        break;
      }
      case 'B': case 'G': break; /* aarch64: how return addresses are signed, and memory tagged */
      default: return false;
    }
  }
  return true;
}

/* The frame description entry (FDE) of the last function that begins at or below pc: by the table that linkers write,
 * sorted pairs of 32 bits, relative to its header. */
static const uint8_t *find_description(const uint8_t *header, uintptr_t pc) {
  static const uint8_t usual[4] = {1, PC_RELATIVE | SDATA4, UDATA4, DATA_RELATIVE | SDATA4};
  if (memcmp(header, usual, sizeof usual) != 0) return NULL;
  uint32_t count;
  memcpy(&count, header + 8, sizeof count);
  const int32_t(*table)[2] = (const int32_t(*)[2])(const void *)(header + 12);
  intptr_t wanted = (intptr_t)(pc - (uintptr_t)header);
  size_t below = 0, end = count; /* entries known to begin at or below pc; the first known to begin above */
  while (below < end) {
    size_t middle = below + (end - below) / 2;
    if (table[middle][0] <= wanted)
      below = middle + 1;
    else
      end = middle;
  }
  return below == 0 ? NULL : header + table[below - 1][1];
}

/* --- instructions --- */

typedef struct machine {
  const common *common;
  uintptr_t location, pc;
  hak_cfi_row *row;
  hak_cfi_row initial; /* after the CIE's instructions, for DW_CFA_restore */
  hak_cfi_row remembered[REMEMBERED_MAX];
  unsigned remembered_count;
} machine;

static void set(machine *m, uint64_t reg, enum hak_cfi_kind kind, int64_t offset, const uint8_t *expression) {
  unsigned i = hak_register_of_dwarf(reg);
  if (i >= HAK_REGISTER_SP) return;
  if (offset != (int32_t)offset) kind = HAK_CFI_LOST;
  m->row->saved[i] = (hak_cfi_place){kind, (int32_t)offset, expression};
}

static void restore(machine *m, uint64_t reg) {
  unsigned i = hak_register_of_dwarf(reg);
  if (i < HAK_REGISTER_SP) m->row->saved[i] = m->initial.saved[i];
}

static void set_cfa(machine *m, unsigned reg, int64_t offset) {
  m->row->cfa_expression = NULL;
  m->row->cfa_register = offset == (int32_t)offset ? reg : HAK_REGISTERS;
  m->row->cfa_offset = (int32_t)offset;
}

static const uint8_t *skip_block(const uint8_t **p) {
  const uint8_t *block = *p;
  uint64_t bytes = hak_cfi_uleb(p);
  *p += bytes;
  return block;
}

/* Instructions whose first operand is a register. */
#define OP(number) ((uint64_t)1 << (number))
#define OF_REGISTERS \
  (OP(0x05) | OP(0x06) | OP(0x07) | OP(0x08) | OP(0x09) | OP(0x0c) | OP(0x0d) | OP(0x10) | OP(0x11) | OP(0x12) | \
   OP(0x14) | OP(0x15) | OP(0x16) | OP(0x2f))

/* All but those that advance the location, and those with an operand in their first byte. False: an unknown one. */
static bool run_other(machine *m, uint8_t op, const uint8_t **p) {
  int64_t align = m->common->data_align;
  hak_cfi_row *row = m->row;
  uint64_t reg = op < 0x40 && (OF_REGISTERS >> op & 1) != 0 ? hak_cfi_uleb(p) : 0;
  switch (op) {
    case 0x05: set(m, reg, HAK_CFI_OFFSET, (int64_t)hak_cfi_uleb(p) * align, NULL); break;
    case 0x06: restore(m, reg); break;
    case 0x07: set(m, reg, HAK_CFI_LOST, 0, NULL); break;
    case 0x08: set(m, reg, HAK_CFI_SAME, 0, NULL); break;
    case 0x09: case 0x14: case 0x15: /* register, val_offset, val_offset_sf */
      hak_cfi_uleb(p);
      set(m, reg, HAK_CFI_LOST, 0, NULL);
      break;
    case 0x0a: /* remember_state */
      if (m->remembered_count == REMEMBERED_MAX) return false;
      m->remembered[m->remembered_count++] = *row;
      break;
    case 0x0b: /* restore_state */
      if (m->remembered_count == 0) return false;
      *row = m->remembered[--m->remembered_count];
      break;
    case 0x0c: set_cfa(m, hak_register_of_dwarf(reg), (int64_t)hak_cfi_uleb(p)); break;
    case 0x0d: set_cfa(m, hak_register_of_dwarf(reg), row->cfa_offset); break;
    case 0x0e: set_cfa(m, row->cfa_register, (int64_t)hak_cfi_uleb(p)); break;
    case 0x0f: row->cfa_expression = skip_block(p); break;
    case 0x10: set(m, reg, HAK_CFI_EXPRESSION, 0, skip_block(p)); break;
    case 0x11: set(m, reg, HAK_CFI_OFFSET, hak_cfi_sleb(p) * align, NULL); break;
    case 0x12: set_cfa(m, hak_register_of_dwarf(reg), hak_cfi_sleb(p) * align); break;
    case 0x13: set_cfa(m, row->cfa_register, hak_cfi_sleb(p) * align); break;
    case 0x16: set(m, reg, HAK_CFI_LOST, 0, skip_block(p)); break; /* val_expression */
    case 0x2d: break; /* aarch64's negate_ra_state: the signature is taken off anyway */
    case 0x2e: hak_cfi_uleb(p); break; /* GNU_args_size */
    case 0x2f: set(m, reg, HAK_CFI_OFFSET, -(int64_t)hak_cfi_uleb(p) * align, NULL); break;
    default: return false;
  }
  return true;
}

/* Until the location is beyond pc. */
static bool run(machine *m, const uint8_t *p, const uint8_t *end) {
  while (p < end && m->location <= m->pc) {
    uint8_t op = *p++, low = op & 0x3f;
    switch (op >> 6) {
      case 1: m->location += low * m->common->code_align; continue;
      case 2: set(m, low, HAK_CFI_OFFSET, (int64_t)hak_cfi_uleb(&p) * m->common->data_align, NULL); continue;
      case 3: restore(m, low); continue;
    }
    switch (op) {
      case 0x00: break;
      case 0x01: if (!pointer(&p, m->common->encoding, &m->location)) return false; break;
      case 0x02: m->location += fixed(&p, 1) * m->common->code_align; break;
      case 0x03: m->location += fixed(&p, 2) * m->common->code_align; break;
      case 0x04: m->location += fixed(&p, 4) * m->common->code_align; break;
      default: if (!run_other(m, op, &p)) return false;
    }
  }
  return true;
}

enum hak_cfi_found hak_cfi_find(const uint8_t *eh_frame_hdr, uintptr_t pc, hak_cfi_row *row) {
  const uint8_t *p = find_description(eh_frame_hdr, pc);
  if (p == NULL) return HAK_CFI_NONE;
  uint32_t length = (uint32_t)fixed(&p, 4);
  const uint8_t *end = p + length;
  if (length == 0 || length == UINT32_MAX) return HAK_CFI_NONE;
  common c;
  const uint8_t *cie = p; /* so many bytes below this very number */
  cie -= fixed(&p, 4);
  uintptr_t begin, bytes;
  if (!read_common(cie, &c) || !pointer(&p, c.encoding, &begin) || !pointer(&p, c.encoding & FORMAT, &bytes))
    return HAK_CFI_NONE;
  if (pc - begin >= bytes) return HAK_CFI_NONE;
  if (c.signal) return HAK_CFI_SIGNAL;
  if (c.augmented) skip_block(&p);
  *row = (hak_cfi_row){.cfa_register = HAK_REGISTERS};
  machine m = {.common = &c, .pc = pc, .row = row};
  if (!run(&m, c.instructions, c.end)) return HAK_CFI_NONE;
  m.initial = *row;
  m.location = begin;
  return run(&m, p, end) ? HAK_CFI_ROW : HAK_CFI_NONE;
}
