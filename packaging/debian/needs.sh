#!/usr/bin/env bash
# needs.sh: what package.sh lacks here, in one line, with status 1.
set -euo pipefail
[ "$(id -u)" -eq 0 ] && exit 0
echo "root is needed, for chroots; dist.sh --without debian leaves these packages out" >&2
exit 1
