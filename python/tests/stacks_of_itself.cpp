// Writes a heap profile of itself as the library would: its own stacks, its own mappings, and
// figures that are known. Arguments: the file, and the bytes of the larger place. The empty asm
// statements keep each call from becoming a jump, and so in the stack.
#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace shop {

std::string stacks;

// A Rust function's name, in the newer and the older scheme.
extern "C" void rust_new(long bytes, long count) __asm__("_RNvNtCs1234_7mycrate3foo3bar");
extern "C" void rust_old(long bytes, long count)
    __asm__("_ZN7mycrate5cache4fill17h0123456789abcdefE");

__attribute__((noinline)) void note(long bytes, long count) {
    void *pcs[64];
    int depth = backtrace(pcs, 64);
    std::string text = stacks.empty() ? "{\"pcs\":[" : ",{\"pcs\":[";
    // Without this function, as the library's stacks are without its own.
    for (int i = 1; i < depth; i++)
        text += (i > 1 ? "," : "") + std::to_string(reinterpret_cast<unsigned long>(pcs[i]));
    std::string b = std::to_string(bytes), c = std::to_string(count);
    text += "],\"live\":[" + b + "," + c + ",1000000," + c + "],\"total\":[" + b + "," + c + ",1000000,"
        + c + "],\"peak\":[" + b + "," + c + "],\"pinned\":" + b
        + ",\"age_ms\":[1,2],\"freed\":[0,0,0,0,0,0,0]}";
    stacks += text;
    asm volatile("");
}

struct Cache {
    __attribute__((always_inline)) inline void inlined(long bytes) { note(bytes, 10); asm volatile(""); }
    __attribute__((noinline)) void fill(long bytes) { inlined(bytes); asm volatile(""); }
};

__attribute__((noinline)) static void hidden(long bytes) {
    Cache cache;
    // A compiler that splits functions has this elsewhere.
    if (bytes < 0) throw std::string(64, 'x');
    cache.fill(bytes);
    asm volatile("");
}

void rust_new(long bytes, long count) { note(bytes, count); asm volatile(""); }
void rust_old(long bytes, long count) { note(bytes, count); asm volatile(""); }

}  // namespace shop


int main(int argc, char **argv) {
    long larger = argc > 2 ? atol(argv[2]) : 8000000;
    shop::hidden(larger);
    shop::rust_new(300000, 3);
    shop::rust_old(200000, 2);
    std::string maps, line;
    std::ifstream own("/proc/self/maps");
    while (std::getline(own, line))
        if (line.find('/') != std::string::npos || line.find('x') != std::string::npos)
            maps += (maps.empty() ? "\"" : ",\"") + line + "\"";
    char program[4096] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) return 1;
    std::FILE *file = std::fopen(argv[1], "w");
    if (file == nullptr) return 1;
    std::string sum = std::to_string(larger + 500000);
    std::fprintf(file,
        "{\"hakmem_heap_profile\":1,\"version\":\"0.1.0\",\"pid\":%d,\"program\":\"%s\",\"rate\":524288,"
        "\"started_ms\":4000000000000,\"taken_ms\":4000000001000,"
        "\"samples\":{\"taken\":15,\"live\":15,\"dropped\":0,\"stacks_dropped\":0,\"own_bytes\":4096},"
        "\"live\":{\"bytes\":%s,\"count\":15,\"bytes_variance\":3000000,\"count_variance\":15},"
        "\"total\":{\"bytes\":%s,\"count\":15,\"bytes_variance\":3000000,\"count_variance\":15},"
        "\"peak\":{\"bytes\":%s,\"count\":15,\"at_ms\":500},\"timeline\":[[0,0],[500,%s]],"
        "\"lifetime_bounds_ms\":[1,10,100,1000,10000,100000],\"stacks\":[%s],\"maps\":[%s]}\n",
        static_cast<int>(getpid()), program, sum.c_str(), sum.c_str(), sum.c_str(), sum.c_str(),
        shop::stacks.c_str(), maps.c_str());
    return std::fclose(file);
}
