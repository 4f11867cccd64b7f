#!/usr/bin/env bash
# Random mixed as static programs with link-time optimisation: hakmem, and mimalloc 2 and 3 compiled the same way,
# in one rotation; hakmem preloaded is the baseline.
#
#   scripts/lto.sh [PAIRS]
#
# mimalloc's sources are those of the crate that `hakmem peers build` uses; cargo fetches it.
set -euo pipefail
cd "$(dirname "$0")/.."

pairs=${1:-15}
programs=build/release/bench
folder=build/lto-peers
work=(10000000 400)

crate=$(.venv/bin/python -c 'from hakmem.allocators.recipes import RECIPES as r; print(r["mimalloc3"].crate, r["mimalloc3"].crate_version)')
mkdir -p "$folder/src"
: >"$folder/src/lib.rs"
cat >"$folder/Cargo.toml" <<EOF
[package]
name = "lto-peers"
version = "0.0.0"
edition = "2021"
[dependencies]
${crate% *} = "=${crate#* }"
[workspace]
EOF
scripts/step.sh "Fetching mimalloc" "$folder/fetch.log" cargo fetch --manifest-path "$folder/Cargo.toml"
sources=$(cargo metadata --format-version 1 --offline --manifest-path "$folder/Cargo.toml" |
    .venv/bin/python -c 'import json, os, sys
print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == sys.argv[1]))' "${crate% *}")

# The flags of bench_random_mixed_hakmem in bench/CMakeLists.txt.
flags=(-O3 -DNDEBUG -flto=auto -fno-pie -no-pie -static -pthread -ftls-model=local-exec
    -fno-builtin-malloc -fno-builtin-free -fno-builtin-calloc -fno-builtin-realloc)
rows=(--program "static=$programs/bench_random_mixed_static ${work[*]}"
    --program "lto=$programs/bench_random_mixed_hakmem ${work[*]}")
for version in 2 3; do
    mimalloc=$sources/c_src/mimalloc/v$version
    scripts/step.sh "Linking mimalloc $version" "$folder/v$version.log" gcc "${flags[@]}" -D_GNU_SOURCE \
        -DMI_MALLOC_OVERRIDE -DMI_DEBUG=0 -DMI_BUILD_RELEASE -I"$mimalloc/include" -I"$mimalloc/src" -Ibench \
        bench/bench_random_mixed.c bench/bench.c "$mimalloc/src/static.c" -o "$folder/random_mixed_mimalloc$version"
    rows+=(--program "mimalloc$version-lto=$folder/random_mixed_mimalloc$version ${work[*]}")
done
.venv/bin/hakmem pair --pairs "$pairs" --with hakmem --floor --json "$folder/pairs.json" "${rows[@]}" -- \
    "$programs/bench_random_mixed" "${work[@]}"
.venv/bin/python - "$folder/pairs.json" <<'EOF'
import json, sys
from hakmem.measuring.statistics import speed_ratio
found = json.load(open(sys.argv[1]))
values = {name: [s["value"] for s in slices] for name, slices in found["slices"].items()}
for peer in ("mimalloc2-lto", "mimalloc3-lto"):
    ratio = speed_ratio(values[peer], values["lto"], found["seed"])  # of throughputs: the other way round
    print(f"hakmem ÷ {peer}, both with link-time optimisation: {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")
EOF
for name in bench_random_mixed_static bench_random_mixed_hakmem; do
    echo "$name:"
    .venv/bin/python tests/golden/random_mixed.py --static "$programs/$name" "$programs/bench_random_mixed_floor"
done
