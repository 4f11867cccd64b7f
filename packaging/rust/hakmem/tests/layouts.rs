//! Layouts of every kind under the global allocator.
use hakmem::Hakmem;
use std::alloc::{alloc, alloc_zeroed, dealloc, realloc, Layout};
use std::{ptr, slice};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem;

const MIB: usize = 1 << 20;

/// Sizes on both sides of where the allocator changes its ways.
const SIZES: [usize; 14] =
    [1, 8, 15, 16, 17, 100, 1024, 1025, 32 << 10, (32 << 10) + 1, 256 << 10, (256 << 10) + 1, 3 * MIB, 40 * MIB];

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Large blocks by their ends: touching all of them takes seconds in a debug build.
unsafe fn fill(block: *mut u8, size: usize, value: u8) {
    let end = size.min(4096);
    block.write_bytes(value, end);
    block.add(size - end).write_bytes(value, end);
}

unsafe fn assert_filled(block: *const u8, size: usize, value: u8) {
    let end = size.min(4096);
    assert!(slice::from_raw_parts(block, end).iter().all(|byte| *byte == value));
    assert!(slice::from_raw_parts(block.add(size - end), end).iter().all(|byte| *byte == value));
}

#[test]
fn every_alignment_is_kept() {
    for shift in 0..=26 {
        for size in SIZES {
            let layout = layout(size, 1 << shift);
            unsafe {
                let blocks = [alloc(layout), alloc(layout)];
                for (n, block) in blocks.iter().enumerate() {
                    assert!(!block.is_null(), "{:?}", layout);
                    assert_eq!(*block as usize % layout.align(), 0, "{:?}", layout);
                    assert!(hakmem::is_ours(*block), "{:?}", layout);
                    fill(*block, size, n as u8 + 1);
                }
                assert_filled(blocks[0], size, 1);
                assert_filled(blocks[1], size, 2);
                dealloc(blocks[0], layout);
                dealloc(blocks[1], layout);
            }
        }
    }
}

#[test]
fn zeroed_blocks_are_zero_where_dirty_ones_were() {
    for align in [1, 16, 64, 4096, 128 << 10] {
        for size in SIZES {
            let layout = layout(size, align);
            for _ in 0..3 {
                unsafe {
                    let dirty = alloc(layout);
                    fill(dirty, size, 0xff);
                    dealloc(dirty, layout);
                    let zeroed = alloc_zeroed(layout);
                    assert_eq!(zeroed as usize % align, 0, "{:?}", layout);
                    assert_filled(zeroed, size, 0);
                    dealloc(zeroed, layout);
                }
            }
        }
    }
}

#[test]
fn realloc_keeps_contents_and_alignment() {
    for align in [1, 8, 16, 32, 64, 4096, 2 * MIB] {
        for from in SIZES {
            for to in SIZES {
                unsafe {
                    let old = layout(from, align);
                    let block = alloc(old);
                    let kept = from.min(to).min(64 << 10);
                    for n in 0..kept {
                        block.add(n).write((n % 251) as u8);
                    }
                    let block = realloc(block, old, to);
                    assert!(!block.is_null(), "{:?} to {}", old, to);
                    assert_eq!(block as usize % align, 0, "{:?} to {}", old, to);
                    let contents = slice::from_raw_parts(block, kept);
                    assert!(contents.iter().enumerate().all(|(n, byte)| *byte == (n % 251) as u8), "{:?} to {}", old, to);
                    fill(block, to, 7);
                    dealloc(block, layout(to, align));
                }
            }
        }
    }
}

/// The compiler leaves out an allocation whose block nobody looks at, and takes it for successful.
fn looked_at(block: *mut u8) -> *mut u8 {
    unsafe { ptr::read_volatile(&block) }
}

#[test]
fn what_cannot_be_had_is_null_and_the_block_stays() {
    for align in [16, 64, 4096] {
        let much = isize::MAX as usize - align + 1;
        let small = layout(100, align);
        unsafe {
            assert!(looked_at(alloc(layout(much, align))).is_null());
            assert!(looked_at(alloc_zeroed(layout(much, align))).is_null());
            let block = alloc(small);
            fill(block, 100, 9);
            assert!(realloc(block, small, much).is_null());
            assert_filled(block, 100, 9);
            dealloc(block, small);
        }
    }
    assert!(Vec::<u8>::new().try_reserve(isize::MAX as usize).is_err());
}

#[test]
fn types_of_size_zero_take_no_memory() {
    let units: Vec<()> = std::iter::repeat(()).take(1_000_000).collect();
    assert_eq!(units.len(), 1_000_000);
    assert!(!hakmem::is_ours(units.as_ptr()));
    let boxed: Box<[u64; 0]> = Box::new([]);
    assert!(!hakmem::is_ours(&*boxed));
    let text = String::new();
    assert!(!hakmem::is_ours(text.as_ptr()));
}
