// tcmalloc's C++ MallocExtension on its C interface, so that gperftools' tests reach the C interface of a library that has no
// C++ one. Linked into the tests alone. MallocHook is not offered: its functions answer that no hook was set.
#include <gperftools/malloc_extension.h>
#include <gperftools/malloc_extension_c.h>
#include <gperftools/malloc_hook_c.h>

#include <cstdint>
#include <cstdio>

bool MallocExtension::VerifyAllMemory() { return MallocExtension_VerifyAllMemory(); }
bool MallocExtension::VerifyNewMemory(const void *p) { return MallocExtension_VerifyNewMemory(p); }
bool MallocExtension::VerifyArrayNewMemory(const void *p) { return MallocExtension_VerifyArrayNewMemory(p); }
bool MallocExtension::VerifyMallocMemory(const void *p) { return MallocExtension_VerifyMallocMemory(p); }
bool MallocExtension::MallocMemoryStats(int *blocks, size_t *total, int *histogram) {
  return MallocExtension_MallocMemoryStats(blocks, total, histogram);
}
void MallocExtension::GetStats(char *buffer, int length) { MallocExtension_GetStats(buffer, length); }
bool MallocExtension::GetNumericProperty(const char *name, size_t *value) {
  return MallocExtension_GetNumericProperty(name, value);
}
bool MallocExtension::SetNumericProperty(const char *name, size_t value) {
  return MallocExtension_SetNumericProperty(name, value);
}
void MallocExtension::MarkThreadIdle() { MallocExtension_MarkThreadIdle(); }
void MallocExtension::MarkThreadBusy() { MallocExtension_MarkThreadBusy(); }
void MallocExtension::MarkThreadTemporarilyIdle() { MallocExtension_MarkThreadTemporarilyIdle(); }
void MallocExtension::ReleaseToSystem(size_t bytes) { MallocExtension_ReleaseToSystem(bytes); }
void MallocExtension::ReleaseFreeMemory() { MallocExtension_ReleaseFreeMemory(); }
size_t MallocExtension::GetEstimatedAllocatedSize(size_t size) { return MallocExtension_GetEstimatedAllocatedSize(size); }
size_t MallocExtension::GetAllocatedSize(const void *p) { return MallocExtension_GetAllocatedSize(p); }
size_t MallocExtension::GetThreadCacheSize() { return MallocExtension_GetThreadCacheSize(); }
MallocExtension::Ownership MallocExtension::GetOwnership(const void *p) {
  return static_cast<Ownership>(MallocExtension_GetOwnership(p));
}

// Of these there is no C form.
MallocExtension::~MallocExtension() {}
void MallocExtension::GetHeapSample(MallocExtensionWriter *) {}
void MallocExtension::GetHeapGrowthStacks(MallocExtensionWriter *) {}
void MallocExtension::Ranges(void *, RangeFunction) {}
SysAllocator *MallocExtension::GetSystemAllocator() { return nullptr; }
void MallocExtension::SetSystemAllocator(SysAllocator *) {}
void MallocExtension::SetMemoryReleaseRate(double) {}
double MallocExtension::GetMemoryReleaseRate() { return 0; }
void **MallocExtension::ReadStackTraces(int *) { return nullptr; }
void **MallocExtension::ReadHeapGrowthStackTraces() { return nullptr; }
void MallocExtension::GetFreeListSizes(std::vector<FreeListInfo> *) {}
MallocExtension *MallocExtension::instance() {
  alignas(MallocExtension) static char place[sizeof(MallocExtension)];
  static MallocExtension *const made = new (place) MallocExtension;
  return made;
}

extern "C" {
int MallocHook_AddNewHook(MallocHook_NewHook) { return 0; }
int MallocHook_RemoveNewHook(MallocHook_NewHook) { return 0; }
int MallocHook_AddDeleteHook(MallocHook_DeleteHook) { return 0; }
int MallocHook_RemoveDeleteHook(MallocHook_DeleteHook) { return 0; }
MallocHook_NewHook MallocHook_SetNewHook(MallocHook_NewHook) { return nullptr; }
MallocHook_DeleteHook MallocHook_SetDeleteHook(MallocHook_DeleteHook) { return nullptr; }
int MallocHook_AddMmapHook(MallocHook_MmapHook) { return 0; }
int MallocHook_RemoveMmapHook(MallocHook_MmapHook) { return 0; }
int MallocHook_AddMunmapHook(MallocHook_MunmapHook) { return 0; }
int MallocHook_RemoveMunmapHook(MallocHook_MunmapHook) { return 0; }
int MallocHook_AddMremapHook(MallocHook_MremapHook) { return 0; }
int MallocHook_RemoveMremapHook(MallocHook_MremapHook) { return 0; }
int MallocHook_AddSbrkHook(MallocHook_SbrkHook) { return 0; }
int MallocHook_RemoveSbrkHook(MallocHook_SbrkHook) { return 0; }
}

// tcmalloc_unittest looks into tcmalloc's own functions and variables for these.
SysAllocator::~SysAllocator() {}
void *TCMalloc_SystemAlloc(size_t, size_t *, size_t) { return nullptr; }
bool TCMalloc_SystemRelease(void *, size_t) { return false; }
extern "C" size_t tc_nallocx(size_t size, int flags) __attribute__((weak));
extern "C" size_t __attribute__((weak)) nallocx(size_t size, int flags) { return tc_nallocx ? tc_nallocx(size, flags) : 0; }

// Variables of the library that tcmalloc_unittest sets.
namespace FLAG__namespace_do_not_use_directly_use_DECLARE_int64_instead {
int64_t FLAGS_tcmalloc_sample_parameter;
}
namespace FLAG__namespace_do_not_use_directly_use_DECLARE_double_instead {
double FLAGS_tcmalloc_release_rate;
}
