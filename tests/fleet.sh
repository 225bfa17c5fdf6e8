#!/usr/bin/env bash
# Signed profiles through real servers, each started here: Debian's docker-registry with a password, S3 by moto, and a
# folder. Then the tests of gridguard-fleet that need the registry, and ten thousand simulated nodes.
#
#   tests/fleet.sh [OPTION...]   options of cargo for the tests, for example --release, or the names of some of them
#
# Needs apt, pip and openssl to install what is missing into the target folder. GRIDGUARD is the command to test; by
# default it is built with the feature `fleet`.
set -eEu -o pipefail
trap 'echo "$0:$LINENO: failed: $BASH_COMMAND" >&2' ERR
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
tools=$CARGO_TARGET_DIR/tools
work=$(mktemp --directory)
servers=()
cleanup() {
    local server
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    rm --recursive "$work"
}
trap cleanup EXIT

if ! DOCKER_REGISTRY=$(command -v docker-registry); then
    DOCKER_REGISTRY=$tools/registry/usr/bin/docker-registry
    if [ ! -x "$DOCKER_REGISTRY" ]; then
        mkdir -p "$tools/registry"
        (cd "$work" && { apt-get download docker-registry || { apt-get update && apt-get download docker-registry; }; })
        dpkg --extract "$work"/docker-registry_*.deb "$tools/registry"
    fi
fi
export DOCKER_REGISTRY
[ -d "$tools/moto" ] || python3 -m pip install --quiet --target "$tools/moto" 'moto[server,s3]==5.2.5'

if [ -z "${GRIDGUARD:-}" ]; then
    cargo build --quiet --package gridguard-cli --features fleet
    GRIDGUARD=$CARGO_TARGET_DIR/debug/gridguard
fi
gridguard() { "$GRIDGUARD" profile "$@"; }

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
listening() {
    local attempt
    for attempt in $(seq 300); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
        sleep 0.1
    done
    echo "no server on port $1 after $attempt attempts" >&2
    return 1
}
start_registry() {
    "$DOCKER_REGISTRY" serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
    registry=$!
    servers+=("$registry")
    listening "$registry_port"
}

# A registry that asks for a password.
registry_port=$(free_port)
cat >"$work/registry.yml" <<END
version: 0.1
storage:
  filesystem:
    rootdirectory: $work/registry
http:
  addr: 127.0.0.1:$registry_port
auth:
  htpasswd:
    realm: fleet
    path: $work/htpasswd
END
# The password "of-the-fleet".
# shellcheck disable=SC2016
echo 'fleet:$2b$05$NiSPSlrwPLdmCUJoUfPr/.ARdzGpsHanntGXZFes.9C3x.pwFTuuy' >"$work/htpasswd"
start_registry
s3_port=$(free_port)
PYTHONPATH=$tools/moto python3 -m moto.server --host 127.0.0.1 --port "$s3_port" >"$work/moto.log" 2>&1 &
servers+=($!)
listening "$s3_port"
export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:$s3_port AWS_ENDPOINT=http://127.0.0.1:$s3_port AWS_ALLOW_HTTP=true
curl --silent --fail --output /dev/null --request PUT "$AWS_ENDPOINT/bucket"

# The keys, as the documentation makes them.
for name in signer stranger; do
    openssl genpkey -algorithm ed25519 -out "$work/$name.pem"
    openssl pkey -in "$work/$name.pem" -pubout -out "$work/$name.pub.pem"
done
first=bench-data/profiles/nvidia-h200.ron
sed '0,/launches: 1/s//launches: 2/' "$first" >"$work/second.ron"
cat >"$work/misses.ron" <<'END'
(
    schema: 1,
    shapes: [
        (kernel: "rms_norm", dtypes: "f16", shape: [("rows", 70000), ("columns", 4096)], seen: 3),
    ],
)
END

fails() {
    local expected=$1 status=0
    shift
    "$@" >"$work/out" 2>&1 || status=$?
    if [ "$status" != "$expected" ]; then
        cat "$work/out" >&2
        echo "status $status instead of $expected: $*" >&2
        return 1
    fi
}
# pulls SERIAL FILE [OPTION...]: pulls, and compares the profile with the file.
pulls() {
    local serial=$1 file=$2
    shift 2
    gridguard pull "$url" --keys "$work/signer.pub.pem" --folder "$folder" --node node7 --format json "$@" >"$work/out"
    grep --quiet "\"serial\":$serial," "$work/out"
    cmp "$folder/nvidia-h200.ron" "$file"
}
cycle() {
    url=$1 folder=$work/pulled-$2
    echo "== $url"
    local push=(gridguard push "$url" --key "$work/signer.pem")
    "${push[@]}" "$first"
    pulls 1 "$first"
    grep --quiet '"new":true' "$work/out"
    pulls 1 "$first"
    grep --quiet '"new":false' "$work/out"
    gridguard verify "$url" --keys "$work/signer.pub.pem"
    fails 1 gridguard verify "$url" --keys "$work/stranger.pub.pem"
    fails 1 gridguard pull "$url" --keys "$work/stranger.pub.pem" --folder "$folder"
    fails 3 gridguard push "$url" "$first" --key "$work/stranger.pem"
    "${push[@]}" "$work/second.ron" --percent 0 >"$work/out"
    grep --quiet 'staged for 0 %' "$work/out"
    pulls 2 "$first"
    "${push[@]}" --percent 100
    pulls 3 "$work/second.ron"
    "${push[@]}" --roll-back stable-1
    pulls 4 "$first"
    [ "$(gridguard list "$url" | tr '\n' ' ')" = 'stable stable-1 stable-2 stable-3 stable-4 ' ]
    gridguard push-misses "$url" "$work/misses.ron" --node node7
    gridguard push-misses "$url" "$work/misses.ron" --node node8
    gridguard pull-misses "$url" --file "$work/missed.ron"
    grep --quiet 'seen: 6' "$work/missed.ron"
}

cycle "file://$work/repository/profiles:stable" folder
cycle s3://bucket/gpu/profiles:stable s3
fails 3 gridguard list "oci+http://127.0.0.1:$registry_port/gpu/profiles"
grep --quiet 'log in' "$work/out"
export DOCKER_CONFIG=$work/docker
mkdir "$DOCKER_CONFIG"
printf '{"auths": {"127.0.0.1:%s": {"auth": "%s"}}}\n' "$registry_port" "$(printf fleet:of-the-fleet | base64)" \
    >"$DOCKER_CONFIG/config.json"
cycle "oci+http://127.0.0.1:$registry_port/gpu/profiles:stable" registry
fails 3 gridguard verify "${url}l" --keys "$work/signer.pub.pem"
grep --quiet "manifest stablel at ${url%:*}: there is none (the tags are stable)" "$work/out"

# The registry stops: the profile of yesterday stays, with a notice.
kill "$registry"
wait "$registry" 2>/dev/null || true
pulls 4 "$first" 2>"$work/notice"
grep --quiet 'the profiles of .* stay' "$work/notice"
fails 3 gridguard pull "$url" --keys "$work/signer.pub.pem" --folder "$work/empty"
start_registry
gridguard push "$url" "$work/second.ron" --key "$work/signer.pem"
# No space for the profile: a file may have 8 KiB.
full() { (trap '' XFSZ && ulimit -f 8 && gridguard pull "$url" --keys "$work/signer.pub.pem" --folder "$folder"); }
files=$(find "$folder" -type f | sort)
fails 3 full
cmp "$folder/nvidia-h200.ron" "$first"
[ "$(find "$folder" -type f | sort)" = "$files" ]
pulls 5 "$work/second.ron"

# The manifests of the example, against the schemas of Kubernetes.
[ -d "$tools/kubernetes" ] || python3 -m pip install --quiet --target "$tools/kubernetes" kubernetes-validate==1.37.0
for manifest in examples/fleet/kubernetes*.yaml; do
    sed 's|${GRIDGUARD_IMAGE}|image|; s|${GRIDGUARD_URL}|oci://r.example/p:stable|' "$manifest" >"$work/manifest.yaml"
    PYTHONPATH=$tools/kubernetes "$tools/kubernetes/bin/kubernetes-validate" --strict "$work/manifest.yaml"
done

cargo test --quiet --workspace --test fleet "$@" -- --ignored --nocapture
