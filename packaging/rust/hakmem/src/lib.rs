#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(feature = "allocator_api", feature(allocator_api))]
#![warn(missing_docs)]

#[cfg(feature = "std")]
extern crate std;

#[cfg(any(feature = "allocator_api", feature = "allocator-api2"))]
mod allocator;
mod control;
#[cfg(feature = "std")]
mod heap;
#[cfg(feature = "std")]
pub mod profile;

use core::alloc::{GlobalAlloc, Layout};
#[cfg(feature = "std")]
use core::ptr;
use hakmem_sys as sys;

pub use control::*;
#[cfg(feature = "std")]
pub use heap::*;

/// The allocator. It has no state of its own: all values are the same allocator.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;
///
/// fn main() {
///     let text = String::from("served by hakmem");
///     assert!(hakmem::is_ours(text.as_ptr()));
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hakmem;

/// Every block is aligned to this.
const ALWAYS_ALIGNED: usize = 16;

const fn is_ordinary(layout: Layout) -> bool {
    layout.align() <= ALWAYS_ALIGNED
}

/// Where new blocks come from. They are freed and resized alike.
pub(crate) trait Source {
    /// SAFETY: the size of the layout is not 0.
    unsafe fn take(&self, layout: Layout) -> *mut u8;
    /// SAFETY: the size of the layout is not 0.
    unsafe fn take_zeroed(&self, layout: Layout) -> *mut u8;
}

impl Source for Hakmem {
    #[inline]
    unsafe fn take(&self, layout: Layout) -> *mut u8 {
        if is_ordinary(layout) {
            sys::hakmem_malloc(layout.size()).cast()
        } else {
            sys::hakmem_aligned_alloc(layout.align(), layout.size()).cast()
        }
    }

    #[inline]
    unsafe fn take_zeroed(&self, layout: Layout) -> *mut u8 {
        // Memory that is known to read as zero is not written.
        if is_ordinary(layout) {
            sys::hakmem_calloc(1, layout.size()).cast()
        } else {
            sys::hakmem_aligned_calloc(layout.align(), 1, layout.size()).cast()
        }
    }
}

/// SAFETY: `block` is null or one of `layout`.
#[cfg(feature = "std")]
unsafe fn zeroed(block: *mut u8, layout: Layout) -> *mut u8 {
    if !block.is_null() {
        ptr::write_bytes(block, 0, layout.size());
    }
    block
}

// Blocks are freed by their size, which lets the allocator find a layout that is not the block's: it ends the program with a
// report instead of damaging the heap.
unsafe impl GlobalAlloc for Hakmem {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_ordinary(layout) {
            sys::hakmem_free_sized(block.cast(), layout.size());
        } else {
            sys::hakmem_free_aligned_sized(block.cast(), layout.align(), layout.size());
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.take_zeroed(layout)
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        resize(block, new_size, layout.align())
    }
}

/// The block, of whatever alignment, stays in its heap, and where it is if that will do.
///
/// SAFETY: `block` is live, `size` is not 0, and `alignment` is a layout's.
#[inline]
unsafe fn resize(block: *mut u8, size: usize, alignment: usize) -> *mut u8 {
    if alignment <= ALWAYS_ALIGNED {
        sys::hakmem_realloc(block.cast(), size).cast()
    } else {
        sys::hakmem_aligned_realloc(block.cast(), alignment, size).cast()
    }
}
