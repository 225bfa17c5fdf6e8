#!/usr/bin/env bash
# What operators copy from `examples/server/operation`, against a server that runs: Prometheus reads the rules and the
# metrics, the alerts fire for what they are for, every query of the dashboard and of the alerts finds its metrics, and
# systemd reads the unit.
#
#   tests/operation.sh     SERVER and LOAD are the programs; by default they are built
#
# Needs systemd and, for promtool, Debian's package `prometheus`, which is unpacked into the target folder if it is missing.
set -eEu -o pipefail
trap 'echo "$0:$LINENO: failed: $BASH_COMMAND" >&2' ERR
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$(mktemp --directory)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm --recursive "$work"
}
trap cleanup EXIT
operation=examples/server/operation

if ! promtool=$(command -v promtool); then
    promtool=$target/tools/prometheus/usr/bin/promtool
    if [ ! -x "$promtool" ]; then
        (cd "$work" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; })
        mkdir -p "$target/tools/prometheus"
        dpkg --extract "$work"/prometheus_*.deb "$target/tools/prometheus"
    fi
fi
if [ -z "${SERVER:-}" ]; then
    cargo build --quiet --package gridguard-server --package gridguard-load
    SERVER=$target/debug/gridguard-server LOAD=$target/debug/gridguard-load
fi

"$promtool" check rules "$operation/alerts.yml"
"$promtool" test rules "$operation/alerts.test.yml"

# Only the program is in another place here.
sed "s|/usr/local/bin/gridguard-server|$(realpath "$SERVER")|" "$operation/gridguard-server.service" >"$work/gridguard-server.service"
systemd-analyze verify "$work/gridguard-server.service"
systemd-analyze security --offline=true --threshold=40 "$work/gridguard-server.service" >"$work/exposure"
tail -n 1 "$work/exposure"

GRIDGUARD_PROFILES=off "$SERVER" --host --listen 127.0.0.1:0 >"$work/printed" 2>"$work/log" &
server=$!
until grep --quiet http "$work/printed"; do sleep 0.1 && kill -0 "$server"; done
address=$(sed 's|.*http://||' "$work/printed")
"$LOAD" "$address" --shape 2x1x2x8 --requests 5 --concurrency 1 >/dev/null
[ "$(curl --silent --output /dev/null --write-out '%{http_code}' "http://$address/nowhere")" = 404 ]
curl --silent --fail "http://$address/metrics" >"$work/metrics"
# 3: it reads them, and misses words of help.
"$promtool" check metrics <"$work/metrics" >"$work/lint" 2>&1 || [ $? = 3 ]
python3 - "$work" "$operation" <<'PYTHON'
import json, pathlib, re, sys
work, operation = map(pathlib.Path, sys.argv[1:])
dashboard = json.loads((operation / "dashboard.json").read_text())
queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
assert len(queries) > 8
rules = [{"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")} for number, query in enumerate(queries)]
(work / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
served = {line.split("{")[0].split()[0] for line in (work / "metrics").read_text().splitlines() if line and line[0] != "#"}
queried = set(re.findall(r"\b(?:gridguard|process)_\w+", " ".join(queries) + (operation / "alerts.yml").read_text()))
missing = queried - served
assert not missing, f"no such metrics: {sorted(missing)}"
PYTHON
"$promtool" check rules "$work/dashboard.yml"
kill -TERM "$server"
wait "$server"
server=
