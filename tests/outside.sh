#!/usr/bin/env bash
# Programs outside this workspace, without any variable of ours, compile: those of docs/rust.md with its manifest, as a
# reader pastes them, and one with the default features of `gridguard`:
# alone, and beside crates that choose cudarc's CUDA version in each way. With cudarc's newest bindings, it runs on an
# old driver, or says why not.
set -eu -o pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}/outside")
program=$(mktemp --directory)
trap 'rm -rf "$program"' EXIT
mkdir "$program/src"
cat >"$program/src/main.rs" <<'RUST'
use gridguard::cuda::{Args, Image};
use gridguard::profile::Policy;
use gridguard::{Dim3, Guard, LaunchRequest};
use gridguard_autotune::DeviceClock;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guard = match Guard::cuda(0) {
        Ok(guard) => guard,
        Err(error) => return Ok(println!("{error}")),
    };
    let module = guard.load(&Image::new(b".version 8.0\n.target sm_80\n.entry idle() { ret; }")?)?;
    // SAFETY: the kernel does nothing.
    let kernel = unsafe { module.kernel("idle", &[])? };
    let stream = guard.context().ok_or("a device")?.new_stream()?;
    let request = LaunchRequest::new(Dim3::new(8, 1, 1), Dim3::new(32, 1, 1));
    let launches = guard.launch(&kernel, &request, Args::new(&stream))?;
    println!("{launches} launch");
    match DeviceClock::new(&guard.into(), stream, Policy::default()) {
        Ok(clock) => println!("{clock:?}"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
RUST
cp Cargo.lock "$program/"

manifest() {
    printf '== %s\n' "$1"
    cat >"$program/Cargo.toml" <<TOML
[package]
name = "outside"
edition = "2024"
[dependencies]
gridguard = { path = "$root/guard" }
gridguard-autotune = { path = "$root/autotune" }
$2
TOML
}

# Outside the checkout, so that its .cargo/config.toml does not apply.
outside() {
    (cd "$program" && env -u CUDARC_CUDA_VERSION cargo "$@" --quiet --target-dir "$target")
}

printf '== the guide\n'
ln -s "$root" "$program/gridguard"
mkdir "$program/src/bin"
awk -v folder="$program/src/bin" \
    '/^```/ { keep = /rust$/; programs += keep; next } keep { print > (folder "/guide" programs ".rs") }' docs/rust.md
[ "$(grep --files-with-matches '^fn main' "$program"/src/bin/* | wc --lines)" = 3 ]
{
    printf '[package]\nname = "guide"\nedition = "2024"\n'
    awk '/^```/ { keep = /toml$/; next } keep' docs/rust.md
    echo 'gridguard-autotune = { path = "gridguard/autotune" }'
} >"$program/Cargo.toml"
outside check
rm -r "$program/src/bin"

manifest 'the defaults' ''
outside check
manifest 'beside a crate that chooses a version' \
    'cudarc = { version = "0.19.10", default-features = false, features = ["std", "driver", "cuda-12080"] }'
outside check
manifest "beside a crate that takes nvcc's version, as candle does" \
    'cudarc = { version = "0.19.10", default-features = false, features = ["std", "driver", "cuda-version-from-build-system", "dynamic-loading"] }'
outside check

# The program prints $2 on a driver of CUDA version $1, without the functions that came later.
prints() {
    local printed
    printed=$(GRIDGUARD_FAKE_DRIVER_VERSION=$1 LD_LIBRARY_PATH=$program/old outside run)
    [[ $printed == "$2" ]] || {
        printf 'on a driver of CUDA %s, it printed\n%s\ninstead of\n%s\n' "$1" "$printed" "$2"
        exit 1
    }
}

manifest "with cudarc's newest bindings, on old drivers" \
    'cudarc = { version = "0.19.10", default-features = false, features = ["std", "driver", "cuda-13040"] }'
mkdir "$program/old"
gcc -shared -fPIC -Wl,-Bsymbolic -O2 -DFAKE_OLD -o "$program/old/libcuda.so.1" \
    guard/tests/fake-driver/libcuda.c -lpthread
ln -s libcuda.so.1 "$program/old/libcuda.so"
prints 12040 "1 launch
the driver supports CUDA 12.4, at least 12.8 is needed: update the driver, or build for older drivers, with \
CUDARC_CUDA_VERSION=12000"
prints 11080 'the driver supports CUDA 11.8, at least 12.0 is needed: update the driver'
# Without a device the program says so, in words.
outside run
