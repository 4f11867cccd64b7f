#!/usr/bin/env bash
# package.sh FOLDER [ARCH...]: writes the wheels of the `hakmem` package for x86_64 and aarch64 into FOLDER, and checks them:
# auditwheel (no symbol newer than glibc 2.28), twine, size. Two runs on one commit write the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$(realpath -m "${1:?usage: packaging/wheel/package.sh FOLDER [ARCH...]}")
shift
[ $# -gt 0 ] || set -- x86_64 aarch64
work=$PWD/build/wheel tools=$(packaging/tools.sh wheel)
python=$tools/bin/python
MOST_KB=3072
# All files in a wheel have the commit's time.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PATH=$tools/bin:$PATH

# The package's tracked files with what was compiled, in a folder of its own.
pack() {
    local arch=$1 libraries=$2 stage=$work/$1 made
    rm -rf "$stage"
    mkdir -p "$stage"
    git ls-files -z python CMakeLists.txt ':!python/tests' | xargs -0 cp --parents -t "$stage"
    cp LICENSE "$stage/python/"
    cp -r "$libraries" "$stage/python/hakmem/lib"
    "$python" -m build --wheel --no-isolation --outdir "$stage/dist" "$stage/python"
    made=$(echo "$stage"/dist/*.whl)
    "$python" -m wheel tags --remove --python-tag py3 --abi-tag none --platform-tag "manylinux_2_28_$arch" "$made"
    cp "$stage"/dist/*.whl "$out/"
}

check() {
    local arch=$1 wheel kb glibc
    wheel=$(echo "$out"/hakmem-*-py3-none-manylinux_2_28_"$arch".whl)
    kb=$((($(stat -c %s "$wheel") + 1023) / 1024))
    # The newest glibc that any symbol of the contents needs; nothing where auditwheel refuses them.
    auditwheel show "$wheel" >"$work/audit-$arch.txt"
    glibc=$(tr '\n' ' ' <"$work/audit-$arch.txt" | sed -n "s/.*platform tag: *\"manylinux_2_\([0-9]*\)_$arch\".*/\1/p")
    [ -n "$glibc" ] && [ "$glibc" -le 28 ] || {
        cat "$work/audit-$arch.txt" >&2
        echo "package.sh: $wheel does not run on glibc 2.28" >&2
        return 1
    }
    twine --no-color check --strict "$wheel"
    [ "$kb" -le $MOST_KB ] || {
        echo "package.sh: $wheel has $kb KB, and may have $MOST_KB" >&2
        return 1
    }
    echo "$(basename "$wheel"): $kb KB, needs glibc 2.$glibc"
}

export work python out
export -f pack
mkdir -p "$out"
for arch; do
    libraries=$(packaging/glibc/libraries.sh "$arch")
    scripts/step.sh "Packing the wheel of $arch" "$work/pack-$arch.log" bash -ec "pack $arch '$libraries'"
    check "$arch"
done
