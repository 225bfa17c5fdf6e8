#!/usr/bin/env bash
# candle with a guard: changes candle-core's own sources, as cargo fetched them, so that every kernel is
# launched through the guarded builder. And our operators for candle on a device.
#
#   tests/candle.sh check          type-checks the changed candle, and gridguard-candle with its feature `cuda`;
#                                  needs neither CUDA nor a GPU
#   tests/candle.sh build FOLDER   builds candle-plain and candle-guarded into FOLDER, programs that sort
#                                  with candle as it is and with a guard; needs nvcc (NVCC names it)
#   tests/candle.sh operators FOLDER
#                                  builds the tests, the benchmark and the example of gridguard-candle for a GPU
#                                  into FOLDER; needs nvcc, no newer than the CUDA of the GPU's driver, and on
#                                  the machine with the GPU cuBLAS, cuRAND and NVRTC
#   tests/candle.sh images FOLDER  compiles candle's kernels into FOLDER as cubins and a fatbin for sm_90, and
#                                  PTX; needs nvcc with ptxas and fatbinary beside it
#
# Nothing of candle is in this repository: `guard_candle` is the whole change.
set -eu -o pipefail
folder=$(realpath --canonicalize-missing "${2:-.}")
cd "$(dirname "$0")/.."
root=$PWD
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-$root/target}")
work=$target/candle
version=0.11.1

# Gives candle a guard. The replaced text is candle's, the rest is ours.
guard_candle() {
    printf '[dependencies.gridguard]\npath = "%s/guard"\nfeatures = ["cuda"]\n' "$root" >>Cargo.toml
    sed -i "s/cudarc::driver::LaunchArgs<\('[a_]\)>/gridguard::cuda::LaunchBuilder<\1, cudarc::driver::CudaFunction>/" \
        src/cuda_backend/mod.rs src/cuda_backend/device.rs
    sed -i 's/self.stream.launch_builder(&self.func)/super::guard(\&self.stream).builder(\&self.stream, \&self.func)/' \
        src/cuda_backend/device.rs
    sed -i 's/stream.launch_builder(&func)/crate::cuda_backend::guard(\&stream).builder(\&stream, \&*func)/' src/sort.rs
    # One guard for each device.
    cat >>src/cuda_backend/mod.rs <<-'END'
	static GUARDS: [std::sync::OnceLock<gridguard::Guard>; 64] = [const { std::sync::OnceLock::new() }; 64];
	pub(crate) fn guard(stream: &cudarc::driver::CudaStream) -> &'static gridguard::Guard {
	    let context = stream.context();
	    let guard = || gridguard::Guard::with_context(context.clone()).expect("a guard");
	    GUARDS[context.ordinal()].get_or_init(guard)
	}
	END
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
    for copy in original candle-core candle-kernels; do
        printf '[workspace]\n' >>"$work/$copy/Cargo.toml"
    done
}

# Replaces the build of candle's kernels: `build.rs` writes the constants of ptx.rs with these values.
kernels_from() {
    sed -i -e 's/^\[build-dependencies.*/[unused]/' "$work/candle-kernels/Cargo.toml"
    cat >"$work/candle-kernels/build.rs" <<-END
	fn main() {
	    let source = std::fs::read_to_string("src/ptx.rs").unwrap();
	    let text: String = source.lines().filter_map(|line| {
	        let (name, _) = line.split_once(" = ")?;
	        let file = name.strip_prefix("pub const ")?.split(':').next()?.to_lowercase() + ".ptx";
	        Some(format!("{name} = {};\n", $1))
	    }).collect();
	    std::fs::write(std::env::var("OUT_DIR").unwrap() + "/ptx.rs", text).unwrap();
	}
	END
}

# The driver is looked up at run time, so that no library of CUDA is needed to link.
link_nothing() {
    sed -i 's/"dynamic-linking"/"fallback-dynamic-loading"/' "$work/$1/Cargo.toml"
}

# A package of the targets of gridguard-candle that need a device, with this copy of candle: with it candle links
# nothing, and the lock file of the workspace stays as it is.
operators_package() {
    mkdir -p "$work/operators"
    # At the versions that it is tested with.
    cp "$root/kernels/candle/Cargo.lock" "$work/operators/"
    cat >"$work/operators/Cargo.toml" <<-END
	[package]
	name = "candle-operators"
	version = "0.0.0"
	edition = "2024"
	[[bin]]
	name = "gpu_operators"
	path = "$root/kernels/candle/benches/gpu_operators.rs"
	[[example]]
	name = "temporal_transformer"
	path = "$root/kernels/candle/examples/temporal_transformer.rs"
	[[test]]
	name = "gpu"
	path = "$root/kernels/candle/tests/gpu.rs"
	[features]
	default = ["cuda"]
	cuda = []
	[dependencies]
	candle-core = { version = "=$version", features = ["cuda"] }
	candle-nn = { version = "=$version", features = ["cuda"] }
	cudarc = { version = "0.19.10", default-features = false }
	fastrand = "2.5"
	gridguard = { path = "$root/guard", features = ["cuda", "profile"] }
	gridguard-candle = { path = "$root/kernels/candle", features = ["cuda"] }
	gridguard-kernels = { path = "$root/kernels" }
	half = "2.7"
	[patch.crates-io]
	candle-core = { path = "$work/$1" }
	[workspace]
	END
}

# cargo for a package of the changed copies, with this target folder.
cargo_with_copies() {
    CUDARC_CUDA_VERSION=12000 cargo "${@:2}" --target-dir "$1" \
        --config "patch.crates-io.candle-kernels.path='$work/candle-kernels'"
}

check() {
    prepare
    # Without nvcc: empty texts stand in for candle's kernels, which are not run.
    kernels_from '{ let _ = file; "\"\"" }'
    # The operators use the changed candle, so that one build checks both.
    link_nothing candle-core
    operators_package candle-core
    # What the workspace uses is checked already.
    cargo_with_copies "$target" check --quiet --manifest-path "$work/operators/Cargo.toml" --all-targets
}

# Kernels that candle compiles apart from PTX are not called.
unresolved='-C link-arg=-Wl,--unresolved-symbols=ignore-all'

# candle's kernels are those that compile_ptx wrote.
kernels_from_ptx() {
    kernels_from "format!(\"include_str!({:?})\", \"$work/ptx/\".to_owned() + &file)"
}

# Compiles candle's kernels to PTX, in "$work/ptx".
compile_ptx() {
    local ptx=$work/ptx name
    mkdir -p "$ptx"
    for name in $(sed -n 's/^pub const \([A-Z]*\):.*/\L\1/p' "$work/candle-kernels/src/ptx.rs"); do
        # Kept from an earlier build: candle's largest source takes nvcc minutes.
        [ -s "$ptx/$name.ptx" ] || "${NVCC:-nvcc}" -ptx -arch=compute_90 -O3 -std=c++17 --expt-relaxed-constexpr \
            -o "$ptx/$name.ptx" "$work/candle-kernels/src/$name.cu"
    done
}

images() {
    local ptx name tools
    tools=$(dirname "$(command -v "${NVCC:-nvcc}")")
    prepare
    compile_ptx
    rm -rf "$folder" && mkdir -p "$folder"
    for ptx in "$work"/ptx/*.ptx; do
        name=$(basename "$ptx" .ptx)
        "$tools/ptxas" -arch sm_90 -o "$folder/$name.cubin" "$ptx"
    done
    # One of each other kind: the driver compiles PTX, which takes long.
    cp "$work/ptx/affine.ptx" "$folder/"
    "$tools/fatbinary" -64 -compress-all --create "$folder/unary.fatbin" \
        "--image3=kind=elf,sm=90,file=$folder/unary.cubin" "--image3=kind=ptx,sm=90,file=$work/ptx/unary.ptx"
}

build() {
    local kind
    prepare
    compile_ptx
    mkdir -p "$work/program" "$folder"
    kernels_from_ptx
    for kind in plain:original guarded:candle-core; do
        link_nothing "${kind#*:}"
        cat >"$work/program/Cargo.toml" <<-END
	[package]
	name = "candle-${kind%:*}"
	version = "0.0.0"
	edition = "2024"
	[[bin]]
	name = "candle-${kind%:*}"
	path = "$root/tests/candle/main.rs"
	[dependencies]
	candle-core = { path = "$work/${kind#*:}", features = ["cuda"] }
	[workspace]
	END
        RUSTFLAGS=$unresolved \
            cargo_with_copies "$work/target" build --quiet --release --manifest-path "$work/program/Cargo.toml"
        install --strip "$work/target/release/candle-${kind%:*}" "$folder/"
    done
}

operators() {
    local name path
    prepare
    compile_ptx
    kernels_from_ptx
    link_nothing original
    operators_package original
    mkdir -p "$folder"
    {
        RUSTFLAGS=$unresolved cargo_with_copies "$work/target" test --no-run --release --test gpu --message-format json \
            --manifest-path "$work/operators/Cargo.toml"
        RUSTFLAGS=$unresolved cargo_with_copies "$work/target" build --release --bins --examples --message-format json \
            --manifest-path "$work/operators/Cargo.toml"
    } | python3 tests/executables.py | while read -r name path; do
        cp "$path" "$folder/$name" && strip "$folder/$name"
    done
}

case ${1:-check} in
check) check ;;
build) build ;;
operators) operators ;;
images) images ;;
*)
    echo "usage: tests/candle.sh [check | build FOLDER | operators FOLDER | images FOLDER]" >&2
    exit 2
    ;;
esac
