#!/usr/bin/env bash
# Runs under Miri what needs no driver: the pure rooms, the reading of profiles, arguments as the driver
# reads them, and the recorder, with its threads in sixteen orders and as little memory order as the
# language promises. Some eight minutes on one core.
#
# Needs a nightly toolchain with the components miri and rust-src.
set -eu -o pipefail
cd "$(dirname "$0")/.."

# Profiles are written to files, and a case takes a thousand times as long as it does elsewhere: the
# reading of logs and images, which is safe code over many bytes, is left out.
export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2

miri() {
    printf '\n-- miri %s\n' "$*"
    cargo +nightly miri test --quiet --package gridguard --no-default-features --lib "$@"
}

miri -- --skip diagnose::parse
miri --features profile -- profile::
miri --features cuda -- cuda:: record::flight --skip cuda::image
MIRIFLAGS+=" -Zmiri-many-seeds=0..16"
miri --features cuda -- every_record_that_is_read nothing_is_lost
