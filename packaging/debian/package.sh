#!/usr/bin/env bash
# Writes the Debian packages of Debian 11, 12 and 13 and their sources into OUT_DIR/debian, each suite's built in a chroot of it. Needs
# root and scripts/packages-deb.txt.
#
#   packaging/debian/package.sh OUT_DIR
set -euo pipefail
here=$(dirname "$(realpath "$0")")

if [ $# -ne 1 ]; then
    echo "usage: packaging/debian/package.sh OUT_DIR" >&2
    exit 2
fi
"$here/needs.sh"
mkdir -p "$1/debian"
out=$(realpath "$1/debian")
work=$(mktemp -d "${TMPDIR:-/tmp}/hakmem-debian.XXXXXX")
cleanup() { rm -rf "$work"; }
. "$here/../chroots/running.sh"
end_with cleanup

for suite in bullseye bookworm trixie; do
    running "$here/build.sh" --suite "$suite" "$work/$suite" >/dev/null
    # The release's own hashes stand in SHA256SUMS; .changes and .buildinfo are for an archive's upload.
    cp "$work/$suite"/*.deb "$work/$suite"/*.dsc "$work/$suite"/*.tar.xz "$out/"
done
ls "$out"/*.deb
