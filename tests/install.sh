#!/usr/bin/env bash
# A copy of the command in another folder runs programs: it has the library that `gridguard run` preloads, and writes
# it where only the user can change it. Needs no GPU. `GRIDGUARD=FILE` tests that file in place of a release build.
set -eu -o pipefail
cd "$(dirname "$0")/.."
limit=15000000

built=${GRIDGUARD:-${CARGO_TARGET_DIR:-target}/release/gridguard}
[ -n "${GRIDGUARD:-}" ] || cargo build --quiet --release --locked --package gridguard-cli
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
cp "$built" "$folder/gridguard"
size=$(stat --format %s "$folder/gridguard")
echo "$built: $size bytes"
[ "$size" -le "$limit" ] || { echo "the limit is $limit bytes" >&2; exit 1; }

# `check VARIABLES... -- ARGUMENTS`: runs the copy with nothing else in its environment.
gridguard() {
    local variables=()
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    (cd "$folder" && env -i PATH="$PATH" "${variables[@]}" ./gridguard "$@")
}
# The path of the library in a program that `gridguard run` starts.
loaded() { gridguard "$@" -- run -- grep --max-count 1 --only-matching '/.*/libgridguard_preload.so' /proc/self/maps; }
# The library is where it should be.
expect() {
    [[ $1 == "$2"/*/libgridguard_preload.so ]] || { echo "in $1, not in $2" >&2; exit 1; }
}

home=$folder/home
mkdir "$home"
library=$(loaded HOME="$home")
expect "$library" "$home/.cache/gridguard/preload"
[ "$(stat --format %a "$library" "${library%/*}" | tr '\n' ' ')" = '600 700 ' ]
cp "$library" "$folder/library.so"

echo '-- a library that was changed is written again'
printf x >>"$library"
[ "$(loaded HOME="$home")" = "$library" ] && cmp "$library" "$folder/library.so"
[ "$(gridguard HOME="$home" -- run --library ./library.so -- sh -c 'echo "$LD_PRELOAD"')" = "$folder/library.so" ]

echo '-- without a home that can be written: the login session, then /tmp'
mkdir "$folder/session" "$folder/tmp"
chmod 1777 "$folder/tmp"
expect "$(loaded HOME=/proc XDG_RUNTIME_DIR="$folder/session")" "$folder/session/gridguard"
expect "$(loaded HOME=/proc TMPDIR="$folder/tmp")" "$folder/tmp/gridguard-$(id -u)"

echo '-- a cache that others can change, or that is a link to such a folder'
mkdir "$folder/open"
chmod 777 "$folder/open"
ln -s open "$folder/link"
for cache in open link; do
    expect "$(loaded XDG_CACHE_HOME="$folder/$cache" TMPDIR="$folder/tmp")" "$folder/tmp/gridguard-$(id -u)"
done
[ -z "$(ls "$folder/open")" ]

echo '-- a full disk'
# The limit on the size of files, whose signal is ignored, fails like a full disk.
if (trap '' XFSZ && ulimit -f 64 && gridguard HOME="$folder/home2" TMPDIR="$folder/tmp2" -- run -- true) 2>"$folder/error"; then
    echo 'it has run without a library' >&2
    exit 1
fi
grep --quiet 'libgridguard_preload.so cannot be written' "$folder/error"
grep --quiet -- --library "$folder/error"
[ -z "$(find "$folder/home2" "$folder/tmp2" -type f)" ] || { echo 'a part of a file is left' >&2; exit 1; }

# Only root can mount, and not in each container.
mkdir "$folder/noexec"
if unshare --mount true 2>/dev/null && [ "$(id -u)" = 0 ]; then
    echo '-- a folder whose files may not be executed'
    export -f gridguard
    folder=$folder unshare --mount bash -eu -c 'mount -t tmpfs -o noexec,mode=700 none "$folder/noexec"
        gridguard XDG_CACHE_HOME="$folder/noexec" TMPDIR="$folder/noexec" -- run -- true 2>"$folder/error" && exit 1
        gridguard XDG_CACHE_HOME="$folder/noexec" TMPDIR="$folder/tmp" -- run -- true'
    grep --quiet noexec "$folder/error"
fi
echo 'the command works from another folder'
