#include "input.h"

#include "hak.h"

namespace {

// Where arithmetic on sizes goes wrong: around the largest object, the largest number, and powers of two.
size_t extreme_size(uint8_t kind, uint8_t detail) {
  switch (kind % 4) {
    case 0:
      return SIZE_MAX - detail;
    case 1:
      return PTRDIFF_MAX - static_cast<size_t>(detail) * 1024;
    case 2:
      return static_cast<size_t>(PTRDIFF_MAX) + 1 + detail;
    default:
      return (size_t{1} << (27 + detail % 37)) - kind / 4;
  }
}

}  // namespace

uint64_t Input::number(unsigned bytes) {
  uint64_t n = 0;
  for (unsigned i = 0; i < bytes; i++) n = n << 8 | byte();
  return n;
}

size_t Input::size() {
  uint8_t kind = byte();
  switch (kind % 16) {
    case 0:
      return kind / 16 % 2;
    case 1:
    case 2:
    case 3:
    case 4:
      return byte();
    case 5:
    case 6:
      return number(2) % 1025;
    case 7:
    case 8:
      return number(2) % (HAK_SMALL_MAX + 1);
    case 9:
    case 10:
      return hak_class_size(byte() % HAK_CLASS_COUNT) + kind / 16 % 3 - 1;
    case 11:
    case 12:
      return HAK_SMALL_MAX + 1 + number(3) % HAK_MIB; /* the runs that a heap keeps for its next ones */
    case 13:
      return number(3) % (4 * HAK_MIB);
    case 14:
      return HAK_EXTENT_MAX - 2 * HAK_MIB + number(3) % (4 * HAK_MIB); /* the largest runs and the smallest huge blocks */
    default:
      return extreme_size(kind / 16, byte());
  }
}

size_t Input::alignment() {
  uint8_t kind = byte();
  if (kind < 96) return size_t{16} << kind % 6; /* where the classes change their layout */
  if (kind < 160) return size_t{1} << kind % 17;
  if (kind < 208) return size_t{1} << (17 + kind % 12);
  if (kind < 224) return size_t{1} << (29 + kind % 35);
  return number(1 + kind % 8);
}
