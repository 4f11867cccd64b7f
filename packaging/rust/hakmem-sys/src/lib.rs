#![doc = include_str!("../README.md")]
#![no_std]
#![allow(non_camel_case_types)]
#![warn(missing_docs)]

use core::ffi::c_void;
use core::marker::{PhantomData, PhantomPinned};

/// C's `int`.
pub type c_int = i32;
/// C's `unsigned`.
pub type c_uint = u32;
/// C's `char`.
#[cfg(target_arch = "x86_64")]
pub type c_char = i8;
/// C's `char`.
#[cfg(not(target_arch = "x86_64"))]
pub type c_char = u8;

/// Called when the process stays above its target although all free memory has been given back: resident bytes, target
/// in bytes, and the context that was registered with it. A panic must not leave it.
pub type hakmem_pressure_callback = unsafe extern "C" fn(resident: usize, target: usize, context: *mut c_void);

/// Called for one option. A panic must not leave it.
pub type hakmem_option_visit = unsafe extern "C" fn(option: *const hakmem_option, context: *mut c_void) -> bool;

/// Takes a piece of a profile. Returns 0, or an errno value that ends it. A panic must not leave it.
pub type hakmem_profile_take = unsafe extern "C" fn(context: *mut c_void, data: *const c_void, bytes: usize) -> c_int;

/// A heap of `hakmem_heap_new`.
#[repr(C)]
pub struct hakmem_heap {
    nothing: [u8; 0],
    neither_sent_nor_moved: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Called in the thread whose request takes the live bytes of a heap to the share of its limit: the heap, these bytes, and the
/// context that was registered with it. A panic must not leave it.
pub type hakmem_heap_callback = unsafe extern "C" fn(heap: *mut hakmem_heap, live: usize, context: *mut c_void);

/// Called for one block with its usable size; false ends the walk. It must neither allocate nor free in the heap, nor must a panic
/// leave it.
pub type hakmem_heap_visit_block = unsafe extern "C" fn(block: *mut c_void, size: usize, context: *mut c_void) -> bool;

/// Called for one heap; false ends the walk. A panic must not leave it.
pub type hakmem_heap_visit_heap = unsafe extern "C" fn(heap: *mut hakmem_heap, context: *mut c_void) -> bool;

/// No free block of the heap stays in a thread's cache.
pub const HAKMEM_HEAP_UNCACHED: c_uint = 1;

/// The pages are resident, and stay until they are used.
pub const HAKMEM_RESERVE_POPULATE: c_uint = 1;
/// Of huge pages, where there are any.
pub const HAKMEM_RESERVE_HUGE: c_uint = 2;

/// The option has its default.
pub const HAKMEM_ORIGIN_DEFAULT: c_int = 0;
/// Another option has set it, such as HAKMEM_PROFILE.
pub const HAKMEM_ORIGIN_IMPLIED: c_int = 1;
/// The environment has set it.
pub const HAKMEM_ORIGIN_ENVIRONMENT: c_int = 2;
/// hakmem_option_set has set it.
pub const HAKMEM_ORIGIN_API: c_int = 3;
/// The program's hakmem_conf has set it.
pub const HAKMEM_ORIGIN_PROGRAM: c_int = 4;

/// One option. Strings end by a zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hakmem_option {
    /// With HAKMEM_.
    pub name: *const c_char,
    /// Now, as the variable is written. Valid during the call alone.
    pub value: *const c_char,
    /// The default, so written. Valid during the call alone.
    pub initial: *const c_char,
    /// What it does.
    pub meaning: *const c_char,
    /// The value as hakmem_option_get gives it; 0 of a text.
    pub number: i64,
    /// One of the constants HAKMEM_ORIGIN_….
    pub origin: c_int,
    /// Whether hakmem_option_set may change it at any time.
    pub live: bool,
    /// Whether it is a text, which hakmem_option_get and _set do not know.
    pub text: bool,
}

/// Text that pprof reads.
pub const HAKMEM_PROFILE_PPROF: c_int = 0;
/// heap_v2, for jeprof.
pub const HAKMEM_PROFILE_JEMALLOC: c_int = 1;
/// All there is, for `hakmem profile`.
pub const HAKMEM_PROFILE_JSON: c_int = 2;
/// pprof's profile.proto, uncompressed.
pub const HAKMEM_PROFILE_PROTO: c_int = 3;
/// What is live.
pub const HAKMEM_PROFILE_LIVE: c_int = 1;
/// What was live at the peak.
pub const HAKMEM_PROFILE_PEAK: c_int = 2;
/// What was allocated in all.
pub const HAKMEM_PROFILE_TOTAL: c_int = 4;
/// Freed blocks by how long they had lived.
pub const HAKMEM_PROFILE_LIFETIMES: c_int = 8;
/// Free bytes that cannot be given back because of a live block.
pub const HAKMEM_PROFILE_PINNED: c_int = 16;
/// All of these.
pub const HAKMEM_PROFILE_ALL: c_int = 31;

extern "C" {
    /// Allocates `size` bytes aligned to 16, uninitialised. Failure here and below is null with errno ENOMEM.
    pub fn hakmem_malloc(size: usize) -> *mut c_void;
    /// Allocates `count * size` bytes of zeros.
    pub fn hakmem_calloc(count: usize, size: usize) -> *mut c_void;
    /// Resizes a block; on failure it stays as it is. Size 0 frees it and returns null.
    pub fn hakmem_realloc(p: *mut c_void, size: usize) -> *mut c_void;
    /// `hakmem_realloc(p, count * size)` with the product checked.
    pub fn hakmem_reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void;
    /// Grows a block where it is; null, with ENOMEM, where it cannot be, and it is as it was. Never shrinks.
    pub fn hakmem_expand(p: *mut c_void, size: usize) -> *mut c_void;
    /// Frees a block; null does nothing.
    pub fn hakmem_free(p: *mut c_void);
    /// Frees a block by the size that was asked for. A size larger than the block ends the program with a report.
    pub fn hakmem_free_sized(p: *mut c_void, size: usize);
    /// Frees a block by the alignment and the size that were asked for.
    pub fn hakmem_free_aligned_sized(p: *mut c_void, alignment: usize, size: usize);
    /// Allocates at an alignment that is a power of two; other alignments fail with EINVAL.
    pub fn hakmem_aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
    /// The same with `count * size` bytes of zeros.
    pub fn hakmem_aligned_calloc(alignment: usize, count: usize, size: usize) -> *mut c_void;
    /// Resizes a block to an address of that alignment, in place where it can be; on failure it stays as it is.
    pub fn hakmem_aligned_realloc(p: *mut c_void, alignment: usize, size: usize) -> *mut c_void;
    /// POSIX's posix_memalign.
    pub fn hakmem_posix_memalign(out: *mut *mut c_void, alignment: usize, size: usize) -> c_int;
    /// glibc's memalign: an alignment that is no power of two is rounded up to one.
    pub fn hakmem_memalign(alignment: usize, size: usize) -> *mut c_void;
    /// Allocates at the start of a page.
    pub fn hakmem_valloc(size: usize) -> *mut c_void;
    /// Allocates whole pages.
    pub fn hakmem_pvalloc(size: usize) -> *mut c_void;

    /// Bytes that may be used at `p`; 0 for null and for pointers that are not hakmem's.
    pub fn hakmem_malloc_usable_size(p: *mut c_void) -> usize;
    /// The usable size that requests of `size` bytes get; 0 if they fail.
    pub fn hakmem_good_size(size: usize) -> usize;
    /// Allocates, and stores the usable size in `*actual`.
    pub fn hakmem_alloc_at_least(size: usize, actual: *mut usize) -> *mut c_void;
    /// Whether `p` points into memory that hakmem manages and has handed out. Does not read through `p`.
    pub fn hakmem_is_ours(p: *const c_void) -> bool;

    /// glibc's malloc_trim: 1 if memory went back to the system.
    pub fn hakmem_malloc_trim(pad: usize) -> c_int;
    /// Gives free memory back to the system and returns the bytes.
    pub fn hakmem_purge() -> usize;
    /// Makes free memory ready before it is asked for; flags: bits of `HAKMEM_RESERVE_POPULATE` and its kin. Returns 0, EINVAL or ENOMEM.
    pub fn hakmem_reserve(bytes: usize, flags: c_uint) -> c_int;
    /// Puts the blocks that the calling thread caches back where other threads find them and purging does.
    pub fn hakmem_thread_idle();
    /// Whether what the calling thread allocates and frees is reported from here on. Returns what held before.
    pub fn hakmem_forbid(forbidden: bool) -> bool;
    /// Bytes that the calling thread has asked for since it began, each request with 15 bytes more.
    pub fn hakmem_thread_allocated() -> u64;
    /// M_TRIM_THRESHOLD with -1 sets HAKMEM_DECAY_MS to its highest value; nothing else changes.
    pub fn hakmem_mallopt(param: c_int, value: c_int) -> c_int;
    /// Writes totals as XML to a `FILE *`; options must be 0.
    pub fn hakmem_malloc_info(options: c_int, stream: *mut c_void) -> c_int;
    /// Prints totals to stderr.
    pub fn hakmem_malloc_stats();

    /// Reads an option by its environment name. Returns 0 or EINVAL.
    pub fn hakmem_option_get(name: *const c_char, value: *mut i64) -> c_int;
    /// Sets an option. Returns 0, EINVAL, or EBUSY for an option that is read at start only.
    pub fn hakmem_option_set(name: *const c_char, value: i64) -> c_int;
    /// Calls `visit` for each option until it returns false, and returns for how many; all there are where it is `None`.
    pub fn hakmem_option_list(visit: Option<hakmem_option_visit>, context: *mut c_void) -> usize;

    /// Writes the heap profile as of now to a file. Returns 0, EINVAL, ENOTSUP where the profile is off, or why the file
    /// cannot be written.
    pub fn hakmem_profile_dump(path: *const c_char, kind: c_int) -> c_int;

    /// Switches the heap profile on, with one sample in so many bytes; 0: what the option says. Returns 0 or an errno value.
    pub fn hakmem_profile_start(rate_bytes: usize) -> c_int;
    /// Switches the heap profile off. Returns 0, or ENOTSUP where it has never been on.
    pub fn hakmem_profile_stop() -> c_int;
    /// Forgets all samples. Returns 0, or ENOTSUP where the profile has never been on.
    pub fn hakmem_profile_reset() -> c_int;
    /// Gives the heap profile as of now to `write`, in one or more calls; `what`: bits of `HAKMEM_PROFILE_LIVE` and its kin.
    /// Returns 0, EINVAL, ENOTSUP, ENOMEM, or what `write` does.
    pub fn hakmem_profile_write(
        what: c_int,
        format: c_int,
        write: Option<hakmem_profile_take>,
        context: *mut c_void,
    ) -> c_int;

    /// Labels what the calling thread allocates from here on, in heap profiles; 0: not.
    pub fn hakmem_label_set(label: u64);
    /// The calling thread's label.
    pub fn hakmem_label_get() -> u64;
    /// Names a label. Returns 0, EINVAL or ENOMEM.
    pub fn hakmem_label_name(label: u64, text: *const c_char) -> c_int;

    /// Makes a heap; null options: no name, no limit. Null with errno EINVAL or ENOMEM.
    pub fn hakmem_heap_new(options: *const hakmem_heap_options) -> *mut hakmem_heap;
    /// As `hakmem_malloc`, in the heap. Null with ENOMEM also where a limit would be passed.
    pub fn hakmem_heap_malloc(heap: *mut hakmem_heap, size: usize) -> *mut c_void;
    /// As `hakmem_calloc`, in the heap.
    pub fn hakmem_heap_calloc(heap: *mut hakmem_heap, count: usize, size: usize) -> *mut c_void;
    /// As `hakmem_aligned_alloc`, in the heap.
    pub fn hakmem_heap_aligned_alloc(heap: *mut hakmem_heap, alignment: usize, size: usize) -> *mut c_void;
    /// As `hakmem_realloc`; a block stays in the heap that it is in, and null is allocated in `heap`.
    pub fn hakmem_heap_realloc(heap: *mut hakmem_heap, p: *mut c_void, size: usize) -> *mut c_void;
    /// Frees every block of the heap and of the heaps below it, and these heaps. Null does nothing.
    pub fn hakmem_heap_destroy(heap: *mut hakmem_heap);
    /// Frees every block of the heap and destroys the heaps below it; the heap stays, with its counts at 0. Null does nothing.
    pub fn hakmem_heap_reset(heap: *mut hakmem_heap);
    /// Ends the heap and those below it; their blocks live on in the main heap.
    pub fn hakmem_heap_delete(heap: *mut hakmem_heap);
    /// The heap of a block by any of its addresses; null: the main heap, or no block of hakmem's.
    pub fn hakmem_heap_of(p: *const c_void) -> *mut hakmem_heap;
    /// The name, ended by a zero byte; empty where it has none. Valid as long as the heap.
    pub fn hakmem_heap_name(heap: *const hakmem_heap) -> *const c_char;
    /// The heap whose limit holds for this one too, or null.
    pub fn hakmem_heap_parent(heap: *const hakmem_heap) -> *mut hakmem_heap;
    /// Sets another limit; 0: none.
    pub fn hakmem_heap_set_limit(heap: *mut hakmem_heap, limit: usize);
    /// Registers what is called when the live bytes reach `percent` of the limit; `None` unregisters. Returns 0 or EINVAL.
    pub fn hakmem_heap_set_callback(
        heap: *mut hakmem_heap,
        percent: c_uint,
        callback: Option<hakmem_heap_callback>,
        context: *mut c_void,
    ) -> c_int;
    /// Sets what `hakmem_malloc` and its kin take from in the calling thread; null: the main heap. Returns the one before.
    pub fn hakmem_heap_set_default(heap: *mut hakmem_heap) -> *mut hakmem_heap;
    /// The calling thread's default, or null.
    pub fn hakmem_heap_get_default() -> *mut hakmem_heap;
    /// Fills the first `size` bytes of `*stats`.
    pub fn hakmem_heap_get_stats(heap: *mut hakmem_heap, stats: *mut hakmem_heap_stats, size: usize);
    /// Calls `visit` for each block until it returns false, and returns for how many.
    pub fn hakmem_heap_visit(heap: *mut hakmem_heap, visit: Option<hakmem_heap_visit_block>, context: *mut c_void) -> usize;
    /// Calls `visit` for each heap until it returns false, and returns for how many; all there are where it is `None`.
    pub fn hakmem_heap_list(visit: Option<hakmem_heap_visit_heap>, context: *mut c_void) -> usize;

    /// Registers what is called under memory pressure; `None` unregisters.
    pub fn hakmem_set_pressure_callback(callback: Option<hakmem_pressure_callback>, context: *mut c_void);

    /// Walks the whole heap, prints each fault to stderr and returns their number. Exact while no other thread allocates.
    pub fn hakmem_heap_check() -> usize;
    /// Slabs and extents handed out so far; not 0 once hakmem has served a request.
    pub fn hakmem_served() -> u64;
    /// The version, ended by a zero byte.
    pub fn hakmem_version() -> *const c_char;

    /// Fills the first `size` bytes of `*out`. Returns 0 or EINVAL.
    pub fn hakmem_stats_get(out: *mut hakmem_stats, size: usize) -> c_int;
    /// Fills up to `count` rows, and returns how many size classes there are.
    pub fn hakmem_stats_classes(out: *mut hakmem_class_stats, count: usize) -> usize;
    /// Writes all figures to a file descriptor, as text or as JSON. Returns 0 or an errno value.
    pub fn hakmem_stats_print(fd: c_int, json: c_int) -> c_int;
}

// With its own names declared alone, no object of the program would need malloc of the archive: libc's would be taken.
#[cfg(feature = "override")]
mod replace {
    extern "C" {
        fn malloc(size: usize) -> *mut core::ffi::c_void;
    }
    #[used]
    static MALLOC: unsafe extern "C" fn(usize) -> *mut core::ffi::c_void = malloc;
}

/// A structure of C's, and the names of its fields for the test that compares them with the header.
macro_rules! c_struct {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: zero bytes are numbers and null pointers.
                unsafe { core::mem::zeroed() }
            }
        }
        impl $name {
            #[doc(hidden)]
            pub const FIELDS: &'static [(&'static str, &'static str)] = &[$((stringify!($field), stringify!($kind))),*];
        }
    };
}

c_struct! {
    /// What a heap is made with. Zero is the default of all but `size`.
    hakmem_heap_options {
        /// Bytes of the structure.
        size: usize,
        /// Copied, up to 63 bytes and a zero byte; null: none.
        name: *const c_char,
        /// Live bytes at most, its own and those of the heaps below it; 0: none.
        limit: usize,
        /// Its limit holds for this heap too; null: none.
        parent: *mut hakmem_heap,
        /// `HAKMEM_HEAP_UNCACHED`, or 0.
        flags: c_uint,
    }
}

c_struct! {
    /// Figures of one heap, in bytes unless they are counts.
    hakmem_heap_stats {
        /// Of this process's heaps, never used again.
        id: u64,
        /// Bytes in blocks that the program has.
        live: usize,
        /// Most bytes live; with several threads, as of when their caches were looked at.
        peak: usize,
        /// Blocks that the program has.
        blocks: usize,
        /// Bytes of memory taken for blocks: live ones, free ones, and the rest of their pages and spans.
        held: usize,
        /// 0: none.
        limit: usize,
        /// Live bytes, its own and those of the heaps below it.
        total: usize,
        /// Requests that its own limit has refused, of the heaps below it too.
        refused: u64,
        /// Requests served.
        requests: u64,
    }
}

// begin: written by the target `tables` from src/report/figures.def
/// Version of the structure `hakmem_stats`.
pub const HAKMEM_STATS_VERSION: u32 = 4;

c_struct! {
    /// Figures of the allocator at one moment, in bytes unless they are counts. The sums in the fields' descriptions hold
    /// exactly.
    hakmem_stats {
        /// Version of the library's structure.
        version: u32,
        /// Bytes of the structure that were filled in.
        size: u32,
        /// When, by CLOCK_MONOTONIC.
        time_ms: u64,
        /// all of hakmem's memory = `spans` + `huge_live` + `huge_heaps` + `huge_kept` + `sampled_accessible` + `own`.
        accessible: u64,
        /// the program's = `slab_live` + `extents` + `huge_live` + `sampled_live` + `heaps_live`.
        live: u64,
        /// = `slabs` + `extents` + `extents_cached` + `span_heaps` + `free_dirty` + `free_clean` + `claimed` + `guards`.
        spans: u64,
        /// slabs.
        slabs: u64,
        /// live extents.
        extents: u64,
        /// freed extents on quick lists.
        extents_cached: u64,
        /// free, perhaps resident.
        free_dirty: u64,
        /// free and purged: resident only in a huge page.
        free_clean: u64,
        /// being purged now.
        claimed: u64,
        /// inaccessible (hardened library).
        guards: u64,
        /// = `slab_live` + `slab_cached` + `slab_depots`.
        slab_handed_out: u64,
        /// the program's blocks in slabs, and those in the hardened library's quarantine.
        slab_live: u64,
        /// blocks in thread caches, as of each thread's last slow path: for each class and thread off by a magazine at most.
        slab_cached: u64,
        /// blocks in depots of arenas.
        slab_depots: u64,
        /// free blocks of slabs that hold others.
        slab_free: u64,
        /// blocks not used since the slab was made.
        slab_never_allocated: u64,
        /// what is left before the first block (colour) and behind the last.
        slab_rest: u64,
        /// live extents.
        extent_count: u64,
        /// of `extents`, what was asked for; 0 unless requests_noted.
        extent_requested: u64,
        /// huge blocks of the main heap.
        huge_live: u64,
        /// these blocks.
        huge_count: u64,
        /// freed mappings of huge blocks that are kept.
        huge_kept: u64,
        /// these mappings.
        huge_kept_count: u64,
        /// blocks of `HAKMEM_GUARD_SAMPLE`: requested bytes.
        sampled_live: u64,
        /// these blocks.
        sampled_count: u64,
        /// pages of these blocks.
        sampled_accessible: u64,
        /// = `own_metadata` + `own_tables` + `own_other`; the statistics page is not in it.
        own: u64,
        /// arenas, heaps, thread caches, magazines.
        own_metadata: u64,
        /// page map, span metadata, bitmaps.
        own_tables: u64,
        /// tables of sampled blocks and of profiles.
        own_other: u64,
        /// arenas.
        arenas: u64,
        /// thread caches of threads.
        caches_used: u64,
        /// thread caches that ended threads left.
        caches_unused: u64,
        /// reservations of address space.
        regions: u64,
        /// their address space.
        reserved: u64,
        /// slabs and extents taken from the span pool since the start.
        span_allocs: u64,
        /// slabs and extents returned to it.
        span_frees: u64,
        /// huge blocks since the start.
        huge_allocs: u64,
        /// huge blocks that the system refused.
        huge_failures: u64,
        /// refills and overflows of thread caches; the part of each thread cache wraps at 2^32.
        slow_paths: u64,
        /// ranges purged, unmapped huge blocks not included.
        purges: u64,
        /// bytes purged.
        purged: u64,
        /// calls of madvise.
        madvise: u64,
        /// of these, failed.
        madvise_failures: u64,
        /// calls of mmap.
        mmap: u64,
        /// calls of munmap.
        munmap: u64,
        /// calls of mprotect.
        mprotect: u64,
        /// calls of mremap.
        mremap: u64,
        /// frees of pointers that are not hakmem's.
        foreign_frees: u64,
        /// reallocs of such pointers.
        foreign_reallocs: u64,
        /// malloc_usable_size of such pointers.
        foreign_usable_sizes: u64,
        /// 1: requested sizes are noted (`HAKMEM_STATS` or `HAKMEM_STATS_PAGE`).
        requests_noted: u64,
        /// of `slab_live`, what was asked for, estimated.
        estimated_requested: u64,
        /// of `slab_live`, what rounding up to block sizes adds, estimated.
        estimated_rounding: u64,
        /// of `slab_free`, pages that were purged inside slabs.
        slab_purged: u64,
        /// `HAKMEM_RSS_TARGET` in bytes; 0: none.
        budget_target: u64,
        /// `HAKMEM_LIMIT`; 0: none.
        budget_limit: u64,
        /// what `HAKMEM_LIMIT` counts: memory held of the system, in use or kept.
        budget_used: u64,
        /// resident memory at the last look.
        budget_resident: u64,
        /// how far the steps against memory above the target went.
        budget_level: u64,
        /// requests that the limit refused.
        budget_refused: u64,
        /// the most that `budget_used` has been, since the start or the fork.
        used_peak: u64,
        /// resident memory of the whole process, by the kernel; 0: unknown.
        resident: u64,
        /// its peak; may be some hundred KiB too low.
        resident_peak: u64,
        /// spans that heaps have.
        span_heaps: u64,
        /// huge blocks of heaps.
        huge_heaps: u64,
        /// heaps; those that were deleted while they had blocks are in the sums alone.
        heaps: u64,
        /// = `span_heaps` + `huge_heaps` = `heaps_live` + `heaps_free`.
        heaps_held: u64,
        /// the program's blocks in heaps.
        heaps_live: u64,
        /// free blocks of heaps, those in thread caches, and the rest of their pages and spans.
        heaps_free: u64,
        /// the program's blocks in heaps.
        heaps_blocks: u64,
        /// requests refused by limits of heaps that there are.
        heaps_refused: u64,
    }
}
// end: written

c_struct! {
    /// Figures of one size class. slab_bytes = handed_out + free + never_allocated + rest; handed_out = live + cached +
    /// depots.
    hakmem_class_stats {
        /// Bytes of a block.
        block_size: u32,
        /// 1: power-of-two blocks for alignments above 64.
        aligned: u32,
        /// Count of slabs.
        slabs: u64,
        /// Bytes of slabs.
        slab_bytes: u64,
        /// live + cached + depots
        handed_out: u64,
        /// The program's.
        live: u64,
        /// In thread caches.
        cached: u64,
        /// In the arenas' depots.
        depots: u64,
        /// Free blocks of partly used slabs.
        free: u64,
        /// Blocks never allocated since their slab was made.
        never_allocated: u64,
        /// Before the first block and behind the last.
        rest: u64,
        /// Requests that took the slow path.
        requests: u64,
        /// Sum of their sizes.
        requested: u64,
        /// Requests that a thread cache served; this and the next are 0 unless HAKMEM_TINY_FRONT_METRICS=1.
        hits: u64,
        /// Requests that none served.
        misses: u64,
        /// Times a thread cache was filled.
        refills: u64,
        /// Times a thread cache gave blocks back.
        flushes: u64,
    }
}
