#!/usr/bin/env bash
# Builds the Debian packages of the tracked files (as they are in the working tree) into a folder.
#
#   packaging/debian/build.sh OUT_DIR                    on this machine, which must be Debian 12 or later with the build dependencies
#   packaging/debian/build.sh --suite SUITE OUT_DIR      in a chroot of bullseye, bookworm or trixie (needs root)
#
# --library-only leaves the command out; Debian 11 has too old Python libraries for it, so there it is left out anyway.
# --version X.Y.Z names another version (an upgrade's test needs a lower one). The version is CMakeLists.txt's. The same
# commit makes the same files: dates are the commit's (SOURCE_DATE_EPOCH, if it is set), paths are the chroot's.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
chroots=$root/packaging/chroots

usage() {
    echo "usage: build.sh [--suite SUITE] [--library-only] [--version X.Y.Z] OUT_DIR" >&2
    exit 2
}
suite='' profiles=${DEB_BUILD_PROFILES-} version=''
while [ $# -gt 1 ]; do
    case $1 in
    --suite) suite=$2; shift ;;
    --version) version=$2; shift ;;
    --library-only) profiles+=" pkg.hakmem.nocommand" ;;
    *) usage ;;
    esac
    shift
done
[ $# -eq 1 ] && [[ $1 != -* ]] || usage
mkdir -p "$1"
out=$(realpath "$1")

[ -n "$version" ] || version=$(sed -n 's/^project(hakmem VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "build.sh: \"$version\" is no version" >&2; exit 2; }
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
release_of() { (. "$1/etc/os-release" && echo "$VERSION_ID $VERSION_CODENAME"); }

work=$(mktemp -d "${TMPDIR:-/tmp}/hakmem-deb.XXXXXX")
chmod 755 "$work"
cleanup() { rm -rf --one-file-system "$work"; }
. "$chroots/running.sh"
end_with cleanup

if [ -n "$suite" ]; then
    system=$work/system
    [ "$suite" != bullseye ] || profiles+=" pkg.hakmem.nocommand"
    # What control asks for, without the version that apt-get install does not take.
    mapfile -t needs < <("$here/build_depends.py" "$here/control" "$profiles")
    running "$chroots/make_chroot.sh" "$suite" "$system" build-essential fakeroot "${needs[@]}"
    read -r number codename <<<"$(release_of "$system")"
    build=$system/build
else
    read -r number codename <<<"$(release_of /)"
    [ -n "$codename" ] || { echo "build.sh: not a Debian system" >&2; exit 2; }
    build=$work/build
fi
# What a suite's upgrade should replace is lower than the next suite's.
revision=1~deb$number

source=$build/hakmem-$version
mkdir -p "$source"
(cd "$root" && git ls-files -z | tar -c --null -T -) | tar -C "$source" -x
# The version that was asked for must be the one the library says.
sed -i "s/^project(hakmem VERSION [0-9.]*/project(hakmem VERSION $version/" "$source/CMakeLists.txt"
# The copy's packaging of other kinds is no part of the source package.
cp -r "$source/packaging/debian" "$source/debian"
(cd "$source/debian" && rm build.sh build_depends.py check.sh package.sh README.md)
maintainer=$(sed -n 's/^Maintainer: //p' "$source/debian/control")
cat >"$source/debian/changelog" <<END
hakmem ($version-$revision) $codename; urgency=medium

  * Version $version; CHANGELOG.md has what changed.

 -- $maintainer  $(date -u -R -d "@$epoch")
END
find "$build" -exec touch --no-dereference --date="@$epoch" {} +
chmod -R u=rwX,go=rX "$build"
tar -C "$build" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --exclude="hakmem-$version/debian" \
    -c "hakmem-$version" | xz -T1 >"$build/hakmem_$version.orig.tar.xz"

command=(env "DEB_BUILD_PROFILES=${profiles# }" "SOURCE_DATE_EPOCH=$epoch" LC_ALL=C.UTF-8
    dpkg-buildpackage --no-sign -F -j"${JOBS:-$(nproc)}")
log=$out/build-${codename}.log
status=0
if [ -n "$suite" ]; then
    running "$chroots/enter.sh" "$system" --offline -- sh -c 'cd "$1" && shift && exec "$@"' build "/build/hakmem-$version" \
        nice "${command[@]}" >"$log" 2>&1 </dev/null || status=$?
else
    running env -C "$source" nice "${command[@]}" >"$log" 2>&1 </dev/null || status=$?
fi
if [ "$status" -ne 0 ]; then
    tail -n 40 "$log" >&2
    echo "build.sh: failed with status $status; all of it is in $log" >&2
    exit 1
fi
find "$build" -maxdepth 1 -type f -exec cp -t "$out" {} +
(cd "$build" && ls *.deb)
