#!/usr/bin/env bash
# Writes the source release, hakmem-VERSION.tar.xz, into OUT_DIR and prints its path. The file depends on the commit
# alone: not on the time, the user, umask, time zone or folder (xz of the same version writes the same bytes).
#
#   packaging/source.sh OUT_DIR [COMMIT]      COMMIT: HEAD unless given
#   packaging/source.sh OUT_DIR --worktree    files as they are now, uncommitted ones too (tests)
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: packaging/source.sh OUT_DIR [COMMIT | --worktree]" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
commit=${2:-HEAD}
cd "$(dirname "$0")/.."
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1 || [ -n "$(git rev-parse --show-prefix)" ]; then
    echo "source.sh: not a git clone: the release is made of a commit" >&2
    exit 1
fi

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# Objects and index of the commit are written beside the clone's own, so that nothing of it stays in the clone.
if [ "$commit" = --worktree ]; then
    objects=$(git rev-parse --path-format=absolute --git-path objects)
    mkdir "$temporary/objects"
    export GIT_OBJECT_DIRECTORY=$temporary/objects GIT_ALTERNATE_OBJECT_DIRECTORIES=$objects GIT_INDEX_FILE=$temporary/index
    git read-tree HEAD
    git add --all
    commit=$(GIT_AUTHOR_DATE="$(git log -1 --format=%cI)" GIT_COMMITTER_DATE="$(git log -1 --format=%cI)" \
        git -c user.name=worktree -c user.email=worktree@localhost commit-tree -p HEAD -m worktree "$(git write-tree)")
fi

version=$(packaging/version.sh "$commit")
file=hakmem-$version.tar.xz
git -c tar.umask=0022 archive --format=tar --prefix="hakmem-$version/" "$commit" >"$temporary/archive.tar"
# One thread: where blocks end depends on their number.
xz --threads=1 -9e --stdout "$temporary/archive.tar" >"$temporary/$file"
mv "$temporary/$file" "$out/$file"
echo "$out/$file"
