#!/usr/bin/env bash
# The command as packagers build it: from sources without git, with vendored crates and no network, without the feature
# `embedded-library`. It finds the library that is installed beside it, and refuses one of another version. Needs gcc,
# but no GPU. After `tests/published.sh`, whose profile and target folder it shares, only our packages compile.
set -eu -o pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mkdir -p "$target"
folder=$(mktemp --directory "$target/vendored.XXXXXX")
trap 'rm -rf "$folder"' EXIT
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

mkdir -p "$folder/source/.cargo"
git ls-files -z | xargs --null tar --create | tar --extract --directory "$folder/source"
cargo vendor --quiet --locked "$folder/crates" >/dev/null
printf '[source.crates-io]\nreplace-with = "folder"\n[source.folder]\ndirectory = "%s"\n' "$folder/crates" \
    >"$folder/source/.cargo/config.toml"

export CARGO_PROFILE_RELEASE_{OPT_LEVEL=0,LTO=off,CODEGEN_UNITS=16,STRIP=true}
(cd "$folder/source" && GIT_CEILING_DIRECTORIES=$folder CARGO_HOME=$folder/home CARGO_TARGET_DIR=$target/published \
    cargo build --quiet --release --frozen --package gridguard-cli --package gridguard-preload \
    --no-default-features --features gridguard-cli/cuda-12000)
mkdir -p "$folder/usr/bin" "$folder/usr/libexec/gridguard" "$folder/usr/lib/gridguard"
cp "$target/published/release/gridguard" "$folder/usr/bin/"
cp "$target/published/release/libgridguard_preload.so" "$folder/usr/libexec/gridguard/"

# Without a home that can be written, and without a variable.
gridguard() { (cd "$folder" && env -i HOME=/proc PATH="$PATH" usr/bin/gridguard "$@"); }
# Fails unless the program that `gridguard run` starts has this library.
expect() { gridguard run -- grep --quiet "$folder/usr/$1/libgridguard_preload.so" /proc/self/maps; }
[ "$(gridguard --version)" = "gridguard $version" ]
expect libexec/gridguard

echo '-- a second library, of another version, comes later in the order'
sed "s/$version/9${version#?}/g" "$folder/usr/libexec/gridguard/libgridguard_preload.so" \
    >"$folder/usr/lib/gridguard/libgridguard_preload.so"
expect libexec/gridguard
mv "$folder/usr/libexec/gridguard/libgridguard_preload.so" "$folder/usr/lib/"
if gridguard run -- true 2>"$folder/error"; then
    echo 'it has run with a library of another version' >&2
    exit 1
fi
grep --quiet "is of gridguard 9${version#?}, this command is of $version" "$folder/error"

echo '-- the last place, and none'
rm "$folder/usr/lib/gridguard/libgridguard_preload.so"
expect lib
rm "$folder/usr/lib/libgridguard_preload.so"
if gridguard run -- true 2>"$folder/error"; then
    echo 'it has run without a library' >&2
    exit 1
fi
grep --quiet 'neither in this command nor beside it' "$folder/error"
echo 'a vendored build of the command works'
