// Calls that report and change nothing, and calls with pointers that are not ours.
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "calls.h"
#include "finding.h"
#include "hak.h"
#include "hakmem/stats.h"

namespace {

bool is_mapped(uintptr_t address) {
  unsigned char resident;
  size_t page = hak_os_page_size();
  return mincore(reinterpret_cast<void *>(address / page * page), 1, &resident) == 0 || errno != ENOMEM;
}

}  // namespace

void Calls::query_sizes() {
  size_t size = input_.size(), good = hakmem_good_size(size);
  if (good < size && (good != 0 || size <= PTRDIFF_MAX - HAK_SPAN_SIZE)) finding("good_size(%zu) is %zu", size, good);
  if (size > PTRDIFF_MAX && good != 0) finding("good_size(%zu) is %zu", size, good);
  if (hakmem_malloc_usable_size(nullptr) != 0) finding("usable size of NULL");
  if (hakmem_is_ours(nullptr)) finding("NULL is ours");
}

void Calls::query_block() {
  if (shadow_.count() == 0) return;
  const Block &b = shadow_.at(pick());
  if (b.shared) return;
  verify(b);
  size_t usable = with_errno([&] { return hakmem_malloc_usable_size(b.p); });
  expect_errno("malloc_usable_size", kErrno);
  if (usable != b.usable) finding("usable size of %p was %zu, is %zu", static_cast<void *>(b.p), b.usable, usable);
  if (!hakmem_is_ours(b.p + input_.number(3) % std::max(b.usable, size_t{1}))) finding("%p is not ours", static_cast<void *>(b.p));
}

void Calls::query_totals() {
  size_t huge_count = 0, huge_bytes = 0, bytes = 0;
  bool in_region = false;
  for (size_t i = 0; i < shadow_.count(); i++) {
    const Block &b = shadow_.at(i);
    if (b.shared) return;
    bytes += b.usable;
    in_region = in_region || hak_region_find(b.p) != nullptr;
    if (hak_region_find(b.p) != nullptr || hak_sample_contains(b.p) || hak_block_size(b.p) == 0) continue; /* the last: of no bytes */
    huge_count++;
    huge_bytes += hak_block_size(b.p);
  }
  struct mallinfo2 m = hakmem_mallinfo2();
  if (m.hblks != huge_count || m.hblkhd != huge_bytes)
    finding("mallinfo2: %zu huge blocks of %zu bytes, not %zu of %zu", m.hblks, m.hblkhd, huge_count, huge_bytes);
  /* A block that was freed twice is cached twice. */
  if (!misused() && m.uordblks + m.hblkhd < bytes)
    finding("mallinfo2: %zu bytes handed out, at least %zu are", m.uordblks + m.hblkhd, bytes);
  if (m.uordblks + m.fordblks != m.arena) finding("mallinfo2: %zu in use and %zu free of %zu", m.uordblks, m.fordblks, m.arena);
  struct mallinfo old = hakmem_mallinfo();
  if (old.hblks != static_cast<int>(huge_count)) finding("mallinfo: %d huge blocks", old.hblks);
  if (hakmem_served() == 0 && in_region) finding("nothing was served");
}

void Calls::query_options() {
  static const int known[] = {M_MXFAST, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD,
                              M_MMAP_MAX, M_PERTURB, M_ARENA_MAX};
  if (hakmem_mallopt(known[input_.byte() % 7], static_cast<int>(input_.number(4))) != 1) finding("mallopt refused");
  if (hakmem_mallopt(1000 + input_.byte(), 0) != 0) finding("mallopt took a parameter that does not exist");
  int64_t value = -1, wanted = input_.byte() % 2;
  if (hakmem_option_set("HAKMEM_SS_OS_STATS", wanted) != 0 || hakmem_option_get("HAKMEM_SS_OS_STATS", &value) != 0 ||
      value != wanted)
    finding("a live option does not keep what it is set to");
  hakmem_option_set("HAKMEM_SS_OS_STATS", 0);
  if (hakmem_option_set("HAKMEM_SS_OS_STATS", 2) != EINVAL) finding("an option took a value out of range");
  if (hakmem_option_set("HAKMEM_RESERVE_MB", 16) != EBUSY) finding("an option that is read at start was set later");
  if (process_ == OWN) hakmem_option_set("HAKMEM_EXTERNAL_GUARD_LOG", input_.byte() % 2); /* nobody else reads it */
  char name[8] = {};
  for (char &c : name) c = static_cast<char>(input_.byte());
  name[0] = '?'; /* no option begins so */
  name[7] = '\0';
  size_t options = hakmem_option_list(nullptr, nullptr), stop_at = 1 + input_.byte() % options;
  auto count_down = [](const hakmem_option *option, void *left) {
    int64_t now;
    if (!option->text && (hakmem_option_get(option->name, &now) != 0 || now != option->number))
      finding("option %s is listed with another value", option->name);
    return --*static_cast<size_t *>(left) > 0;
  };
  size_t left = stop_at, visited = hakmem_option_list(count_down, &left);
  if (visited != stop_at) finding("%zu options visited, asked to stop after %zu", visited, stop_at);
  if (hakmem_option_get(name, &value) != EINVAL || hakmem_option_set(name, 1) != EINVAL)
    finding("there is an option \"%s\"", name);
  if (std::strcmp(hakmem_version(), HAKMEM_VERSION_STRING) != 0) finding("version %s", hakmem_version());
}

/* The sums of include/hakmem/stats.h, and what the blocks that the program holds say themselves. */
void Calls::query_figures() {
  hakmem_stats s;
  if (hakmem_stats_get(&s, sizeof s) != 0) finding("no figures");
  const struct {
    const char *what;
    uint64_t sum, parts;
  } sums[] = {
      {"accessible", s.accessible, s.spans + s.huge_live + s.huge_heaps + s.huge_kept + s.sampled_accessible + s.own},
      {"live", s.live, s.slab_live + s.extents + s.huge_live + s.sampled_live + s.heaps_live},
      {"spans", s.spans, s.slabs + s.extents + s.extents_cached + s.span_heaps + s.free_dirty + s.free_clean + s.claimed + s.guards},
      {"heaps", s.heaps_held, s.span_heaps + s.huge_heaps},
      {"slabs", s.slabs, s.slab_handed_out + s.slab_free + s.slab_never_allocated + s.slab_rest},
      {"handed out", s.slab_handed_out, s.slab_live + s.slab_cached + s.slab_depots},
      {"own", s.own, s.own_metadata + s.own_tables + s.own_other},
  };
  for (const auto &sum : sums)
    if (sum.sum != sum.parts) finding("figures: %s is %zu, its parts are %zu", sum.what, sum.sum, sum.parts);
  if (s.slab_purged > s.slab_free) finding("figures: %zu bytes purged in slabs, %zu free in them", s.slab_purged, s.slab_free);
  hakmem_class_stats rows[128];
  size_t count = hakmem_stats_classes(rows, 128);
  if (count == 0 || count > 128) finding("figures: %zu classes", count);
  for (size_t c = 0; c < count; c++) {
    const hakmem_class_stats &row = rows[c];
    if (row.slab_bytes != row.handed_out + row.free + row.never_allocated + row.rest ||
        row.handed_out != row.live + row.cached + row.depots)
      finding("figures: the sums of blocks of %zu bytes", size_t{row.block_size});
  }
  if (misused()) return;
  uint64_t in_slabs = 0;
  for (size_t i = 0; i < shadow_.count(); i++)
    if (is_from_slab(shadow_.at(i).p)) in_slabs += hak_block_size(shadow_.at(i).p);
  /* What other threads cache is what they published at their last slow paths. */
  if (s.caches_used > (hak_tls.cache != nullptr)) return;
  /* Hardened, what is in quarantine counts as live. */
  if (s.slab_live < in_slabs || (!HAK_HARD(QUARANTINE) && s.slab_live != in_slabs))
    finding("figures: %zu bytes live in slabs, the program holds %zu", s.slab_live, in_slabs);
}

/* Reports go where nobody reads them. */
void Calls::print_reports() {
  char *text = nullptr;
  size_t length = 0;
  FILE *stream = open_memstream(&text, &length);
  if (stream == nullptr) return;
  if (hakmem_malloc_info(1, stream) != EINVAL) finding("malloc_info took options");
  if (hakmem_malloc_info(0, stream) != 0) finding("malloc_info failed");
  fclose(stream);
  if (std::strncmp(text, "<malloc version=", 16) != 0) finding("malloc_info wrote %.60s", text);
  std::free(text);
  int kept = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (kept >= 0 && nowhere >= 0) {
    dup2(nowhere, STDERR_FILENO);
    hakmem_malloc_stats();
    dup2(kept, STDERR_FILENO);
  }
  if (kept >= 0) close(kept);
  if (nowhere >= 0) close(nowhere);
}

/* Left alone and counted, each of them, by every call that takes a pointer. Hardened, each is misuse. */
void Calls::pass_foreign() {
  if (HAK_HARDENED) return;
  static char fixed[64];
  char local[64];
  std::unique_ptr<char[]> others(new char[64]);
  uint8_t which = input_.byte(), how = input_.byte();
  uintptr_t end_of_region = hak_main_region.base + hak_main_region.reserved_bytes;
  uintptr_t before_region = hak_main_region.base - 16;
  const uintptr_t addresses[] = {reinterpret_cast<uintptr_t>(fixed),
                                 reinterpret_cast<uintptr_t>(local),
                                 reinterpret_cast<uintptr_t>(others.get()),
                                 1 + input_.number(1),
                                 input_.number(3) << 12 | 8,
                                 UINT64_C(0xdead) << 48 | input_.number(4),
                                 UINTPTR_MAX - input_.number(2),
                                 end_of_region - 64,
                                 before_region};
  uintptr_t address = addresses[which % (sizeof addresses / sizeof *addresses)] + how / 8 % 4;
  void *p = reinterpret_cast<void *>(address);
  /* What is mapped there may be a freed huge block that is kept. */
  if (address - before_region < 16 && is_mapped(address)) return;
  if (address == 0 || hak_huge_ask(p).verdict == HAK_VERDICT_NO_BLOCK_START) return;
  if (hak_region_find(p) != nullptr || shadow_.around(p) != nullptr) return;
  uint64_t before = hak_foreign_total();
  void *moved = nullptr;
  size_t usable = 0;
  with_errno([&] {
    if (how % 8 < 4) hakmem_free(p);
    else if (how % 8 == 4) hakmem_free_sized(p, how);
    else if (how % 8 == 5) usable = hakmem_malloc_usable_size(p);
    else if (how % 8 == 6) moved = hakmem_realloc(p, how);
    else moved = hakmem_reallocarray(p, how, which % 3);
    return 0;
  });
  expect_errno("a call with a pointer that is not ours", how % 8 >= 6 ? EINVAL : kErrno);
  if (moved != nullptr || usable != 0) finding("%p is not ours: moved to %p, %zu bytes", p, moved, usable);
  if (hak_foreign_total() != before + 1) finding("%p is not ours and was not counted", p);
  if (hakmem_is_ours(p)) finding("%p is ours", p);
}

void Calls::check_heap(const char *when) {
  if (misused()) return; /* a block with two owners is a fault */
  size_t faults = hakmem_heap_check();
  if (faults != 0) finding("%zu faults in the heap %s", faults, when);
}
