#!/usr/bin/env bash
# image.sh NAME: the image of that name in packaging/images.txt, by its digest; in a workflow also as the step's output `image`. Status 1
# where no digest is known.
set -euo pipefail
cd "$(dirname "$0")"

[ $# -eq 1 ] || { echo "usage: packaging/image.sh NAME" >&2; exit 2; }
read -r tag digest < <(sed -n "s/^$1 //p" images.txt) || { echo "image.sh: packaging/images.txt has no $1" >&2; exit 2; }
if ! [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
    echo "image.sh: the digest of $tag is not known: look it up, and write it into packaging/images.txt" >&2
    exit 1
fi
image=${tag%%:*}@$digest
echo "$image"
[ -z "${GITHUB_OUTPUT-}" ] || echo "image=$image" >>"$GITHUB_OUTPUT"
