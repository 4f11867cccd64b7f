#!/usr/bin/env bash
# Copies the crates into OUT_DIR as they are packaged: with the C sources, the licence, and the version of CMakeLists.txt.
#
#   packaging/rust/stage.sh OUT_DIR      OUT_DIR is made, and must be empty
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: packaging/rust/stage.sh OUT_DIR" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
if [ -n "$(ls -A "$out")" ]; then
    echo "stage.sh: $out is not empty" >&2
    exit 1
fi
cd "$(dirname "$0")/../.."
version=$(packaging/version.sh)

(cd packaging/rust && cp -R Cargo.toml Cargo.lock hakmem-sys hakmem "$out")
rm -rf "$out"/hakmem*/target
sed -i "s/\"=\?0\.0\.0\"/\"$version\"/; s/version = \"$version\", path/version = \"=$version\", path/" "$out"/hakmem*/Cargo.toml
sed -i "s/\"0\.0\.0\"/\"$version\"/" "$out/Cargo.lock"
for crate in hakmem-sys hakmem; do
    cp LICENSE "$out/$crate/"
done

# What build.rs compiles and what that includes; the other files of override/ are of the shared library and the archive.
mkdir "$out/hakmem-sys/c"
find src include \( -name '*.c' -o -name '*.h' -o -name '*.def' \) \
    ! \( -path 'src/override/*' ! -name override_libc.c ! -name serves.h \) -print0 | xargs -0 cp --parents -t "$out/hakmem-sys/c"
# Modes of the checkout depend on umask, and go into the packages.
chmod -R u=rwX,go=rX "$out"
