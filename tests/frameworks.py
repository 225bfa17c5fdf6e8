#!/usr/bin/env python3
"""Launches large grids by the launchers of frameworks on a device, and tells what each does with them."""

# frameworks.py LIBRARY REPORT.json
#
# Each block of a kernel adds 1 to a counter, so the counter tells how many blocks ran. For each framework and grid the
# report has `ran`, `skipped` (no block, and no error), `wrapped` (other blocks) or the error. For Triton and torch.compile
# it also has what happens with the library (the skipped launch must be named) and with `--fix` (it must run). Missing
# frameworks are listed.

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

import suite

# The product is below zero, and zero, in 32 bits.
SKIPPED = [(65536, 32768, 1), (16384, 16384, 16)]
GRIDS = [*SKIPPED, (65536, 32767, 1), (1, 65536, 1), (1, 1, 65536), (0, 1, 1), (2**31 - 1, 1, 1), (2**31, 1, 1), (2**32 + 1, 1, 1)]

# A program defines `launch(x, y, z)`, and `counted()`, which waits for the device, returns the counter and clears it.
END = """
import json, sys
for grid in json.loads(sys.argv[1]):
    try:
        launch(*grid)
        print(json.dumps([grid, counted(), None]), flush=True)
    except Exception as error:
        print(json.dumps([grid, 0, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"]), flush=True)
"""
SOURCE = 'extern "C" __global__ void count(unsigned long long *blocks) { atomicAdd(blocks, 1ull); }'
TORCH = """
import torch
blocks = torch.zeros(1, dtype=torch.int64, device="cuda")
def counted():
    torch.cuda.synchronize()
    total = blocks.item()
    blocks.zero_()
    torch.cuda.synchronize()
    return total
"""
TRITON = TORCH + """
import triton, triton.language as tl
@triton.jit
def count(blocks):
    tl.atomic_add(blocks, 1)
def launch(x, y, z):
    count[(x, y, z)](blocks, num_warps=1)
call = launch
"""
CAPTURED = TRITON + """
def launch(*grid):
    call(1, 1, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): call(*grid)
    counted()
    graph.replay()
"""
COMPILED = TRITON + """
def launch(*grid):
    torch.compiler.reset()
    torch.compile(call, dynamic=False)(*grid)
"""
PROGRAMS = {
    "triton": TRITON,
    "triton, captured": CAPTURED,
    "torch.compile": COMPILED,
    # PyTorch's own launcher launches the kernels of users, too.
    "torch.compile, static": "import os; os.environ['TORCHINDUCTOR_STATIC_LAUNCH_USER_DEFINED_TRITON_KERNELS'] = '1'" + COMPILED,
    "torch.cuda._compile_kernel": TORCH + f"kernel = torch.cuda._compile_kernel({SOURCE!r}, 'count')" + """
def launch(x, y, z):
    kernel(grid=(x, y, z), block=(1, 1, 1), args=[blocks])
""",
    "cupy": f"import cupy; kernel = cupy.RawKernel({SOURCE!r}, 'count'); blocks = cupy.zeros(1, dtype=cupy.uint64)" + """
def launch(x, y, z):
    kernel((x, y, z), (1,), (blocks,))
def counted():
    cupy.cuda.Device().synchronize()
    total = int(blocks.get()[0])
    blocks.fill(0)
    return total
""",
    "numba": """
import numpy
numpy.row_stack = getattr(numpy, "row_stack", numpy.vstack)
from numba import cuda
blocks = cuda.to_device(numpy.zeros(1, dtype=numpy.uint64))
@cuda.jit
def count(blocks):
    cuda.atomic.add(blocks, 0, 1)
def launch(x, y, z):
    count[(x, y, z), 1](blocks)
def counted():
    total = int(blocks.copy_to_host()[0])
    blocks.copy_to_device(numpy.zeros(1, dtype=numpy.uint64))
    return total
""",
    "cuda.core": TORCH + f"SOURCE = {SOURCE!r}" + """
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch as launch_config
device = Device(); device.set_current()
stream = device.create_stream()
program = Program(SOURCE, "c++", ProgramOptions(std="c++17", arch=f"sm_{device.arch}"))
kernel = program.compile("cubin").get_kernel("count")
def launch(x, y, z):
    launch_config(stream, LaunchConfig(grid=(x, y, z), block=1), kernel, blocks.data_ptr())
""",
    "pallas": """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
def kernel(start, blocks):
    plgpu.atomic_add(blocks, (pl.program_id(0) % 4,), jnp.uint32(1))
def launch(x, y, z):
    global total
    call = pl.pallas_call(kernel, jax.ShapeDtypeStruct((4,), jnp.uint32), grid=(x, y, z), input_output_aliases={0: 0},
                          compiler_params=plgpu.CompilerParams(num_warps=1))
    total = sum(map(int, call(jnp.zeros(4, jnp.uint32))))
def counted():
    return total
""",
}
NEEDED = {"torch.cuda._compile_kernel": "torch", "pallas": "jax", **{name: "triton" for name in list(PROGRAMS)[:4]}}


def run(path, grids, **settings):
    """Return what happens with each grid, and standard error."""
    command = [sys.executable, path, json.dumps(grids)]
    ran = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=400)
    seen = {}
    for grid, blocks, error in map(json.loads, filter(lambda line: line.startswith("[["), ran.stdout.splitlines())):
        expected = grid[0] * grid[1] * grid[2]
        how = "ran" if blocks == expected else f"wrapped: {blocks} blocks" if blocks else "skipped"
        seen[" x ".join(map(str, grid))] = error or how
    return seen, ran.stderr


def measure(name):
    """Return the rows of a program for the report, and what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"launches_{re.sub(r'[^a-z]', '_', name)}.py")
        with open(path, "w") as file:
            file.write(PROGRAMS[name] + END)
        seen, err = run(path, GRIDS)
        rows = {name: seen}
        if len(seen) < len(GRIDS) or "ran" not in seen.values():
            return rows, [f"{name}: {seen} {err[-2000:]}"]
        failures = []
        for fix, word in [("0", "refused"), ("1", "fixed")] if NEEDED.get(name, name) == "triton" else []:
            settings = {"LD_PRELOAD": options.library, "GRIDGUARD_RUN_FIX": fix}
            seen, err = run(path, SKIPPED, GRIDGUARD_RUN_REPORT=os.path.join(folder, word), **settings)
            launches = sum(one[word] for one in suite.merged(folder, word))
            rows[f"{name}, {word}"] = {**seen, "launches": launches}
            if launches != len(SKIPPED) or set(seen.values()) != {"ran" if fix == "1" else "skipped"}:
                failures.append(f"{name}: {launches} launches are {word}: {seen} {err[-2000:]}")
        return rows, failures


def main():
    present = [name for name in PROGRAMS if suite.has(NEEDED.get(name, name))]
    report, failures = {"passed": [], "missing": [name for name in PROGRAMS if name not in present]}, []
    # Most of the time goes to imports and compilers.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for name, (rows, wrong) in zip(present, pool.map(measure, present)):
            report.update(rows)
            failures += wrong
            report["passed"] += [] if wrong else [name]
            module = NEEDED.get(name, name)
            version = [sys.executable, "-c", f"import {module}; print({module}.__version__)"]
            report[name]["version"] = subprocess.run(version, capture_output=True, text=True).stdout.strip()
    suite.finish(options.report, report, failures)


parser = argparse.ArgumentParser()
parser.add_argument("library", type=os.path.abspath)
parser.add_argument("report")
options = parser.parse_args()
main()
