/* replay FOLDER…: runs a harness over the stored inputs, each once, without libFuzzer and sanitizers: what the allocator itself
 * answers is still compared with the shadow. */
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int main(int argc, char **argv) {
  unsigned inputs = 0;
  for (int i = 1; i < argc; i++) {
    for (const auto &entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      std::vector<char> input{std::istreambuf_iterator<char>(file), {}};
      std::printf("%s\n", entry.path().filename().c_str());
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(input.data()), input.size());
      inputs++;
    }
  }
  std::printf("%u inputs\n", inputs);
  return inputs == 0;
}
