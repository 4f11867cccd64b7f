#!/usr/bin/env bash
# sysroot.sh PYTHON ARCH FOLDER: headers and link stubs of glibc 2.28 for ARCH (x86_64, aarch64), out of what the PyPI package
# `ziglang` carries. gcc compiles against them as it would on a Debian of that age; no code of zig's ends up in the result.
set -euo pipefail

python=$1 arch=$2 folder=$3
case $arch in
x86_64) headers=(any-linux-any x86-linux-any generic-glibc x86-linux-gnu) ;;
*) headers=(any-linux-any "$arch-linux-any" generic-glibc "$arch-linux-gnu") ;;
esac

rm -rf "$folder"
mkdir -p "$folder/usr/include" "$folder/usr/lib"
from=$("$python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "lib/libc/include")')
for name in "${headers[@]}"; do cp -r "$from/$name/." "$folder/usr/include/"; done
# zig's headers are of a newer glibc, and leave this out for no older one: it has the name that the library defines for itself.
sed -i 's/mallinfo2/mallinfo2_since_2_33/g' "$folder/usr/include/malloc.h"
# Probes for tracers: notes in the library, which depend on no libc (Debian: systemtap-sdt-dev).
cp /usr/include/*-linux-gnu/sys/sdt.h /usr/include/*-linux-gnu/sys/sdt-config.h "$folder/usr/include/sys/"

# Linking a program makes zig generate the stubs.
printf 'int main(void) { return 0; }\n' >"$folder/empty.c"
ZIG_GLOBAL_CACHE_DIR=$folder/cache ZIG_LOCAL_CACHE_DIR=$folder/cache \
    "$python" -m ziglang cc -target "$arch-linux-gnu.2.28" "$folder/empty.c" -o "$folder/empty" -lpthread -ldl -lm -lrt
find "$folder/cache" \( -name 'lib*.so.*' -o -name libc_nonshared.a -o -name crt1.o \) -exec cp {} "$folder/usr/lib/" \;
rm -rf "$folder/cache" "$folder/empty" "$folder/empty.c"

cd "$folder/usr/lib"
for name in m.so.6 dl.so.2 rt.so.1; do ln -s "lib$name" "lib${name%.*}"; done
echo 'GROUP ( libc.so.6 libc_nonshared.a AS_NEEDED ( libld.so.2 ) )' >libc.so
# pthread_atfork is not in the shared library for who links with it now: the caller's own object goes with each handler.
echo 'GROUP ( libc_nonshared.a libpthread.so.0 )' >libpthread.so
