// A few functions without call frame information, as a just-in-time compiler makes them.
#ifndef HAKMEM_TESTS_MACHINE_CODE_H
#define HAKMEM_TESTS_MACHINE_CODE_H

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

using called = void(void *);

// f(argument) from a frame with a frame pointer.
using with_frame_pointer = void(called *f, void *argument);
// The same from a frame without one; meanwhile the frame pointer holds `garbage`.
using with_garbage = void(called *f, void *argument, uintptr_t garbage);

struct MachineCode {
  static constexpr size_t BYTES = 4096;
  unsigned char *memory;

  MachineCode() {
#if defined(__x86_64__)
    static const unsigned char framed[] = {0x55,              // push %rbp
                                           0x48, 0x89, 0xe5,  // mov %rsp,%rbp
                                           0x48, 0x89, 0xf8,  // mov %rdi,%rax
                                           0x48, 0x89, 0xf7,  // mov %rsi,%rdi
                                           0xff, 0xd0,        // call *%rax
                                           0x5d, 0xc3};       // pop %rbp; ret
    static const unsigned char garbled[] = {0x55,              // push %rbp
                                            0x48, 0x89, 0xd5,  // mov %rdx,%rbp
                                            0x48, 0x89, 0xf8,  // mov %rdi,%rax
                                            0x48, 0x89, 0xf7,  // mov %rsi,%rdi
                                            0xff, 0xd0,        // call *%rax
                                            0x5d, 0xc3};       // pop %rbp; ret
#elif defined(__aarch64__)
    static const uint32_t framed[] = {0xa9bf7bfd,   // stp x29, x30, [sp, #-16]!
                                      0x910003fd,   // mov x29, sp
                                      0xaa0003e9,   // mov x9, x0
                                      0xaa0103e0,   // mov x0, x1
                                      0xd63f0120,   // blr x9
                                      0xa8c17bfd,   // ldp x29, x30, [sp], #16
                                      0xd65f03c0};  // ret
    static const uint32_t garbled[] = {0xa9bf7bfd,   // stp x29, x30, [sp, #-16]!
                                       0xaa0203fd,   // mov x29, x2
                                       0xaa0003e9,   // mov x9, x0
                                       0xaa0103e0,   // mov x0, x1
                                       0xd63f0120,   // blr x9
                                       0xa8c17bfd,   // ldp x29, x30, [sp], #16
                                       0xd65f03c0};  // ret
#endif
    memory = static_cast<unsigned char *>(mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memcpy(memory, framed, sizeof framed);
    memcpy(memory + BYTES / 2, garbled, sizeof garbled);
    mprotect(memory, BYTES, PROT_READ | PROT_EXEC);
    __builtin___clear_cache(reinterpret_cast<char *>(memory), reinterpret_cast<char *>(memory + BYTES));
  }
  ~MachineCode() { munmap(memory, BYTES); }

  with_frame_pointer *framed() const { return reinterpret_cast<with_frame_pointer *>(memory); }
  with_garbage *garbled() const { return reinterpret_cast<with_garbage *>(memory + BYTES / 2); }
  bool has(uintptr_t pc) const { return pc - reinterpret_cast<uintptr_t>(memory) < BYTES; }
};

#endif
