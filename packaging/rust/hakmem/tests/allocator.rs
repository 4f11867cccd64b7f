//! Collections that name their allocator, by either trait. The global allocator is the system's.
#![cfg(any(feature = "allocator_api", feature = "allocator-api2"))]
#![cfg_attr(feature = "allocator_api", feature(allocator_api))]
#[cfg(not(feature = "allocator_api"))]
use allocator_api2::{alloc::Allocator, boxed::Box, vec::Vec};
use hakmem::{Hakmem, Heap};
#[cfg(feature = "allocator_api")]
use std::alloc::Allocator;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::{slice, thread};

const MIB: usize = 1 << 20;

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
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert!(hakmem::is_ours(&*Box::new_in([1u8; 100], Hakmem)));
    if !cfg!(feature = "override") {
        assert!(!hakmem::is_ours(vec![1u8; 100].as_ptr()));
    }
    let mut units = Vec::new_in(Hakmem);
    units.resize(1_000, ());
    assert!(units.len() == 1_000 && !hakmem::is_ours(units.as_ptr()));
}

#[test]
fn collections_live_in_a_heap() {
    let heap = Heap::builder().name("collections").build().unwrap();
    let mut numbers = Vec::new_in(&heap);
    numbers.extend(0..100_000u64);
    assert!(heap.contains(numbers.as_ptr()));
    numbers.truncate(10);
    numbers.shrink_to_fit();
    assert!(heap.contains(numbers.as_ptr()), "what is resized stays");
    assert_eq!((heap.stats().blocks, heap.stats().live), (1, 80));
    let boxed = thread::scope(|threads| threads.spawn(|| Box::new_in([1u8; 100], &heap)).join().unwrap());
    assert!(heap.contains(&*boxed));
    drop((numbers, boxed));
    assert_eq!(heap.stats().blocks, 0);
}

#[test]
fn collections_keep_the_heap_that_is_theirs() {
    let heap = Heap::new().unwrap();
    let mut numbers = Vec::new_in(heap.clone());
    numbers.extend(0..1000u32);
    drop(heap);
    let numbers = thread::spawn(move || {
        let mut numbers = numbers;
        numbers.extend(1000..50_000);
        numbers
    });
    let numbers = numbers.join().unwrap();
    assert!(numbers.iter().copied().eq(0..50_000));
    let block: *const u32 = numbers.as_ptr();
    assert!(numbers.allocator().contains(block));
    drop(numbers);
    assert!(!hakmem::is_ours(block));
}

#[test]
fn what_is_leaked_ends_with_the_heap() {
    let heap = Heap::new().unwrap();
    let mut block = Vec::new_in(&heap);
    block.resize(MIB, 7);
    let block: &mut [u8] = block.leak();
    assert_eq!(block[MIB - 1], 7);
    let block: *const u8 = block.as_ptr();
    assert!(heap.contains(block));
    drop(heap);
    assert!(!hakmem::is_ours(block));
}

#[test]
fn limits_refuse_and_blocks_stay() {
    let heap = Heap::builder().limit(MIB).build().unwrap();
    for align in [1, 16, 64, 4096] {
        let refused = heap.stats().refused;
        unsafe {
            let old = layout(MIB / 4, align);
            let block = heap.allocate(old).unwrap().cast::<u8>();
            block.as_ptr().write_bytes(3, old.size());
            assert!(heap.allocate(layout(MIB, align)).is_err());
            assert!(heap.allocate_zeroed(layout(MIB, align)).is_err());
            assert!(heap.grow(block, old, layout(2 * MIB, align)).is_err());
            assert!(heap.grow_zeroed(block, old, layout(2 * MIB, align)).is_err());
            assert!(slice::from_raw_parts(block.as_ptr(), old.size()).iter().all(|byte| *byte == 3));
            heap.deallocate(block, old);
        }
        assert_eq!((heap.stats().live, heap.stats().refused), (0, refused + 4));
    }
    let mut numbers: Vec<u64, &Heap> = Vec::new_in(&heap);
    numbers.push(5);
    assert!(numbers.try_reserve(MIB).is_err());
    assert_eq!(numbers[0], 5);
}

fn blocks_of_size_zero(source: impl Allocator) {
    for align in [1, 16, 4096] {
        let nothing = source.allocate(layout(0, align)).unwrap();
        assert_eq!((nothing.len(), nothing.cast::<u8>().as_ptr() as usize % align), (0, 0));
        let nothing: NonNull<u8> = nothing.cast();
        unsafe {
            let grown = source.grow_zeroed(nothing, layout(0, align), layout(50, align)).unwrap();
            assert!(grown.as_ref().iter().all(|byte| *byte == 0) && hakmem::is_ours(grown.cast::<u8>().as_ptr()));
            let shrunk = source.shrink(grown.cast(), layout(50, align), layout(0, align)).unwrap();
            assert_eq!(shrunk.len(), 0);
            source.deallocate(shrunk.cast(), layout(0, align));
        }
    }
}

#[test]
fn blocks_of_size_zero_are_aligned_and_not_freed() {
    blocks_of_size_zero(Hakmem);
    let heap = Heap::new().unwrap();
    blocks_of_size_zero(&heap);
    assert_eq!((heap.stats().blocks, heap.stats().requests), (0, 3));
}

fn zeroed(source: impl Allocator) {
    for align in [1, 64, 4096] {
        for size in [100, 5_000, 300_000] {
            let layout = layout(size, align);
            unsafe {
                let dirty = source.allocate(layout).unwrap().cast::<u8>();
                dirty.as_ptr().write_bytes(7, size);
                source.deallocate(dirty, layout);
                let block = source.allocate_zeroed(layout).unwrap();
                assert!(block.as_ref().iter().all(|byte| *byte == 0), "{:?}", layout);
                source.deallocate(block.cast(), layout);
            }
        }
    }
}

#[test]
fn zeroed_blocks_are_zero_where_dirty_ones_were() {
    zeroed(Hakmem);
    zeroed(Heap::new().unwrap());
}

fn resizing(source: impl Allocator, comes_from_it: impl Fn(*const u8) -> bool) {
    for (old_align, new_align) in [(1, 1), (1, 4096), (4096, 1), (64, 64), (16, 1 << 20)] {
        for (small, large) in [(1, 100), (100, 5_000), (5_000, 300_000), (MIB, 40 * MIB)] {
            unsafe {
                let block = source.allocate(layout(small, old_align)).unwrap().cast::<u8>();
                block.as_ptr().write_bytes(5, small);
                let block = source.grow_zeroed(block, layout(small, old_align), layout(large, new_align)).unwrap();
                assert_eq!(block.len(), large);
                let block = block.cast::<u8>();
                assert_eq!(block.as_ptr() as usize % new_align, 0);
                assert!(comes_from_it(block.as_ptr()));
                let contents = slice::from_raw_parts(block.as_ptr(), large);
                assert!(contents[..small].iter().all(|byte| *byte == 5));
                let checked = large.min(small + 100_000);
                assert!(contents[small..checked].iter().all(|byte| *byte == 0));
                let block = source.shrink(block, layout(large, new_align), layout(small, old_align)).unwrap().cast::<u8>();
                assert!(comes_from_it(block.as_ptr()));
                assert!(slice::from_raw_parts(block.as_ptr(), small).iter().all(|byte| *byte == 5));
                source.deallocate(block, layout(small, old_align));
            }
        }
    }
    assert!(source.allocate(layout(isize::MAX as usize - 15, 16)).is_err());
}

#[test]
fn resizing_keeps_contents_and_takes_the_new_alignment() {
    resizing(Hakmem, hakmem::is_ours);
    let heap = Heap::new().unwrap();
    resizing(&heap, |block| heap.contains(block));
    assert_eq!(heap.stats().live, 0);
}
