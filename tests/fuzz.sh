#!/usr/bin/env bash
# Fuzzes every target, or the named ones, for SECONDS (60) each: tests/fuzz.sh [SECONDS [TARGET...]]
#
# Needs a nightly toolchain and cargo-fuzz (cargo install cargo-fuzz). The corpus is kept under
# target/fuzz, where the next run continues from it; the table names an input that fails.
set -u -o pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(basename --suffix .rs --multiple tests/fuzz/targets/*.rs)

target_dir=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
cargo +nightly fuzz build --fuzz-dir tests/fuzz --target-dir "$target_dir" || exit
host=$(rustc +nightly --version --verbose | sed -n 's/^host: //p')

failed=0
printf '%-10s %12s %9s %9s %9s  %s\n' target executions "a second" edges features found
for target in "${targets[@]}"; do
    corpus=$target_dir/corpus/$target artifacts=$target_dir/artifacts/$target/ log=$target_dir/$target.log
    mkdir -p "$corpus" "$artifacts"
    options=(-max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=2048)
    # A thread that is about to end looks like a leak.
    options+=(-artifact_prefix="$artifacts" -print_final_stats=1 -detect_leaks=0)
    dictionary=tests/fuzz/dictionaries/$target.dict
    [[ -e $dictionary ]] && options+=(-dict="$dictionary")
    found=-
    "$target_dir/$host/release/$target" "${options[@]}" "$corpus" "tests/fuzz/seeds/$target" \
        >"$log" 2>&1 || {
        failed=1
        found=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
        found=${found:-"see $log"}
    }
    number() { sed -n "s/^stat::$1: *//p" "$log" | tail -1; }
    covered() { grep --only-matching "$1: [0-9]*" "$log" | tail -1 | cut --delimiter ' ' --fields 2; }
    printf '%-10s %12s %9s %9s %9s  %s\n' "$target" "$(number number_of_executed_units)" \
        "$(number average_exec_per_sec)" "$(covered cov)" "$(covered ft)" "$found"
done
exit $failed
