#!/usr/bin/env bash
# Writes hakmem-sys-VERSION.crate and hakmem-VERSION.crate into OUT_DIR and prints their paths. cargo builds both from the
# packaged files first. Two runs with one cargo write the same bytes.
#
#   packaging/rust/package.sh OUT_DIR [CARGO_OPTION...]      such as --no-verify or --offline
set -euo pipefail

if [ $# -lt 1 ]; then
    echo "usage: packaging/rust/package.sh OUT_DIR [CARGO_OPTION...]" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

"$here/stage.sh" "$temporary/crates"
cd "$temporary/crates"
# A target folder of the user's may hold results of other sources.
export CARGO_TARGET_DIR="$temporary/target"
cargo package --quiet --workspace --locked "$@"
for crate in hakmem-sys hakmem; do
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$crate/Cargo.toml")
    cp "$CARGO_TARGET_DIR/package/$crate-$version.crate" "$out/"
    echo "$out/$crate-$version.crate"
done
