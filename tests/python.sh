#!/usr/bin/env bash
# The Python package on a bare machine: builds it into a folder of its own, and runs the tests that need no GPU.
# Needs Rust, gcc and Python 3.10 or later.
#
#   tests/python.sh           python3
#   tests/python.sh PYTHON    another interpreter, or that of an environment
#
# The tests of gridguard.torch run where the interpreter has PyTorch, or PYTHONPATH leads to it. Some need diffusers.
# PyTorch's own tests of attention then run with and without `install()`; they are downloaded once.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
python=${1:-python3}
mkdir -p "$CARGO_TARGET_DIR"
packages=$(mktemp --directory "$CARGO_TARGET_DIR/python.XXXXXX")
trap 'rm --recursive "$packages"' EXIT

# Without optimisation, with what the other steps of a run have compiled.
MATURIN_PEP517_ARGS="--profile dev" "$python" -m pip install --quiet --disable-pip-version-check \
    --target "$packages" './kernels/python[test]'
export PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH}
tests=(kernels/python/tests/test_{documents,arguments,launch,tuning}.py)
if "$python" -c 'import torch' 2>/dev/null; then
    tests+=(kernels/python/tests/test_{torch,dispatch,install,alignment,gradients,operators,gpu_calls,block}.py)
else
    echo "without PyTorch: the tests of gridguard.torch are not run"
fi
"$python" -m pytest --quiet -p no:cacheprovider --config-file kernels/python/pyproject.toml "${tests[@]}"

if "$python" -c 'import torch' 2>/dev/null; then
    own=$CARGO_TARGET_DIR/pytorch-tests
    "$python" kernels/python/tests/pytorch_tests.py fetch "$own"
    # One test has thousands of cases: here run those of one size.
    "$python" kernels/python/tests/pytorch_tests.py run "$own" --workers 2 \
        --match '^(?!.*mask_vs_math)|q_seq_len_11_kv_seq_len_17_n_head_1_'
fi
