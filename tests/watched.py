#!/usr/bin/env python3
"""Programs of several frameworks under libgridguard_preload.so, on a device: each once with a launch that the
driver refuses, which must be explained, and once without, where nothing may be reported.

    watched.py LIBRARY [REPORT.json]

Frameworks that are not installed are listed, and fail the run only if all of them are missing.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

LIBRARY = os.path.abspath(sys.argv[1])

# Name, the text of a program that takes the size from its argument, a good size, a size that is refused, and
# what the explanation must contain.
PROGRAMS = [
    (
        "torch-flash-attention",
        """
import sys, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
q = torch.zeros(int(sys.argv[1]), 1, 16, 64, device="cuda", dtype=torch.float16)
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    try:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
""",
        60_000,
        70_000,
        ["flash_fwd", "grid.y is 70000 blocks", "libtorch_cuda.so"],
    ),
    (
        "triton",
        """
import sys, torch, triton, triton.language as tl
@triton.jit
def touch(out):
    tl.store(out + tl.program_id(1), 1.0)
out = torch.zeros(int(sys.argv[1]), device="cuda")
try:
    touch[(1, int(sys.argv[1]))](out)
    torch.cuda.synchronize()
except Exception as error:
    print(type(error).__name__)
""",
        60_000,
        70_000,
        ["touch", "grid.y is 70000 blocks"],
    ),
    (
        "cupy",
        """
import sys, cupy
kernel = cupy.RawKernel('extern "C" __global__ void touch_z(float *p) { p[blockIdx.z] = 1; }', "touch_z")
out = cupy.zeros(int(sys.argv[1]), dtype=cupy.float32)
try:
    kernel((1, 1, int(sys.argv[1])), (1,), (out,))
    cupy.cuda.runtime.deviceSynchronize()
except Exception as error:
    print(type(error).__name__)
""",
        60_000,
        70_000,
        ["touch_z", "grid.z is 70000 blocks"],
    ),
    (
        "numba",
        """
import sys, numpy
numpy.row_stack = getattr(numpy, "row_stack", numpy.vstack)
from numba import cuda
@cuda.jit
def touch_y(out):
    out[cuda.blockIdx.y] = 1
out = cuda.device_array(int(sys.argv[1]))
try:
    touch_y[(1, int(sys.argv[1])), 1](out)
    cuda.synchronize()
except Exception as error:
    print(type(error).__name__)
""",
        60_000,
        70_000,
        ["touch_y", "grid.y is 70000 blocks"],
    ),
]

CUDA = r"""
#include <cstdio>
#include <cstdlib>
__global__ void rows(float *p) { p[blockIdx.y] = 1; }
int main(int, char **words) {
    unsigned count = atoi(words[1]);
    float *p, sum = 0, *host = (float *)calloc(count, 4);
    cudaMalloc(&p, count * 4);
    cudaMemset(p, 0, count * 4);
    rows<<<dim3(1, count), 1>>>(p);
    cudaMemcpy(host, p, count * 4, cudaMemcpyDeviceToHost);
    for (unsigned i = 0; i < count; i++) sum += host[i];
    printf("sum %g\n", sum);
}
"""

# Varied work, in which nothing is refused: forward and backward, the profiler, data loaders that fork.
VARIED = """
import torch, torch.nn as nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset
data = DataLoader(TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))), 32, num_workers=2)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 900, 10))
model, step = model.cuda(), None
optimizer = torch.optim.Adam(model.parameters())
for images, labels in data:
    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
with profile(activities=[ProfilerActivity.CUDA]) as profiled:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda()
    layer(torch.randn(8, 32, 64, device="cuda")).sum().backward()
    torch.sort(torch.randn(1000, 1000, device="cuda")); torch.linalg.svd(torch.randn(64, 64, device="cuda"))
assert any(event.device_type.name == "CUDA" for event in profiled.events())
print("ended")
"""

ADDS = """
import time, torch
x = torch.zeros(1024, device="cuda")
for _ in range(2000): x.add_(1)
torch.cuda.synchronize()
begun = time.perf_counter()
for _ in range(20000): x.add_(1)
print((time.perf_counter() - begun) / 20000 * 1e6)
torch.cuda.synchronize()
"""


def run(command, preload=True):
    settings = {**os.environ, **({"LD_PRELOAD": LIBRARY} if preload else {})}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)


def check(name, command, good, refused, expected):
    """The failures of one program."""
    failures = []
    without = run([*command, str(good)], preload=False)
    with_it = run([*command, str(good)])
    if (without.returncode, without.stdout) != (with_it.returncode, with_it.stdout):
        failures.append(f"{name}: good case differs: {without} {with_it}")
    if "refused:" in with_it.stderr or not re.search(r"[1-9]\d* launch\w* of .* accepted, 0 refused", with_it.stderr):
        failures.append(f"{name}: good case: {with_it.stderr}")
    bad = run([*command, str(refused)])
    for text in ["gridguard: launch refused: CUDA_ERROR_INVALID_VALUE (1)", *expected]:
        if text not in bad.stderr:
            failures.append(f"{name}: no {text!r} in: {bad.stderr}")
    return failures


def main():
    failures, missing, done = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, text, good, refused, expected in PROGRAMS:
            path = os.path.join(folder, f"program-{name}.py")
            with open(path, "w") as file:
                file.write(text)
            module = name.split("-")[0]
            if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode:
                missing.append(name)
                continue
            failures += check(name, [sys.executable, path], good, refused, expected)
            done.append(name)
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        for runtime in ["static", "shared"] if os.path.exists(nvcc) else []:
            source, program = os.path.join(folder, "rows.cu"), os.path.join(folder, "rows-" + runtime)
            with open(source, "w") as file:
                file.write(CUDA)
            subprocess.run([nvcc, "-arch=native", "-cudart", runtime, "-o", program, source], check=True)
            failures += check("nvcc-" + runtime, [program], 60_000, 70_000, ["rows(float*)", "grid.y is 70000 blocks"])
            done.append("nvcc-" + runtime)
        report = {"passed": done, "missing": missing}
        if "triton" in done:
            varied = run([sys.executable, "-c", VARIED])
            if varied.stdout != "ended\n" or "launch refused" in varied.stderr:
                failures.append(f"varied work: {varied}")
            # Alternating, so that a drift of the machine meets both.
            rounds = [[float(run([sys.executable, "-c", ADDS], preload).stdout) for preload in (False, True)] for _ in range(7)]
            report["add_us"] = {"without": [one for one, _ in rounds], "with": [two for _, two in rounds]}
            report["add_ratio"] = statistics.median(two / one for one, two in rounds)
    print(json.dumps(report, indent=1))
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            file.write(json.dumps(report, indent=1) + "\n")
    print("\n".join(failures))
    sys.exit(1 if failures or not done else 0)


main()
