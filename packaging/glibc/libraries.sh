#!/usr/bin/env bash
# libraries.sh ARCH: compiles the libraries and the command's helper programs for ARCH (x86_64, aarch64) so that they run on glibc
# 2.28 and newer, and prints the folder they lie in. The same gcc compiles them as in `make run`, against the headers and stubs of
# sysroot.sh; the launcher is static, of musl. Debug information is left out, tables of symbols stay: `hakmem run` reads a counter
# by its name.
set -euo pipefail
cd "$(dirname "$0")/../.."

arch=${1:?usage: packaging/glibc/libraries.sh ARCH}
root=$PWD work=$PWD/build/glibc
sysroot=$work/sysroot-$arch build=$work/build-$arch out=$work/$arch python=$(packaging/tools.sh glibc)/bin/python prefix=''
[ "$arch" = "$(uname -m)" ] || prefix=$arch-linux-gnu-

packaging/glibc/needs.sh "$arch"

prepare() {
    [ "$sysroot/usr/lib/libpthread.so" -nt packaging/glibc/sysroot.sh ] || packaging/glibc/sysroot.sh "$python" "$arch" "$sysroot"
}

compile() {
    # -B: before the folders of gcc's own, where the libc of this machine lies. --strip-debug: the objects of zig's name this
    # folder in their debug information, and the identifier of what is linked is a sum over that too.
    local flags="-D__GLIBC_MINOR__=28 -B$sysroot/usr/lib/ -ffile-prefix-map=$root=." program
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHAKMEM_BUILD_TESTS=OFF \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$arch" -DCMAKE_SYSROOT="$sysroot" \
        -DCMAKE_C_COMPILER="${prefix}gcc" -DCMAKE_CXX_COMPILER="${prefix}g++" \
        -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
        -DCMAKE_SHARED_LINKER_FLAGS=-Wl,--strip-debug -DCMAKE_EXE_LINKER_FLAGS=-Wl,--strip-debug \
        -DCMAKE_C_FLAGS_RELEASE="-O2 -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG"
    cmake --build "$build" --target hakmem hakmem_hardened hakmem_je floor record bench_replay trace_summary bench_latency
    rm -rf "$out"
    mkdir -p "$out/bench"
    for program in libhakmem.so libhakmem-hardened.so libhakmem-je.so bench/libfloor.so bench/librecord.so bench/bench_replay \
        bench/trace_summary bench/bench_latency; do
        cp "$build/$program" "$out/$program"
    done
    ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig "$python" -m ziglang cc -target "$arch-linux-musl" -static -O2 -s \
        -o "$out/bench/launch" bench/launch.c
}

export root work sysroot build out python prefix arch
export -f prepare compile
scripts/step.sh "Preparing glibc 2.28 for $arch" "$work/prepare-$arch.log" bash -ec prepare >&2
scripts/step.sh "Compiling for glibc 2.28 on $arch" "$work/compile-$arch.log" bash -ec compile >&2
echo "$out"
