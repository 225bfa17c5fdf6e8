#!/usr/bin/env bash
# Builds the documentation site from this folder with mdBook, which cargo installs into the target folder.
#
#   docs/site.sh [FOLDER]      into FOLDER (target/site)
set -eu -o pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
site=$(realpath -m "${1:-$target/site}")
version=0.5.4

tools=$target/tools/mdbook
"$tools/bin/mdbook" --version 2>/dev/null | grep -qF "$version" ||
    cargo install --quiet --debug --locked --no-default-features --features search --root "$tools" "mdbook@$version"
"$tools/bin/mdbook" build docs --dest-dir "$site"
# A page that mdBook could not read is missing or empty.
for page in docs/*.md; do
    name=$(basename "$page" .md)
    [ "$name" = SUMMARY ] || grep -q '<h1' "$site/$name.html" || { echo "no page $name"; exit 1; }
done
echo "built $site"
