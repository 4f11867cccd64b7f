#!/usr/bin/env bash
# Prints the release notes: the part of CHANGELOG.md of this version.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(packaging/version.sh)
notes=$(awk -v version="$version" '
    /^## / { ours = $2 == version; next }
    ours' CHANGELOG.md | sed -e '/./,$!d')
if [ -z "$notes" ]; then
    echo "notes.sh: CHANGELOG.md has no part '## $version'" >&2
    exit 1
fi
printf '# hakmem %s\n\n%s\n' "$version" "$notes"
