/* Call frame information (.eh_frame): how a function's caller is found, for each of its instructions. Reads the
 * sections of loaded modules and nothing else. No state, no allocation, no lock. */
#ifndef HAK_PROFILE_CFI_H
#define HAK_PROFILE_CFI_H

#include <stdbool.h>
#include <stdint.h>

#include "os/stack.h"

/* Where the caller's value of a register is. */
enum hak_cfi_kind {
  HAK_CFI_SAME,       /* still in the register */
  HAK_CFI_OFFSET,     /* on the stack, `offset` bytes from the canonical frame address (CFA) */
  HAK_CFI_EXPRESSION, /* at the address that the expression gives */
  HAK_CFI_LOST,       /* nowhere, or where the walk does not look. Of the return address: there is no caller */
};

typedef struct hak_cfi_place {
  enum hak_cfi_kind kind;
  int32_t offset;
  const uint8_t *expression; /* DWARF: its length, then its operators */
} hak_cfi_place;

/* The CFA is the caller's stack pointer: the value of a register and an offset, or what an expression gives. */
typedef struct hak_cfi_row {
  const uint8_t *cfa_expression; /* NULL: none */
  int32_t cfa_offset;
  unsigned cfa_register; /* HAK_REGISTERS: one that is not followed */
  hak_cfi_place saved[HAK_REGISTER_SP];
} hak_cfi_row;

enum hak_cfi_found {
  HAK_CFI_NONE,   /* nothing covers the instruction, or something this cannot read does */
  HAK_CFI_ROW,
  HAK_CFI_SIGNAL, /* the instruction belongs to libc's return from a signal handler; there is no row */
};
enum hak_cfi_found hak_cfi_find(const uint8_t *eh_frame_hdr, uintptr_t pc, hak_cfi_row *row);

uint64_t hak_cfi_uleb(const uint8_t **p);
int64_t hak_cfi_sleb(const uint8_t **p);

#endif
