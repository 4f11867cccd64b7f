#!/usr/bin/env bash
# Publishes one kind of package out of a release that packaging/dist.sh has written, by trusted publishing: the forge vouches for the
# workflow with an OIDC token, and nobody keeps a password.
#
#   packaging/publish.sh pypi|crates|npm|forge DIST [--dry-run]
#
#   pypi    wheels, by twine, which exchanges the token itself
#   crates  hakmem-sys, then hakmem, by cargo, with a token of crates.io that lives for half an hour; refused where the crates that cargo
#           would send differ from those in DIST
#   npm     the package, by the npm of packaging/npm/publish, which exchanges the token itself and adds provenance
#   forge   a release of the tag with all files and the notes, by gh (GH_TOKEN)
#
# --dry-run checks DIST and prints the commands. DIST is checked against its SHA256SUMS in any case; and each file, by gh (GH_TOKEN), for an
# attestation of the forge that the release workflow built it, from this tag and commit. Whoever could change DIST could change its sums.
set -euo pipefail

usage() {
    echo "usage: packaging/publish.sh pypi|crates|npm|forge DIST [--dry-run]" >&2
    exit 2
}
[ $# -ge 2 ] && [ $# -le 3 ] && [ "${3:---dry-run}" = --dry-run ] || usage
kind=$1 dry=${3-}
[ -f "$2/SHA256SUMS" ] || { echo "publish.sh: $2 is no release of packaging/dist.sh" >&2; exit 1; }
dist=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
version=$(packaging/version.sh)
(cd "$dist" && sha256sum --quiet --strict --check SHA256SUMS) || { echo "publish.sh: $dist is not as it was built" >&2; exit 1; }

# run COMMAND...: or says it
run() { if [ -n "$dry" ]; then echo "would run: $*"; else "$@"; fi; }
# attested FILE...: built by the release workflow of this repository, for this tag and commit
attested() {
    local file
    [ -z "$dry" ] || return 0
    : "${GITHUB_REPOSITORY:?publish.sh: attestations are of a repository}" "${GITHUB_REF:?}" "${GITHUB_SHA:?}"
    for file; do
        gh attestation verify "$file" --repo "$GITHUB_REPOSITORY" --signer-workflow "$GITHUB_REPOSITORY/.github/workflows/release.yml" \
            --source-ref "$GITHUB_REF" --source-digest "$GITHUB_SHA" --deny-self-hosted-runners >&2 ||
            { echo "publish.sh: $file has no attestation of the release workflow for $GITHUB_REF: nothing was published" >&2; exit 1; }
    done
}
files() { # files PATTERN...: each must be there
    local pattern found
    for pattern; do
        found=("$dist"/$pattern)
        [ -e "${found[0]}" ] || { echo "publish.sh: $dist has no $pattern" >&2; exit 1; }
        printf '%s\n' "${found[@]}"
    done
}

crates_token() {
    local identity
    : "${ACTIONS_ID_TOKEN_REQUEST_URL:?publish.sh: no OIDC token can be asked for (permissions: id-token: write)}"
    identity=$(curl --fail --silent --show-error --header "Authorization: bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" \
        "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=crates.io" | python3 -c 'import json, sys; print(json.load(sys.stdin)["value"])')
    python3 -c 'import json, sys; print(json.dumps({"jwt": sys.stdin.read().strip()}))' <<<"$identity" |
        curl --fail --silent --show-error --request POST --header 'Content-Type: application/json' \
            --header 'User-Agent: hakmem-release' --data @- https://crates.io/api/v1/trusted_publishing/tokens |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])'
}

case $kind in
pypi)
    mapfile -t wheels < <(files "hakmem-$version-*.whl")
    [ ${#wheels[@]} -gt 0 ] || exit 1
    attested "${wheels[@]}"
    tools=$([ -n "$dry" ] || packaging/tools.sh wheel)
    run "${tools:-TOOLS}/bin/twine" upload --non-interactive --disable-progress-bar "${wheels[@]}"
    ;;
crates)
    mapfile -t crates < <(files "hakmem-sys-$version.crate" "hakmem-$version.crate")
    [ ${#crates[@]} -eq 2 ] || exit 1
    attested "${crates[@]}"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    packaging/rust/package.sh "$work/made" --no-verify >/dev/null
    for crate in "${crates[@]}"; do
        cmp "$crate" "$work/made/$(basename "$crate")" || { echo "publish.sh: cargo would send another $(basename "$crate")" >&2; exit 1; }
    done
    packaging/rust/stage.sh "$work/crates"
    if [ -z "$dry" ]; then
        CARGO_REGISTRY_TOKEN=$(crates_token)
        [ -n "$CARGO_REGISTRY_TOKEN" ] || { echo "publish.sh: crates.io gave no token" >&2; exit 1; }
        export CARGO_REGISTRY_TOKEN
    fi
    for crate in hakmem-sys hakmem; do
        run cargo publish --locked --no-verify --manifest-path "$work/crates/$crate/Cargo.toml"
    done
    ;;
npm)
    mapfile -t packages < <(files "hakmem-$version.tgz")
    [ ${#packages[@]} -eq 1 ] || exit 1
    attested "${packages[0]}"
    locked=${NPM_TOOLS:-packaging/npm/publish}
    [ -n "$dry" ] || npm ci --ignore-scripts --no-audit --no-fund --prefix "$locked" >&2
    run "$locked/node_modules/.bin/npm" publish --provenance --access public "${packages[0]}"
    ;;
forge)
    mapfile -t all < <(cd "$dist" && find . -maxdepth 1 -type f -printf '%P\n' | LC_ALL=C sort)
    mapfile -t packed < <(cd "$dist" && find debian recipes -type f 2>/dev/null | LC_ALL=C sort)
    attested "${all[@]/#/$dist/}" "${packed[@]/#/$dist/}"
    # A release has no folders: recipes go as one archive.
    arguments=("${all[@]/#/$dist/}")
    for file in "${packed[@]}"; do [[ $file != debian/* ]] || arguments+=("$dist/$file"); done
    if [ -d "$dist/recipes" ]; then
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$dist" -cJf "$work/hakmem-$version-recipes.tar.xz" recipes
        arguments+=("$work/hakmem-$version-recipes.tar.xz")
    fi
    run gh release create "v$version" --verify-tag --title "hakmem $version" --notes-file "$dist/hakmem-$version-notes.md" "${arguments[@]}"
    ;;
*) usage ;;
esac
