#!/usr/bin/env bash
# needs.sh [ARCH...]: what libraries.sh lacks on this machine, in one line, with status 1. A release has both processors unless told.
set -euo pipefail

[ $# -gt 0 ] || set -- x86_64 aarch64
lacking=()
for arch; do
    [ "$arch" = "$(uname -m)" ] && prefix='' || prefix=$arch-linux-gnu-
    for tool in gcc g++ strip; do
        command -v "$prefix$tool" >/dev/null || lacking+=("$prefix$tool")
    done
done
[ ${#lacking[@]} -eq 0 ] && exit 0
echo "${lacking[*]} for $* not installed (scripts/packages-dist.txt)" >&2
exit 1
