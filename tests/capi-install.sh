#!/usr/bin/env bash
# Installs the C interface with CMake into a temporary folder, packs it for Debian and unpacks the packages, and builds
# the examples against both trees. No GPU is needed: the programs validate and plan.
#
#   tests/capi-install.sh [PROFILE]      cargo's profile: dev, or release
#
# Needs gcc, g++, make, pkg-config and dpkg. CMake comes from the Python registry if it is not installed. Where nvcc is
# (CUDACXX names it), the example in CUDA is built, too.
set -eEu -o pipefail
trap 'echo "$0:$LINENO: failed: $BASH_COMMAND" >&2' ERR
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
# Equal dates make equal packages.
export SOURCE_DATE_EPOCH=1767225600
# The installation does not inherit it.
umask 000
profile=${1:-dev}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
series=${version%.*}
if ! command -v cmake >/dev/null; then
    [ -x "$CARGO_TARGET_DIR/tools/cmake/bin/cmake" ] ||
        python3 -m venv "$CARGO_TARGET_DIR/tools/cmake"
    PATH=$CARGO_TARGET_DIR/tools/cmake/bin:$PATH
    pip install --quiet --disable-pip-version-check cmake==4.4.5
fi
work=$(mktemp --directory)
trap 'rm --recursive "$work"' EXIT

mkdir "$work/static"
cat >"$work/static/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.20)
project(static LANGUAGES C)
find_package(gridguard $series REQUIRED)
add_executable(plan $PWD/examples/c/plan.c)
target_link_libraries(plan PRIVATE gridguard::static)
CMAKE

# Configures and builds into a folder, for a prefix.
build() {
    cmake -S guard/capi -B "$1" -DCMAKE_INSTALL_PREFIX="$2" -DGRIDGUARD_PROFILE="$profile" \
        -DGRIDGUARD_TARGET_DIR="$CARGO_TARGET_DIR" --log-level WARNING
    cmake --build "$1" >/dev/null
}

# Uses what is installed under a prefix, whose libraries are in a folder of it.
use() {
    local prefix=$1 libraries=$1/$2 programs=$work/programs
    echo "== $prefix"
    diff <(nm --dynamic --defined-only --format=posix "$libraries/libgridguard.so" | cut -d ' ' -f 1 | LC_ALL=C sort) \
        guard/capi/tests/symbols.txt
    readelf --dynamic "$libraries/libgridguard.so" | grep -qF "soname: [libgridguard.so.$series]"
    [ "$(readlink "$libraries/libgridguard.so.$series")" = "libgridguard.so.$version" ]
    local writable
    writable=$(find "$prefix" -not -type l -perm /022)
    [ -z "$writable" ] || { echo "others can write $writable"; return 1; }

    rm --recursive --force "$programs"
    cmake -S examples/cpp -B "$programs" -DCMAKE_PREFIX_PATH="$prefix" --log-level WARNING
    cmake --build "$programs" >/dev/null
    [ "$("$programs/plan" h200 | tail -n 2)" = \
        $'items 0 to 7680: grid.y 38400\nitems 7680 to 15360: grid.y 38400' ]
    [ -z "${CUDACXX:-}" ] || [ -x "$programs/server" ]

    # The static library, through its target.
    rm --recursive --force "$work/static/build"
    cmake -S "$work/static" -B "$work/static/build" -DCMAKE_PREFIX_PATH="$prefix" --log-level WARNING
    cmake --build "$work/static/build" >/dev/null
    ! readelf --dynamic "$work/static/build/plan" | grep -F libgridguard

    export PKG_CONFIG_PATH=$libraries/pkgconfig
    [ "$(pkg-config --modversion gridguard)" = "$version" ]
    read -ra flags <<<"$(pkg-config --cflags --libs gridguard)"
    gcc -std=c99 examples/c/plan.c "${flags[@]}" -o "$programs/c"
    for program in "$programs/c" "$work/static/build/plan"; do
        LD_LIBRARY_PATH=$libraries "$program" h200 76800 128 15360 >"$work/printed"
        # Each line is in the example's page.
        [ "$(grep -cxFf "$work/printed" examples/c/README.md)" = 3 ]
    done
}

# As a part of another project.
mkdir "$work/whole"
cat >"$work/whole/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.20)
project(whole LANGUAGES CXX)
add_subdirectory($PWD/guard/capi gridguard)
add_executable(plan $PWD/examples/cpp/plan.cpp)
target_compile_features(plan PRIVATE cxx_std_17)
target_link_libraries(plan PRIVATE gridguard::gridguard)
CMAKE
cmake -S "$work/whole" -B "$work/whole/build" -DGRIDGUARD_PROFILE="$profile" -DGRIDGUARD_TARGET_DIR="$CARGO_TARGET_DIR" --log-level WARNING
cmake --build "$work/whole/build" >/dev/null
"$work/whole/build/plan" h200 | grep -qxF 'items 7680 to 15360: grid.y 38400'
# Nothing of ours is in what it installs.
cmake --install "$work/whole/build" --prefix "$work/whole/installed" >/dev/null
[ ! -e "$work/whole/installed" ]

# Whether find_package with these words finds what is installed under a prefix.
finds() {
    mkdir -p "$work/find"
    printf 'cmake_minimum_required(VERSION 3.20)\nproject(find LANGUAGES C)\nfind_package(gridguard %s REQUIRED)\n' \
        "$2" >"$work/find/CMakeLists.txt"
    cmake -S "$work/find" -B "$work/find/build" -DCMAKE_PREFIX_PATH="$1" --fresh >/dev/null 2>"$work/find/errors"
}

build "$work/build" /usr/local
cmake --install "$work/build" --strip --prefix "$work/installed" >/dev/null
use "$work/installed" lib
for words in '' "$series" "$version EXACT" "$series...<$((${series%.*} + 1))"; do
    finds "$work/installed" "$words" || { cat "$work/find/errors"; exit 1; }
done
for words in "$version.1" "${series%.*}.$((${series#*.} + 1))" "$((${series%.*} + 1))" "0.0...<$series"; do
    ! finds "$work/installed" "$words" || { echo "version $version is taken for $words"; exit 1; }
    grep -qF "version: $version" "$work/find/errors"
done

build "$work/debian" /usr
for copy in first second; do
    (cd "$work/debian" && cpack -G DEB -B "$work/$copy" >/dev/null)
done
machine=$(dpkg --print-architecture)
for package in "libgridguard$series" libgridguard-dev; do
    file=${package}_${version}_$machine.deb
    cmp "$work/first/$file" "$work/second/$file"
    dpkg-deb --extract "$work/first/$file" "$work/unpacked"
    ls -l "$work/first/$file"
    gunzip --stdout "$work/unpacked/usr/share/doc/$package/changelog.gz" |
        dpkg-parsechangelog -l - --show-field Version | grep -qxF "$version"
done
dpkg-deb --field "$work/first/libgridguard-dev_${version}_$machine.deb" Depends | grep -qxF "libgridguard$series (= $version)"
dpkg-deb --field "$work/first/libgridguard${series}_${version}_$machine.deb" Depends | grep -qF libc6
use "$work/unpacked/usr" "lib/$(gcc -print-multiarch)"
