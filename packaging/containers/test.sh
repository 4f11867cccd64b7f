#!/usr/bin/env bash
# Executes the Dockerfile fragments' COPY, ENV and RUN lines in chroots; README.md says what stands for their images. Each must also
# fail where the library is not preloaded, or its check would prove nothing. Needs root and scripts/packages-deb.txt.
#
#   packaging/containers/test.sh --debs FOLDER [--wheel FILE] [SUITE [NAME...]]
#
# NAME: debian (the default), node, ruby, java, python. FOLDER has the packages of SUITE (default bookworm).
set -euo pipefail
here=$(dirname "$(realpath "$0")")
debs='' wheel=''
usage() {
    echo "usage: test.sh --debs FOLDER [--wheel FILE] [SUITE [NAME...]]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --debs) debs=${2:-}; shift 2 || usage ;;
    --wheel) wheel=${2:-}; shift 2 || usage ;;
    -*) usage ;;
    *) break ;;
    esac
done
suite=${1:-bookworm}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- debian
ls "$debs"/libhakmem0_*.deb >/dev/null || usage

declare -A packages=([debian]='' [node]=nodejs [ruby]=ruby [java]=default-jre-headless [python]='python3 python3-pip python3-venv')
work=$(mktemp -d "${TMPDIR:-/tmp}/hakmem-containers.XXXXXX")
cleanup() { rm -rf --one-file-system "$work"; }
. "$here/../chroots/running.sh"
end_with cleanup
mkdir "$work/context"
cp "$debs"/libhakmem0_*.deb "$work/context/"
[ -z "$wheel" ] || cp "$wheel" "$work/context/"

# The same without the preload: its last RUN, the check, must end with an error, and nothing before it.
without_preload() { grep -v '^ENV LD_PRELOAD=' "$1" >"$work/without.Dockerfile"; }

for name in "$@"; do
    [ -n "${packages[$name]+known}" ] || usage
    root=$work/$name
    running "$here/../chroots/make_chroot.sh" "$suite" "$root" ${packages[$name]}
    if [ "$name" = python ]; then
        [ -n "$wheel" ] || { echo "test.sh: python needs --wheel" >&2; exit 2; }
        # The image's Python is its own and takes packages; Debian's is kept from pip, so an environment stands for it.
        "$here/../chroots/enter.sh" "$root" -- python3 -m venv /usr/local
        cp --remove-destination /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
        [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
    fi
    without_preload "$here/$name.Dockerfile"
    if running "$here/run_dockerfile.py" "$work/without.Dockerfile" "$work/context" "$root" >"$work/log" 2>&1; then
        echo "$name on $suite: FAILED: its check passes where nothing is preloaded" >&2
        exit 1
    fi
    if [ "$(grep -c '^--- RUN' "$work/log")" -ne "$(grep -c '^RUN' "$here/$name.Dockerfile")" ]; then
        cat "$work/log" >&2
        echo "$name on $suite: FAILED before its check" >&2
        exit 1
    fi
    rm -rf --one-file-system "$root/usr/local/lib/libhakmem.so.0"
    if ! running "$here/run_dockerfile.py" "$here/$name.Dockerfile" "$work/context" "$root" >"$work/log" 2>&1; then
        cat "$work/log" >&2
        echo "$name on $suite: FAILED" >&2
        exit 1
    fi
    echo "$name on $suite: passed"
    rm -rf --one-file-system "$root"
done
