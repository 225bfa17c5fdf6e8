#!/usr/bin/env bash
# Builds the Python wheel for Linux with glibc 2.17 or later (manylinux_2_17) on any machine: zig links against the
# symbols of that version. Tests the wheel for this machine's architecture as users install it.
# Needs rustup and Python 3.10 or later, but no container and no GPU. The optimised build takes minutes for each
# architecture, so this is a step of a release, not of CI.
#
#   tests/wheel.sh                   builds for x86_64
#   tests/wheel.sh x86_64 aarch64    builds for both
#
# The wheels are in target/wheels.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
glibc=manylinux_2_17
folder=$(mktemp --directory "$CARGO_TARGET_DIR/wheel.XXXXXX")
trap 'rm --recursive "$folder"' EXIT

# A fixed path: cargo compiles everything again for another interpreter.
python3 -m venv "$CARGO_TARGET_DIR/tools/wheel"
PATH=$CARGO_TARGET_DIR/tools/wheel/bin:$PATH
pip install --quiet --disable-pip-version-check maturin==1.16.0 ziglang==0.17.1 auditwheel==6.8.2

for machine in "${@:-x86_64}"; do
    target=$machine-unknown-linux-gnu
    rustup target add "$target"
    maturin build --quiet --release --locked --zig --target "$target" --compatibility "$glibc" \
        --manifest-path kernels/python/Cargo.toml --out "$folder/$machine"
    wheel=$(echo "$folder/$machine"/*.whl)
    # auditwheel checks the symbols that the library needs.
    shown=$(auditwheel show "$wheel")
    [[ $shown == *"\"${glibc}_$machine\""* ]] || { echo "$shown" >&2; exit 1; }
    if [ "$machine" = "$(uname --machine)" ]; then
        python3 -m venv "$folder/user"
        "$folder/user/bin/pip" install --quiet --disable-pip-version-check "$wheel[test]"
        "$folder/user/bin/pytest" --quiet -p no:cacheprovider --config-file kernels/python/pyproject.toml \
            --import-mode importlib kernels/python/tests/test_documents.py
    else
        echo "not tested on this machine: $machine"
    fi
    mkdir -p "$CARGO_TARGET_DIR/wheels"
    mv "$wheel" "$CARGO_TARGET_DIR/wheels/"
    echo "$CARGO_TARGET_DIR/wheels/${wheel##*/}"
done
