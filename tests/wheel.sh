#!/usr/bin/env bash
# Builds the Python wheel for Linux with glibc 2.17 or later (manylinux_2_17) on any machine: zig links against the
# symbols of that version. The wheel has the command `gridguard`. Tests the wheel for this machine's architecture as
# users install it, with each Python from 3.10 on that is found.
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
. .ci/release/environment
glibc=manylinux_2_17
limit=13000000
mkdir -p "$CARGO_TARGET_DIR"
folder=$(mktemp --directory "$CARGO_TARGET_DIR/wheel.XXXXXX")
trap 'rm --recursive "$folder"' EXIT

# A fixed path: cargo compiles everything again for another interpreter.
python3 -m venv "$CARGO_TARGET_DIR/tools/wheel"
PATH=$CARGO_TARGET_DIR/tools/wheel/bin:$PATH
pip install --quiet --disable-pip-version-check maturin==1.16.0 ziglang==0.17.1 auditwheel==6.8.2 wheel==0.48.0

# As a user without a compiler, in an environment of $1's: the module, the command on the path and `python -m`.
try() {
    "$1" -m venv "$folder/user"
    "$folder/user/bin/pip" install --quiet --disable-pip-version-check "$2[test]"
    local bare=(env -i HOME="$folder/home" PATH="$folder/user/bin:/usr/bin:/bin")
    [ "$("${bare[@]}" gridguard --version)" = "$("${bare[@]}" python -m gridguard --version)" ]
    "${bare[@]}" python -c 'import gridguard; print(gridguard.explain("CUDA error: invalid argument"))' >/dev/null
    "${bare[@]}" python -c 'import importlib.resources as r; assert "name: gridguard" in (r.files("gridguard") / "SKILL.md").read_text()'
    # The command explains a machine without a GPU to the module.
    env -i HOME="$folder/home" PATH=/usr/bin:/bin "$folder/user/bin/python" -c 'import gridguard; print(gridguard.doctor())' >/dev/null
    "$folder/user/bin/pytest" --quiet -p no:cacheprovider --config-file kernels/python/pyproject.toml \
        --import-mode importlib kernels/python/tests/test_documents.py
    GRIDGUARD=$folder/user/bin/gridguard tests/install.sh
    "${bare[@]}" gridguard profile list --help >/dev/null
    rm --recursive "$folder/user"
}

for machine in "${@:-x86_64}"; do
    target=$machine-unknown-linux-gnu
    command=$(.ci/release/command "$machine")
    maturin build --quiet --release --locked --zig --target "$target" --compatibility "$glibc" \
        --manifest-path kernels/python/Cargo.toml --out "$folder/$machine"
    # pip puts the scripts of a wheel on the path.
    wheel unpack --dest "$folder/$machine" "$folder/$machine"/*.whl >/dev/null
    rm "$folder/$machine"/*.whl
    unpacked=$(echo "$folder/$machine"/gridguard-*)
    mkdir --parents "$unpacked/${unpacked##*/}.data/scripts"
    cp "$command" "$unpacked/${unpacked##*/}.data/scripts/gridguard"
    # For agents.
    cp -r autotune/cli/{SKILL.md,schemas} "$unpacked/gridguard/"
    # Without the path of this checkout, as in the archives: `wheel pack` computes the digests again.
    sed --in-place "s|file://$PWD|file://|g" "$unpacked"/*.dist-info/sboms/*.json
    wheel pack --dest-dir "$folder/$machine" "$unpacked" >/dev/null
    wheel=$(echo "$folder/$machine"/*.whl)
    # auditwheel checks the symbols that the library and the command need.
    shown=$(auditwheel show "$wheel")
    [[ $shown == *"\"${glibc}_$machine\""* ]] || { echo "$shown" >&2; exit 1; }
    [[ $wheel == *-cp310-abi3-* ]] || { echo "$wheel is for one Python" >&2; exit 1; }
    size=$(stat --format %s "$wheel")
    [ "$size" -le "$limit" ] || { echo "$wheel has $size bytes, the limit is $limit" >&2; exit 1; }
    if [ "$machine" = "$(uname --machine)" ]; then
        for minor in 10 11 12 13 14; do
            # A launcher of pyenv may exist for a version that is not installed.
            python3.$minor --version >/dev/null 2>&1 || continue
            echo "-- Python 3.$minor"
            try "python3.$minor" "$wheel"
        done
    else
        echo "not tested on this machine: $machine"
    fi
    mkdir -p "$CARGO_TARGET_DIR/wheels"
    mv "$wheel" "$CARGO_TARGET_DIR/wheels/"
    echo "$CARGO_TARGET_DIR/wheels/${wheel##*/}: $size bytes"
done
