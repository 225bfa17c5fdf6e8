#!/usr/bin/env bash
# Runs under Miri what needs no driver: tests/miri.sh [SEEDS]
#
# Covers the code with `unsafe` that a test reaches without a driver, such as the packing of kernel
# arguments, and the counters and records of launches, whose threads run in SEEDS schedules (2). The rest of
# the library has no `unsafe` code. Takes about three minutes on one core.
#
# Needs a nightly toolchain with the components miri and rust-src.
set -eu -o pipefail
cd "$(dirname "$0")/.."
seeds=${1:-2}

# A test case takes a thousand times as long as elsewhere, so there are few.
export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2

miri() {
    printf '\n-- miri %s\n' "$*"
    cargo +nightly miri test --quiet --package gridguard --no-default-features --features cuda --lib "$@"
}

miri -- cuda::
MIRIFLAGS+=" -Zmiri-many-seeds=0..$seeds"
miri -- record::
