// What the kernel says of the mapping that an address lies in.
#ifndef HAKMEM_TESTS_MAPPING_FLAGS_H
#define HAKMEM_TESTS_MAPPING_FLAGS_H

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

// Its line VmFlags of /proc/self/smaps; "": there is none.
inline std::string flags_of(const void *p) {
  std::ifstream file("/proc/self/smaps");
  bool covers = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t from, to;
    char dash;
    std::istringstream head(line);
    if (line.rfind("VmFlags:", 0) == 0 && covers) return line + " ";
    if (head >> std::hex >> from >> dash && dash == '-' && head >> to)
      covers = from <= reinterpret_cast<uintptr_t>(p) && reinterpret_cast<uintptr_t>(p) < to;
  }
  return "";
}

#endif
