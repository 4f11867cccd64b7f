// A tree of made-up /proc and cgroup files, which the allocator reads in place of the system's while this lives.
#ifndef HAKMEM_TESTS_FAKE_FILES_H
#define HAKMEM_TESTS_FAKE_FILES_H

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "hak.h"

class FakeFiles {
 public:
  FakeFiles() {
    char name[] = "/tmp/hakmem-files-XXXXXX";
    if (mkdtemp(name) == nullptr) abort();
    root_ = name;
    hak_os_files_root = root_.c_str();
  }
  ~FakeFiles() {
    hak_os_files_root = "";
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  FakeFiles(const FakeFiles &) = delete;
  FakeFiles &operator=(const FakeFiles &) = delete;

  void write(const std::string &path, const std::string &text) {
    std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void remove(const std::string &path) { std::filesystem::remove(root_ + path); }
  // As much of /proc/thread-self/statm as there is on Linux. So many of the bytes are pages of files.
  void set_resident(size_t bytes, size_t of_files = 0) {
    size_t page = hak_os_page_size();
    write("/proc/thread-self/statm",
          "999999 " + std::to_string(bytes / page) + " " + std::to_string(of_files / page) + " 45 0 678 0\n");
  }

 private:
  std::string root_;
};

#endif
