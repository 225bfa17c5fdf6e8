#!/usr/bin/env bash
# What would be published compiles from its own files. Then `cargo install gridguard-cli` as from crates.io: a folder of
# packages stands for the registry. The command has the library that `gridguard run` preloads, which is a package of its
# own, and passes `tests/install.sh`. Without a library it says what to do. Without optimisation, so that it takes two
# minutes. Needs gcc, but no GPU.
set -eu -o pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mkdir -p "$target"
folder=$(mktemp --directory "$target/published.XXXXXX")
trap 'rm -rf "$folder"' EXIT
export CARGO_PROFILE_RELEASE_{OPT_LEVEL=0,LTO=off,CODEGEN_UNITS=16,STRIP=true}

# The registry: what we depend on, and our own packages as they would be published.
cargo vendor --quiet --locked --sync kernels/candle/Cargo.toml "$folder/registry" >/dev/null
cargo publish --quiet --workspace --locked --dry-run --no-verify --allow-dirty --target-dir "$folder/packed"
for crate in "$folder"/packed/package/tmp-crate/*.crate; do
    tar --extract --gzip --file "$crate" --directory "$folder/registry"
    echo "{\"files\":{},\"package\":\"$(sha256sum "$crate" | cut -d ' ' -f 1)\"}" \
        >"$folder/registry/$(basename "$crate" .crate)/.cargo-checksum.json"
done

echo '-- the libraries compile'
# One workspace of all packages: their dependencies are those that this one has compiled.
mkdir "$folder/packages"
cp -r "$folder"/registry/gridguard* "$folder/packages/"
printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n[patch.crates-io]\n' >"$folder/packages/Cargo.toml"
for package in "$folder"/packages/*/; do
    name=$(basename "$package")
    echo "${name%-*} = { path = \"$name\" }" >>"$folder/packages/Cargo.toml"
done
cp Cargo.lock "$folder/packages/"
cargo check --quiet --workspace --manifest-path "$folder/packages/Cargo.toml" --target-dir "$target"

mkdir "$folder/home"
printf '[source.crates-io]\nreplace-with = "folder"\n[source.folder]\ndirectory = "%s"\n' "$folder/registry" \
    >"$folder/home/config.toml"

echo '-- the operators for candle compile, a workspace of their own'
root=$PWD
(cd "$folder" && CARGO_HOME=$folder/home cargo package --quiet --allow-dirty --manifest-path "$root/kernels/candle/Cargo.toml" \
    --target-dir "$target/published")

# Installs into a folder, outside the checkout and its settings.
install() {
    (cd "$folder" && CARGO_HOME=$folder/home CARGO_TARGET_DIR=$target/published \
        cargo install --quiet --locked --root "$1" gridguard-cli)
}
watched() { (cd "$folder" && env -i HOME="$folder" PATH="$PATH" "$1/bin/gridguard" run -- grep -c preload /proc/self/maps); }

echo '-- the library is built from its own package'
install "$folder/whole"
[ "$(watched "$folder/whole")" -gt 0 ]
GRIDGUARD=$folder/whole/bin/gridguard tests/install.sh

echo '-- without a library'
rm -r "$folder"/registry/gridguard-preload-*
GRIDGUARD_PRELOAD_LIBRARY='' install "$folder/part"
if watched "$folder/part" 2>"$folder/error"; then
    echo 'it has run without a library' >&2
    exit 1
fi
[ "$(wc --lines <"$folder/error")" = 1 ]
grep --quiet 'cargo install --path autotune/cli.*--library' "$folder/error"

echo '-- a library that does not build'
if install "$folder/none" 2>"$folder/error"; then
    echo 'it was installed without its library' >&2
    exit 1
fi
grep --quiet 'set GRIDGUARD_PRELOAD_LIBRARY to nothing' "$folder/error"
echo 'the published command is whole'
