#!/usr/bin/env bash
# Everything that needs a CUDA GPU: built on a machine with Rust, run on one with a device.
#
#   tests/gpu-suite.sh pack [FOLDER]          builds tests, benchmarks and programs into FOLDER (.gpu)
#   tests/gpu-suite.sh run RESULTS [FOLDER [STEPS]]
#                                             runs them on this machine's device and writes RESULTS;
#                                             STEPS is a pattern of step names, such as 'peers*': the
#                                             results of other steps stay
#   tests/gpu-suite.sh all RESULTS [FOLDER]   both, on a machine with Rust and a device
#
# GPU_PYTHON is the version of Python there, such as 3.12, if it is another than here.
#
# `run` needs a driver, NVRTC, FOLDER and this script, but no Rust. It uses compute-sanitizer, PyTorch
# and Triton where they are installed, and NumPy to compare rewritten kernels. Each step has a time limit;
# RESULTS/summary.txt has each step's result with its commit, date, driver and seed, and the exit status
# says whether all steps of this run passed.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit

pack() {
    local folder=$1 name path
    mkdir -p "$folder"
    local library
    library=$(realpath -m "${CARGO_TARGET_DIR:-target}/release/libgridguard_preload.so")
    cargo build --release -p gridguard-preload || return 1
    # The command takes this one, and builds no second.
    export GRIDGUARD_PRELOAD_LIBRARY=$library
    # One command, so that one set of features is compiled once. The programs come with the tests that run them.
    {
        cargo test --release --no-run --workspace --message-format json --test gpu --test faults --test cli --test server --test ends \
            --bench gpu_launch --bench gpu_block --bench gpu_host_memory --bench gpu_pipeline --bench evaluate \
            --bench plan --bench record --bench profile --bench attention --bench kernels --bench training \
            --example temporal_attention --example temporal_block --example 05_tune --example 08_any_kernel
    } | python3 tests/executables.py | while read -r name path; do
        cp "$path" "$folder/$name" && strip "$folder/$name"
    done || return 1
    cp "$library" tests/suite.py tests/watched.py tests/watched_work.py tests/repaired.py tests/frameworks.py tests/neighbours.py tests/served.py tests/wraps.py tests/wraps_programs.py tests/idle.py "$folder/" || return 1
    rm -rf "$folder/index" && cp -r guard/index/corpus "$folder/index" || return 1
    # The faults of libraries start from the fake ones.
    rm -rf "$folder/fake-driver" && mkdir "$folder/fake-driver" || return 1
    for name in libcuda.so.1=libcuda.c libnvrtc.so=libnvrtc.c; do
        gcc -shared -fPIC -Wl,-Bsymbolic -O2 -o "$folder/fake-driver/${name%=*}" "guard/tests/fake-driver/${name#*=}" -lpthread || return 1
    done
    # What the driver reports about candle's kernels is compared with what their images state; and candle
    # itself runs with and without a guard.
    if command -v "${NVCC:-nvcc}" >/dev/null; then
        tests/neighbours.py build "$folder/neighbours" || return 1
        tests/candle.sh images "$folder/images" && tests/candle.sh build "$folder/candle" &&
            tests/candle.sh operators "$folder/candle-operators" || return 1
        GRIDGUARD=$(realpath "$folder/gridguard") CANDLE_PTX=${CARGO_TARGET_DIR:-target}/candle/ptx \
            tests/ptx.sh pack "$(realpath -m "$folder/rewritten")" || return 1
    fi
    rm -rf "$folder/python" && python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/python" ./kernels/python expecttest &&
        cp kernels/python/tests/*.py "$folder/python/" &&
        rm -rf "$folder/models" && python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/models" \
        ${GPU_PYTHON:+--only-binary :all: --python-version "$GPU_PYTHON"} --requirement kernels/python/tests/models.txt && python3 kernels/python/tests/pytorch_tests.py fetch "$folder/pytorch-tests" || return 1
    rm -rf "$folder/peers" && mkdir "$folder/peers" && cp bench-data/peers/*.py "$folder/peers/"
    git rev-parse --short HEAD >"$folder/commit" 2>/dev/null || echo unknown >"$folder/commit"
    [ -z "$(git status --porcelain 2>/dev/null)" ] || echo "$(cat "$folder/commit")-changed" >"$folder/commit"
    echo "packed into $folder:"
    ls -l "$folder"
}

# step NAME SECONDS COMMAND...: runs it with a time limit, keeps its output, records the result.
step() {
    local name=$1 seconds=$2 status
    shift 2
    # shellcheck disable=SC2053  # a pattern
    [[ $name == $wanted ]] || return 0
    if [ "$(type -t "$1")" = function ]; then
        # `timeout` starts programs, not functions; the function's name becomes $0.
        export -f "${1?}"
        set -- bash -c "set -eu -o pipefail; $1"' "$@"' "$@"
    fi
    timeout --kill-after=10 "$seconds" "$@" >"$results/$name.txt" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
        record "$name" passed
    else
        record "$name" "FAILED ($status)"
        tail -n 25 "$results/$name.txt"
    fi
}

# missing NAME REASON: records that a step of this run could not begin.
missing() {
    # shellcheck disable=SC2053  # a pattern
    [[ $1 != $wanted ]] || record "$1" "FAILED ($2)"
}

# record NAME RESULT: writes the row of a step, in place of the one that an earlier run wrote.
record() {
    case $2 in passed) ;; *) failed=1 ;; esac
    (
        flock 9
        sed -i "/^$1 /d" "$table"
        printf '%-20s %-14s %-16s %-11s %-12s %s\n' "$1" "$2" "$GRIDGUARD_COMMIT" "$GRIDGUARD_DATE" \
            "$GRIDGUARD_DRIVER" "$PROPTEST_RNG_SEED" >>"$table"
    ) 9>"$results/.summary.lock"
}

# Tunes the built-in shapes of every kernel.
tune_all() {
    local gridguard
    gridguard=$(realpath "$1/gridguard")
    # From within the folder, so that the output names no path of the machine.
    # The profile gets the name of the device.
    (cd "$2" && mkdir -p profiles && "$gridguard" tune --device 0 --profile profiles/ &&
        "$gridguard" profile prune profiles/*.ron --defaults)
}

# Tunes the transformer block within a budget, and runs it as tuned.
tune_block() {
    local program
    program=$(realpath "$1/temporal_block")
    # From within the folder, so that the output names no path of the machine.
    (cd "$2" && "$program" --memory "$3" --in-flight 3 --tune block.ron --chart "block-$3.svg")
}

# Tunes with every policy and objective, then checks the profile.
tune_options() {
    local gridguard profile=options.ron options
    gridguard=$(realpath "$1/gridguard")
    cd "$2"
    for options in "--policy cold-graph" "--policy hot-eager" "--policy hot-graph" "--objective latency:60us" \
        "--objective memory:268435456:1024"; do
        # shellcheck disable=SC2086  # two words
        "$gridguard" tune --device 0 --kernel softmax --shape 1228800x128 $options --profile "$profile"
    done
    "$gridguard" profile show "$profile"
    "$gridguard" profile explain softmax 1200000x128 --device 0 --objective latency:60us --profile "$profile"
    "$gridguard" profile explain temporal_attention 15360x5x16x64 --device 0
    "$gridguard" doctor --torch
    rm -f "$profile"
}

# candle's argsort of 32,000 columns is refused by the driver, and right with a guard. Its product of experts of
# batch 70,000 is refused, too, and right in the unmodified program if its PTX is rewritten as it is loaded.
candle() {
    local plain guarded fixed
    plain=$("$1/candle/candle-plain") guarded=$("$1/candle/candle-guarded")
    fixed=$("$1/gridguard" run --fix -- "$1/candle/candle-plain")
    printf 'candle as it is\n%s\n\nwith a guard\n%s\n\nunder gridguard run --fix\n%s\n' "$plain" "$guarded" "$fixed"
    if grep --quiet -E '(32000 columns|batch 70000): right' <<<"$plain"; then return 1; fi
    grep --quiet 'argsort of 32000 columns: right' <<<"$guarded" &&
        grep --quiet 'batch 60000: right' <<<"$plain" && grep --quiet 'batch 70000: right' <<<"$fixed"
}

# Checks of the Python package beside PyTorch, and of its attention beside the native launch.
pytorch() {
    local folder=$1 results=$2
    rm -f "$folder/native.json"
    GRIDGUARD_BENCH_JSON=$folder/native.json "$folder/attention" --bench 15360x5x16x64
    PYTHONPATH=$folder/python python3 "$folder/python/gpu.py" --native "$folder/native.json" --results "$results/pytorch.json" \
        --skip random_calls
}

# Runs `doctor` in many environments. Prints each page below its command, its exit status and number of
# devices, and the expected ones; RESULTS/doctor.json has the time of a plain run.
doctor_pages() {
    local gridguard=$1/gridguard results=$2 wrong=0
    local gpus uuid torch stubs
    gpus=$(nvidia-smi --list-gpus | wc -l)
    uuid=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1)
    torch=1
    python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && torch=0

    # page STATUS DEVICES [NAME=VALUE|ARGUMENT]...
    page() {
        local expected="$1 $2" status=0 shown='' out got word settings=() words=()
        for word in "${@:3}"; do
            if [[ $word == [A-Z]*=* ]]; then
                settings+=("$word") && shown+="${word%%=*}=$(printf %q "${word#*=}") "
            else
                words+=("$word")
            fi
        done
        out=$(env "${settings[@]}" "$gridguard" doctor "${words[@]}" 2>&1) || status=$?
        got="$status $(grep -oE '^(good|warning|unknown|bad) +device [0-9]+:' <<<"$out" | grep -oE '[0-9]+' | sort -u | wc -l || true)"
        [ "$got" = "$expected" ] || { wrong=1 && got+=', WRONG'; }
        printf '$ %sgridguard doctor %s\nstatus and devices: %s, expected %s\n%s\n\n' \
            "$shown" "${words[*]}" "$got" "$expected" "$out"
    }

    page 0 "$gpus"
    page $torch "$gpus" --torch
    page 0 0 --format json
    page 1 0 CUDA_VISIBLE_DEVICES=
    page 1 0 CUDA_VISIBLE_DEVICES=-1
    page 1 0 CUDA_VISIBLE_DEVICES=99
    page 1 1 CUDA_VISIBLE_DEVICES=0,99
    page 1 0 CUDA_VISIBLE_DEVICES=0,0
    page 0 1 CUDA_VISIBLE_DEVICES=0
    page 0 1 "CUDA_VISIBLE_DEVICES=${uuid:0:12}"
    page 1 0 CUDA_VISIBLE_DEVICES=GPU-unknown
    page 1 0 CUDA_VISIBLE_DEVICES=MIG-unknown
    page 1 0 CUDA_VISIBLE_DEVICES=NoDevFiles
    if [ "$gpus" -gt 1 ]; then
        page 0 2 'CUDA_VISIBLE_DEVICES=0, 1'
    else
        page 1 1 'CUDA_VISIBLE_DEVICES=0, 1'
    fi
    page 0 "$gpus" CUDA_DEVICE_ORDER=PCI_BUS_ID
    page 1 0 CUDA_DEVICE_ORDER=nonsense
    page 0 "$gpus" NVIDIA_VISIBLE_DEVICES=void
    for stubs in /usr/local/cuda/lib64/stubs /usr/local/cuda/targets/x86_64-linux/lib/stubs none; do
        [ -e "$stubs/libcuda.so" ] && break
    done
    if [ $stubs = none ]; then
        echo 'stubs: no toolkit with that folder here'
    else
        # With the stub found first, devices may be listed or not: only the status counts.
        local status=0 out
        out=$(LD_LIBRARY_PATH=$stubs:$LD_LIBRARY_PATH "$gridguard" doctor 2>&1) || status=$?
        [ $status -eq 1 ] && grep -q 'bad .*stubs' <<<"$out" || wrong=1
        printf '$ LD_LIBRARY_PATH=%s:... gridguard doctor\nstatus: %s, expected 1\n%s\n\n' "$stubs" $status "$out"
    fi
    python3 - "$gridguard" "$results/doctor.json" <<'PYTHON'
import json, os, statistics, subprocess, sys, tempfile, time
gridguard, path = sys.argv[1:]
def seconds(command, **settings):
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **settings})
    return round(time.perf_counter() - begun, 3)
def cold():
    # With empty caches of gridguard and of the driver.
    with tempfile.TemporaryDirectory() as folder:
        return seconds(doctor, GRIDGUARD_CUBIN_CACHE=folder, CUDA_CACHE_PATH=folder)
doctor, query = [gridguard, "doctor"], ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv"]
runs = {
    "cold": [cold() for _ in range(7)],
    "warm": [seconds(doctor) for _ in range(7)],
    "driver_and_devices_alone": [seconds([gridguard, "examine"]) for _ in range(5)],
    "nvidia_smi_alone": [seconds(query) for _ in range(5)],
}
names = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
medians = {f"{name}_median_s": statistics.median(times) for name, times in runs.items()}
report = {
    "what": "wall time of a plain `gridguard doctor` that finds nothing broken, from start to exit",
    "devices": names.stdout.split("\n")[:-1],
    "goal_s": 2.0,
    **medians,
    **{f"{name}_s": times for name, times in runs.items()},
}
with open(path, "w") as file:
    file.write(json.dumps(report, indent=1) + "\n")
print(json.dumps(report, indent=1))
PYTHON
    return $wrong
}

# Measures the guard's cost on the host of the device.
host_costs() {
    grep -m 1 '^model name' /proc/cpuinfo || true
    # No benchmark has that name, which leaves the medians of interleaved rounds.
    "$1/record" --bench none
    "$1/plan" --bench --quick
    "$1/profile" --bench --quick
}

# Tunes the same problems on one device and on all of them in turn, with everything compiled before.
tune_devices() {
    local folder=$1 results=$2 round devices
    "$folder/gridguard" tune --device all --profile "$(mktemp -d)/" --format json >/dev/null
    for round in 1 2 3; do
        for devices in 0 all; do
            "$folder/gridguard" tune --device $devices --profile "$(mktemp -d)/" --format json >"$results/tune-$devices-$round.json"
        done
    done
    python3 - "$results" <<'PYTHON'
import json, pathlib, statistics, subprocess, sys
results = pathlib.Path(sys.argv[1])
def seconds(devices, number):
    path = results / f"tune-{devices}-{number}.json"
    run = json.loads(path.read_text())
    path.unlink()
    assert not run["left"] and all(one.get("report") for one in run["tuned"])
    return run["wall_time_s"], len(run["tuned"])
rounds = [(seconds("0", number), seconds("all", number)) for number in (1, 2, 3)]
names = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
report = {
    "devices": names.stdout.split("\n")[:-1],
    "problems": rounds[0][0][1],
    "one_device_s": [one for (one, _), _ in rounds],
    "all_devices_s": [many for _, (many, _) in rounds],
    "speedup": statistics.median(one / many for (one, _), (many, _) in rounds),
}
(results / "tune-devices.json").write_text(json.dumps(report, indent=1) + "\n")
print(json.dumps(report, indent=1))
PYTHON
}

run() {
    results=$1
    local folder=$2
    wanted=$3
    mkdir -p "$results"
    table=$results/summary.txt
    # The benchmarks write these into their reports.
    GRIDGUARD_COMMIT=$(cat "$folder/commit")
    GRIDGUARD_DATE=$(date -u +%F)
    GRIDGUARD_DRIVER=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
    export GRIDGUARD_COMMIT GRIDGUARD_DATE GRIDGUARD_DRIVER
    # Every run draws other shapes, but all steps of a run the same, so that they share compiled code.
    PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
    GRIDGUARD_CUBIN_CACHE=${GRIDGUARD_CUBIN_CACHE:-$(mktemp -d)}
    CRITERION_HOME=$(mktemp -d)
    GRIDGUARD_RESULTS=$(realpath "$results")
    export PROPTEST_RNG_SEED GRIDGUARD_CUBIN_CACHE CRITERION_HOME GRIDGUARD_RESULTS
    failed=0
    local device
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    # Rows of other steps stay, each with its own commit and date, unless they are of another device.
    if [ "$(head -n 1 "$table" 2>/dev/null)" != "device  $device" ]; then
        printf 'device  %s\n\n%-20s %-14s %-16s %-11s %-12s %s\n' "$device" \
            step result commit date driver seed >"$table"
    fi
    local toolkit=/usr/local/cuda/targets/x86_64-linux/lib
    export LD_LIBRARY_PATH=$toolkit${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

    # Tests that fill the device or its memory run alone, and those whose captures another thread's work in the
    # context would invalidate.
    step tests 420 "$folder/gpu" --ignored --test-threads 14 --skip conformance:: --skip memory:: \
        --skip images_of_a_folder --skip temporal_block:: --skip our_forms::
    if [ -d "$folder/images" ]; then
        step images 200 env GRIDGUARD_IMAGES="$folder/images" "$folder/gpu" --ignored --nocapture images_of_a_folder
    else
        missing images "none packed"
    fi
    if [ -d "$folder/candle" ]; then
        step candle 400 candle "$folder"
    else
        missing candle "none packed"
    fi
    if [ -d "$folder/candle-operators" ]; then
        # One looks at free memory.
        step candle-operators 300 "$folder/candle-operators/gpu" --ignored --test-threads 1
        step candle-launch 120 "$folder/candle-operators/gpu_operators" "$results/candle-launch.json"
        step candle-example 60 "$folder/candle-operators/temporal_transformer"
    else
        missing candle-operators "none packed"
    fi
    if [ -d "$folder/rewritten" ]; then
        step rewritten-kernels 150 python3 "$folder/rewritten/differential.py" "$folder/rewritten" "$results/differential.json"
        step any-kernel 120 "$folder/08_any_kernel" "$folder/rewritten/candle-quantized.ptx" "$results/any-kernel.svg"
    else
        missing rewritten-kernels "none packed"
    fi
    step rewritten-ours 200 "$folder/gpu" --ignored --nocapture our_forms::
    step command 60 env GRIDGUARD_COMMAND="$(realpath "$folder/gridguard")" "$folder/cli" --ignored
    step memory 90 "$folder/gpu" --ignored --test-threads 1 memory:: temporal_block::
    step conformance 150 "$folder/gpu" --ignored --nocapture --test-threads 1 the_guard_agrees_with_the_driver
    step facts 90 "$folder/gpu" --ignored --nocapture answers_beyond_the_rules
    step faults 500 "$folder/faults" --ignored --nocapture
    step limits 20 "$folder/gridguard" limits --device 0
    step check 20 "$folder/gridguard" check --device 0 --grid 1,76800,1 --block 128 \
        --batch-axis y --items 15360 --blocks-per-item 5
    step doctor 300 doctor_pages "$folder" "$results"
    step main-job 120 "$folder/temporal_attention"
    step block-job 120 "$folder/temporal_block"
    # Tuned within two budgets, then run as the profile says.
    local memory
    for memory in 256MiB 512MiB; do
        step "tune-block-$memory" 300 tune_block "$folder" "$results" "$memory"
    done
    step tune-chain 60 "$folder/05_tune" "$results/tune-chain.svg"
    step tune-options 120 tune_options "$folder" "$results"
    step tune 400 tune_all "$folder" "$results"
    step evaluate 400 "$folder/evaluate" --device 0 --starts 2 --output "$results/evaluate.json"
    step choices 295 "$folder/evaluate" --device 0 --choices 20 --samples 9 --budget 220s --output "$results/choices.json"
    if [ "$(nvidia-smi --list-gpus | wc -l)" -gt 1 ]; then
        step tune-devices 400 tune_devices "$folder" "$results"
    fi
    local preloaded=("$folder/watched.py" "$folder/libgridguard_preload.so")
    step watched 400 python3 "${preloaded[@]}" "$results/watched.json" programs
    step repaired 400 python3 "$folder/repaired.py" "$folder/libgridguard_preload.so" "$results/repaired.json"
    step frameworks 590 python3 "$folder/frameworks.py" "$folder/libgridguard_preload.so" "$results/frameworks.json"
    if [ -d "$folder/neighbours" ]; then
        step neighbours 400 python3 "$folder/neighbours.py" run "$folder/gridguard" "$folder/neighbours" "$results/neighbours.json"
    else
        missing neighbours "none packed"
    fi
    step watched-varied 400 python3 "${preloaded[@]}" "$results/watched-varied.json" varied --seconds 115
    step watched-timing 400 python3 "${preloaded[@]}" "$results/watched-timing.json" timing
    step launch 200 "$folder/gpu_launch" "$results/launch.json"
    if python3 -c 'import torch' 2>/dev/null; then
        step block 400 python3 "$folder/peers/block.py" --bench "$folder/gpu_block" --output "$results"
    else
        step block 400 "$folder/gpu_block" "$results/block.json"
    fi
    if python3 -c 'import torch' 2>/dev/null; then
        step pytorch 480 pytorch "$folder" "$results"
        step pytorch-calls 480 env PYTHONPATH="$folder/python" python3 "$folder/python/gpu.py" --results "$results/pytorch-calls.json" --workers "$(nproc)" --seconds 420 random_calls
        step pytorch-own 560 env PYTHONPATH="$folder/python" python3 "$folder/python/pytorch_tests.py" run "$folder/pytorch-tests" \
            --results "$results/pytorch-own.json" --workers "$(nproc)" --seconds 400
        step pytorch-block 300 env PYTHONPATH="$folder/python" MODELS="$folder/models" python3 "$folder/python/gpu_block.py" --results "$results/pytorch-block.json"
        step pytorch-training 560 env PYTHONPATH="$folder/python" python3 "$folder/python/gpu_training.py" --results "$results/pytorch-training.json"
        local models=(env PYTHONPATH="$folder/python" MODELS="$folder/models" python3 "$folder/python/gpu_models.py")
        step models 300 "${models[@]}" --results "$results/models.json" norm_sums small_models small_training efficient
        step models-vae 300 "${models[@]}" --results "$results/models-vae.json" cosmos mochi
        step models-animatediff 590 "${models[@]}" --results "$results/models-animatediff.json" animatediff
        step models-tabpfn 200 "${models[@]}" --results "$results/models-tabpfn.json" tabpfn
        step models-swin 400 "${models[@]}" --results "$results/models-swin.json" swin
        step idle 118 python3 "$folder/idle.py" "$folder/gridguard" "$results/idle.json"
    else
        missing pytorch "no PyTorch"
    fi
    step server 300 python3 "$folder/served.py" "$folder" "$results/server.json"
    step pipeline 60 "$folder/gpu_pipeline" "$results/pipeline.json"
    step host-memory 300 "$folder/gpu_host_memory" "$results/host_memory.json"
    step host 60 host_costs "$folder"
    if python3 -c 'import torch, triton' 2>/dev/null; then
        step peers-attention 480 python3 "$folder/peers/attention.py" --bench "$folder/attention" --output "$results"
        step peers-training 480 python3 "$folder/peers/training.py" --bench "$folder/training" --output "$results"
        step wraps 280 python3 "$folder/wraps.py" "$folder/gridguard" "$folder" "$results/wraps.json"
        step peers-kernels 200 python3 "$folder/peers/kernels.py" --bench "$folder/kernels" --output "$results"
    else
        missing wraps "no PyTorch"
        missing peers "no PyTorch"
    fi
    if command -v compute-sanitizer >/dev/null; then
        # The tests provoke driver errors, so these are not reported. Every kernel, type and launch
        # parameter runs, on small tensors: large ones take minutes and run the same code.
        local tool
        for tool in memcheck initcheck racecheck; do
            step "sanitizer-$tool" 500 compute-sanitizer --error-exitcode 9 --report-api-errors no \
                --tool "$tool" "$folder/gpu" --ignored --test-threads 1 \
                small_problems golden any_strides one_key the_device_finds
        done
    else
        missing sanitizer "no compute-sanitizer"
    fi
    rm -f "$results/.summary.lock"
    cat "$table"
    return $failed
}

case "${1:-}" in
pack) pack "${2:-.gpu}" ;;
run) run "${2:?where to write the results}" "${3:-.gpu}" "${4:-*}" ;;
all) pack "${3:-.gpu}" && run "${2:?where to write the results}" "${3:-.gpu}" '*' ;;
*)
    sed -n '2,16s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
