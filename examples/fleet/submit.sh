#!/usr/bin/env bash
# Submits a tuning run to Slurm: an array of shards, and a merge after all of them.
#
#   examples/fleet/submit.sh --shapes FILE --budget 20m     the arguments go to `gridguard tune`
#
#   GRIDGUARD  the executable on the nodes (gridguard)
#   OUT        the folder of profiles and logs, visible to all nodes (tuned)
#   SHARDS     the number of shards (4)
#   DEVICE     all, a number or host (all); host requests no GPU, but a whole node
#
# Slurm's own variables apply too, such as SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_CONSTRAINT,
# SBATCH_GRES and SBATCH_TIMELIMIT. Submitting again continues an unfinished run.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)

OUT=$(realpath --canonicalize-missing "${OUT:-tuned}")
SHARDS=${SHARDS:-4}
export OUT SHARDS
mkdir -p "$OUT"

# Options on the command line override those in the script.
options=(--parsable --export=ALL --array="0-$((SHARDS - 1))" --output="$OUT/tune-%A-%a.log")
# Other jobs on the node would disturb measurements on the host.
[ "${DEVICE:-all}" != host ] || options+=(--gres=none --exclusive)

# With several clusters --parsable prints "job;cluster".
tune=$(sbatch "${options[@]}" "$here/tune-array.sbatch" "$@")
tune=${tune%%;*}
# The merge needs neither the GPUs nor the time of the shards. If a shard fails it is cancelled,
# rather than left pending forever.
merge=$(env -u SBATCH_GRES -u SBATCH_TIMELIMIT sbatch --parsable --export=ALL \
    --dependency="afterok:$tune" --kill-on-invalid-dep=yes \
    --output="$OUT/merge-%j.log" "$here/merge.sbatch")
merge=${merge%%;*}

echo "tune   $tune ($SHARDS shards)"
echo "merge  $merge (after all shards)"
echo "result $OUT/profile.ron"
