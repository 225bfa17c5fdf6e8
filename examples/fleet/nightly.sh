#!/usr/bin/env bash
# Tunes what servers have missed, and pushes the result: for a nightly cron job or scrontab.
#
#   URL=oci://registry.example/gpu/profiles:stable KEY=key.pem examples/fleet/nightly.sh --budget 2h
#
# The arguments go to `gridguard tune`. OUT, SHARDS, DEVICE and GRIDGUARD are those of submit.sh, PERCENT that of
# merge.sbatch. Without new shapes nothing is submitted.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
OUT=$(realpath --canonicalize-missing "${OUT:-tuned}")
export OUT URL KEY
mkdir -p "$OUT"
"${GRIDGUARD:-gridguard}" profile pull-misses "$URL" --file "$OUT/missed.ron"
if ! grep --quiet '(kernel:' "$OUT/missed.ron"; then
    echo "no misses"
    exit 0
fi
exec "$here/submit.sh" --shapes "$OUT/missed.ron" "$@"
