#!/usr/bin/env bash
# Checks that the commit HEAD can be released, one line an item, and changes nothing. Status 1 when an item fails.
#
#   scripts/release.sh [BUILD]           before the tag; BUILD (build/release) has the libraries
#   scripts/release.sh --tagged [BUILD]  the same, and the tag vVERSION is HEAD (the first step of the release workflow)
#
# Where all holds, the release is: git tag --annotate vVERSION, git push origin vVERSION (.github/workflows/release.yml does the rest).
set -uo pipefail
cd "$(dirname "$0")/.."

tagged=''
if [ "${1-}" = --tagged ]; then
    tagged=yes
    shift
fi
build=${1:-build/release}
if [ $# -gt 1 ] || [[ $build == -* ]]; then
    echo "usage: scripts/release.sh [--tagged] [BUILD]" >&2
    exit 2
fi

items=0 failures=0
item() { # item WHAT COMMAND...: what the command prints is shown where it fails
    local what=$1 told
    shift
    items=$((items + 1))
    if told=$("$@" 2>&1); then
        echo "ok      $what"
    else
        echo "FAILED  $what"
        [ -z "$told" ] || sed 's/^/          /' <<<"$told"
        failures=$((failures + 1))
    fi
}

version=$(packaging/version.sh) || exit 1
tag=v$version

header_has_version() {
    local string numbers
    string=$(sed -n 's/^#define HAKMEM_VERSION_STRING "\(.*\)"/\1/p' include/hakmem/hakmem.h)
    numbers=$(sed -nE 's/^#define HAKMEM_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/hakmem/hakmem.h | paste -sd.)
    [ "$string" = "$version" ] && [ "$numbers" = "$version" ] && return
    echo "include/hakmem/hakmem.h has $string and $numbers, CMakeLists.txt $version"
    return 1
}
derived_elsewhere() { # 0.0.0 in the tree stands for the version, which the packages' scripts write in
    local file
    for file in packaging/npm/package.json packaging/rust/hakmem/Cargo.toml packaging/rust/hakmem-sys/Cargo.toml; do
        grep -q '"0\.0\.0"' "$file" || { echo "$file has a version of its own"; return 1; }
    done
    if grep -nE '^version *=' python/pyproject.toml; then return 1; fi
}
changelog_has_part() {
    packaging/notes.sh >/dev/null || return 1
    if grep -qE "^## ${version//./\\.} .*unreleased" CHANGELOG.md; then
        echo "CHANGELOG.md says that $version is unreleased: write the date there"
        return 1
    fi
}
tree_is_clean() {
    local changed
    changed=$(git status --porcelain)
    [ -z "$changed" ] || { echo "$changed"; return 1; }
}
newer_than_tags() {
    local last
    last=$(git tag --list 'v[0-9]*' | sed 's/^v//' | grep -vxF "$version" | sort -V | tail -n 1)
    [ -z "$last" ] || [ "$(printf '%s\n' "$last" "$version" | sort -V | tail -n 1)" = "$version" ] ||
        { echo "v$last is a tag already"; return 1; }
}
tag_is_new() {
    if git rev-parse --quiet --verify "refs/tags/$tag" >/dev/null; then
        echo "$tag is a tag already: a released version never changes; raise the version in CMakeLists.txt and hakmem.h"
        return 1
    fi
}
tag_is_head() {
    [ "$(git rev-parse --quiet --verify "refs/tags/$tag^{commit}")" = "$(git rev-parse HEAD)" ] ||
        { echo "the tag $tag is not the commit HEAD"; return 1; }
}
abi_holds() {
    scripts/abi.sh "$build" || return 1
    grep -q "^# hakmem ${version//./\\.}:" packaging/abi/last-release.txt ||
        { echo "packaging/abi/last-release.txt is of another version: scripts/abi.sh --update"; return 1; }
}
tables_are_written() {
    [ ! -x "$build/tools/gen_options" ] || diff <("$build/tools/gen_options") docs/options.md || return 1
    [ ! -x "$build/tools/gen_figures" ] || diff <("$build/tools/gen_figures" python) python/hakmem/processes/figures_table.py
}

tools_are_locked() { packaging/lock.sh --check; }
image_is_fixed() { packaging/image.sh build; }

item "version $version in CMakeLists.txt and hakmem.h" header_has_version
item "no other file has a version of its own" derived_elsewhere
item "CHANGELOG.md has a part of $version with a date" changelog_has_part
item "no change that is not committed" tree_is_clean
item "$version is newer than every tag" newer_than_tags
if [ -n "$tagged" ]; then
    item "the tag $tag is HEAD" tag_is_head
else
    item "the tag $tag is new" tag_is_new
fi
item "ABI: nothing is gone, and the list is this version's" abi_holds
item "what is written from tables is up to date (the target tables)" tables_are_written
item "the tools' lists of hashes are of their requirements" tools_are_locked
item "the image that a release is built in is known by its digest" image_is_fixed
echo "release.sh: $version, $failures of $items items failed"
[ "$failures" -eq 0 ]
