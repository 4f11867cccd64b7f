#!/bin/sh
# is_musl.sh DYNAMIC STATIC LIBRARY: the dynamic program has musl's loader, the static one none, and the library needs
# musl's libc and nothing else.
fail() {
    echo "is_musl: $1" >&2
    exit 1
}
readelf -lW "$1" | grep -q 'interpreter: /lib/ld-musl-' || fail "$1 is not loaded by musl"
readelf -lW "$2" | grep -q 'interpreter:' && fail "$2 is not static"
needed=$(readelf -dW "$3" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ "$needed" = libc.so ] || fail "$3 needs: $needed"
