//! Blocks that are resized where they are: alone in the process, as another thread's block may take what lies behind.
#![cfg(not(feature = "hardened"))] // it has guard pages there
use hakmem::Hakmem;
use std::alloc::{alloc, dealloc, realloc, Layout};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem;

const MIB: usize = 1 << 20;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn realloc_stays_where_it_can() {
    for align in [1, 64, 4096, 64 << 10] {
        let old = layout(3 * MIB, align);
        unsafe {
            let block = alloc(old);
            assert!(!block.is_null());
            block.add(3 * MIB - 1).write(7);
            let grown = realloc(block, old, 6 * MIB);
            assert_eq!(grown, block, "{:?}", old);
            assert_eq!(grown.add(3 * MIB - 1).read(), 7);
            let shrunk = realloc(grown, layout(6 * MIB, align), MIB);
            assert_eq!(shrunk, block, "{:?}", old);
            dealloc(shrunk, layout(MIB, align));
        }
    }
}
