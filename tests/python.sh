#!/usr/bin/env bash
# The Python package on a bare machine: builds and installs it into an environment of its own, and runs the tests
# that need neither a GPU nor PyTorch. Needs Rust and Python 3.10 or later.
#
#   tests/python.sh           python3
#   tests/python.sh PYTHON    another interpreter; with PyTorch beside it, the tests that need it run, too
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
mkdir -p "$CARGO_TARGET_DIR"
environment=$(mktemp --directory "$CARGO_TARGET_DIR/python.XXXXXX")
trap 'rm --recursive "$environment"' EXIT

"${1:-python3}" -m venv --system-site-packages "$environment"
python=$environment/bin/python
# Without optimisation, with what the other steps of a run have compiled.
MATURIN_PEP517_ARGS="--profile dev" "$python" -m pip install --quiet --disable-pip-version-check \
    './kernels/python[test]'
tests=(kernels/python/tests/test_documents.py)
if "$python" -c 'import torch' 2>/dev/null; then
    tests+=(kernels/python/tests/test_torch.py)
fi
"$python" -m pytest --quiet -p no:cacheprovider --config-file kernels/python/pyproject.toml "${tests[@]}"
