// gperftools' C interface: its own headers where they are installed, so that the compiler compares what the tests take the names for.
#ifndef HAKMEM_TESTS_TCMALLOC_NAMES_H
#define HAKMEM_TESTS_TCMALLOC_NAMES_H

#include <malloc.h>
#include <stddef.h>

#include <new>

#if __has_include(<gperftools/malloc_extension_c.h>) && __has_include(<gperftools/tcmalloc.h>)
#include <gperftools/malloc_extension_c.h>
#include <gperftools/tcmalloc.h>
#endif

extern "C" {
// The ABI of the header, for builds without it; repeated declarations have to agree.
int MallocExtension_VerifyAllMemory(void);
int MallocExtension_VerifyNewMemory(const void *p);
int MallocExtension_VerifyArrayNewMemory(const void *p);
int MallocExtension_VerifyMallocMemory(const void *p);
int MallocExtension_MallocMemoryStats(int *blocks, size_t *total, int histogram[64]);
void MallocExtension_GetStats(char *buffer, int buffer_length);
int MallocExtension_GetNumericProperty(const char *property, size_t *value);
int MallocExtension_SetNumericProperty(const char *property, size_t value);
void MallocExtension_MarkThreadIdle(void);
void MallocExtension_MarkThreadBusy(void);
void MallocExtension_ReleaseToSystem(size_t num_bytes);
void MallocExtension_ReleaseFreeMemory(void);
size_t MallocExtension_GetEstimatedAllocatedSize(size_t size);
size_t MallocExtension_GetAllocatedSize(const void *p);
size_t MallocExtension_GetThreadCacheSize(void);
void MallocExtension_MarkThreadTemporarilyIdle(void);
#ifndef _MALLOC_EXTENSION_C_H_
typedef enum {
  MallocExtension_kUnknownOwnership = 0,
  MallocExtension_kOwned,
  MallocExtension_kNotOwned
} MallocExtension_Ownership;
MallocExtension_Ownership MallocExtension_GetOwnership(const void *p);
#endif
void MallocExtension_SetMemoryReleaseRate(double rate);
double MallocExtension_GetMemoryReleaseRate(void);

const char *tc_version(int *major, int *minor, const char **patch) noexcept;
void *tc_malloc(size_t size) noexcept;
void *tc_malloc_skip_new_handler(size_t size) noexcept;
void tc_free(void *p) noexcept;
void tc_free_sized(void *p, size_t size) noexcept;
void *tc_realloc(void *p, size_t size) noexcept;
void *tc_calloc(size_t count, size_t size) noexcept;
void tc_cfree(void *p) noexcept;
void *tc_memalign(size_t align, size_t size) noexcept;
int tc_posix_memalign(void **p, size_t align, size_t size) noexcept;
void *tc_valloc(size_t size) noexcept;
void *tc_pvalloc(size_t size) noexcept;
void tc_malloc_stats(void) noexcept;
int tc_mallopt(int cmd, int value) noexcept;
struct mallinfo tc_mallinfo(void) noexcept;
struct mallinfo2 tc_mallinfo2(void) noexcept;
size_t tc_malloc_size(void *p) noexcept;
int tc_set_new_mode(int flag) noexcept;
size_t tc_nallocx(size_t size, int flags);
size_t nallocx(size_t size, int flags);
void *tc_new(size_t size);
void *tc_new_nothrow(size_t size, const std::nothrow_t &) noexcept;
void tc_delete(void *p) noexcept;
void tc_delete_sized(void *p, size_t size) noexcept;
void tc_delete_nothrow(void *p, const std::nothrow_t &) noexcept;
void *tc_newarray(size_t size);
void *tc_newarray_nothrow(size_t size, const std::nothrow_t &) noexcept;
void tc_deletearray(void *p) noexcept;
void tc_deletearray_sized(void *p, size_t size) noexcept;
void tc_deletearray_nothrow(void *p, const std::nothrow_t &) noexcept;
void *tc_new_aligned(size_t size, std::align_val_t align);
void *tc_new_aligned_nothrow(size_t size, std::align_val_t align, const std::nothrow_t &) noexcept;
void tc_delete_aligned(void *p, std::align_val_t align) noexcept;
void tc_delete_sized_aligned(void *p, size_t size, std::align_val_t align) noexcept;
void tc_delete_aligned_nothrow(void *p, std::align_val_t align, const std::nothrow_t &) noexcept;
void *tc_newarray_aligned(size_t size, std::align_val_t align);
void *tc_newarray_aligned_nothrow(size_t size, std::align_val_t align, const std::nothrow_t &) noexcept;
void tc_deletearray_aligned(void *p, std::align_val_t align) noexcept;
void tc_deletearray_sized_aligned(void *p, size_t size, std::align_val_t align) noexcept;
void tc_deletearray_aligned_nothrow(void *p, std::align_val_t align, const std::nothrow_t &) noexcept;
}

#endif
