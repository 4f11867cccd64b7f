#!/usr/bin/env bash
# Makes a minimal Debian system in a folder, with debootstrap. The finished system is kept as an archive, one for each
# suite and set of packages, and the next call unpacks it (seconds). Needs root.
#
#   packaging/chroots/make_chroot.sh SUITE FOLDER [PACKAGE...]
#
# SUITE: bullseye, bookworm or trixie (Debian 11, 12, 13). FOLDER must not exist. HAKMEM_MIRROR is the mirror, if not
# http://deb.debian.org; HAKMEM_CACHE the folder of archives, if not ~/.cache/hakmem/chroots; HAKMEM_FRESH=1 makes the archive anew.
set -euo pipefail
here=$(dirname "$(realpath "$0")")

if [ $# -lt 2 ]; then
    echo "usage: make_chroot.sh SUITE FOLDER [PACKAGE...]" >&2
    exit 2
fi
suite=$1 folder=$2
shift 2
mirror=${HAKMEM_MIRROR:-http://deb.debian.org}
cache=${HAKMEM_CACHE:-${HOME:-/root}/.cache/hakmem/chroots}
case $suite in
bullseye | bookworm | trixie) ;;
*) echo "make_chroot.sh: \"$suite\" is no suite (bullseye, bookworm, trixie)" >&2; exit 2 ;;
esac
[ ! -e "$folder" ] || { echo "make_chroot.sh: $folder exists" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "make_chroot.sh: root is needed" >&2; exit 2; }
for tool in debootstrap zstd unshare; do
    command -v "$tool" >/dev/null || { echo "make_chroot.sh: $tool is missing (scripts/packages-deb.txt)" >&2; exit 2; }
done

# The archive is written under another name first: one that is there is whole. Two calls at a time make it once.
architecture=$(dpkg --print-architecture)
mkdir -p "$cache"
pack() {
    tar -C "$1" --zstd --one-file-system -cf "$2.part" .
    mv "$2.part" "$2"
}

work=''
forget() { [ -z "$work" ] || rm -rf --one-file-system "$work"; }
. "$here/running.sh"
end_with forget

base() {
    set -e
    local archive=$1 system=$work/base
    # debootstrap mounts /proc in the new system: in this namespace alone.
    unshare --mount --propagation private -- debootstrap --variant=minbase --merged-usr \
        --include=ca-certificates "$suite" "$system" "$mirror/debian"
    cat >"$system/etc/apt/sources.list" <<END
deb $mirror/debian $suite main
deb $mirror/debian $suite-updates main
deb $mirror/debian-security $suite-security main
END
    # How this machine reaches its mirror (a proxy, dates that are not checked) holds for the chroot as well.
    apt-config dump --format '%f "%v";%n' | grep -E '^Acquire::(https?::Proxy|Check-|Retries)' \
        >"$system/etc/apt/apt.conf.d/00host" || true
    printf 'APT::Install-Recommends "false";\nAcquire::Languages "none";\n' >"$system/etc/apt/apt.conf.d/01small"
    # No service starts inside.
    printf '#!/bin/sh\nexit 101\n' >"$system/usr/sbin/policy-rc.d"
    chmod 755 "$system/usr/sbin/policy-rc.d"
    cp --remove-destination "$(realpath /etc/resolv.conf)" "$system/etc/resolv.conf"
    "$here/enter.sh" "$system" -- sh -c 'apt-get -q update && apt-get -qy dist-upgrade && apt-get clean'
    pack "$system" "$archive"
    rm -rf --one-file-system "$system"
}

with_packages() {
    set -e
    local archive=$1 system=$work/packages
    mkdir "$system"
    tar -C "$system" -xf "$base_archive"
    cp --remove-destination "$(realpath /etc/resolv.conf)" "$system/etc/resolv.conf"
    shift
    "$here/enter.sh" "$system" -- sh -c 'apt-get -q update && apt-get -qy install "$@" && apt-get clean' install "$@"
    pack "$system" "$archive"
    rm -rf --one-file-system "$system"
}

# once ARCHIVE COMMAND...: makes the archive unless it is there.
once() {
    local archive=$1 log status
    shift
    exec 9>"$archive.lock"
    flock 9
    if [ ! -e "$archive" ] || [ -n "${HAKMEM_FRESH-}" ]; then
        log=${archive%.tar.zst}.log
        # Not in an `if`: bash then lets the function go on after a command of it has failed.
        set +e
        running "$@" >"$log" 2>&1 9>&-
        status=$?
        set -e
        if [ "$status" -ne 0 ]; then
            tail -n 20 "$log" >&2
            echo "make_chroot.sh: $suite could not be made; all of it is in $log" >&2
            exit 1
        fi
    fi
    exec 9>&-
}

work=$(mktemp -d "$cache/making.XXXXXX")
base_archive=$cache/$suite-$architecture.tar.zst
once "$base_archive" base "$base_archive"
archive=$base_archive
if [ $# -gt 0 ]; then
    key=$(printf '%s\n' "$@" | sort -u | sha256sum | cut -c 1-12)
    archive=$cache/$suite-$architecture-$key.tar.zst
    once "$archive" with_packages "$archive" "$@"
fi
mkdir -p "$folder"
tar -C "$folder" -xf "$archive"
cp --remove-destination "$(realpath /etc/resolv.conf)" "$folder/etc/resolv.conf"
