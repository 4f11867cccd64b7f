#!/usr/bin/env bash
# Writes the recipes of package systems into OUT_DIR/recipes, with the version and the hashes of the source release that
# packaging/source.sh has written into OUT_DIR.
#
#   packaging/recipes.sh OUT_DIR URL      URL: the address of the folder that the release will be fetched from
set -euo pipefail

if [ $# -ne 2 ] || [ ! -d "$1" ]; then
    echo "usage: packaging/recipes.sh OUT_DIR URL" >&2
    exit 2
fi
out=$(cd "$1" && pwd)
URL=${2%/}
cd "$(dirname "$0")/.."

shopt -s nullglob
archives=("$out"/hakmem-*.tar.xz)
if [ ${#archives[@]} -ne 1 ]; then
    echo "recipes.sh: $out holds ${#archives[@]} source releases, not one (packaging/source.sh)" >&2
    exit 1
fi
archive=${archives[0]}
VERSION=${archive##*/hakmem-}
VERSION=${VERSION%.tar.xz}
SHA256=$(sha256sum <"$archive" | cut -d' ' -f1)
SHA512=$(sha512sum <"$archive" | cut -d' ' -f1)

# From the release's own CMakeLists.txt, which the work tree's may differ from.
lists=$(tar -xJOf "$archive" "hakmem-$VERSION/CMakeLists.txt")
DESCRIPTION=$(sed -n 's/^project(hakmem .*DESCRIPTION "\(.*\)").*/\1/p' <<<"$lists")
HARDENING=$(sed -n 's/^set(HAKMEM_HARDENING \([0-9]*\) .*/\1/p' <<<"$lists")
CORE_SOURCES=$(sed -n '/^set(HAKMEM_CORE_SOURCES$/,/)/p' <<<"$lists" | grep -o 'src/[^ )]*' | sed "s/.*/  '&',/" | sed '1s/^  //')
for name in DESCRIPTION HARDENING CORE_SOURCES; do
    if [ -z "${!name}" ]; then
        echo "recipes.sh: CMakeLists.txt of $archive has no $name where it is looked for" >&2
        exit 1
    fi
done

rm -rf "$out/recipes"
for recipe in conan meson vcpkg nix spack; do
    while IFS= read -r file; do
        target=$out/recipes/${file#packaging/}
        mkdir -p "$(dirname "$target")"
        case $file in
        *.in)
            text=$(<"$file")
            for name in VERSION URL SHA256 SHA512 DESCRIPTION HARDENING CORE_SOURCES; do
                text=${text//"@$name@"/"${!name}"}
            done
            if left=$(grep -oE '@[A-Z][A-Z0-9_]+@' <<<"$text"); then
                echo "recipes.sh: $file: nothing is known for $left" >&2
                exit 1
            fi
            printf '%s\n' "$text" >"${target%.in}"
            ;;
        *) cp "$file" "$target" ;;
        esac
    done < <(find "packaging/$recipe" -type f -not -path '*/__pycache__/*' -not -name package.sh | LC_ALL=C sort)
done
echo "$out/recipes"
