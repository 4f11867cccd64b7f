//! Compiles the C library into an archive, with the `cc` crate alone. The flags are those of CMakeLists.txt
//! (hakmem_configure); packaging/rust/tests/flags.py compares what both compile and how.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// Every feature of src/base/policy.h, as libhakmem-hardened.so has.
const HARDENING: &str = "63";

/// What the feature `hardened` adds to the sources.
const HARDENED_SOURCES: [&str; 8] = [
    "harden/entries.c",
    "harden/operators.c",
    "harden/quarantine.c",
    "harden/sweep.c",
    "harden/trailer.c",
    "guard/empty.c",
    "large/guard_pages.c",
    "large/quarantine.c",
];

fn main() {
    refuse_other_targets();
    let root = c_folder();
    println!("cargo:rerun-if-changed={}", root.join("src").display());
    println!("cargo:rerun-if-changed={}", root.join("include").display());

    let mut build = cc::Build::new();
    build
        .files(sources(&root.join("src")))
        .include(root.join("src"))
        .include(root.join("include"))
        .std("gnu17")
        // An allocator of the dev profile would be several times slower than the program is used to.
        .opt_level(2)
        // cc adds frame pointers where there is debug information: instructions in malloc that nobody reads.
        .force_frame_pointer(false)
        .warnings(false)
        .define("_GNU_SOURCE", None)
        .define("HAK_CHECKS", "1")
        .define("HAK_ASSERTS", "0")
        .define("HAK_PROBES", if has_sdt() { "1" } else { "0" })
        .flag("-fvisibility=hidden")
        // Inside an allocator these names are no built-ins: gcc would turn calloc's body into a call of itself.
        .flag("-fno-builtin-malloc")
        .flag("-fno-builtin-calloc")
        .flag("-fno-builtin-realloc")
        .flag("-fno-builtin-free");
    if feature("hardened") {
        build.define("HAK_HARDENED", HARDENING);
    }
    build.compile("hakmem");
    // Dependents read it as DEP_HAKMEM_INCLUDE in their build scripts.
    println!("cargo:include={}", root.join("include").display());
}

fn feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some()
}

fn refuse_other_targets() {
    let of = |name: &str| env::var(format!("CARGO_CFG_TARGET_{}", name)).unwrap_or_default();
    let (system, processor, width) = (of("OS"), of("ARCH"), of("POINTER_WIDTH"));
    if system != "linux" || !["x86_64", "aarch64"].contains(&processor.as_str()) || width != "64" {
        eprintln!("hakmem-sys: hakmem runs on Linux on x86_64 and aarch64 (64-bit), not on {} on {}", system, processor);
        process::exit(1);
    }
}

/// The packaged crate holds the C sources in c/. In the source tree they lie outside of it.
fn c_folder() -> PathBuf {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let packaged = manifest.join("c");
    if packaged.is_dir() {
        packaged
    } else {
        manifest.join("../../..")
    }
}

/// Of libhakmem-je.so alone, whose names a program's own jemalloc may have.
const OTHER_SOURCES: [&str; 2] = ["je", "entry/counted.c"];

/// Every C file but those of another library and of the features that are off.
fn sources(src: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(src, &mut found);
    found.retain(|file| {
        let name = file.strip_prefix(src).expect("found below src");
        if name.starts_with("override") {
            feature("override") && name.ends_with("override_libc.c")
        } else {
            !OTHER_SOURCES.iter().any(|other| name.starts_with(other))
                && (feature("hardened") || !HARDENED_SOURCES.iter().any(|only| name.ends_with(only)))
        }
    });
    // The order of a folder differs from machine to machine, and with it the archive.
    found.sort();
    found
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {}", folder.display(), error)) {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().map_or(false, |extension| extension == "c") {
            found.push(path);
        }
    }
}

/// Whether there is a header for static probes (Debian: systemtap-sdt-dev).
fn has_sdt() -> bool {
    let file = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("sdt.c");
    fs::write(&file, "#if __has_include(<sys/sdt.h>)\nhakmem_has_sdt\n#endif\n").expect("OUT_DIR can be written");
    let expanded = cc::Build::new().file(&file).warnings(false).cargo_warnings(false).try_expand();
    expanded.map_or(false, |text| String::from_utf8_lossy(&text).contains("hakmem_has_sdt"))
}
