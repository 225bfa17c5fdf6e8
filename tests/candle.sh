#!/usr/bin/env bash
# candle with a guard: changes candle-core's own sources, as cargo fetched them, so that every kernel is
# launched through the guarded builder.
#
#   tests/candle.sh check          type-checks the changed candle; needs neither CUDA nor a GPU
#   tests/candle.sh build FOLDER   builds its test program into FOLDER; needs nvcc and CUDA's libraries
#
# Nothing of candle is in this repository: `guard_candle` is the whole change.
set -eu -o pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=${CARGO_TARGET_DIR:-$root/target}/candle
version=0.11.1

# Fourteen lines that give candle a guard. The replaced text is candle's, the rest is ours.
guard_candle() {
    printf '[dependencies.gridguard]\npath = "%s/guard"\nfeatures = ["cuda"]\n' "$root" >>Cargo.toml
    sed -i 's/cudarc::driver::LaunchArgs</gridguard::cuda::GuardedLaunchArgs</' \
        src/cuda_backend/mod.rs src/cuda_backend/device.rs
    sed -i -e 's/self.stream.launch_builder(&self.func)/self.stream.launch_builder_guarded(\&self.func)/' \
        -e '1i use gridguard::cuda::GuardedStream;' src/cuda_backend/device.rs
    sed -i -e 's/stream.launch_builder(&func)/stream.launch_builder_guarded(\&func)/' \
        -e '1i use gridguard::cuda::GuardedStream;' src/sort.rs
    sed -i 's/^pub enum CudaError {$/&\n#[error(transparent)]\nGuard(#[from] gridguard::cuda::LaunchError),\n/' \
        src/cuda_backend/error.rs
}

# The sources of a package as cargo has them.
sources() {
    cargo metadata --format-version 1 --manifest-path "$work/fetch/Cargo.toml" | python3 -c '
import json, os, sys
name = sys.argv[1]
print(next(os.path.dirname(one["manifest_path"]) for one in json.load(sys.stdin)["packages"] if one["name"] == name))
' "$1"
}

# Prints how many lines of candle-core the change adds, of which each replaced line is one.
added_lines() {
    { diff --recursive --unified=0 "$work/original" "$work/candle-core" || true; } | grep -c '^+[^+]'
}

prepare() {
    rm -rf "$work/fetch" "$work/original" "$work/candle-core" "$work/candle-kernels"
    mkdir -p "$work/fetch/src"
    cat >"$work/fetch/Cargo.toml" <<-END
	[package]
	name = "fetch"
	version = "0.0.0"
	edition = "2024"
	[dependencies]
	candle-core = { version = "=$version", features = ["cuda"] }
	[workspace]
	END
    touch "$work/fetch/src/lib.rs"
    cp -r "$(sources candle-core)" "$work/original"
    cp -r "$work/original" "$work/candle-core"
    cp -r "$(sources candle-kernels)" "$work/candle-kernels"
    (cd "$work/candle-core" && guard_candle)
    echo "candle-core $version: $(added_lines) lines changed or added"
    # They lie in this workspace's folder, but are no part of it.
    for copy in candle-core candle-kernels; do
        printf '[workspace]\n' >>"$work/$copy/Cargo.toml"
    done
}

check() {
    prepare
    # Without nvcc: kernels of no code stand in for candle's, whose names are all that is checked.
    sed -i -e 's/^\[build-dependencies.*/[unused]/' "$work/candle-kernels/Cargo.toml"
    cat >"$work/candle-kernels/build.rs" <<-'END'
	fn main() {
	    let source = std::fs::read_to_string("src/ptx.rs").unwrap();
	    let empty = |line: &str| format!("{} = \"\";\n", line.split(" = ").next().unwrap());
	    let text: String = source.lines().filter(|line| line.contains(" = ")).map(empty).collect();
	    std::fs::write(std::env::var("OUT_DIR").unwrap() + "/ptx.rs", text).unwrap();
	}
	END
    CUDARC_CUDA_VERSION=12000 cargo check --quiet --manifest-path "$work/candle-core/Cargo.toml" \
        --features cuda --config "patch.crates-io.candle-kernels.path='$work/candle-kernels'" \
        --target-dir "$work/target"
}

"${1:-check}" "${@:2}"
