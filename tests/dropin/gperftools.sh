# gperftools' tests of MallocExtension and of the tc_ names.
#   gperftools.sh build SOURCE WORK LIBRARIES   compiles them
#   gperftools.sh run SOURCE WORK LIBRARIES     links them with the library of a folder, runs them, and prints RESULT lines
# libhakmem.so has the C interface alone, malloc_extension.cc gives the tests the C++ one on it.
set -eu
step=$1 source=$2/src work=$3 libraries=$4 own=$(dirname "$(realpath "$0")")
tests="malloc_extension_c_test malloc_extension_test tcmalloc_unittest tcmalloc_large_unittest memalign_unittest realloc_unittest
  thread_dealloc_unittest markidle_unittest current_allocated_bytes_test large_heap_fragmentation_unittest frag_unittest"
cd "$work"

compile() { # FILE OBJECT
  compiler="g++ -std=gnu++17"
  [ "$1" = "${1%.c}" ] || compiler=gcc
  $compiler -w -O1 -fno-builtin -Dcfree=free "-I$work" "-I$work/gperftools" "-I$source" -c "$1" -o "$2"
}

build() {
  cmake -S "$source/.." -B "$work" > configure.log 2>&1
  # Debian's version is without the last number.
  sed -i 's/\(PACKAGE_[A-Z]* ".*\)\.0"/\1"/' config.h
  mkdir -p base parts
  # A failed check is told, and the test goes on; the C test has a second form without its hooks.
  sed 's/abort();\( *\\\)$/;\1/' "$source/base/logging.h" > base/logging.h
  sed '/^  TestMallocHook();/d' "$source/tests/malloc_extension_c_test.c" > malloc_extension_c_test_without_hooks.c
  for part in tests/testutil base/logging base/sysinfo base/spinlock base/spinlock_internal; do
    compile "$source/$part.cc" "parts/$(basename $part).o"
  done
  compile "$own/malloc_extension.cc" malloc_extension.o
  compile "$source/internal_logging.cc" internal_logging.o
  compile malloc_extension_c_test_without_hooks.c malloc_extension_c_test_without_hooks.o
  for test in $tests; do
    for file in "$source/tests/$test".c*; do compile "$file" "$test.o"; done
  done
}

run() {
  library=$libraries/libtcmalloc_minimal.so.4 more=
  [ -e "$library" ] || library=$libraries/libhakmem.so more="malloc_extension.o internal_logging.o"
  for test in malloc_extension_c_test_without_hooks $tests; do
    # shellcheck disable=SC2086  # none or two files
    if g++ $test.o parts/*.o $more "$library" "-Wl,-rpath,$libraries" -o "$test" > said 2>&1; then
      status=0
      timeout 600 "./$test" > said 2>&1 || status=$?
      # Each check that failed, once; else the last words.
      why=$(grep -aoE '(FATAL ERROR|Check failed): .*' said | awk '!seen[$0]++' | paste -sd';' || :)
    else
      status=1 why=$(grep -a undefined said | head -3 | paste -sd';' || :)
    fi
    if [ "$status$why" = 0 ]; then echo "RESULT $test: pass: "; else echo "RESULT $test: fail: ${why:-status $status: $(tail -n 1 said)}"; fi
  done
}

"$step"
