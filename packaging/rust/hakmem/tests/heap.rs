//! Heaps: limits, what ends with them, and scopes.
use hakmem::{Error, Hakmem, Heap};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::thread;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem;

const MIB: usize = 1 << 20;

#[test]
fn options_hold() {
    let server = Heap::builder().name("server").limit(8 * MIB).build().unwrap();
    let query = Heap::builder().name("Anfrage für 7").limit(MIB).parent(&server).uncached().build().unwrap();
    assert_eq!((query.name(), query.stats().limit), ("Anfrage für 7", MIB));
    query.set_limit(2 * MIB);
    assert_eq!(query.stats().limit, 2 * MIB);
    let nameless = Heap::new().unwrap();
    assert_eq!((nameless.name(), nameless.stats().limit, nameless.stats().live), ("", 0, 0));
    assert_ne!(nameless.stats().id, query.stats().id);
    assert!(format!("{:?}", query).contains("Anfrage für 7"));
    for name in ["with\0zero", &"n".repeat(64)] {
        assert_eq!(Heap::builder().name(name).build().unwrap_err(), Error::Invalid);
    }
    assert_eq!(Heap::builder().name(&"n".repeat(63)).build().unwrap().name().len(), 63);
}

#[test]
fn a_scope_allocates_in_the_heap() {
    let (outer, inner) = (Heap::new().unwrap(), Heap::new().unwrap());
    let before = String::from("before");
    let mut grown = vec![1u8; 100];
    let (text, other) = outer.scope(|| {
        let text = "outer".repeat(10);
        let other = inner.scope(|| "inner".repeat(10));
        assert!(outer.contains("outer again".to_string().as_ptr()));
        thread::spawn(|| assert!(hakmem::is_ours(&*Box::new(1)))).join().unwrap();
        grown.reserve(100_000);
        (text, other)
    });
    assert!(outer.contains(text.as_ptr()) && inner.contains(other.as_ptr()));
    assert!(!outer.contains(grown.as_ptr()), "what is resized stays in its heap");
    for heap in [&outer, &inner] {
        assert!(!heap.contains(before.as_ptr()) && !heap.contains("after".to_string().as_ptr()));
    }
}

#[test]
fn a_panic_ends_a_scope() {
    let heap = Heap::new().unwrap();
    let payload = || Box::new("a message in the heap".to_string());
    let panic = catch_unwind(AssertUnwindSafe(|| heap.scope(|| resume_unwind(payload())))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(heap.contains(message.as_ptr()));
    assert!(!heap.contains("after".to_string().as_ptr()));
    drop(heap);
    assert_eq!(message, "a message in the heap");
}

#[test]
fn what_left_a_scope_outlives_the_heap() {
    let (mut kept, mut others) = (Vec::new(), Vec::new());
    for round in 0..100 {
        let heap = Heap::new().unwrap();
        kept.push(heap.scope(|| format!("the text of round {}", round)));
        assert!(heap.contains(kept[round].as_ptr()));
        drop(heap);
        // Memory that had been freed would be used again.
        others.push("x".repeat(kept[round].len()));
    }
    assert!(kept.iter().enumerate().all(|(round, text)| *text == format!("the text of round {}", round)));
}

fn leak(bytes: usize) -> *const u8 {
    Box::leak(vec![1u8; bytes].into_boxed_slice()).as_ptr()
}

#[test]
fn destroyed_a_heap_takes_leaks_along() {
    let plugin = Heap::builder().name("plug-in").build().unwrap();
    let leaked = plugin.scope(|| leak(MIB));
    assert!(plugin.contains(leaked));
    // SAFETY: nobody uses what the scope has leaked.
    unsafe { plugin.destroy() };
    assert!(!hakmem::is_ours(leaked));
    let plugin = Heap::new().unwrap();
    let leaked = plugin.scope(|| leak(MIB));
    drop(plugin);
    assert!(hakmem::is_ours(leaked), "the compiler does not know that it is a leak");
}

#[test]
fn a_parent_ends_after_its_children() {
    let server = Heap::builder().name("server").limit(MIB).build().unwrap();
    let (first, second) = thread::scope(|threads| {
        let child = || Heap::builder().parent(&server).build().unwrap();
        let (first, second) = (threads.spawn(child), threads.spawn(child));
        (first.join().unwrap(), second.join().unwrap())
    });
    let text = first.scope(|| "x".repeat(MIB * 3 / 4));
    assert!(second.scope(|| Vec::<u8>::new().try_reserve(MIB / 2)).is_err(), "the parent's limit holds for the sum");
    assert_eq!((server.stats().total, server.stats().live), (first.stats().live, 0));
    let id = server.stats().id;
    let clone = server.clone();
    drop(server);
    assert_eq!(clone.stats().id, id);
    drop(clone);
    assert!(second.scope(|| Vec::<u8>::new().try_reserve(MIB / 2)).is_err(), "the heap above lives on");
    drop(first);
    assert!(second.scope(|| Vec::<u8>::new().try_reserve(MIB / 2)).is_ok());
    assert_eq!(text.len(), MIB * 3 / 4);
}

#[test]
fn heaps_are_listed_while_others_end() {
    let kept = Heap::builder().name("kept").build().unwrap();
    thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                for n in 0..500 {
                    let heap = Heap::builder().name("short-lived").build().unwrap();
                    assert_eq!(heap.scope(|| n.to_string()).parse(), Ok(n));
                }
            });
        }
        for _ in 0..100 {
            let rows = Heap::list();
            let of_kept: Vec<_> = rows.iter().filter(|(_, stats)| stats.id == kept.stats().id).collect();
            assert!(matches!(of_kept[..], [(name, _)] if name == "kept"));
            assert!(rows.windows(2).all(|pair| pair[0].1.id < pair[1].1.id), "oldest first");
        }
    });
}
