// What the kernel says of mappings.
#ifndef HAKMEM_TESTS_MAPPING_FLAGS_H
#define HAKMEM_TESTS_MAPPING_FLAGS_H

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

// The lines VmFlags of /proc/self/smaps of all mappings that have a byte of the range, each with a blank at its end.
inline std::string flags_of(const void *from, const void *to) {
  std::ifstream file("/proc/self/smaps");
  std::string found;
  bool overlaps = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t start, end;
    char dash;
    std::istringstream head(line);
    if (line.rfind("VmFlags:", 0) == 0 && overlaps) found += line + " ";
    if (head >> std::hex >> start >> dash && dash == '-' && head >> end)
      overlaps = start < reinterpret_cast<uintptr_t>(to) && end > reinterpret_cast<uintptr_t>(from);
  }
  return found;
}
inline std::string flags_of(const void *p) { return flags_of(p, static_cast<const char *>(p) + 1); }

#endif
