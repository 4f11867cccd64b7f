//! `Allocator` of the compiler's library or of the crate allocator-api2, for collections that name their allocator. Blocks of size 0
//! are no blocks.
#[cfg(not(feature = "allocator_api"))]
use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::{GlobalAlloc, Layout};
// With this feature, allocator-api2 has these and no others.
#[cfg(feature = "allocator_api")]
use core::alloc::{AllocError, Allocator};
use core::ptr::{self, NonNull};

#[cfg(feature = "std")]
use crate::Heap;
use crate::{Hakmem, Source};

fn slice(block: *mut u8, size: usize) -> Result<NonNull<[u8]>, AllocError> {
    NonNull::new(ptr::slice_from_raw_parts_mut(block, size)).ok_or(AllocError)
}

/// An address that is aligned as `layout` asks and is never read.
fn nothing(layout: Layout) -> NonNull<[u8]> {
    let block = ptr::null_mut::<u8>().wrapping_add(layout.align());
    // SAFETY: an alignment is not 0.
    unsafe { NonNull::new_unchecked(ptr::slice_from_raw_parts_mut(block, 0)) }
}

#[inline]
fn allocate(source: &impl Source, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    if layout.size() == 0 {
        return Ok(nothing(layout));
    }
    // SAFETY: the size is not 0.
    slice(unsafe { source.take(layout) }, layout.size())
}

#[inline]
fn allocate_zeroed(source: &impl Source, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    if layout.size() == 0 {
        return Ok(nothing(layout));
    }
    // SAFETY: the size is not 0.
    slice(unsafe { source.take_zeroed(layout) }, layout.size())
}

unsafe fn resize(source: &impl Source, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
    if old.size() == 0 {
        return allocate(source, new);
    }
    if new.size() == 0 {
        Hakmem.dealloc(block.as_ptr(), old);
        return Ok(nothing(new));
    }
    slice(crate::resize(block.as_ptr(), new.size(), new.align()), new.size())
}

macro_rules! implement {
    ($(#[$about:meta])* $source:ty) => {
        $(#[$about])*
        unsafe impl Allocator for $source {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                allocate(self, layout)
            }

            #[inline]
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                allocate_zeroed(self, layout)
            }

            #[inline]
            unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
                if layout.size() != 0 {
                    Hakmem.dealloc(block.as_ptr(), layout);
                }
            }

            unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                resize(self, block, old, new)
            }

            unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                let grown = resize(self, block, old, new)?;
                let start = grown.cast::<u8>().as_ptr();
                ptr::write_bytes(start.add(old.size()), 0, new.size() - old.size());
                Ok(grown)
            }

            unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                resize(self, block, old, new)
            }
        }
    };
}

implement! {
    /// Collections in the main heap.
    Hakmem
}

#[cfg(feature = "std")]
implement! {
    /// Collections in a heap: of `&Heap`, which end before the heap does, or of a `Heap` of their own (a clone), which keeps it. Where a
    /// limit refuses, `try_reserve` and its kin fail, and what cannot fail ends the program.
    ///
    #[cfg_attr(not(feature = "allocator_api"), doc = "
```
use allocator_api2::vec::Vec;
use hakmem::Heap;

let heap = Heap::builder().name(\"query\").limit(1 << 20).build()?;
let mut rows: Vec<u64, &Heap> = Vec::new_in(&heap);
rows.extend(0..1000);
assert!(heap.contains(rows.as_ptr()));
assert!(rows.try_reserve(1 << 20).is_err());
drop(rows);
drop(heap);
# Ok::<(), hakmem::Error>(())
```

The same in another order does not compile, as `rows` borrows the heap:

```compile_fail,E0505
# use allocator_api2::vec::Vec;
# use hakmem::Heap;
# let heap = Heap::builder().name(\"query\").limit(1 << 20).build()?;
# let mut rows: Vec<u64, &Heap> = Vec::new_in(&heap);
# rows.extend(0..1000);
drop(heap);
drop(rows);
# Ok::<(), hakmem::Error>(())
```")]
    Heap
}
