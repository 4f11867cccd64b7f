#!/usr/bin/env bash
# Writes a release of the commit HEAD into OUT_DIR: the source archive, what each packaging/NAME/package.sh makes, recipes,
# licence, release notes, SBOM, and SHA256SUMS of them all.
#
#   packaging/dist.sh OUT_DIR [--url URL] [--without NAME]... [--check]
#
# --url      where the release will be fetched from; without it no recipes are written
# --without  leaves packaging/NAME out
# --check    makes the release twice, in two fresh clones of different paths, and fails unless all files are the same
#
# OUT_DIR is absent, empty, or a release that this script wrote before and now replaces.
set -euo pipefail

usage() {
    echo "usage: packaging/dist.sh OUT_DIR [--url URL] [--without NAME]... [--check]" >&2
    exit 2
}

out='' url='' check='' without=()
while [ $# -gt 0 ]; do
    case $1 in
    --url | --without) [ $# -gt 1 ] && [ -n "$2" ] || usage ;;&
    --url) url=$2 && shift ;;
    --without) without+=("$2") && shift ;;
    --check) check=yes ;;
    -*) usage ;;
    *) [ -z "$out" ] || usage && out=$1 ;;
    esac
    shift
done
[ -n "$out" ] || usage
if [ -d "$out" ] && [ -n "$(ls -A "$out")" ] && [ ! -f "$out/SHA256SUMS" ]; then
    echo "dist.sh: $out holds something that is no release: nothing done" >&2
    exit 1
fi
mkdir -p "$(dirname "$out")"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
cd "$(dirname "$0")/.."

wanted() {
    local name
    for name in "${without[@]}"; do
        [ "$name" != "$1" ] || return 1
    done
}

for name in "${without[@]}"; do
    if [ ! -e "packaging/$name/package.sh" ]; then
        echo "dist.sh: --without $name: there is no packaging/$name/package.sh" >&2
        exit 2
    fi
done
# Packages are made of the files, the source archive of the commit: they must be the same.
changed=$(git status --porcelain)
if [ -n "$changed" ]; then
    printf 'dist.sh: commit or remove first:\n%s\n' "$changed" >&2
    exit 1
fi

# Said before anything is built: a release takes minutes.
for needs in packaging/*/needs.sh; do
    name=$(basename "$(dirname "$needs")")
    { [ -e "packaging/$name/package.sh" ] && wanted "$name"; } || continue
    if ! lacking=$("$needs" 2>&1); then
        echo "dist.sh: packaging/$name/package.sh cannot work here: $lacking: nothing done" >&2
        exit 1
    fi
done

# What a tool may write into a package without being asked.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
umask 022
PACKAGING_TOOLS=$(packaging/tools.sh)
export PACKAGING_TOOLS

# All in a folder beside OUT_DIR that takes its place when the release is whole.
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT

make_release() {
    local to=$1 script name
    packaging/source.sh "$to" >/dev/null
    for script in packaging/*/package.sh; do
        [ -e "$script" ] || continue
        name=$(basename "$(dirname "$script")")
        wanted "$name" || continue
        echo "dist.sh: $script"
        "$script" "$to"
    done
    cp LICENSE "$to/LICENSE"
    packaging/notes.sh >"$to/hakmem-$(packaging/version.sh)-notes.md"
    if [ -n "$url" ]; then
        packaging/recipes.sh "$to" "$url" >/dev/null
    else
        echo "dist.sh: no recipes: --url names where the release will be fetched from"
    fi
    "$PACKAGING_TOOLS/bin/python" packaging/sbom/sbom.py "$to" >/dev/null
    (cd "$to" && find . -type f -not -path ./SHA256SUMS -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum -- >"$work/sums")
    mv "$work/sums" "$to/SHA256SUMS"
}

if [ -n "$check" ]; then
    for round in one another-place; do
        git clone --quiet --no-hardlinks . "$work/$round/tree"
        arguments=()
        [ -z "$url" ] || arguments+=(--url "$url")
        for name in "${without[@]}"; do arguments+=(--without "$name"); done
        "$work/$round/tree/packaging/dist.sh" "$work/$round/release" "${arguments[@]}"
    done
    if ! difference=$(diff "$work/one/release/SHA256SUMS" "$work/another-place/release/SHA256SUMS"); then
        printf 'dist.sh: two builds of one commit differ:\n%s\n' "$difference" >&2
        exit 1
    fi
    echo "dist.sh: $(wc -l <"$work/one/release/SHA256SUMS") files are the same in two builds"
    mv "$work/one/release" "$work/release"
else
    mkdir "$work/release"
    make_release "$work/release"
fi
chmod 755 "$work/release"
rm -rf "$out"
mv "$work/release" "$out"
echo "$out"
