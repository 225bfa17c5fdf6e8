#!/usr/bin/env bash
# Submits a tuning to Slurm: an array of shards, and a merge once all of them are done.
#
#   examples/fleet/submit.sh --shapes FILE --budget 20m     the arguments go to `gridguard tune`
#
#   GRIDGUARD  the executable on the nodes (gridguard)
#   OUT        the folder of profiles and logs, which all nodes see (tuned)
#   SHARDS     into how many the problems are dealt (4)
#   DEVICE     all, a number or host (all); host asks for no GPU, but for a whole node
#
# Slurm's own variables hold too, such as SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_CONSTRAINT,
# SBATCH_GRES and SBATCH_TIMELIMIT. Submitting the same again goes on where the last one ended.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)

OUT=$(realpath --canonicalize-missing "${OUT:-tuned}")
SHARDS=${SHARDS:-4}
export OUT SHARDS
mkdir -p "$OUT"

# What is on the command line takes precedence over what the script asks for.
options=(--parsable --export=ALL --array="0-$((SHARDS - 1))" --output="$OUT/tune-%A-%a.log")
# Neighbours would disturb what is measured on the host.
[ "${DEVICE:-all}" != host ] || options+=(--gres=none --exclusive)

# --parsable says "job;cluster" where there are several clusters.
tune=$(sbatch "${options[@]}" "$here/tune-array.sbatch" "$@")
tune=${tune%%;*}
# The merge asks for neither the shards' GPUs nor their time. Where a shard failed it is cancelled,
# rather than wait forever.
merge=$(env -u SBATCH_GRES -u SBATCH_TIMELIMIT sbatch --parsable --export=ALL \
    --dependency="afterok:$tune" --kill-on-invalid-dep=yes \
    --output="$OUT/merge-%j.log" "$here/merge.sbatch")
merge=${merge%%;*}

echo "tune   $tune ($SHARDS shards)"
echo "merge  $merge (once all shards are done)"
echo "result $OUT/profile.ron"
