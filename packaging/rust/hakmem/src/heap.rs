//! Heaps: memory by query, tenant, document or plug-in.
use core::sync::atomic::{AtomicBool, Ordering};
use core::{fmt, mem, ptr, str};
use hakmem_sys as sys;
use std::alloc::Layout;
use std::ffi::{c_void, CStr};
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

use crate::{is_ordinary, zeroed, Error, Source};

pub use sys::hakmem_heap_stats as HeapStats;

const ENOMEM: i32 = 12;
/// With the zero byte that ends it.
const LONGEST_NAME: usize = 64;

/// A heap: blocks that are counted apart, have a limit of their own, and end with it. Collections name it as their allocator
/// (features `allocator-api2` and `allocator_api`), or a [`scope`](Heap::scope) has all code of one thread allocate in it.
///
/// A clone is the same heap, which ends with its last clone and after the heaps below it. What is allocated by name is then destroyed at
/// once, in time that does not depend on the number of blocks: nothing can refer to it any more. What was allocated in scopes may be
/// anywhere, and lives on in the main heap; [`destroy`](Heap::destroy) is for a program that knows better.
///
/// ```
/// use hakmem::Heap;
///
/// let server = Heap::builder().name("server").limit(1 << 30).build()?;
/// let query = Heap::builder().name("query 7").limit(64 << 20).parent(&server).build()?;
/// assert_eq!(query.name(), "query 7");
/// assert_eq!(query.stats().live, 0);
/// # Ok::<(), hakmem::Error>(())
/// ```
#[derive(Clone)]
pub struct Heap(Arc<Owned>);

struct Owned {
    heap: *mut sys::hakmem_heap,
    /// Whether blocks may be where the compiler does not know of.
    scoped: AtomicBool,
    /// Ends later: hakmem_heap_destroy takes the heaps below along.
    _parent: Option<Heap>,
}

// SAFETY: any thread may use a heap at any time, but for one that ends.
unsafe impl Send for Owned {}
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: no clone is left, and no heap below. Collections that name the heap borrow it or hold a clone.
        unsafe {
            if *self.scoped.get_mut() {
                sys::hakmem_heap_delete(self.heap);
            } else {
                sys::hakmem_heap_destroy(self.heap);
            }
        }
    }
}

/// What a [`Heap`] is made with.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct HeapBuilder<'a> {
    name: &'a str,
    limit: usize,
    parent: Option<&'a Heap>,
    flags: sys::c_uint,
}

impl<'a> HeapBuilder<'a> {
    /// A name in statistics, of 63 bytes at most.
    pub fn name(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// Live bytes at most, those of the heaps below it included; 0: no limit.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// A heap whose limit holds for this one too. It ends after this one.
    pub fn parent(mut self, parent: &'a Heap) -> Self {
        self.parent = Some(parent);
        self
    }

    /// No free block stays in a thread's cache: each call takes a lock, and memory that is free is the heap's at once.
    pub fn uncached(mut self) -> Self {
        self.flags |= sys::HAKMEM_HEAP_UNCACHED;
        self
    }

    /// [`Error::Invalid`]: a name that is too long or holds a zero byte; [`Error::System`]: no memory, or half a million heaps.
    pub fn build(self) -> Result<Heap, Error> {
        let mut name = [0u8; LONGEST_NAME];
        if self.name.len() >= LONGEST_NAME || self.name.as_bytes().contains(&0) {
            return Err(Error::Invalid);
        }
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let options = sys::hakmem_heap_options {
            size: mem::size_of::<sys::hakmem_heap_options>(),
            name: name.as_ptr().cast(),
            limit: self.limit,
            parent: self.parent.map_or(ptr::null_mut(), |parent| parent.0.heap),
            flags: self.flags,
        };
        // SAFETY: the name ends by a zero byte and is copied; the parent is borrowed.
        let heap = unsafe { sys::hakmem_heap_new(&options) };
        if heap.is_null() {
            return Err(Error::System(ENOMEM));
        }
        Ok(Heap(Arc::new(Owned { heap, scoped: AtomicBool::new(false), _parent: self.parent.cloned() })))
    }
}

/// Puts a thread's default back, after a panic too.
struct Before(*mut sys::hakmem_heap);

impl Drop for Before {
    fn drop(&mut self) {
        // SAFETY: a scope that is open outside of this one borrows the heap.
        unsafe { sys::hakmem_heap_set_default(self.0) };
    }
}

impl Heap {
    /// A heap with no name and no limit.
    pub fn new() -> Result<Heap, Error> {
        Heap::builder().build()
    }

    /// A heap with a name, a limit or a parent.
    pub fn builder<'a>() -> HeapBuilder<'a> {
        HeapBuilder::default()
    }

    /// Has all that the calling thread allocates in `body` allocated in the heap: by [`Hakmem`](crate::Hakmem) as the global allocator, and
    /// with the feature `override` by C libraries too. Blocks that are resized stay in the heap that they are in. Where a limit refuses,
    /// Rust's collections end the program, unless they are asked to try (`try_reserve`).
    ///
    /// Results may leave the scope and outlive the heap: see [`Heap`].
    ///
    /// ```
    /// # #[global_allocator]
    /// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
    /// let heap = hakmem::Heap::builder().name("plug-in").build()?;
    /// let answer = heap.scope(|| "allocated inside".to_string());
    /// assert!(heap.contains(answer.as_ptr()));
    /// drop(heap);
    /// assert_eq!(answer, "allocated inside");
    /// # Ok::<(), hakmem::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Where the thread has no memory for it, and where `body` does.
    pub fn scope<R>(&self, body: impl FnOnce() -> R) -> R {
        self.0.scoped.store(true, Ordering::Relaxed);
        // SAFETY: the heap is borrowed until its successor is set.
        let _before = Before(unsafe { sys::hakmem_heap_set_default(self.0.heap) });
        // SAFETY: no precondition.
        assert!(unsafe { sys::hakmem_heap_get_default() } == self.0.heap, "no memory for a scope of a heap");
        body()
    }

    /// Has the heap destroy all blocks when it ends, those of scopes that have ended included: leaks of a plug-in, say. It ends here, unless
    /// there are other clones or heaps below it.
    ///
    /// # Safety
    ///
    /// Nothing that was allocated in its scopes may be used or freed after its end: values that left them, and what code inside has put into
    /// statics, thread locals and collections that were there before. No scope of it may be open.
    pub unsafe fn destroy(self) {
        self.0.scoped.store(false, Ordering::Relaxed);
    }

    /// The name, or "".
    pub fn name(&self) -> &str {
        // SAFETY: the heap is borrowed for as long as the name; it was made with a &str.
        unsafe { str::from_utf8_unchecked(name_of(self.0.heap).to_bytes()) }
    }

    /// Whether an address lies in a block of this heap. Nothing is read through the pointer.
    pub fn contains<T: ?Sized>(&self, address: *const T) -> bool {
        // SAFETY: the library does not read through the pointer.
        unsafe { sys::hakmem_heap_of(address.cast()) == self.0.heap }
    }

    /// Another limit; 0: none. One below what is live refuses every request until enough is freed.
    pub fn set_limit(&self, bytes: usize) {
        // SAFETY: the heap is borrowed.
        unsafe { sys::hakmem_heap_set_limit(self.0.heap, bytes) }
    }

    /// What the heap holds. Exact while no other thread allocates or frees in it.
    pub fn stats(&self) -> HeapStats {
        // SAFETY: the heap is borrowed.
        unsafe { stats_of(self.0.heap) }
    }

    /// Names and figures of all heaps, oldest first, those of C code included.
    ///
    /// ```
    /// let heap = hakmem::Heap::builder().name("tenant 5").limit(1 << 20).build()?;
    /// let rows = hakmem::Heap::list();
    /// assert!(rows.iter().any(|(name, stats)| name == "tenant 5" && stats.limit == 1 << 20));
    /// # Ok::<(), hakmem::Error>(())
    /// ```
    pub fn list() -> Vec<(String, HeapStats)> {
        let mut rows = Vec::new();
        let context: *mut Vec<(String, HeapStats)> = &mut rows;
        // SAFETY: the library calls the function with the context, and heaps wait meanwhile that would end.
        unsafe { sys::hakmem_heap_list(Some(append), context.cast()) };
        rows
    }
}

unsafe extern "C" fn append(heap: *mut sys::hakmem_heap, context: *mut c_void) -> bool {
    let rows = &mut *context.cast::<Vec<(String, HeapStats)>>();
    if rows.try_reserve(1).is_err() {
        return false; // a panic must not leave this function
    }
    rows.push((name_of(heap).to_string_lossy().into_owned(), stats_of(heap)));
    true
}

/// SAFETY: the heap does not end meanwhile.
unsafe fn stats_of(heap: *mut sys::hakmem_heap) -> HeapStats {
    let mut stats = HeapStats::default();
    // The library writes at most the given size.
    sys::hakmem_heap_get_stats(heap, &mut stats, mem::size_of::<HeapStats>());
    stats
}

/// SAFETY: the heap does not end while the name is in use.
unsafe fn name_of<'a>(heap: *const sys::hakmem_heap) -> &'a CStr {
    CStr::from_ptr(sys::hakmem_heap_name(heap))
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("name", &self.name()).field("stats", &self.stats()).finish()
    }
}

impl Source for Heap {
    #[inline]
    unsafe fn take(&self, layout: Layout) -> *mut u8 {
        if is_ordinary(layout) {
            sys::hakmem_heap_malloc(self.0.heap, layout.size()).cast()
        } else {
            sys::hakmem_heap_aligned_alloc(self.0.heap, layout.align(), layout.size()).cast()
        }
    }

    #[inline]
    unsafe fn take_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_ordinary(layout) {
            return sys::hakmem_heap_calloc(self.0.heap, 1, layout.size()).cast();
        }
        zeroed(self.take(layout), layout)
    }
}
