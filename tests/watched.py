#!/usr/bin/env python3
"""Runs programs of several frameworks under libgridguard_preload.so, on a device."""

# watched.py LIBRARY REPORT.json programs: programs with and without a refused launch or allocation.
# watched.py LIBRARY REPORT.json varied [--seconds N]: ordinary PyTorch work (watched_work.py), in several processes.
# watched.py LIBRARY REPORT.json timing: ordinary work with and without the library.
#
# Each refusal must be explained, and nothing else may be reported. Missing frameworks are listed. The run fails if all
# are missing.

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

import repaired
import suite

# A legal and a refused size of every program.
GOOD, REFUSED = 60_000, 70_000
FLASH_ATTENTION = """
import sys, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
q = torch.zeros(int(sys.argv[1]), 1, 16, 64, device="cuda", dtype=torch.float16)
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    try:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
# The text that the explanation of a program must contain.
EXPLAINED = {
    "torch-flash-attention": ["flash_fwd", "grid.y is 70000 blocks", "libtorch_cuda.so"],
    "triton": ["rows_of", "grid.y is 70000 blocks"],
    "cupy": ["rows_of", "grid.z is 70000 blocks"],
    "numba": ["rows_of", "grid.y is 70000 blocks"],
}

CUDA = r"""
#include <cstdio>
#include <cstdlib>
__global__ void rows(float *p) { p[blockIdx.y] = 1; }
int main(int many, char **words) {
    unsigned count = atoi(words[1]);
    float *p, sum = 0, *host = (float *)calloc(count, 4);
    cudaMalloc(&p, count * 4);
    cudaMemset(p, 0, count * 4);
    if (many == 2) {
        rows<<<dim3(1, count), 1>>>(p);
    } else {
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        cudaStreamCreate(&stream);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        rows<<<dim3(1, count), 1, 0, stream>>>(p);
        cudaStreamEndCapture(stream, &graph);
        if (!cudaGraphInstantiate(&replay, graph, 0)) cudaGraphLaunch(replay, stream);
        cudaStreamSynchronize(stream);
    }
    cudaError_t refused = cudaGetLastError(), after = cudaGetLastError();
    cudaMemcpy(host, p, count * 4, cudaMemcpyDeviceToHost);
    for (unsigned i = 0; i < count; i++) sum += host[i];
    printf("launch %d, then %d, sum %g\n", refused, after, sum);
}
"""

# A graph built by hand: a node is added, set, and set in the executable graph, each time first with a legal size and
# then with the size of the argument.
GRAPH = r"""
#include <cstdio>
#include <cstdlib>
__global__ void rows(float *p) { p[blockIdx.y] = 1; }
int main(int, char **words) {
    unsigned count = atoi(words[1]);
    float *p, sum = 0, *host = (float *)calloc(count, 4);
    cudaMalloc(&p, count * 4);
    cudaMemset(p, 0, count * 4);
    void *arguments[] = {&p};
    cudaKernelNodeParams legal = {};
    legal.func = (void *)rows;
    legal.gridDim = dim3(1, 1);
    legal.blockDim = dim3(1);
    legal.kernelParams = arguments;
    cudaKernelNodeParams wanted = legal;
    wanted.gridDim = dim3(1, count);
    cudaGraph_t graph[3];
    cudaGraphNode_t node[3];
    cudaGraphExec_t exec[3] = {};
    for (int i = 0; i < 3; i++) cudaGraphCreate(&graph[i], 0);
    int add = cudaGraphAddKernelNode(&node[0], graph[0], nullptr, 0, &wanted);
    int added = cudaGraphInstantiateWithFlags(&exec[0], graph[0], 0);
    cudaGraphAddKernelNode(&node[1], graph[1], nullptr, 0, &legal);
    int set = cudaGraphKernelNodeSetParams(node[1], &wanted);
    int then = cudaGraphInstantiateWithFlags(&exec[1], graph[1], 0);
    cudaGraphAddKernelNode(&node[2], graph[2], nullptr, 0, &legal);
    cudaGraphInstantiateWithFlags(&exec[2], graph[2], 0);
    int update = cudaGraphExecKernelNodeSetParams(exec[2], node[2], &wanted);
    int launch = cudaGraphLaunch(exec[2], 0);
    cudaMemcpy(host, p, count * 4, cudaMemcpyDeviceToHost);
    for (unsigned i = 0; i < count; i++) sum += host[i];
    printf("add %d, instantiate %d; set %d, instantiate %d; update %d, launch %d; sum %g\n", add, added, set, then,
           update, launch, sum);
}
"""

# PyTorch's memory: less than the device has, more, and as much as is free after freed tensors are returned.
MEMORY = """
import sys, torch
free, total = torch.cuda.mem_get_info()
kept = [torch.zeros(1 << 28, device="cuda", dtype=torch.uint8) for _ in range(4)]
def take(size):
    return torch.empty(int(size), device="cuda", dtype=torch.uint8)
if sys.argv[1] == "refused":
    try:
        take(total + (1 << 30))
    except torch.OutOfMemoryError:
        print("told")
if sys.argv[1] == "retried":
    cached = take(free * 0.6)
    del cached
    print(take(free * 0.7).numel() > 0)
torch.cuda.synchronize()
print("ended")
"""
ALLOCATORS = ["", "expandable_segments:True", "backend:cudaMallocAsync"]

# Concurrent processes of ordinary work, without a refusal.
PROCESSES = 8


def environment(preload, settings):
    return {**os.environ, **settings, **({"LD_PRELOAD": options.library} if preload else {})}


def run(command, preload=True, timeout=300, settings={}):
    return subprocess.run(command, env=environment(preload, settings), capture_output=True, text=True, timeout=timeout)


def start(command, preload, settings):
    """A process that returns its results on request."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=environment(preload, settings), text=True, **pipes)


def check(name, command, expected, more=(), refused=REFUSED, error="CUDA_ERROR_INVALID_VALUE (1)"):
    """Return the failures of one program, whose arguments are the size and `more`."""
    failures = []
    without = run([*command, str(GOOD), *more], preload=False)
    with_it = run([*command, str(GOOD), *more])
    if (without.returncode, without.stdout) != (with_it.returncode, with_it.stdout):
        failures.append(f"{name}: good case differs: {without} {with_it}")
    if "refused:" in with_it.stderr or not re.search(r"[1-9]\d* launch\w* of .* accepted, 0 refused", with_it.stderr):
        failures.append(f"{name}: good case: {with_it.stderr}")
    bad = run([*command, str(refused), *more])
    bad_without = run([*command, str(refused), *more], preload=False)
    if (bad.returncode, bad.stdout) != (bad_without.returncode, bad_without.stdout):
        failures.append(f"{name}: refused case differs: {bad_without} {bad}")
    for text in [f"gridguard: launch refused: {error}", *expected]:
        if text not in bad.stderr:
            failures.append(f"{name}: no {text!r} in: {bad.stderr}")
    return failures


def work(*words):
    return [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "watched_work.py"), *words]


def varied(report, folder):
    """Run ordinary work in several processes at once. The library must see launches and report nothing."""
    seconds = options.seconds
    quiet = {"GRIDGUARD_RUN_QUIET": "1", "GRIDGUARD_RUN_REPORT": os.path.join(folder, "varied.json")}
    with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        command = work("varied", str(seconds))
        runs = list(pool.map(lambda _: run(command, timeout=seconds + 120, settings=quiet), range(PROCESSES)))
    failures = [f"ordinary work: {one}" for one in runs if one.returncode or "gridguard:" in one.stderr]
    reports = suite.merged(folder, "varied")
    seen = {key: sum(one[key] for one in reports) for key in ("launches", "refused")}
    if not seen["launches"] or seen["refused"]:
        failures.append(f"ordinary work: {seen}")
    if not failures:
        counts = [json.loads(one.stdout) for one in runs]
        each = {name: sum(one[name] for one in counts) for name in counts[0]}
        report.update({"processes": PROCESSES, "seconds_each": seconds, "runs": each, **seen})
    return failures


def compared(pairs, settings, **kinds):
    """Return the median ratio of blocks of work with and without the library, and the memory that the library adds."""
    # Both processes alternate block by block, so that disturbances of the machine affect both. `kinds` gives the number of
    # blocks of each kind of work.
    rows, more, cores = {kind: [] for kind in kinds}, [], sorted(os.sched_getaffinity(0))
    for pair in range(pairs):
        # Both processes run on the same two cores, one at a time: cores differ in their distance to the device.
        os.sched_setaffinity(0, [cores[(2 * pair + one) % len(cores)] for one in (0, 1)])
        both = [start(work("timed"), preload, settings) for preload in (False, True)]
        os.sched_setaffinity(0, cores)
        for kind, blocks in kinds.items():
            times = [[block(process, kind) for process in both] for _ in range(blocks + WARM_UP)][WARM_UP:]
            ratio = statistics.median(with_it / without for without, with_it in times)
            without, with_it = map(statistics.median, zip(*times))
            rows[kind].append({"without_us": without, "with_us": with_it, "ratio": ratio})
        without, with_it = (float(process.communicate()[0]) for process in both)
        more.append(with_it - without)
    median = lambda kind: statistics.median(pair["ratio"] for pair in rows[kind])
    each = {kind: {"ratio": median(kind), "blocks": blocks, "pairs": rows[kind]} for kind, blocks in kinds.items()}
    return {**each, "more_mib": statistics.median(more)}


# The first blocks compile, raise clocks and fill caches.
WARM_UP = 20


def block(process, kind):
    """Return the microseconds of a call."""
    process.stdin.write(kind + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def check_memory(allocator):
    """Return the failures of PyTorch's memory with these settings of its allocator."""
    failures = []
    refused = r"gridguard: out of memory: cuMem\w+ returned CUDA_ERROR_OUT_OF_MEMORY \(2\)"
    held = r"memory of device 0: at most \d+\.\d+ GiB held"
    one_retried = r"out of memory: [1-9]\d* refused, of which [1-9]\d* were followed by a success"
    cases = {"good": [held], "refused": [refused, held, "libc10_cuda.so", r"largest   .* in \d+ allocation"]}
    # With other settings, freed memory is part of the next allocation.
    cases |= {"retried": [refused, held, one_retried]} if not allocator else {}
    for case, expected in cases.items():
        command = [sys.executable, "-c", MEMORY, case]
        without, ran = (run(command, preload, settings={"PYTORCH_CUDA_ALLOC_CONF": allocator}) for preload in (False, True))
        if (without.returncode, without.stdout) != (ran.returncode, ran.stdout) or ran.returncode:
            failures.append(f"memory {allocator} {case} differs: {without} {ran}")
        if case == "good" and "out of memory" in ran.stderr:
            failures.append(f"memory {allocator}: a good program is accused: {ran.stderr}")
        failures += [
            f"memory {allocator} {case}: no {text!r} in: {ran.stderr}"
            for text in expected
            if not re.search(text, ran.stderr)
        ]
    return failures


def programs(report, folder):
    """Return the failures of programs with a launch or an allocation that the driver refuses."""
    failures, missing, done, graphs = [], [], [], {}

    def each(name, *arguments, **options):
        failures.extend(check(name, *arguments, **options))
        done.append(name)

    texts = {"torch-flash-attention": FLASH_ATTENTION, **{name: text + repaired.END for name, text in repaired.PYTHON.items()}}
    for name, expected in EXPLAINED.items():
        path = pathlib.Path(folder, f"program-{name}.py")
        path.write_text(texts[name])
        if suite.has(name.split("-")[0]):
            each(name, [sys.executable, str(path)], expected, ("whole",))
        else:
            missing.append(name)
    rows = ["rows(float*)", "grid.y is 70000 blocks"]
    for runtime in ["static", "shared"] if suite.has_nvcc() else []:
        options_of_nvcc = ["-arch=native", "-cudart", runtime]
        program = suite.build(folder, "rows-" + runtime, CUDA, *options_of_nvcc)
        each("nvcc-" + runtime, [program], rows)
        graph = suite.build(folder, "graph-" + runtime, GRAPH, *options_of_nvcc)
        each("graph-" + runtime, [graph], [*rows, ", kernel node of a graph"])
        # The call that the driver refuses for a node.
        graphs[runtime] = run([graph, str(REFUSED)]).stdout.strip()
        # The static runtime refuses a dimension of zero, which the library cannot see.
        if runtime == "shared":
            expected = ["rows(float*)", "grid.y is 0 blocks", "0 launches of 1 kernel accepted, 1 refused"]
            # The runtime (`cudaErrorInvalidConfiguration`) or, with CUDA 13.0, the driver refuses it.
            each("zero", [program], expected, refused=0, error="")
    library = suite.build_for_jax(folder, repaired.JAX_LIBRARY, "-arch=native")
    if library:
        expected = ["rows_of(float*, int)", "grid.y is 70000 blocks", "jax_rows.so"]
        each("jax", [sys.executable, "-c", repaired.JAX], expected, ("whole", library))
    else:
        missing.append("jax")
    if "torch-flash-attention" in done:
        for allocator in ALLOCATORS:
            failures += check_memory(allocator)
    report.update({"passed": done, "missing": missing, "graph_70000": graphs})
    return failures


def timing(report, _folder):
    report["caching_allocator"] = compared(5, {}, adds=200, steps=60, large_steps=15)
    streams = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    report["allocator_of_streams"] = compared(2, streams, allocations=200)
    fix = {"GRIDGUARD_RUN_FIX": "1"}
    report["with_fix"] = compared(5, fix, adds=200, steps=60, large_steps=15)
    report["start_with_fix"] = starts(5, fix)
    if suite.has("triton"):
        report["noted_triton_launch"] = json.loads(run(work("noted"), settings={"GRIDGUARD_RUN_QUIET": "1"}).stdout)
    return []


def starts(pairs, settings):
    """Return how much more processor time a process takes that launches one kernel of PyTorch, with the library."""
    command = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda').add_(1).item()"]

    def seconds(preload):
        used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        before = used()
        run(command, preload, settings={"GRIDGUARD_RUN_QUIET": "1", **settings}).check_returncode()
        return used() - before

    seconds(False)
    # The order alternates, because the second process of a pair finds warmer caches. Elapsed times differ by a second.
    times = [sorted((preload, seconds(preload)) for preload in (pair % 2 == 0, pair % 2 == 1)) for pair in range(pairs)]
    without, with_it = ([1000 * one[place][1] for one in times] for place in (0, 1))
    later = statistics.median(after - before for before, after in zip(without, with_it))
    return {"more_ms": later, "without_ms": without, "with_ms": with_it}


def main():
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        failures = {"programs": programs, "varied": varied, "timing": timing}[options.part](report, folder)
    suite.finish(options.report, report, failures)


parser = argparse.ArgumentParser()
parser.add_argument("library", type=os.path.abspath)
parser.add_argument("report")
parser.add_argument("part", choices=["programs", "varied", "timing"])
parser.add_argument("--seconds", type=float, default=30, help="how long each process of ordinary work runs")
options = parser.parse_args()
main()
