# The tests of the crates tikv-jemallocator and tikv-jemalloc-ctl, over a library in place of the sources that they bring.
#   tikv.sh build SOURCE WORK LIBRARIES   builds them, linked with the libjemalloc.so.2 of a folder (SOURCE is not used)
#   tikv.sh run SOURCE WORK LIBRARIES     runs each test on another folder's, and prints a RESULT line for it
set -eu
step=$1 work=$3 libraries=$4 version=0.7.0
cd "$work"
export CARGO_TARGET_DIR="$work/target" CARGO_TERM_COLOR=never JEMALLOC_OVERRIDE="$work/link/libjemalloc.so"
# A test of a newer jemalloc's function fails by itself.
export RUSTFLAGS="-C relro-level=off -C link-arg=-Wl,--unresolved-symbols=ignore-all,-z,lazy"

cargo_test() { # CRATE ARGUMENTS
  features=stats,use_std,profiling,tikv-jemalloc-sys/unprefixed_malloc_on_supported_platforms
  [ "$1" = tikv-jemalloc-ctl ] || features=stats,profiling,unprefixed_malloc_on_supported_platforms
  (cd "$1" && shift && cargo test "--features=$features" "$@")
}

build() {
  mkdir -p src link
  : > src/lib.rs
  ln -s "$libraries/libjemalloc.so.2" link/libjemalloc.so
  printf '[package]\nname = "dropin"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n' > Cargo.toml
  printf 'tikv-jemallocator = "=%s"\ntikv-jemalloc-ctl = "=%s"\n' $version $version >> Cargo.toml
  cargo metadata --format-version 1 > metadata.json
  for crate in tikv-jemalloc-ctl tikv-jemallocator; do
    manifest=$(grep -o '"manifest_path":"[^"]*/'$crate-$version/Cargo.toml metadata.json | head -1 | cut -d'"' -f4)
    cp -r "$(dirname "$manifest")" $crate
    printf '\n[workspace]\n' >> $crate/Cargo.toml
  done
  # What publishing took out: its tests need the other crate.
  printf '[dev-dependencies.tikv-jemalloc-ctl]\nversion = "=%s"\nfeatures = ["use_std", "stats"]\n' $version \
    >> tikv-jemallocator/Cargo.toml
  for crate in tikv-jemalloc-ctl tikv-jemallocator; do
    cargo_test $crate --no-run --message-format=json > $crate.json
    grep -o '"executable":"[^"]*"' $crate.json | cut -d'"' -f4 | while read -r program; do
      echo "$crate $program"
    done
  done > programs
}

run() {
  export LD_LIBRARY_PATH="$libraries"
  while read -r crate program; do
    name=$(basename "$program")
    "$program" --list 2> /dev/null | sed -n 's/: test$//p' | while read -r test; do
      # "NAME - should panic" is listed with its addition.
      if said=$(timeout 600 "$program" --exact "${test%% - *}" 2>&1); then word=pass; else
        word=$(echo "$said" | grep -E 'panicked|symbol lookup' | head -1 || :)
      fi
      echo "RESULT $crate ${name%-*} $test: ${word:-fail}: "
    done
  done < programs
  for crate in tikv-jemalloc-ctl tikv-jemallocator; do
    cargo_test $crate --doc 2> /dev/null | sed -n "s/^test \\(src.*\\) \\.\\.\\. ok\$/RESULT $crate \\1: pass: /p
      s/^test \\(src.*\\) \\.\\.\\. FAILED\$/RESULT $crate \\1: fail: /p" || :
  done
}

"$step"
