# jemalloc's unit and integration tests that call what its library exports.
#   jemalloc.sh build SOURCE WORK LIBRARIES   compiles and links them with the libjemalloc.so.2 of a folder
#   jemalloc.sh run SOURCE WORK LIBRARIES     runs them on another folder's, and prints the lines of runner.c
# Both kinds are linked with what jemalloc's Makefile links its integration tests with. What the library does not export becomes
# address 0: a test that uses it ends by itself, in a process of its own.
set -eu
step=$1 source=$2 work=$3 libraries=$4 own=$(dirname "$(realpath "$0")")
cd "$source"

compile() { # KIND FILE OBJECT; a test that does not compile has no object
  kind=$(echo "$1" | tr a-z A-Z)
  gcc -std=gnu11 -w -O1 -fno-pic -fno-builtin -fvisibility=hidden -D_GNU_SOURCE -D_REENTRANT -Iinclude "-I$work" -Itest/include \
    "-DJEMALLOC_${kind}_TEST" -c "$2" -o "$3" 2> "$3.log" || :
}

link() { # KIND OBJECT PROGRAM: twice, the second time with what was undefined
  set -- "$2" "$3" "$work/$1-parts"/*.o "$libraries/libjemalloc.so.2" -lm
  object=$1 program=$2
  shift 2
  gcc -no-pie "$object" "$@" -o "$program" 2> "$program.log" && return
  unknown=$(sed -n "s/.*undefined reference to \`\\([A-Za-z0-9_]*\\)'.*/-Wl,--defsym=\\1=0/p" "$program.log" | sort -u)
  # shellcheck disable=SC2086  # one argument a symbol
  gcc -no-pie "$object" "$@" $unknown -o "$program"
}

list() { # a line for each compilation: KIND FILE OBJECT
  for kind in integration unit; do
    mkdir -p "$work/$kind-parts"
    for part in btalloc btalloc_0 btalloc_1 math mtx sleep SFMT thd timer; do
      echo "$kind test/src/$part.c $work/$kind-parts/$part-of-tests.o"
    done
    for part in nstime malloc_io ticker; do echo "$kind src/$part.c $work/$kind-parts/$part.o"; done
    echo "$kind $own/runner.c $work/$kind-parts/runner.o"
    for file in test/$kind/*.c; do echo "$kind $file $work/$kind-$(basename "$file" .c).o"; done
  done
}

build() {
  ./configure --enable-prof --disable-doc --with-lg-page=12 --with-lg-hugepage=21 > "$work/configure.log"
  : > include/jemalloc/internal/private_namespace.h
  # Unit tests see all headers, and the library's functions under their public names.
  mkdir -p "$work/test"
  awk '/define JEMALLOC_JET/ && !n++ { next } { print }' test/include/test/jemalloc_test.h > "$work/test/jemalloc_test.h"
  list | xargs -P "$(nproc)" -L 1 sh "$own/jemalloc.sh" compile "$source" "$work" "$libraries"
  public='(malloc|calloc|realloc|free|memalign|valloc|posix_memalign|aligned_alloc|malloc_usable_size|malloc_stats_print'
  public="$public|[mrxsdn]allocx|sdallocx|mallctl[a-z]*)"
  absent=0 private=0 linked=0
  for kind in integration unit; do
    for file in test/$kind/*.c; do
      program=$work/$kind-$(basename "$file" .c)
      if ! [ -f "$program.o" ]; then
        absent=$((absent + 1))
      elif ! nm "$program.o" | grep -qE " U $public\$"; then
        private=$((private + 1))
      else
        link $kind "$program.o" "$program"
        linked=$((linked + 1))
      fi
    done
  done
  echo "NOTE $linked files are linked; $private call nothing public, $absent cannot be compiled against the public headers"
}

run() {
  cd "$work"
  for program in integration-* unit-*; do
    [ -x "$program" ] && [ -f "$program" ] || continue
    test=test/${program%%-*}/${program#*-}
    (
      export MALLOC_CONF=
      # shellcheck disable=SC2034,SC1090  # the scripts beside the tests read these
      if [ -f "$source/$test.sh" ]; then enable_fill=1 enable_prof=1; . "$source/$test.sh"; fi
      export MALLOC_CONF LD_LIBRARY_PATH="$libraries"
      timeout 600 "./$program" x x 2> /dev/null | sed -n "s,^RESULT ,RESULT ${test#test/} ,p"
    ) || :
  done
}

case $step in
  compile) compile "$5" "$6" "$7" ;;
  *) "$step" ;;
esac
