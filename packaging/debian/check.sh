#!/usr/bin/env bash
# Builds the packages for one suite twice, and checks: both builds are equal, byte for byte, and lintian finds no error and no
# warning. The packages stay in OUT_DIR. Needs root and scripts/packages-deb.txt.
#
#   packaging/debian/check.sh [--suite SUITE] [--library-only] OUT_DIR
#
# SUITE is bookworm unless named.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
suite=bookworm options=()
while [ $# -gt 1 ]; do
    case $1 in
    --suite) suite=$2; shift ;;
    --library-only) options+=("$1") ;;
    *) break ;;
    esac
    shift
done
if [ $# -ne 1 ] || [[ $1 == -* ]]; then
    echo "usage: check.sh [--suite SUITE] [--library-only] OUT_DIR" >&2
    exit 2
fi
out=$1
mkdir -p "$out"
again=$(mktemp -d "${TMPDIR:-/tmp}/hakmem-again.XXXXXX")
cleanup() { rm -rf "$again"; }
. "$here/../chroots/running.sh"
end_with cleanup

# A commit between the two builds is no difference of theirs.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
find "$out" -maxdepth 1 \( -name '*hakmem*.deb' -o -name 'hakmem_*' \) -delete
running "$here/build.sh" --suite "$suite" ${options[@]+"${options[@]}"} "$out"
running "$here/build.sh" --suite "$suite" ${options[@]+"${options[@]}"} "$again" >/dev/null
failed=''
for file in "$out"/*.deb "$out"/*.dsc "$out"/*.tar.xz; do
    cmp "$file" "$again/${file##*/}" || failed=yes
done
[ -z "$failed" ] || { echo "check.sh: two builds differ" >&2; exit 1; }
echo "two builds are equal: $(cat "$out"/*.deb | sha256sum | cut -c 1-16)"

told=$(lintian --allow-root --fail-on none "$out"/hakmem_*.changes 2>&1)
if grep -E '^[EW]: ' <<<"$told"; then
    echo "check.sh: lintian found errors or warnings" >&2
    exit 1
fi
# lintian says nothing of packages it did not see.
[ -n "$(ls "$out"/hakmem_*.changes)" ]
echo "lintian: no errors, no warnings"
