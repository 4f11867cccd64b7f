//! What this crate declares is what the C headers declare.
use std::collections::BTreeSet;
use std::ffi::{c_void, CStr};
use std::path::Path;

/// A header without its comments and preprocessor lines.
fn header(name: &str) -> String {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packaged = manifest.join("c/include/hakmem").join(name);
    let path = if packaged.exists() { packaged } else { manifest.join("../../../include/hakmem").join(name) };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {}", path.display(), error));
    let mut code = String::new();
    for (n, part) in text.split("/*").enumerate() {
        code.push_str(if n == 0 { part } else { part.split_once("*/").expect("the comment ends").1 });
    }
    let code = code.replace("\\\n", " ");
    code.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")
}

fn names_before_parenthesis(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices('(') {
        let name: String = code[..at].chars().rev().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let name: String = name.chars().rev().collect();
        if name.starts_with("hakmem_") {
            names.insert(name);
        }
    }
    names
}

#[test]
fn every_function_is_declared() {
    let ours = names_before_parenthesis(include_str!("../src/lib.rs"));
    let mut theirs = names_before_parenthesis(&header("hakmem.h"));
    theirs.extend(names_before_parenthesis(&header("stats.h")));
    theirs.extend(names_before_parenthesis(&header("heap.h")));
    // glibc's structures; hakmem_stats_get has all figures.
    theirs.retain(|name| !name.starts_with("hakmem_mallinfo"));
    assert!(theirs.len() > 25, "the headers were not understood: {:?}", theirs);
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "declared in the headers only: {:?}", missing);
    let gone: Vec<_> = ours.difference(&theirs).collect();
    assert!(gone.is_empty(), "declared in this crate only: {:?}", gone);
}

fn fields_of(code: &str, name: &str) -> Vec<(String, String)> {
    let body = code.split_once(&format!("typedef struct {} {{", name)).expect("the structure").1;
    let body = body.split_once('}').expect("its end").0;
    let mut fields = Vec::new();
    for declaration in body.split(';').map(str::trim).filter(|text| !text.is_empty()) {
        let start = declaration.split(',').next().expect("a first name").trim_end();
        let (kind, _) = start.split_at(start.rfind([' ', '*']).expect("a type and names") + 1);
        let names = &declaration[kind.len()..];
        let kind = match kind.trim_end() {
            "uint32_t" => "u32",
            "uint64_t" => "u64",
            "size_t" => "usize",
            "unsigned" => "c_uint",
            "const char *" => "*const c_char",
            "hakmem_heap *" => "*mut hakmem_heap",
            other => panic!("{}: type {}", name, other),
        };
        fields.extend(names.split(',').map(|field| (field.trim().to_string(), kind.to_string())));
    }
    fields
}

fn assert_same_fields(ours: &[(&str, &str)], file: &str, name: &str) {
    let ours: Vec<_> = ours.iter().map(|(field, kind)| (field.to_string(), kind.to_string())).collect();
    assert_eq!(ours, fields_of(&header(file), name));
}

#[test]
fn structures_have_the_same_fields() {
    assert_same_fields(hakmem_sys::hakmem_stats::FIELDS, "stats.h", "hakmem_stats");
    assert_same_fields(hakmem_sys::hakmem_class_stats::FIELDS, "stats.h", "hakmem_class_stats");
    assert_same_fields(hakmem_sys::hakmem_heap_options::FIELDS, "heap.h", "hakmem_heap_options");
    assert_same_fields(hakmem_sys::hakmem_heap_stats::FIELDS, "heap.h", "hakmem_heap_stats");
}

#[test]
fn the_library_knows_the_same_structure() {
    let mut stats = hakmem_sys::hakmem_stats::default();
    let size = std::mem::size_of_val(&stats);
    assert_eq!(unsafe { hakmem_sys::hakmem_stats_get(&mut stats, size) }, 0);
    assert_eq!(stats.version, hakmem_sys::HAKMEM_STATS_VERSION);
    assert_eq!(stats.size as usize, size);
}

#[test]
fn the_library_knows_the_structures_of_heaps() {
    let mut options = hakmem_sys::hakmem_heap_options::default();
    unsafe {
        assert!(hakmem_sys::hakmem_heap_new(&options).is_null(), "size 0 is no version's");
        options.size = std::mem::size_of_val(&options);
        options.limit = 1 << 20;
        let parent = hakmem_sys::hakmem_heap_new(&options);
        let name = b"query\0";
        options.name = name.as_ptr().cast();
        options.limit = 1 << 19;
        options.parent = parent;
        options.flags = hakmem_sys::HAKMEM_HEAP_UNCACHED;
        let heap = hakmem_sys::hakmem_heap_new(&options);
        assert_eq!(hakmem_sys::hakmem_heap_parent(heap), parent);
        assert_eq!(CStr::from_ptr(hakmem_sys::hakmem_heap_name(heap)).to_str(), Ok("query"));
        let block = hakmem_sys::hakmem_heap_malloc(heap, 1000);
        assert!(hakmem_sys::hakmem_heap_malloc(heap, 600_000).is_null());
        let mut stats = hakmem_sys::hakmem_heap_stats { requests: 77, ..Default::default() };
        hakmem_sys::hakmem_heap_get_stats(heap, &mut stats, std::mem::size_of_val(&stats) - 8);
        assert_eq!(stats.requests, 77, "no more than the given size is filled in");
        hakmem_sys::hakmem_heap_get_stats(heap, &mut stats, std::mem::size_of_val(&stats));
        let live = hakmem_sys::hakmem_malloc_usable_size(block);
        assert_eq!((stats.live, stats.blocks, stats.limit, stats.total, stats.refused), (live, 1, 1 << 19, live, 1));
        assert_eq!(stats.requests, 1);
        hakmem_sys::hakmem_heap_destroy(parent);
    }
}

/// Each string must be readable and each number the one that hakmem_option_get gives: fields at other places would not be.
unsafe extern "C" fn compare_option(option: *const hakmem_sys::hakmem_option, context: *mut c_void) -> bool {
    let option = &*option;
    let name = CStr::from_ptr(option.name).to_str().unwrap();
    for text in [option.value, option.initial, option.meaning] {
        assert!(CStr::from_ptr(text).to_str().is_ok(), "{}", name);
    }
    let mut value = 0;
    assert!(name.starts_with("HAKMEM_"), "{}", name);
    assert_eq!(hakmem_sys::hakmem_option_get(option.name, &mut value) == 0, !option.text, "{}", name);
    assert_eq!(value, option.number, "{}", name);
    assert!((0..=hakmem_sys::HAKMEM_ORIGIN_PROGRAM).contains(&option.origin), "{}", name);
    *context.cast::<usize>() += 1;
    true
}

#[test]
fn options_are_listed() {
    let mut count = 0usize;
    unsafe {
        let context: *mut usize = &mut count;
        assert_eq!(hakmem_sys::hakmem_option_list(Some(compare_option), context.cast()), count);
        assert_eq!(hakmem_sys::hakmem_option_list(None, std::ptr::null_mut()), count);
    }
    assert!(count > 10);
}

#[test]
fn versions_agree() {
    let version = unsafe { CStr::from_ptr(hakmem_sys::hakmem_version()) };
    // A checkout has 0.0.0: packaging/rust/stage.sh sets the version of what is packaged.
    if env!("CARGO_PKG_VERSION") != "0.0.0" {
        assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn malloc_is_replaced_only_when_asked() {
    extern "C" {
        fn strdup(text: *const hakmem_sys::c_char) -> *mut hakmem_sys::c_char;
        fn free(p: *mut c_void);
    }
    let text = b"made by the C library\0";
    unsafe {
        // Its malloc is called from inside libc.
        let copy: *mut c_void = strdup(text.as_ptr().cast()).cast();
        let ours = hakmem_sys::hakmem_is_ours(copy);
        free(copy);
        assert_eq!(ours, cfg!(feature = "override"));
    }
}
