#!/usr/bin/env bash
# Builds the container image, and runs its command and its server on the host, without a GPU and without a daemon.
#
#   tests/image.sh [PROFILE]     cargo's profile: dev, or release
#
# Needs Debian or Ubuntu with apt, buildah and docker-registry. Checks the Dockerfile if hadolint is installed, and the publishing
# if skopeo is.
set -eu -o pipefail
trap 'echo "$0:$LINENO: failed: $BASH_COMMAND" >&2' ERR
cd "$(dirname "$0")/.."
# Without root, user and group ids are those of a user namespace.
[ "$(id --user)" = 0 ] || [ -n "${_CONTAINERS_USERNS_CONFIGURED:-}" ] || exec buildah unshare tests/image.sh "$@"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
mkdir -p "$CARGO_TARGET_DIR"
work=$(mktemp --directory "$CARGO_TARGET_DIR/image.XXXXXX")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
storage=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)
# The process of the server in the container, which an option tells from other servers.
server() {
    local process
    for process in $(grep -slF "misses-$$.ron" /proc/[0-9]*/cmdline); do
        [[ $(readlink "${process%cmdline}exe") != */gridguard-server ]] || basename "${process%/cmdline}"
    done
}
cleanup() {
    local left
    left=$(server)
    [ -z "$left" ] || kill -KILL "$left"
    [ -z "${served:-}" ] || kill "$served" 2>/dev/null || true
    buildah "${storage[@]}" rm --all >/dev/null 2>&1 || true
    rm --recursive "$work"
}
trap cleanup EXIT

if command -v hadolint >/dev/null; then hadolint .ci/release/Dockerfile; fi
.ci/release/image "$work" "${1:-dev}"
if command -v skopeo >/dev/null; then .ci/release/registry "$work" --dry-run; fi
container=$(buildah "${storage[@]}" from "docker-archive:$work/gridguard.tar")
inside() { buildah "${storage[@]}" run --isolation chroot "$container" -- "$@"; }

# The files: nothing of root's is writable by others, nothing raises privileges.
tree=$(buildah "${storage[@]}" mount "$container")
du --summarize --human-readable "$tree"
[ -z "$(find "$tree" -not -type l -perm /022 -not -path "$tree/tmp" -print -o -perm /6000 -print)" ]
[ "$(stat --format '%a' "$tree/tmp")" = 1777 ]
[ "$(find "$tree" -not -user root -printf '%P %U\n')" = 'home/gridguard 65532' ]

[[ $(inside gridguard --version) == "gridguard $version"* ]]
inside gridguard limits h200 | grep -cF 65535 >/dev/null
# A rejected launch, and a log.
if inside gridguard check --gpu h200 --grid 1,76800,1 --block 128 >"$work/verdict"; then exit 1; fi
grep -qF 'grid.y is 76800 blocks' "$work/verdict"
echo 'RuntimeError: CUDA error: invalid configuration argument' | inside gridguard explain | grep -c . >/dev/null
# Registries of fleets: the command has the feature and certificates, so that only the connection fails.
if inside gridguard profile list oci://127.0.0.1:1/profiles 2>"$work/refused"; then exit 1; fi
grep -qi 'connection refused' "$work/refused"

# The server computes, and ends as its operator asks.
inside gridguard-server --host --listen 127.0.0.1:0 --misses "misses-$$.ron" >"$work/printed" 2>"$work/log" &
begun=$!
python3 - "$work/printed" <<'PYTHON' || { cat "$work/log"; exit 1; }
import json, struct, sys, time, urllib.request

for _ in range(600):
    addresses = [line.split()[-1] for line in open(sys.argv[1]) if "http://" in line]
    if addresses:
        break
    time.sleep(0.1)
[server] = addresses
assert urllib.request.urlopen(server + "/ready").status == 200

# Two items of two frames: queries of zero give the mean of the values.
shape = {"dtype": "F32", "shape": [2, 1, 2, 4]}
header = json.dumps({name: shape | {"data_offsets": [at, at + 64]} for name, at in zip("qkv", (0, 64, 128))})
header += " " * (-len(header) % 8)
values = struct.pack("<16f", *range(16))
body = struct.pack("<Q", len(header)) + header.encode() + bytes(64) + values + values
reply = urllib.request.urlopen(urllib.request.Request(server + "/v1/attention", body)).read()
out = struct.unpack("<16f", reply[-64:])
assert out == (2, 3, 4, 5, 2, 3, 4, 5, 10, 11, 12, 13, 10, 11, 12, 13), out
PYTHON
process=$(server)
grep -qP 'Uid:\t65532\t65532\t65532\t65532' "/proc/$process/status"
grep -qP 'Gid:\t65532\t65532\t65532\t65532' "/proc/$process/status"
kill -TERM "$process"
wait "$begun"
# It wrote what its profiles lack into its own home.
[ "$(stat --format %u "$tree/home/gridguard/misses-$$.ron")" = 65532 ]

# The manifests of a fleet, each container in this image's file system, against a registry. The pods of Kubernetes run as
# user 1000; on the host, and with short times, the rest is as written.
registry=$(command -v docker-registry)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "127.0.0.1:%s"}\n' "$work/registry" "$port" >"$work/registry.yml"
"$registry" serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
served=$!
python3 -c 'import yaml' 2>/dev/null || python3 -m pip install --quiet pyyaml
volumes=$work/volumes url=oci+http://127.0.0.1:$port/gpu/profiles:stable
mkdir -p "$volumes"/{keys,signer,docker,work,profiles,cache,shapes,fleet/misses}
openssl genpkey -algorithm ed25519 -out "$volumes/signer/key.pem"
openssl pkey -in "$volumes/signer/key.pem" -pubout -out "$volumes/keys/keys.pem"
chown -R 1000:1000 "$volumes"
chmod 755 "$work"
containers_of() {
    local object=$1
    shift
    python3 tests/kubernetes.py <(cat examples/fleet/kubernetes*.yaml) "$tree" "$volumes" "$object" \
        GRIDGUARD_IMAGE=image "GRIDGUARD_URL=$url" --every=1s --device=host --budget=100s "$@"
}
profile() { "$tree/usr/local/bin/gridguard" profile "$@"; }
profile push "$url" bench-data/profiles/nvidia-h200.ron --key "$volumes/signer/key.pem"
# Without misses nothing is tuned, and nothing is pushed.
containers_of gridguard-nightly
[ "$(profile list "$url" | tr '\n' ' ')" = 'stable stable-1 ' ]
cat >"$volumes/fleet/misses/misses.ron" <<'END'
(
    schema: 1,
    shapes: [
        (kernel: "rms_norm", dtypes: "f32", policy: (l2: hot, submission: eager), shape: [("rows", 300), ("columns", 8)], seen: 3),
    ],
)
END
containers_of gridguard-pull
cmp "$volumes/fleet/profiles/nvidia-h200.ron" bench-data/profiles/nvidia-h200.ron
containers_of gridguard-nightly
profile verify "$url" --keys "$volumes/keys/keys.pem" >"$work/verified"
grep -q 'serial 2' "$work/verified"
grep -q 'staged for 10 %' "$work/verified"
kill "$served"
# The shards of a job, of which two have nothing to do, and the job that merges them: its log is the profile.
rm "$volumes"/profiles/*
sed '/rms_norm/{p; s/300/200/}' "$volumes/fleet/misses/misses.ron" >"$volumes/shapes/shapes.ron"
for index in {0..3}; do containers_of gridguard-tune "JOB_COMPLETION_INDEX=$index"; done
containers_of gridguard-merge >"$work/log"
sed '1,/^-- print:/d' "$work/log" | cmp - "$volumes/profiles/profile.ron"
profile show "$volumes/profiles/profile.ron" | grep -qx '2 entries'
