#!/usr/bin/env bash
# A program outside this workspace, without any variable of ours, compiles with the default features of `gridguard`:
# alone, and beside crates that choose cudarc's CUDA version in each way.
set -eu -o pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}/outside")
program=$(mktemp --directory)
trap 'rm -rf "$program"' EXIT
mkdir "$program/src"
cat >"$program/src/main.rs" <<'RUST'
fn main() {
    match gridguard::Guard::cuda(0) {
        Ok(guard) => println!("{}", guard.limits().name),
        Err(error) => println!("{error}"),
    }
}
RUST
cp Cargo.lock "$program/"

check() {
    printf '== %s\n' "$1"
    cat >"$program/Cargo.toml" <<TOML
[package]
name = "outside"
edition = "2024"
[dependencies]
gridguard = { path = "$root/guard" }
$2
TOML
    # Outside the checkout, so that its .cargo/config.toml does not apply.
    (cd "$program" && env -u CUDARC_CUDA_VERSION cargo check --quiet --target-dir "$target")
}

check 'the defaults' ''
check 'beside a crate that chooses a version' \
    'cudarc = { version = "0.19.10", default-features = false, features = ["std", "driver", "cuda-12080"] }'
check "beside a crate that takes nvcc's version, as candle does" \
    'cudarc = { version = "0.19.10", default-features = false, features = ["std", "driver", "cuda-version-from-build-system", "dynamic-loading"] }'
# Without a device the program says so, in words.
(cd "$program" && env -u CUDARC_CUDA_VERSION cargo run --quiet --target-dir "$target")
