//! Figures, options, purging, profiles, and what a wrong layout leads to.
use hakmem::{Error, Hakmem, ProfileFormat, StatsFormat};
use std::alloc::{alloc, dealloc, Layout};
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem;

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs one of this file's ignored tests in a process of its own.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn sums_of_figures_hold() {
    let held: Vec<Vec<u8>> = (0..2_000).map(|n| vec![1; n * 7 + 1]).collect();
    let s = hakmem::stats();
    assert_eq!(s.accessible, s.spans + s.huge_live + s.huge_heaps + s.huge_kept + s.sampled_accessible + s.own);
    assert_eq!(s.live, s.slab_live + s.extents + s.huge_live + s.sampled_live + s.heaps_live);
    assert_eq!(
        s.spans,
        s.slabs + s.extents + s.extents_cached + s.span_heaps + s.free_dirty + s.free_clean + s.claimed + s.guards
    );
    assert_eq!(s.own, s.own_metadata + s.own_tables + s.own_other);
    assert!(s.used_peak > 0 && s.resident_peak > 0 && s.resident > 0);
    assert!(s.live >= held.iter().map(|block| block.len() as u64).sum());

    let mut rows = [hakmem::ClassStats::default(); 128];
    let count = hakmem::class_stats(&mut rows);
    assert!(0 < count && count <= rows.len());
    for row in &rows[..count] {
        assert_eq!(row.slab_bytes, row.handed_out + row.free + row.never_allocated + row.rest);
        assert_eq!(row.handed_out, row.live + row.cached + row.depots);
    }
    assert_eq!(hakmem::class_stats(&mut []), count);
}

#[test]
fn figures_are_printed() {
    let path = temporary("figures");
    let text = |format| {
        hakmem::print_stats(&File::create(&path).unwrap(), format).unwrap();
        fs::read_to_string(&path).unwrap()
    };
    assert!(text(StatsFormat::Text).contains("figures of process"));
    let json = text(StatsFormat::Json);
    assert!(json.starts_with('{') && json.trim_end().ends_with('}'), "{}", json);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = hakmem::print_stats(&full, StatsFormat::Text).unwrap_err();
    assert_eq!(error, Error::System(28));
    assert!(error.to_string().contains("No space left"), "{}", error);
    fs::remove_file(path).unwrap();
}

#[test]
fn options_are_read_and_set() {
    let limit = "HAKMEM_LIMIT";
    assert_eq!(hakmem::option(limit), Ok(0));
    assert_eq!(hakmem::set_option(limit, 1 << 40), Ok(()));
    assert_eq!(hakmem::option(limit), Ok(1 << 40));
    assert_eq!(hakmem::set_option(limit, 0), Ok(()));
    assert_eq!(hakmem::set_option("HAKMEM_RESERVE_MB", 64), Err(Error::AtStartOnly));
    assert_eq!(hakmem::set_option("HAKMEM_SS_OS_STATS", 2), Err(Error::Invalid));
    for name in ["HAKMEM_LIMITS", "", "HAKMEM_LIMIT\0", &"x".repeat(10_000)] {
        assert_eq!(hakmem::option(name), Err(Error::Invalid));
        assert_eq!(hakmem::set_option(name, 0), Err(Error::Invalid));
    }
}

#[test]
fn purge_gives_memory_back() {
    // The hardened build maps larger blocks by themselves, and keeps some of these in quarantine.
    drop((0..300).map(|_| vec![1u8; 100 << 10]).collect::<Vec<_>>());
    let before = hakmem::stats().purged;
    let bytes = hakmem::purge();
    // Another test's purge cannot take what this thread has freed since, but decay may have taken part.
    assert!(bytes as u64 + before >= 24 << 20, "{} now, {} before", bytes, before);
    assert!(hakmem::stats().free_dirty < 24 << 20);
}

#[test]
#[ignore = "run by an_idle_thread_caches_nothing"]
fn child_idles() {
    for _ in 0..100 {
        drop((0..1_000).map(|n| n.to_string()).collect::<Vec<_>>());
    }
    let before = hakmem::stats().slab_cached;
    hakmem::thread_idle();
    let after = hakmem::stats().slab_cached;
    assert!(after < before, "{} bytes cached, {} before", after, before);
}

#[test]
fn an_idle_thread_caches_nothing() {
    let output = child("child_idles", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn addresses_are_told_apart() {
    let local = 1;
    assert!(!hakmem::is_ours(&local));
    assert!(hakmem::is_ours(&*Box::new(1)));
    assert!(hakmem::is_ours("text".to_string().as_str()));
    assert!(hakmem::good_size(100) >= 100);
    assert_eq!(hakmem::version().split('.').count(), 3);
}

#[test]
fn a_profile_that_is_off_cannot_be_written() {
    let path = temporary("off");
    assert_eq!(hakmem::profile_dump(&path, ProfileFormat::Pprof), Err(Error::ProfileOff));
    assert_eq!(hakmem::profile_dump("with\0zero", ProfileFormat::Pprof), Err(Error::Invalid));
    assert!(!path.exists());
}

#[inline(never)]
fn holds_much_memory() -> Vec<Vec<u8>> {
    (0..512).map(|_| vec![1; 64 << 10]).collect()
}

#[test]
#[ignore = "run by profiles_start_in_a_running_program"]
fn child_starts_a_profile() {
    let unknown = vec![vec![0u8; 1 << 20]; 8];
    assert_eq!(hakmem::profile::pprof(), Err(Error::ProfileOff));
    assert_eq!(hakmem::profile::stop(), Err(Error::ProfileOff));
    hakmem::profile::start(1).unwrap();
    hakmem::profile::set_label(7);
    hakmem::profile::name_label(7, "tenant-7").unwrap();
    assert_eq!(hakmem::profile::name_label(0, "none"), Err(Error::Invalid));
    assert_eq!(hakmem::profile::label(), 7);
    let held = holds_much_memory();
    let message = hakmem::profile::pprof().unwrap();
    assert!(message.windows(11).any(|part| part == b"inuse_space"));
    assert!(message.windows(8).any(|part| part == b"tenant-7"));
    // The hardened build asks for 8 bytes more of each.
    let block = (64 << 10) + if cfg!(feature = "hardened") { 8 } else { 0 };
    let live = format!("\"live\":[{},512,", 512 * block);
    let json = String::from_utf8(hakmem::profile::json().unwrap()).unwrap();
    assert!(json.contains(&live), "{}", json);
    hakmem::profile::reset().unwrap();
    assert!(!String::from_utf8(hakmem::profile::json().unwrap()).unwrap().contains(&live));
    hakmem::profile::stop().unwrap();
    drop((unknown, held));
}

#[test]
fn profiles_start_in_a_running_program() {
    let output = child("child_starts_a_profile", &[("HAKMEM_HEAP_PROFILE_MOST", "0")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "run by profiles_are_written"]
fn child_writes_profiles() {
    let held = holds_much_memory();
    for (format, name) in
        [(ProfileFormat::Pprof, "pprof"), (ProfileFormat::Jemalloc, "jemalloc"), (ProfileFormat::Json, "json")]
    {
        hakmem::profile_dump(temporary(name), format).unwrap();
    }
    assert_eq!(hakmem::profile_dump("/nowhere/profile", ProfileFormat::Pprof), Err(Error::System(2)));
    drop(held);
}

#[test]
fn profiles_are_written() {
    let output = child("child_writes_profiles", &[("HAKMEM_HEAP_PROFILE", "1"), ("HAKMEM_HEAP_PROFILE_RATE", "64K")]);
    assert!(output.status.success(), "{:?}", output);
    for (name, begin) in [("pprof", "heap profile:"), ("jemalloc", "heap_v2/"), ("json", "{")] {
        let text = fs::read_to_string(temporary(name)).unwrap();
        assert!(text.starts_with(begin), "{}: {:.100}", name, text);
        fs::remove_file(temporary(name)).unwrap();
    }
}

#[test]
#[ignore = "run by a_layout_larger_than_the_block_is_reported"]
fn child_frees_by_a_larger_layout() {
    let align: usize = std::env::var("ALIGN").unwrap().parse().unwrap();
    unsafe {
        let block = alloc(Layout::from_size_align(100, align).unwrap());
        block.write_volatile(1); // a block that is not used need not be allocated
        dealloc(block, Layout::from_size_align(100_000, align).unwrap());
    }
}

#[test]
fn a_layout_larger_than_the_block_is_reported() {
    for align in ["8", "256"] {
        let output = child("child_frees_by_a_larger_layout", &[("ALIGN", align)]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(6), "{}", errors);
        assert!(errors.contains("hakmem: "), "{}", errors);
        assert!(errors.contains("size"), "{}", errors);
    }
}

#[test]
#[ignore = "run by the_library_serves_from_the_start"]
fn child_ends() {}

#[test]
fn the_library_serves_from_the_start() {
    let output = child("child_ends", &[("HAKMEM_SS_OS_STATS", "1")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let count = errors.split("[SS_OS_STATS] alloc=").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(count.map_or(false, |count| count.parse::<u64>().unwrap() > 0), "{}", errors);
}

#[test]
#[ignore = "the child of the test below"]
fn allocates_where_it_may_not() {
    let mut vector: Vec<u64> = Vec::with_capacity(4);
    assert!(!hakmem::forbid(true));
    vector.extend([1, 2, 3, 4]);
    assert!(hakmem::forbid(true));
    vector.push(5);
    assert!(hakmem::forbid(false));
    vector.extend(0..1000);
}

#[test]
fn what_is_forbidden_is_reported() {
    let output = child("allocates_where_it_may_not", &[]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}", told);
    assert_eq!(told.matches("hakmem: forbidden allocation of ").count(), 1, "{}", told);
    assert_eq!(told.matches("hakmem: forbidden free").count(), 1, "{}", told);
    let output = child("allocates_where_it_may_not", &[("HAKMEM_FORBID", "abort")]);
    assert_eq!(output.status.signal(), Some(6));
}
