//! What the allocator tells and what it can be told, as safe functions.
use core::fmt;
use core::mem;
use hakmem_sys as sys;

pub use sys::hakmem_class_stats as ClassStats;
pub use sys::hakmem_stats as Stats;

/// Why a function of this crate failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no such option, or its value is out of range; a path holds a zero byte.
    Invalid,
    /// The option is read at start only: set it in the environment.
    AtStartOnly,
    /// The heap profile has never been on: `profile::start` or `HAKMEM_HEAP_PROFILE=1` switch it on.
    ProfileOff,
    /// An error of the system, by its `errno` value.
    System(i32),
}

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

pub(crate) fn result(code: i32) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        EINVAL => Err(Error::Invalid),
        EBUSY => Err(Error::AtStartOnly),
        EOPNOTSUPP => Err(Error::ProfileOff),
        other => Err(Error::System(other)),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid => f.write_str("no such option, or a value out of range"),
            Error::AtStartOnly => f.write_str("the option is read at start only"),
            Error::ProfileOff => f.write_str("the heap profile has never been on (HAKMEM_HEAP_PROFILE=1 turns it on)"),
            #[cfg(feature = "std")]
            Error::System(code) => write!(f, "{}", std::io::Error::from_raw_os_error(*code)),
            #[cfg(not(feature = "std"))]
            Error::System(code) => write!(f, "system error {}", code),
        }
    }
}

#[cfg(feature = "std")]
impl std::error::Error for Error {}

/// The version of the C library, such as `0.1.0`.
pub fn version() -> &'static str {
    let mut length = 0;
    // SAFETY: the library returns a constant text of ASCII characters that a zero byte ends.
    unsafe {
        let text: *const u8 = sys::hakmem_version().cast();
        while *text.add(length) != 0 {
            length += 1;
        }
        core::str::from_utf8_unchecked(core::slice::from_raw_parts(text, length))
    }
}

/// Slabs and extents handed out so far: not 0 once hakmem has served a request.
pub fn served() -> u64 {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_served() }
}

/// Whether an address lies in memory that hakmem manages and has handed out. Nothing is read through the pointer.
pub fn is_ours<T: ?Sized>(address: *const T) -> bool {
    // SAFETY: the library does not read through the pointer.
    unsafe { sys::hakmem_is_ours(address.cast()) }
}

/// The usable size that a request of `size` bytes gets; 0 if it would fail.
///
/// ```
/// assert!(hakmem::good_size(100) >= 100);
/// ```
pub fn good_size(size: usize) -> usize {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_good_size(size) }
}

/// Gives free memory back to the system, the blocks that the calling thread caches included, and returns the bytes. Other
/// threads keep what they cache.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
/// drop((0..100).map(|_| vec![1u8; 100_000]).collect::<Vec<_>>());
/// assert!(hakmem::purge() >= 4_000_000);
/// ```
pub fn purge() -> usize {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_purge() }
}

/// Puts the blocks that the calling thread caches back where other threads find them, and where they go back to the system in
/// time: for a thread that is about to wait for long. Takes time for each cached block.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
/// drop((0..10_000).map(|n| n.to_string()).collect::<Vec<_>>());
/// hakmem::thread_idle();
/// ```
pub fn thread_idle() {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_thread_idle() }
}

/// Bytes that the calling thread has asked for since it began, each request with 15 bytes more: the difference of two calls is
/// what lies between.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
/// let before = hakmem::thread_allocated();
/// let block = vec![0u8; 1000];
/// assert!(hakmem::thread_allocated() - before >= block.len() as u64);
/// ```
pub fn thread_allocated() -> u64 {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_thread_allocated() }
}

/// From `forbid(true)` on, until `forbid(false)`, what the calling thread allocates or frees is reported to stderr with its stack, or
/// ends the program after that (`HAKMEM_FORBID=abort`): for code that must not wait. Returns what held before, so that scopes nest.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
/// let mut mixed = Vec::with_capacity(64);
/// let before = hakmem::forbid(true);
/// mixed.push(0.5f32); // there is room: nothing is reported
/// hakmem::forbid(before);
/// ```
pub fn forbid(forbidden: bool) -> bool {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_forbid(forbidden) }
}

/// Where all memory is at this moment. Any thread may ask, but not a signal handler.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
/// let before = hakmem::stats();
/// let block = vec![0u8; 1 << 20];
/// let after = hakmem::stats();
/// assert!(after.live >= before.live + block.len() as u64);
/// assert!(after.accessible >= after.live);
/// ```
pub fn stats() -> Stats {
    let mut stats = Stats::default();
    // SAFETY: the library writes at most the given size. It fails only for sizes of structures older than this one.
    let code = unsafe { sys::hakmem_stats_get(&mut stats, mem::size_of::<Stats>()) };
    debug_assert_eq!(code, 0);
    stats
}

/// Fills rows with the figures of the size classes, and returns how many classes there are: 0 before the first allocation.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
/// let mut rows = [hakmem::ClassStats::default(); 128];
/// let count = hakmem::class_stats(&mut rows);
/// assert_eq!(rows[0].block_size, 16);
/// assert!(count <= rows.len());
/// ```
pub fn class_stats(rows: &mut [ClassStats]) -> usize {
    // SAFETY: the library writes at most the given number of rows.
    unsafe { sys::hakmem_stats_classes(rows.as_mut_ptr(), rows.len()) }
}

/// Walks the whole heap, prints each fault to stderr and returns their number. Exact while no other thread allocates.
pub fn heap_check() -> usize {
    // SAFETY: no precondition.
    unsafe { sys::hakmem_heap_check() }
}

/// The longest name of an option, with the zero byte that ends it. None of the library's comes near.
const NAME: usize = 128;

fn c_name(name: &str) -> Result<[u8; NAME], Error> {
    let mut bytes = [0; NAME];
    if name.len() >= NAME || name.as_bytes().contains(&0) {
        return Err(Error::Invalid);
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// Reads an option by its environment name. Sizes are in bytes; -80 is 80 %, -101 auto.
///
/// ```
/// assert!(hakmem::option("HAKMEM_DECAY_MS")? > 0);
/// assert_eq!(hakmem::option("HAKMEM_DECAY"), Err(hakmem::Error::Invalid));
/// # Ok::<(), hakmem::Error>(())
/// ```
pub fn option(name: &str) -> Result<i64, Error> {
    let name = c_name(name)?;
    let mut value = 0;
    // SAFETY: the name ends by a zero byte.
    result(unsafe { sys::hakmem_option_get(name.as_ptr().cast(), &mut value) })?;
    Ok(value)
}

/// Sets an option that may change while the program runs.
///
/// ```
/// hakmem::set_option("HAKMEM_LIMIT", 1 << 30)?;
/// assert_eq!(hakmem::set_option("HAKMEM_THP", 0), Err(hakmem::Error::AtStartOnly));
/// # Ok::<(), hakmem::Error>(())
/// ```
pub fn set_option(name: &str, value: i64) -> Result<(), Error> {
    let name = c_name(name)?;
    // SAFETY: the name ends by a zero byte.
    result(unsafe { sys::hakmem_option_set(name.as_ptr().cast(), value) })
}

#[cfg(feature = "std")]
mod files {
    use super::{result, sys, Error};
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::io::{AsFd, AsRawFd};
    use std::path::Path;

    /// The form of a heap profile.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum ProfileFormat {
        /// Text that pprof reads.
        Pprof,
        /// heap_v2, for jeprof.
        Jemalloc,
        /// All there is, for the command `hakmem profile`.
        Json,
        /// pprof's profile.proto, uncompressed.
        Proto,
    }

    /// Writes the heap profile as of now: which code holds how much memory. It must have been switched on, by
    /// `profile::start` or `HAKMEM_HEAP_PROFILE=1`. The file has its name only when it is whole; a file of that name is replaced.
    ///
    /// ```no_run
    /// hakmem::profile_dump("heap.pprof", hakmem::ProfileFormat::Pprof)?;
    /// # Ok::<(), hakmem::Error>(())
    /// ```
    pub fn profile_dump(path: impl AsRef<Path>, format: ProfileFormat) -> Result<(), Error> {
        let path = CString::new(path.as_ref().as_os_str().as_bytes()).map_err(|_| Error::Invalid)?;
        let kind = match format {
            ProfileFormat::Pprof => sys::HAKMEM_PROFILE_PPROF,
            ProfileFormat::Jemalloc => sys::HAKMEM_PROFILE_JEMALLOC,
            ProfileFormat::Json => sys::HAKMEM_PROFILE_JSON,
            ProfileFormat::Proto => sys::HAKMEM_PROFILE_PROTO,
        };
        // SAFETY: the path ends by a zero byte.
        result(unsafe { sys::hakmem_profile_dump(path.as_ptr(), kind) })
    }

    /// The form of printed figures.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum StatsFormat {
        /// For people.
        Text,
        /// For programs.
        Json,
    }

    /// Writes all figures to a file or a pipe.
    ///
    /// ```
    /// hakmem::print_stats(&std::io::stderr(), hakmem::StatsFormat::Text)?;
    /// # Ok::<(), hakmem::Error>(())
    /// ```
    pub fn print_stats(to: &impl AsFd, format: StatsFormat) -> Result<(), Error> {
        let json = i32::from(format == StatsFormat::Json);
        // SAFETY: the descriptor stays open for as long as it is borrowed.
        match unsafe { sys::hakmem_stats_print(to.as_fd().as_raw_fd(), json) } {
            0 => Ok(()),
            code => Err(Error::System(code)),
        }
    }
}
#[cfg(feature = "std")]
pub use files::*;
