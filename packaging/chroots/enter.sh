#!/usr/bin/env bash
# Runs a command inside a chroot, in a mount and process namespace of its own: the kernel undoes every mount and ends every
# process when the command ends, however this script ends (SIGKILL included). Nothing is mounted on the host. Needs root.
#
#   packaging/chroots/enter.sh FOLDER [--bind HOST-FOLDER:CHROOT-FOLDER]... [--offline] -- COMMAND [ARG...]
#
# HOST-FOLDER is read-only inside, unless ":rw" follows. --offline leaves only the loopback interface, which is down.
set -euo pipefail

usage() {
    echo "usage: enter.sh FOLDER [--bind HOST-FOLDER:CHROOT-FOLDER[:rw]]... [--offline] -- COMMAND [ARG...]" >&2
    exit 2
}

[ $# -ge 1 ] && [ -d "$1" ] || usage
root=$(realpath "$1")
shift
binds=() namespaces=(--mount --pid --ipc --uts)
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
    --bind) [ $# -ge 2 ] || usage; binds+=("$2"); shift ;;
    --offline) namespaces+=(--net) ;;
    *) usage ;;
    esac
    shift
done
[ $# -ge 2 ] || usage
shift
[ -x "$root/bin/sh" ] || { echo "enter.sh: $root has no /bin/sh" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "enter.sh: root is needed" >&2; exit 2; }

inside() {
    set -euo pipefail
    local root=$1 bind from to mode node
    shift
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || mount --rbind /sys "$root/sys"
    # Nodes of its own: a package's script that changes /dev must not change the host's.
    mount -t tmpfs -o mode=755,size=1m tmpfs "$root/dev"
    for node in null zero full random urandom tty; do
        : >"$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    ln -s /proc/self/fd "$root/dev/fd"
    ln -s fd/0 "$root/dev/stdin"
    ln -s fd/1 "$root/dev/stdout"
    ln -s fd/2 "$root/dev/stderr"
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    while [ "$1" != -- ]; do
        IFS=: read -r from to mode <<<"$1"
        shift
        mkdir -p "$root$to"
        mount --bind "$from" "$root$to"
        [ "$mode" = rw ] || mount -o remount,bind,ro "$root$to"
    done
    shift
    exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

export -f inside
# The first process of a namespace is deaf to SIGTERM, and unshare ignores it: unshare's death is what ends the namespace.
unshare "${namespaces[@]}" --propagation private --fork --kill-child -- \
    bash -c 'inside "$@"' enter "$root" ${binds[@]+"${binds[@]}"} -- "$@" <&0 &
first=$!
trap 'kill -KILL "$first" 2>/dev/null || true' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
status=0
wait "$first" || status=$?
trap - EXIT
exit "$status"
