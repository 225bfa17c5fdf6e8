#!/usr/bin/env bash
# Runs under Miri what needs no driver: tests/miri.sh [SEEDS]
#
# Covers validation and planning, profiles, the packing of kernel arguments, and the counters and records
# of launches, whose threads run in SEEDS schedules (16). Takes minutes on one core.
#
# Needs a nightly toolchain with the components miri and rust-src.
set -eu -o pipefail
cd "$(dirname "$0")/.."
seeds=${1:-16}

# Profiles are files, so isolation is off. A test case takes a thousand times as long as elsewhere, so
# there are few, and the parsers of logs and images, safe code over many bytes, are left out.
export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2

miri() {
    printf '\n-- miri %s\n' "$*"
    cargo +nightly miri test --quiet --package gridguard --no-default-features --lib "$@"
}

miri
miri --features profile -- profile::
miri --features cuda -- cuda:: record::recent --skip cuda::image
MIRIFLAGS+=" -Zmiri-many-seeds=0..$seeds"
miri --features cuda -- record::
