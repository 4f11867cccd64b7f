//! Collections that name their allocator. The global allocator is the system's.
#![cfg(feature = "allocator_api")]
#![feature(allocator_api)]
use hakmem::Hakmem;
use std::alloc::{Allocator, Layout};
use std::ptr::NonNull;
use std::slice;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn collections_live_in_it() {
    let mut numbers = Vec::new_in(Hakmem);
    numbers.extend(0..100_000u64);
    assert!(hakmem::is_ours(numbers.as_ptr()));
    numbers.truncate(10);
    numbers.shrink_to_fit();
    assert_eq!(numbers, (0..10).collect::<Vec<u64>>());
    assert!(hakmem::is_ours(&*Box::new_in([1u8; 100], Hakmem)));
    if !cfg!(feature = "override") {
        assert!(!hakmem::is_ours(vec![1u8; 100].as_ptr()));
    }
    let mut units = Vec::new_in(Hakmem);
    units.resize(1_000, ());
    assert!(units.len() == 1_000 && !hakmem::is_ours(units.as_ptr()));
}

#[test]
fn blocks_of_size_zero_are_aligned_and_not_freed() {
    for align in [1, 16, 4096] {
        let nothing = Hakmem.allocate(layout(0, align)).unwrap();
        assert_eq!((nothing.len(), nothing.cast::<u8>().as_ptr() as usize % align), (0, 0));
        let nothing: NonNull<u8> = nothing.cast();
        unsafe {
            let grown = Hakmem.grow_zeroed(nothing, layout(0, align), layout(50, align)).unwrap();
            assert!(grown.as_ref().iter().all(|byte| *byte == 0) && hakmem::is_ours(grown.cast::<u8>().as_ptr()));
            let shrunk = Hakmem.shrink(grown.cast(), layout(50, align), layout(0, align)).unwrap();
            assert_eq!(shrunk.len(), 0);
            Hakmem.deallocate(shrunk.cast(), layout(0, align));
        }
    }
}

#[test]
fn resizing_keeps_contents_and_takes_the_new_alignment() {
    for (old_align, new_align) in [(1, 1), (1, 4096), (4096, 1), (64, 64), (16, 1 << 20)] {
        for (small, large) in [(1, 100), (100, 5_000), (5_000, 300_000), (1 << 20, 40 << 20)] {
            unsafe {
                let block = Hakmem.allocate(layout(small, old_align)).unwrap().cast::<u8>();
                block.as_ptr().write_bytes(5, small);
                let block = Hakmem.grow_zeroed(block, layout(small, old_align), layout(large, new_align)).unwrap();
                assert_eq!(block.len(), large);
                let block = block.cast::<u8>();
                assert_eq!(block.as_ptr() as usize % new_align, 0);
                let contents = slice::from_raw_parts(block.as_ptr(), large);
                assert!(contents[..small].iter().all(|byte| *byte == 5));
                let checked = large.min(small + 100_000);
                assert!(contents[small..checked].iter().all(|byte| *byte == 0));
                let block = Hakmem.shrink(block, layout(large, new_align), layout(small, old_align)).unwrap().cast::<u8>();
                assert!(slice::from_raw_parts(block.as_ptr(), small).iter().all(|byte| *byte == 5));
                Hakmem.deallocate(block, layout(small, old_align));
            }
        }
    }
    assert!(Hakmem.allocate(layout(isize::MAX as usize - 15, 16)).is_err());
}
