#!/usr/bin/env bash
# Packages the crates, unpacks them, and runs their tests from the packaged files alone. Exits with status 77 and one line
# where cargo is absent or too old.
#
#   packaging/rust/test.sh BUILD_DIR          tests; the C library's flags beside those of BUILD_DIR (ctest)
#   packaging/rust/test.sh BUILD_DIR --full   also every feature, clippy, documentation, format, reproducible packages
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ] || [ "${2:---full}" != --full ]; then
    echo "usage: packaging/rust/test.sh BUILD_DIR [--full]" >&2
    exit 2
fi
build=$(cd "$1" && pwd)
full=${2-}
here=$(cd "$(dirname "$0")" && pwd)

if ! cargo --version >/dev/null 2>&1 || ! command -v cc >/dev/null; then
    echo "cargo or cc is not installed, or cannot run (Debian: cargo-web, gcc)"
    exit 77
fi
# Crates that depend on each other can be packaged together since cargo 1.90.
minor=$(cargo --version | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
if [ "${minor:-0}" -lt 90 ]; then
    echo "$(cargo --version) is older than 1.90 (Debian 12: cargo-web)"
    exit 77
fi

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
# What cargo fetches stays in the build folder for the next run. Settings of the user's, such as a mirror, hold.
export CARGO_HOME="$build/packaging/cargo"
mkdir -p "$CARGO_HOME"
for name in config.toml config; do
    [ ! -e "$HOME/.cargo/$name" ] || ln -sf "$HOME/.cargo/$name" "$CARGO_HOME/$name"
done
# Variables that would change what is built or where.
unset CFLAGS CC CARGO_BUILD_TARGET RUSTFLAGS CARGO_ENCODED_RUSTFLAGS LD_PRELOAD
for name in $(compgen -e HAKMEM_ || true); do
    unset "$name"
done

unpack() {
    local crates=$1 crate folder
    mkdir "$temporary/unpacked"
    cd "$temporary/unpacked"
    for crate in "$crates"/*.crate; do
        tar -xzf "$crate"
    done
    for folder in hakmem*; do
        for file in LICENSE README.md Cargo.toml; do
            [ -s "$folder/$file" ] || { echo "$folder has no $file" >&2; exit 1; }
        done
    done
    # The crate hakmem names a hakmem-sys of crates.io, where this version may not be yet.
    printf '%s\n' '[workspace]' 'members = ["hakmem*"]' 'resolver = "2"' '[patch.crates-io]' \
        "hakmem-sys = { path = \"$(basename hakmem-sys-*)\" }" >Cargo.toml
    # Without the entries of the two crates: cargo writes them anew, and takes the others as they are.
    cp "$temporary/Cargo.lock" Cargo.lock
}

"$here/package.sh" "$temporary/one" --no-verify
"$here/stage.sh" "$temporary/stage"
cp "$temporary/stage/Cargo.lock" "$temporary/"
unpack "$temporary/one"

# A compiler that notes how it is called.
cat >"$temporary/cc" <<'WRAPPER'
#!/bin/sh
printf '%s\n' "$*" >>"${0%/*}/compiled"
exec cc "$@"
WRAPPER
chmod +x "$temporary/cc"
export CARGO_TARGET_DIR="$temporary/target"
CC="$temporary/cc" cargo test --quiet --locked --features hakmem/allocator-api2
python3 -B "$here/tests/flags.py" "$temporary/compiled" "$build/compile_commands.json"
# Each feature has C sources of its own.
for feature in override hardened; do
    cargo build --quiet --locked --features "hakmem-sys/$feature"
done

[ -n "$full" ] || exit 0
echo "packages: built by cargo from the packaged files, and the same in a second run"
(umask 077 && "$here/package.sh" "$temporary/two")
for crate in "$temporary"/one/*.crate; do
    cmp "$crate" "$temporary/two/$(basename "$crate")"
done
echo "features"
cargo build --quiet --locked --no-default-features
cargo test --quiet --locked --features hakmem/override,hakmem-sys/override,hakmem/allocator-api2
cargo test --quiet --locked --features hakmem/hardened,hakmem-sys/hardened,hakmem/allocator-api2
# A stable compiler takes nightly's features with this variable.
RUSTC_BOOTSTRAP=1 cargo test --quiet --locked -p hakmem --features allocator_api,allocator-api2
cargo test --quiet --locked --release
if cargo clippy --version >/dev/null 2>&1; then
    echo "clippy"
    cargo clippy --quiet --locked --all-targets --features hakmem/allocator-api2 -- -D warnings
    RUSTC_BOOTSTRAP=1 cargo clippy --quiet --locked --all-targets -p hakmem --features allocator_api,allocator-api2 -- -D warnings
else
    echo "no clippy: not checked"
fi
echo "documentation"
RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --no-deps
if cargo fmt --version >/dev/null 2>&1; then
    echo "format"
    (cd "$here" && cargo fmt --check)
else
    echo "no rustfmt: not checked"
fi
