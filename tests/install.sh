#!/usr/bin/env bash
# A copy of the command in another folder runs programs: it has the library that `gridguard run` preloads, and writes
# it where only the user can change it. Needs no GPU. `GRIDGUARD=FILE` tests that file in place of a release build.
set -eu -o pipefail
cd "$(dirname "$0")/.."

built=${GRIDGUARD:-${CARGO_TARGET_DIR:-target}/release/gridguard}
[ -n "${GRIDGUARD:-}" ] || cargo build --quiet --release --locked --package gridguard-cli
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
cp "$built" "$folder/gridguard"

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

echo '-- two versions of the command share a cache'
digest=$(basename "$(dirname "$library")")
other=$(tr 0-9a-f 1-9a-f0 <<<"$digest")
written=$(stat --format %i "$library")
cp "$folder/gridguard" "$folder/first"
LC_ALL=C sed --in-place "s/$digest/$other/" "$folder/gridguard"
[ "$(loaded HOME="$home")" = "${library/$digest/$other}" ]
mv "$folder/first" "$folder/gridguard"
[ "$(loaded HOME="$home")" = "$library" ] && [ "$(stat --format %i "$library")" = "$written" ]

echo '-- the command in a folder where others put a library'
chmod 1777 "$folder"
echo 'not a library' >"$folder/libgridguard_preload.so"
[ "$(loaded HOME="$home")" = "$library" ]
rm "$folder/libgridguard_preload.so"
chmod 700 "$folder"

echo '-- a cache that is a link to a folder of the user: the loader gets the folder'
mkdir "$folder/own"
ln -s own "$folder/cache"
expect "$(loaded XDG_CACHE_HOME="$folder/cache")" "$folder/own/gridguard/preload"

echo '-- a library that is a link is not followed'
mkdir --mode 700 --parents "$folder/linked/$digest"
ln -s "$folder/library.so" "$folder/linked/$digest/libgridguard_preload.so"
expect "$(loaded GRIDGUARD_PRELOAD_CACHE="$folder/linked" TMPDIR="$folder/tmp")" "$folder/tmp/gridguard-$(id -u)"

# Only root can mount and give folders away, and not in each container.
mkdir "$folder/mounted"
if unshare --mount true 2>/dev/null && [ "$(id -u)" = 0 ]; then
    export -f gridguard loaded expect
    # Runs a script where `$folder/mounted` has a file system of its own.
    mounted() { folder=$folder digest=$digest unshare --mount bash -eu -c 'mount -t tmpfs -o "mode=700,$0" none "$folder/mounted"; '"$2" "$1"; }

    echo '-- a folder whose files may not be executed'
    mounted noexec '
        gridguard XDG_CACHE_HOME="$folder/mounted" TMPDIR="$folder/mounted" -- run -- true 2>"$folder/error" && exit 1
        gridguard XDG_CACHE_HOME="$folder/mounted" TMPDIR="$folder/tmp" -- run -- true'
    grep --quiet noexec "$folder/error"

    echo '-- a cache on a full file system'
    mounted size=64k '
        expect "$(loaded XDG_CACHE_HOME="$folder/mounted" TMPDIR="$folder/tmp")" "$folder/tmp/gridguard-0"
        [ -z "$(find "$folder/mounted" -type f)" ]'

    echo '-- a cache that is read-only: its library is used, but none can be written there'
    mounted size=64m '
        mkdir "$folder/mounted/empty"
        library=$(loaded GRIDGUARD_PRELOAD_CACHE="$folder/mounted/filled")
        mount -o remount,ro "$folder/mounted"
        [ "$(loaded GRIDGUARD_PRELOAD_CACHE="$folder/mounted/filled")" = "$library" ]
        expect "$(loaded GRIDGUARD_PRELOAD_CACHE="$folder/mounted/empty" TMPDIR="$folder/tmp")" "$folder/tmp/gridguard-0"'

    echo '-- folders that another user prepared, with the library in them'
    mkdir --mode 1777 "$folder/shared"
    cp --recursive --preserve=mode "$folder/tmp/gridguard-0" "$folder/shared/"
    chown --recursive 4711 "$folder/shared/gridguard-0"
    ! gridguard HOME=/proc TMPDIR="$folder/shared" -- run -- true 2>"$folder/error"
    grep --quiet 'another user can replace .*/shared/gridguard-0' "$folder/error"
    chown --recursive 0 "$folder/shared/gridguard-0"
    chown 4711 "$folder/shared/gridguard-0/$digest/libgridguard_preload.so"
    ! gridguard HOME=/proc TMPDIR="$folder/shared" -- run -- true 2>"$folder/error"
    grep --quiet 'belongs to user 4711' "$folder/error"
fi
echo 'the command works from another folder'
