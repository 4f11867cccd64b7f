//! Blocks that travel between threads, threads that end, and the heap afterwards. One test alone: the heap check is exact
//! while no other thread allocates.
use hakmem::Hakmem;
use std::alloc::{alloc, dealloc, realloc, Layout};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;
use std::thread;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// A block whose contents tell its length.
fn block(random: &mut Random) -> Vec<u8> {
    let size = 1 + if random.below(100) == 0 { random.below(600_000) } else { random.below(3_000) };
    vec![(size % 251) as u8; size]
}

fn assert_intact(block: &[u8]) {
    let value = (block.len() % 251) as u8;
    assert!(all_are(block, value), "a block of {} bytes was overwritten", block.len());
}

/// By comparing memory: a loop over bytes takes seconds in a debug build.
fn all_are(block: &[u8], value: u8) -> bool {
    block[0] == value && block[1..] == block[..block.len() - 1]
}

/// Four threads allocate, two others free.
fn hand_over() {
    let mut consumers = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..2 {
        let (sender, receiver) = mpsc::sync_channel::<Vec<u8>>(64);
        senders.push(sender);
        consumers.push(thread::spawn(move || receiver.into_iter().map(|block| assert_intact(&block)).count()));
    }
    let producers: Vec<_> = (0..4)
        .map(|n| {
            let senders = senders.clone();
            thread::spawn(move || {
                let mut random = Random(n + 1);
                for turn in 0..2_000 {
                    senders[turn % 2].send(block(&mut random)).unwrap();
                }
            })
        })
        .collect();
    drop(senders);
    producers.into_iter().for_each(|thread| thread.join().unwrap());
    let received: usize = consumers.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(received, 8_000);
}

/// Blocks outlive the threads that made them, and are resized and freed by another.
fn outlive() {
    for round in 0..8 {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                thread::spawn(move || {
                    let mut random = Random(round * 8 + n + 1);
                    (0..200).map(|_| block(&mut random)).collect::<Vec<_>>()
                })
            })
            .collect();
        for thread in threads {
            for mut block in thread.join().unwrap() {
                assert_intact(&block);
                let value = block[0];
                block.resize(block.len() * 2, value);
                assert!(all_are(&block, value));
            }
        }
    }
}

struct AllocatesWhenDropped(Vec<String>);

impl Drop for AllocatesWhenDropped {
    fn drop(&mut self) {
        let copies: Vec<String> = self.0.iter().map(|text| text.repeat(20)).collect();
        assert!(copies.iter().all(|text| text.len() == 20 * "thread local".len()));
    }
}

thread_local! {
    static KEPT: RefCell<AllocatesWhenDropped> = const { RefCell::new(AllocatesWhenDropped(Vec::new())) };
}

/// A thread's end allocates and frees, before and after its cache is gone.
fn thread_exit() {
    for _ in 0..25 {
        let threads: Vec<_> = (0..4)
            .map(|_| thread::spawn(|| KEPT.with(|kept| kept.borrow_mut().0.resize(500, "thread local".to_string()))))
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn collections() {
    let threads: Vec<_> = (0..4u64)
        .map(|n| {
            thread::spawn(move || {
                let mut random = Random(n + 100);
                let (mut map, mut tree) = (HashMap::new(), BTreeMap::new());
                for turn in 0..20_000 {
                    let key = random.below(3_000);
                    if turn % 3 == 0 {
                        assert_eq!(map.remove(&key), tree.remove(&key));
                    } else {
                        map.insert(key, turn.to_string());
                        tree.insert(key, turn.to_string());
                    }
                }
                assert_eq!(map.len(), tree.len());
                assert!(tree.iter().all(|(key, value)| map.get(key) == Some(value)));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A block of a larger alignment moves when it is resized: the old one is freed.
fn aligned_growth() {
    let small = Layout::from_size_align(10_000, 4096).unwrap();
    let large = Layout::from_size_align(20_000, 4096).unwrap();
    for _ in 0..2_000 {
        unsafe {
            let block = realloc(alloc(small), small, large.size());
            block.write_volatile(1);
            dealloc(block, large);
        }
    }
}

#[test]
fn threads() {
    hand_over();
    let before = hakmem::stats();
    for _ in 0..2 {
        hand_over();
        outlive();
        thread_exit();
        collections();
        aligned_growth();
    }
    let after = hakmem::stats();
    // This thread's, and that of the thread that started it.
    assert!(after.caches_used <= 2, "{} thread caches are in use: their threads have ended", after.caches_used);
    assert!(
        after.live < before.live + (1 << 20),
        "{} bytes live, {} before: what was freed is still held",
        after.live,
        before.live
    );
    assert!(after.span_allocs > before.span_allocs);
    assert_eq!(after.foreign_frees, 0);
    assert_eq!(hakmem::heap_check(), 0);
}
