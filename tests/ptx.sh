#!/usr/bin/env bash
# Rewrites PTX and assembles the result with ptxas; compares registers and spills with the originals'.
# Needs no GPU: the tools come from the Python registry, or CUDA_TOOLS names a folder that has them. GRIDGUARD names the
# command, if it need not be built.
#
#   tests/ptx.sh ci      the corpus, a quarter of our own kernels' code, and the smaller ones of candle's: minutes
#   tests/ptx.sh full    all of candle's kernels, with and without -G, for every architecture: hours of
#                        one core
#   tests/ptx.sh pack FOLDER
#                        candle's kernels, rewritten and assembled for sm_90 with their reports, and what
#                        compares them on a GPU (tests/ptx/differential.py). CANDLE_PTX names a folder that has
#                        their PTX, if it need not be built.
#   tests/ptx.sh tools   fetches the tools alone
#   tests/ptx.sh candle NAME
#                        PTX of a source of candle's, such as quantized; prints its path
#   tests/ptx.sh index FOLDER...
#                        counts verdicts on the PTX of these projects, runs launches that are called safe in an
#                        interpreter, and writes bench-data/results/host/index.txt; minutes of one core
#   tests/ptx.sh sample FOLDER
#                        PTX of ggml, Triton, Liger, CuPy and Numba for sm_80 and sm_90, in a folder for each project;
#                        files that are there are kept; hours of one core. PYTHON names a Python that has the packages.
#   tests/ptx.sh forms FOLDER
#                        counts the entries of such a sample that get forms, assembles some, and writes
#                        bench-data/results/host/forms.txt
set -eu -o pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
work=$target/ptx
candle=0.11.1
ggml=0.1.161
packages=(torch==2.11.0 triton==3.6.0 liger-kernel==0.6.2 cupy-cuda13x==14.2.0 numba-cuda==0.30.4 numba==0.68.1)
architectures=(sm_80 sm_86 sm_90 sm_100 sm_120)

# A newer nvvm writes a PTX version that this ptxas rejects, so all have one version.
tools() {
    [ -z "${CUDA_TOOLS:-}" ] || return 0
    CUDA_TOOLS=$target/tools/ptx/nvidia/cu13
    [ -x "$CUDA_TOOLS/bin/ptxas" ] || python3 -m pip install --quiet --target "$target/tools/ptx" \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-nvrtc==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.3.5.0.6
}

# crate_sources NAME VERSION: the folder of a crate as cargo has it.
crate_sources() {
    mkdir -p "$work/fetch/src"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\n%s = "=%s"\n[workspace]\n' \
        "$1" "$2" >"$work/fetch/Cargo.toml"
    touch "$work/fetch/src/lib.rs"
    cargo metadata --format-version 1 --manifest-path "$work/fetch/Cargo.toml" | python3 -c '
import json, os, sys
packages = json.load(sys.stdin)["packages"]
print(next(os.path.dirname(one["manifest_path"]) for one in packages if one["name"] == sys.argv[1]))' "$1"
}

candle_sources() { crate_sources candle-kernels "$candle"; }

# candle FOLDER OPTION... NAME...: PTX of these sources of candle's, kept from an earlier run.
candle() {
    local folder=$work/$1 options=() name
    shift
    while [[ $1 == -* ]]; do
        options+=("$1")
        shift
    done
    mkdir -p "$folder"
    for name; do
        [ -s "$folder/$name.ptx" ] || "$CUDA_TOOLS/bin/nvcc" -ptx "${options[@]}" -std=c++17 \
            --expt-relaxed-constexpr --disable-warnings -I"$CUDA_TOOLS/include" -o "$folder/$name.ptx" \
            "$sources/$name.cu"
    done
}

# PTX of our own kernels, as NVRTC writes it.
ours() {
    rm -rf "$work/sources" "$work/ours"
    mkdir -p "$work/sources" "$work/ours"
    KERNEL_SOURCES=$work/sources cargo test --quiet --workspace --test compile -- \
        --ignored for_every_architecture
    LD_LIBRARY_PATH=$CUDA_TOOLS/lib python3 tests/ptx/nvrtc.py "$CUDA_TOOLS/lib/libnvrtc.so.13" compute_80 "$work/sources" "$work/ours"
}

# part NAME COMMAND...: prints how long the command took.
part() {
    local name=$1 begun=$SECONDS
    shift
    "$@"
    printf -- '-- %d s: %s\n' $((SECONDS - begun)) "$name"
}

measure() {
    printf '\n'
    part "rewrite and assemble $*" \
        python3 tests/ptx/measure.py "$CUDA_TOOLS/bin/ptxas" "$gridguard" "$@"
}

# The corpus, also for an architecture that its target must be changed for.
corpus() {
    rm -rf "$work/corpus"
    mkdir -p "$work/corpus/sm_75"
    cp tests/ptx/corpus/*.ptx "$work/corpus"
    cp tests/ptx/corpus/*.ptx "$work/corpus/sm_75"
    sed -i 's/^\.target sm_80/.target sm_75/' "$work"/corpus/sm_75/*.ptx
    measure "$work/corpus" "${architectures[@]}"
    measure "$work/corpus/sm_75" sm_75
}

# pack FOLDER: rewrites and assembles candle's kernels. Most products of quantized matrices are left out:
# they alone would take longer than all others together.
pack() {
    local folder=$1 ptx=${CANDLE_PTX:-} name only
    if [ -z "$ptx" ]; then
        sources=$(candle_sources)/src
        candle hopper -O3 -arch=compute_90 "${all[@]}"
        ptx=$work/hopper
    fi
    mkdir -p "$folder"
    for name in "${all[@]}"; do
        "$gridguard" ptx "$ptx/$name.ptx" --output "$folder/$name.ptx" --format json >"$folder/$name.json"
        only=()
        [ "$name" != quantized ] || only=(--entry "$(python3 -c '
import json, re, sys
entries = json.load(sys.stdin)["entries"]
entries = [one for one in entries if not re.match(r"mul_mat_q|mul_mat_vec_.*_cuda[2-8]$", one["name"])]
names = [[one["name"], one["forms"]["shifted"], one["forms"]["folded"]] for one in entries if "forms" in one]
print(",".join(sum(names, [])))' <"$folder/$name.json")")
        "$CUDA_TOOLS/bin/ptxas" -arch sm_90 "${only[@]}" "$folder/$name.ptx" -o "$folder/$name.cubin"
        rm "$folder/$name.ptx"
    done
    # For example 8.
    cp "$ptx/quantized.ptx" "$folder/candle-quantized.ptx"
    cp tests/ptx/{differential,candle_launches,words,gpu}.py "$folder/"
}

# The sources of ggml that its CMakeLists.txt compiles by default.
ggml_files() {
    local from type
    from=$(crate_sources llama-cpp-sys-2 "$ggml")/llama.cpp/ggml/src/ggml-cuda
    printf '%s\n' "$from"/*.cu "$from"/template-instances/{mmq,mmf,fattn-tile,fattn-mma}*.cu
    for type in q4_0 q8_0 f16 bf16; do
        echo "$from/template-instances/fattn-vec-instance-$type-$type.cu"
    done
}

# ggml FOLDER: compiles them with the same options.
ggml() {
    local crate key value type
    crate=$(crate_sources llama-cpp-sys-2 "$ggml")/llama.cpp/ggml
    export crate folder=$1 CUDA_TOOLS cublas definitions=
    for key in Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 BF16 F16; do
        for value in Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 BF16 F16; do
            [[ $key == "$value" && $key != Q4_1 && $key != Q5_? ]] && type=1 || type=0
            definitions+=" -DGGML_CUDA_FA_${key}_$value=$type"
        done
    done
    # shellcheck disable=SC2016
    ggml_files | xargs -P "$(nproc)" -I {} bash -c '
        to=$folder/$(basename "$1" .cu).ptx
        [ ! -s "$to" ] || exit 0
        "$CUDA_TOOLS/bin/nvcc" -ptx -O3 -arch=sm_90 -std=c++17 -use_fast_math -extended-lambda \
            --expt-relaxed-constexpr --disable-warnings $definitions -I"$CUDA_TOOLS/include" -I"$cublas" \
            -I"$crate/include" -I"$crate/src" -o "$to.part" "$1" && mv "$to.part" "$to"' - {}
}

# sample FOLDER
sample() {
    local folder=$1 python=${PYTHON:-} cupy project
    if [ -z "$python" ]; then
        python=$target/tools/sample/bin/python
        [ -x "$python" ] || python3 -m venv "$target/tools/sample"
        "$python" -m pip install --quiet "${packages[@]}"
    fi
    # Numba looks for libnvvm without its version.
    mkdir -p "$work/nvvm"
    ln -sf "$CUDA_TOOLS/lib/libnvvm.so.4" "$work/nvvm/libnvvm.so"
    LD_LIBRARY_PATH=$work/nvvm:$CUDA_TOOLS/lib "$python" tests/ptx/samples.py numba "$folder/numba"
    for project in triton liger cupy; do
        "$python" tests/ptx/samples.py "$project" "$folder/$project"
    done
    cupy=$("$python" -c 'import cupy; print(cupy.__path__[0])')
    "$CUDA_TOOLS/bin/nvcc" -ptx -arch=sm_80 -std=c++17 -I "$CUDA_TOOLS/include" -I "$cupy/_core/include" \
        -o "$folder/cupy/elementwise.ptx" "$folder/cupy/elementwise.cu"
    cublas=$("$python" -c '
import nvidia, pathlib
print(next(header.parent for path in nvidia.__path__ for header in pathlib.Path(path).glob("cu13/include/cublas_v2.h")))')
    mkdir -p "$folder/ggml"
    ggml "$folder/ggml"
}

# forms FOLDER: counts what `sample` made.
forms() {
    {
        printf 'commit  %s\ndate    %s\n' "$(git rev-parse --short=8 HEAD)" "$(date --iso-8601)"
        printf 'command tests/ptx.sh sample FOLDER, then tests/ptx.sh forms FOLDER\n'
        printf 'ggml    that of llama-cpp-sys-2 %s, nvcc 13.0 for sm_90\n' "$ggml"
        printf 'others  tests/ptx/samples.py; %s\n' "${packages[*]}"
        printf 'sources %s of the %s of ggml that it compiles by default\n\n' "$(find "$1/ggml" -name '*.ptx' | wc -l)" "$(ggml_files | wc -l)"
        python3 tests/ptx/forms.py "$CUDA_TOOLS/bin/ptxas" "$gridguard" "$1"/*/
    } >"$work/forms.txt"
    cp "$work/forms.txt" bench-data/results/host/forms.txt
}

# index FOLDER...
index() {
    local folders
    folders=$(printf '%s:' "$@")
    mkdir -p "$work"
    INDEX_PTX=${folders%:} INDEX_TABLE=$work/index.txt \
        cargo test --quiet --release --package gridguard-index --test index -- --ignored
    {
        printf 'commit  %s\ndate    %s\n' "$(git rev-parse --short=8 HEAD)" "$(date --iso-8601)"
        printf 'command tests/ptx.sh index FOLDER...; times are of one core beside other work\n\n'
        cat "$work/index.txt"
        printf '\n'
        cat guard/index/corpus/projects.txt
    } >bench-data/results/host/index.txt
}

if [ "${1:-}" = index ]; then
    : "${2:?folders with PTX}"
    mapfile -t folders < <(realpath "${@:2}")
    index "${folders[@]}"
    exit
fi
if [ "${1:-}" = candle ]; then
    # The path alone goes to standard output.
    {
        tools
        sources=$(candle_sources)/src
        candle optimized -O3 -arch=sm_80 "${2:?the name of a source}"
    } >&2
    echo "$work/optimized/$2.ptx"
    exit
fi
part "fetch the tools" tools
[ "${1:-}" != tools ] || exit 0
if [ "${1:-}" = sample ]; then
    part "the sample" sample "$(realpath --canonicalize-missing "${2:?where to write the sample}")"
    exit
fi
gridguard=${GRIDGUARD:-$target/debug/gridguard}
[ -n "${GRIDGUARD:-}" ] || part "build gridguard" cargo build --quiet --package gridguard-cli
if [ "${1:-}" = forms ]; then
    mkdir -p "$work"
    part "count forms" forms "${2:?the folder of the sample}"
    exit
fi
small=(affine cast conv fill indexing reduce sort ternary unary)
all=("${small[@]}" binary quantized)
if [ "${1:-}" = pack ]; then
    pack "${2:?where to write the kernels}"
    exit
fi
sources=$(candle_sources)/src
part "the corpus" corpus
[ "${1:-ci}" != ci ] || export KERNEL_SAMPLE="${KERNEL_SAMPLE:-4}"
part "compile our kernels" ours
case ${1:-ci} in
ci)
    measure "$work/ours" sm_90 --all-rewritten --no-more-spills
    part "compile candle's" candle small -O3 -arch=sm_80 affine cast fill reduce sort ternary
    measure "$work/small" sm_80 sm_120 --all-rewritten --registers
    part "compile candle's with -G" candle small-debug -G -arch=sm_80 affine fill reduce sort
    measure "$work/small-debug" sm_90 --all-rewritten
    ;;
full)
    measure "$work/ours" "${architectures[@]}" --all-rewritten --no-more-spills
    candle optimized -O3 -arch=sm_80 "${all[@]}"
    measure "$work/optimized" "${architectures[@]}" --all-rewritten --registers
    candle debug -G -arch=sm_80 "${all[@]}"
    measure "$work/debug" "${architectures[@]}" --all-rewritten
    candle turing -O3 -arch=sm_75 "${all[@]}"
    measure "$work/turing" sm_75 --all-rewritten --registers
    ;;
*)
    echo "usage: tests/ptx.sh [ci | full | tools | pack FOLDER | candle NAME | index FOLDER... | sample FOLDER | forms FOLDER]" >&2
    exit 2
    ;;
esac
