#!/usr/bin/env bash
# Builds the Python package into a temporary folder, and runs its tests that need no GPU.
# Needs Rust, gcc and Python 3.10 or later.
#
#   tests/python.sh           uses python3
#   tests/python.sh PYTHON    uses another interpreter, for example of a virtual environment
#
# The tests of gridguard.torch run if the interpreter finds PyTorch. Some need diffusers, and those of
# other packages are run for the packages that are installed. MODELS names a folder of packages for these
# tests alone (kernels/python/tests/models.txt). Then PyTorch's own tests of attention run with and without
# `install()`. They are downloaded once.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
python=${1:-python3}
mkdir -p "$CARGO_TARGET_DIR"
packages=$(mktemp --directory "$CARGO_TARGET_DIR/python.XXXXXX")
trap 'rm --recursive "$packages"' EXIT

# The dev profile reuses what other steps have compiled.
MATURIN_PEP517_ARGS="--profile dev --features stand-in" "$python" -m pip install --quiet --disable-pip-version-check \
    --target "$packages" './kernels/python[test]'
export PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH}
# PyTorch's default folder keeps what other versions of the package have compiled.
export TORCHINDUCTOR_CACHE_DIR=$packages/inductor
tests=(kernels/python/tests/test_{documents,arguments,launch,tuning}.py)
if "$python" -c 'import numpy' 2>/dev/null; then
    tests+=(kernels/python/tests/test_{dependencies,tune}.py)
else
    echo "without NumPy: the tests of gridguard.tune are not run"
fi
if "$python" -c 'import torch' 2>/dev/null; then
    tests+=(kernels/python/tests/test_{torch,border,dispatch,install,alignment,gradients,operators,gpu_calls,block,block_operator,chunked,chunk_sizes,stats,start,ranks,comfyui}.py)
else
    echo "without PyTorch: the tests of gridguard.torch are not run"
fi
# One process for each core, so PyTorch needs no threads.
export OMP_NUM_THREADS=1
pytest() {
    "$python" -m pytest --quiet -p no:cacheprovider --config-file kernels/python/pyproject.toml --numprocesses auto \
        --maxprocesses 4 --dist worksteal --durations 10 "$@"
}
pytest "${tests[@]}"

if "$python" -c 'import torch' 2>/dev/null; then
    # In a process of their own: the imports of these packages change warnings and PyTorch's tables of operators.
    PYTHONPATH=${MODELS:+$MODELS:}$PYTHONPATH pytest kernels/python/tests/test_{sockets,models,replaced,tabpfn}.py
    own=$CARGO_TARGET_DIR/pytorch-tests
    "$python" kernels/python/tests/pytorch_tests.py fetch "$own"
    # One test has thousands of cases. Only one size of them runs here.
    "$python" kernels/python/tests/pytorch_tests.py run "$own" --quick --workers 2 \
        --match '^(?!.*mask_vs_math)|q_seq_len_11_kv_seq_len_17_n_head_1_'
fi
