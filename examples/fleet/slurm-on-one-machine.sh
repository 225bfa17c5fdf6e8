#!/usr/bin/env bash
# Runs the job array on a temporary Slurm on this machine: starts it, tunes on the host in four
# shards, merges, checks the result, and stops everything it started. If the executable has the feature
# `fleet`, it runs the whole cycle: misses are pushed, tuned and merged, and the profile is pushed and
# pulled, through a folder.
#
#   examples/fleet/slurm-on-one-machine.sh [GRIDGUARD [ARGUMENT...]]
#
# GRIDGUARD is the executable (gridguard); the arguments go to `gridguard tune` (--budget 20s).
#
#   OUT      the folder for profiles and logs (by default removed at the end)
#   SHARDS   the number of shards (4)
#   LIMIT    the timeout for all jobs in seconds (900)
#
# For Debian 12 and similar: slurm-wlm and munge are installed if missing, which needs root; the
# rest does not. It works in a container, without systemd or cgroups. It has its own configuration,
# key, ports and folder, so it does not interfere with another Slurm on the machine.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
# Debian installs the daemons there, which is not in every PATH.
PATH=$PATH:/usr/sbin:/sbin

GRIDGUARD=${1:-${GRIDGUARD:-gridguard}}
GRIDGUARD=$(command -v "$GRIDGUARD") || {
    echo "error: no executable ${1:-gridguard}" >&2
    exit 2
}
GRIDGUARD=$(realpath "$GRIDGUARD")
shift $(($# > 0 ? 1 : 0))
[ $# -gt 0 ] || set -- --budget 20s
limit=${LIMIT:-900}

install_missing() {
    local missing='' program
    for program in munged slurmctld slurmd sbatch; do
        command -v "$program" >/dev/null || missing=$program
    done
    [ -n "$missing" ] || return 0
    apt-get update --quiet=2 >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends \
        slurm-wlm munge >/dev/null
}

fail() {
    echo "error: $*" >&2
    exit 1
}

daemons=()

# start NAME COMMAND...: runs a daemon in the foreground of a child, so that its id is known.
start() {
    local name=$1
    shift
    "$@" >"$scratch/$name.out" 2>&1 &
    daemons+=($!)
}

# until_true SECONDS COMMAND...
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.5
    done
}

queue_is_empty() {
    # A failing squeue is not an empty queue.
    local queue
    queue=$(squeue --noheader) && [ -z "$queue" ]
}

stop() {
    local status=$? index
    trap - EXIT
    trap '' INT TERM
    if [ "$status" -ne 0 ]; then
        tail -n 20 "$OUT"/*.log "$scratch"/*.out >&2 2>/dev/null || true
    fi
    # Stopping the daemons does not end the jobs, so cancel them first.
    if [ ${#daemons[@]} -eq 3 ] && ! queue_is_empty 2>/dev/null; then
        scancel --user="$(id -un)" 2>/dev/null || true
        until_true 30 queue_is_empty || true
    fi
    # In reverse order of their start.
    for ((index = ${#daemons[@]} - 1; index >= 0; index--)); do
        kill "${daemons[index]}" 2>/dev/null || true
        wait "${daemons[index]}" 2>/dev/null || true
    done
    rm -rf "$scratch"
    [ "$status" -eq 0 ] || echo "FAILED ($status)" >&2
    exit "$status"
}

# A port with no listener.
free_port() {
    local port=$((20000 + RANDOM % 10000))
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        port=$((20000 + RANDOM % 10000))
    done
    echo "$port"
}

configure() {
    local host cpus memory
    host=$(hostname -s)
    # At least what the array requests, even if the machine has less.
    cpus=$(nproc)
    memory=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024))
    cat >"$SLURM_CONF" <<END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$scratch/munge/socket
CryptoType=crypto/munge
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
MpiDefault=none
# Without cgroups.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
# Without a database: scontrol reports jobs, sacct cannot.
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
# Keeps ended jobs for the report.
MinJobAge=86400
NodeName=$host NodeAddr=127.0.0.1 State=UNKNOWN \
    CPUs=$((cpus < 2 ? 2 : cpus)) RealMemory=$((memory < 8192 ? 8192 : memory))
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
}

cluster() {
    mkdir "$scratch"/{munge,state,spool}
    # munged rejects a key that others can read and a folder that others can write.
    chmod 755 "$scratch" "$scratch/munge"
    (umask 077 && head -c 128 /dev/urandom >"$scratch/munge/key")
    configure
    start munged munged --foreground --force --key-file="$scratch/munge/key" \
        --socket="$scratch/munge/socket" --pid-file="$scratch/munge/pid" \
        --log-file="$scratch/munge/log" --seed-file="$scratch/munge/seed"
    until_true 10 munge --socket="$scratch/munge/socket" --no-input
    start slurmctld slurmctld -D
    until_true 30 scontrol ping
    start slurmd slurmd -D
    until_true 30 node_is_idle
    sinfo
}

node_is_idle() { [ "$(sinfo --noheader --format=%T)" = idle ]; }

# report JOB: prints a line for the job, or for each task of the array.
report() {
    local line field
    scontrol --oneliner show job "$1" | while read -r line; do
        for field in ArrayTaskId JobName JobState Restarts ExitCode StartTime EndTime; do
            grep -o "\\<$field=[^ ]*" <<<"$line" || true
        done | paste -s -d ' '
    done | sort
}

# entries FILE...: counts the entries of the profiles. Each has one field "chosen".
entries() { cat "$@" | grep -o '\<chosen:' | wc -l; }

install_missing
scratch=$(mktemp -d)
OUT=$(realpath --canonicalize-missing "${OUT:-$scratch/tuned}")
SHARDS=${SHARDS:-4}
DEVICE=host
# Variables for another Slurm must not apply to this one.
unset "${!SBATCH_@}" "${!SLURM_@}"
SLURM_CONF=$scratch/slurm.conf
export GRIDGUARD OUT SHARDS DEVICE SLURM_CONF
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cluster
submit=("$here/submit.sh")
if "$GRIDGUARD" profile push --help >/dev/null 2>&1; then
    export URL=file://$scratch/repository/profiles:stable KEY=$scratch/key.pem
    openssl genpkey -algorithm ed25519 -out "$KEY"
    openssl pkey -in "$KEY" -pubout -out "$scratch/keys.pem"
    for rows in 64 128 256 512; do
        printf '(schema: 1, shapes: [(kernel: "rms_norm", dtypes: "f16", shape: [("rows", %s), ("columns", 64)])])' "$rows" \
            >"$scratch/misses.ron"
        "$GRIDGUARD" profile push-misses "$URL" "$scratch/misses.ron" --node "node-$rows"
    done
    submit=("$here/nightly.sh")
fi
submitted=$("${submit[@]}" "$@")
echo "$submitted"
tune=$(sed -n 's/^tune *\([0-9]*\).*/\1/p' <<<"$submitted")
merge=$(sed -n 's/^merge *\([0-9]*\).*/\1/p' <<<"$submitted")
squeue
until_true "$limit" queue_is_empty || fail "jobs still run after $limit s"

echo
tasks=$(report "$tune")
joined=$(report "$merge")
echo "$tasks"
echo "$joined"
[ "$(grep -c JobState=COMPLETED <<<"$tasks")" -eq "$SHARDS" ] || fail "a shard did not complete"
grep -q JobState=COMPLETED <<<"$joined" || fail "the merge did not complete"

# No two shards have a shape in common, so the merge must keep every entry.
tuned=$(entries "$OUT"/shard-*.ron)
merged=$(entries "$OUT/profile.ron")
echo "$merged entries in the merged profile, of $tuned in $SHARDS shards"
[ "$merged" -gt 0 ] || fail "nothing was tuned"
[ "$merged" -eq "$tuned" ] || fail "the merged profile lacks entries"
if [ -n "${URL:-}" ]; then
    "$GRIDGUARD" profile pull "$URL" --keys "$scratch/keys.pem" --folder "$scratch/pulled"
    cmp "$OUT/profile.ron" "$scratch"/pulled/*.ron || fail "the pulled profile is another one"
fi
