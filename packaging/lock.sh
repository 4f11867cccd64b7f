#!/usr/bin/env bash
# lock.sh: writes what the tools' requirements files stand for, each package with its version and the hashes of its files, into a .lock
# beside each; lock.sh --check says which of them is older than its requirements. Needs uv (scripts/setup.sh test has it) and an index.
# What a release is made with and published by is installed from these files alone (packaging/tools.sh, scripts/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

# of LOCK REQUIREMENTS...
lists=(
    "packaging/requirements.lock packaging/requirements.txt"
    "packaging/wheel/requirements.lock packaging/wheel/requirements.txt"
    "packaging/glibc/requirements.lock packaging/glibc/requirements.txt"
    "scripts/docs-requirements.lock scripts/docs-requirements.txt"
    "scripts/setup-requirements.lock python/pyproject.toml lab/pyproject.toml"
)
usage() {
    echo "usage: packaging/lock.sh [--check]" >&2
    exit 2
}
[ $# -le 1 ] && [ "${1:---check}" = --check ] || usage
checks=${1-}
# Of what is required alone: other words of a pyproject.toml change no list.
digest() {
    python3 -c '
import hashlib, json, sys, tomllib
found = []
for name in sys.argv[1:]:
    text = open(name, "rb").read()
    if name.endswith(".toml"):
        table = tomllib.loads(text.decode())["project"]
        text = json.dumps([table.get("dependencies"), table.get("optional-dependencies")], sort_keys=True).encode()
    found.append(text)
print(hashlib.sha256(b"\0".join(found)).hexdigest())' "$@"
}
head_of() { echo "# Written by packaging/lock.sh from $* ($(digest "$@")): every file has its hash."; }

if [ -z "$checks" ]; then
    uv=uv
    [ ! -x .venv/bin/uv ] || uv=.venv/bin/uv
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null || true)}}
    [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
fi
status=0
for list in "${lists[@]}"; do
    read -r lock sources <<<"$list"
    # shellcheck disable=SC2086 # words
    set -- $sources
    if [ -n "$checks" ]; then
        [ "$(head -n 1 "$lock" 2>/dev/null)" = "$(head_of "$@")" ] && continue
        echo "lock.sh: $lock is older than $*: run packaging/lock.sh" >&2
        status=1
        continue
    fi
    given=("$@")
    if [[ $1 == *pyproject.toml ]]; then
        # Our own packages come from the tree; setuptools installs them.
        printf '%s\n' '-e ./python[test,report]' '-e ./lab[test]' 'setuptools>=64' 'wheel' >build/setup-requirements.in
        given=(build/setup-requirements.in)
    fi
    made=$("$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-package hakmem --no-emit-package hakmem-lab "${given[@]}")
    grep -q -- --hash= <<<"$made" || { echo "lock.sh: nothing was resolved for $lock" >&2; exit 1; }
    { head_of "$@"; echo "$made"; } >"$lock"
    echo "$lock: $(grep -c == "$lock") packages"
done
exit "$status"
