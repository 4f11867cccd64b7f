#!/usr/bin/env bash
# Writes the npm package hakmem-VERSION.tgz into OUT_DIR, with a built library for each processor, and prints its path. Two runs
# with the same libraries write the same bytes.
#
#   packaging/npm/package.sh OUT_DIR [LIBRARY...]      LIBRARY: one for x86-64, or one for aarch64, or both;
#                                                      unless given both, for glibc 2.28 (packaging/glibc)
#
# HAKMEM_REPOSITORY=URL, where the sources are: npm's provenance needs it in the package.
set -euo pipefail

if [ $# -lt 1 ]; then
    echo "usage: packaging/npm/package.sh OUT_DIR [LIBRARY...]" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ $# -eq 0 ]; then
    for arch in x86_64 aarch64; do
        # Assigned first: in the middle of a command line its failure would be lost.
        folder=$("$root/packaging/glibc/libraries.sh" "$arch")
        set -- "$@" "$folder/libhakmem.so"
    done
fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
version=$("$root/packaging/version.sh")

# The folder that a library belongs into, and its tools' prefix, by its ELF header: 64-bit, little-endian, shared, processor.
platform_of() {
    case $(od -An -tx1 -N20 "$1" | tr -d ' \n') in
    7f454c460201????????????????????03003e00) echo linux-x64 x86_64-linux-gnu ;;
    7f454c460201????????????????????0300b700) echo linux-arm64 aarch64-linux-gnu ;;
    *)
        echo "package.sh: $1 is no shared library for x86-64 or aarch64" >&2
        exit 1
        ;;
    esac
}

stage=$temporary/package
mkdir "$stage"
cd "$root/packaging/npm"
cp -R bin index.js index.d.ts README.md "$stage"
cp "$root/LICENSE" "$stage"
sed "s/\"version\": \"0\.0\.0\"/\"version\": \"$version\"/" package.json >"$stage/package.json"
if [ -n "${HAKMEM_REPOSITORY-}" ]; then
    sed -i "s|^  \"main\"|  \"repository\": { \"type\": \"git\", \"url\": \"git+$HAKMEM_REPOSITORY.git\" },\n&|" "$stage/package.json"
fi
cd "$OLDPWD"
for library; do
    read -r folder tools < <(platform_of "$library")
    if [ -z "${folder-}" ]; then
        exit 1
    fi
    if [ -e "$stage/lib/$folder" ]; then
        echo "package.sh: two libraries for $folder" >&2
        exit 1
    fi
    mkdir -p "$stage/lib/$folder"
    "$tools-strip" --strip-unneeded -o "$stage/lib/$folder/libhakmem.so" "$library"
done
chmod -R u=rwX,go=rX "$stage"

cd "$stage"
npm_config_cache="$temporary/cache" npm_config_update_notifier=false npm_config_loglevel=error npm_config_ignore_scripts=true \
    npm pack --silent --pack-destination "$temporary" >/dev/null
mv "$temporary/hakmem-$version.tgz" "$out/"
echo "$out/hakmem-$version.tgz"
