#!/bin/sh
# Drawn loads with all their requests in one heap: hakmem's heap beside its main heap and mimalloc 3's heaps. What follows is passed on to `hakmem drawn`.
# usage: bench/one_heap.sh [--seeds A..B] [--rounds N] …
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

theirs=$("$top/.venv/bin/python" -c 'from hakmem.allocators import peers; print(peers.require_usable(peers.find("mimalloc3")).library)')
cc -O3 -fPIC -shared -fno-builtin -DONE_HEAP_OF=2 "$top/bench/one_heap.c" -o "$folder/theirs.so" "$theirs" -Wl,-rpath,"$(dirname "$theirs")"
ours=$top/build/release/bench/libone_heap
"$top/.venv/bin/hakmem" drawn --with "heap=$ours.so,main=${ours}_main.so,mimalloc3_heap=$folder/theirs.so" --rest 0 "$@"
