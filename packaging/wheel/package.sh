#!/usr/bin/env bash
# package.sh FOLDER [ARCH...]: writes the wheels of the `hakmem` package for x86_64 and aarch64 into FOLDER, and checks them:
# auditwheel (no symbol newer than glibc 2.28), twine, size. Two runs on one commit give the same bytes.
#
# The libraries are compiled by the same gcc as on the developer's machine, against glibc 2.28 (sysroot.sh). The launcher is static.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$(realpath -m "${1:?usage: packaging/wheel/package.sh FOLDER [ARCH...]}")
shift
[ $# -gt 0 ] || set -- x86_64 aarch64
root=$PWD work=$PWD/build/wheel
MOST_KB=3072

# Files that are not committed do not count: all have the commit's time.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

python=$work/venv/bin/python
if ! [ "$work/venv/.installed" -nt packaging/wheel/requirements.txt ]; then
    mkdir -p "$work"
    python3 -m venv --clear "$work/venv"
    "$python" -m pip install --disable-pip-version-check -q -r packaging/wheel/requirements.txt
    touch "$work/venv/.installed"
fi
export PATH=$work/venv/bin:$PATH

compile() {
    local arch=$1 sysroot=$work/sysroot-$1 prefix=''
    [ "$arch" = "$(uname -m)" ] || prefix=$arch-linux-gnu-
    [ "$sysroot/usr/lib/libpthread.so" -nt packaging/wheel/sysroot.sh ] ||
        packaging/wheel/sysroot.sh "$python" "$arch" "$sysroot"
    # -B: before the folders of gcc's own, where the libc of this machine lies.
    local flags="-D__GLIBC_MINOR__=28 -B$sysroot/usr/lib/ -ffile-prefix-map=$root=."
    cmake -S . -B "$work/$arch" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHAKMEM_BUILD_TESTS=OFF \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$arch" -DCMAKE_SYSROOT="$sysroot" \
        -DCMAKE_C_COMPILER="${prefix}gcc" -DCMAKE_CXX_COMPILER="${prefix}g++" \
        -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
        -DCMAKE_C_FLAGS_RELEASE="-O2 -g -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="-O2 -g -DNDEBUG"
    cmake --build "$work/$arch" --target hakmem hakmem_hardened floor record bench_replay trace_summary bench_latency
}

# The package's sources with what was compiled, in a folder of its own.
stage() {
    local arch=$1 stage=$work/stage-$1 prefix='' program
    [ "$arch" = "$(uname -m)" ] || prefix=$arch-linux-gnu-
    rm -rf "$stage"
    mkdir -p "$stage/python/hakmem/lib/bench"
    git ls-files -z python CMakeLists.txt LICENSE | xargs -0 cp --parents -t "$stage"
    rm -r "$stage/python/tests"
    cp LICENSE "$stage/python/"
    # Tables of symbols stay: `hakmem run` reads a counter by its name.
    for program in libhakmem.so libhakmem-hardened.so; do
        "${prefix}strip" -g -o "$stage/python/hakmem/lib/$program" "$work/$arch/$program"
    done
    for program in libfloor.so librecord.so bench_replay trace_summary bench_latency; do
        "${prefix}strip" -g -o "$stage/python/hakmem/lib/bench/$program" "$work/$arch/bench/$program"
    done
    ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig "$python" -m ziglang cc -target "$arch-linux-musl" -static -O2 -s \
        -o "$stage/python/hakmem/lib/bench/launch" bench/launch.c
}

pack() {
    local arch=$1 stage=$work/stage-$1 made
    rm -rf "$stage/dist"
    "$python" -m build --wheel --no-isolation --outdir "$stage/dist" "$stage/python"
    made=$(echo "$stage"/dist/*.whl)
    "$python" -m wheel tags --remove --python-tag py3 --abi-tag none --platform-tag "manylinux_2_28_$arch" "$made"
    mkdir -p "$out"
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
    twine check --strict "$wheel"
    [ "$kb" -le $MOST_KB ] || {
        echo "package.sh: $wheel has $kb KB, and may have $MOST_KB" >&2
        return 1
    }
    echo "$(basename "$wheel"): $kb KB, needs glibc 2.$glibc"
}

for arch; do
    scripts/step.sh "Compiling for $arch" "$work/compile-$arch.log" bash -c "$(declare -f compile); set -e; root='$root' work='$work' python='$python'; compile $arch"
    stage "$arch"
    scripts/step.sh "Packing the wheel of $arch" "$work/pack-$arch.log" bash -c "$(declare -f pack); set -e; work='$work' python='$python' out='$out'; pack $arch"
    check "$arch"
done
