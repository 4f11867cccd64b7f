//! `core::alloc::Allocator`, for collections that name their allocator. Blocks of size 0 are no blocks.
use core::alloc::{AllocError, Allocator, GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use crate::{is_ordinary, move_block, Hakmem};

fn slice(block: *mut u8, size: usize) -> Result<NonNull<[u8]>, AllocError> {
    NonNull::new(ptr::slice_from_raw_parts_mut(block, size)).ok_or(AllocError)
}

/// An address that is aligned as `layout` asks and is never read.
fn nothing(layout: Layout) -> NonNull<[u8]> {
    let block = ptr::null_mut::<u8>().wrapping_add(layout.align());
    // SAFETY: an alignment is not 0.
    unsafe { NonNull::new_unchecked(ptr::slice_from_raw_parts_mut(block, 0)) }
}

unsafe fn resize(block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
    if old.size() == 0 {
        return Hakmem.allocate(new);
    }
    if new.size() == 0 {
        Hakmem.dealloc(block.as_ptr(), old);
        return Ok(nothing(new));
    }
    let moved = if is_ordinary(old) && is_ordinary(new) {
        Hakmem.realloc(block.as_ptr(), old, new.size())
    } else {
        move_block(Hakmem, block.as_ptr(), old, new)
    };
    slice(moved, new.size())
}

unsafe impl Allocator for Hakmem {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        // SAFETY: the size is not 0.
        slice(unsafe { self.alloc(layout) }, layout.size())
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        // SAFETY: the size is not 0.
        slice(unsafe { self.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            self.dealloc(block.as_ptr(), layout);
        }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        resize(block, old, new)
    }

    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let grown = resize(block, old, new)?;
        let start = grown.cast::<u8>().as_ptr();
        ptr::write_bytes(start.add(old.size()), 0, new.size() - old.size());
        Ok(grown)
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        resize(block, old, new)
    }
}
