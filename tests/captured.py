#!/usr/bin/env python3
"""Captures launches of programs on a device, and replays them."""

# captured.py GRIDGUARD REPORT.json
#
# Each program launches a kernel several times, and prints a digest of what it wrote. With `--capture` the digest must be
# the same, and the replay must reproduce the captured launch: its default is compared byte for byte. Replays state what
# they try and gain. One program has a table of pointers, one updates its memory in place. Missing frameworks are listed. The
# run fails if all are missing.

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

CUDA = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>
__constant__ float scale[2];
__device__ unsigned calls;
// Each row is reached through a table of pointers.
__global__ void gather(float *out, const float *const *rows, int columns) {
    int row = blockIdx.y;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < columns; i += gridDim.x * blockDim.x)
        out[row * columns + i] = rows[row][i] * scale[0] + scale[1];
    if (!row && !blockIdx.x && !threadIdx.x) calls++;
}
// In place, and one thread for each element: any block of one dimension does.
__global__ void grow(float *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = values[i] * 1.5f + 1;
}
#define OK(call) do { cudaError_t error = call; if (error) { printf("%s\n", cudaGetErrorString(error)); exit(1); } } while (0)
int main() {
    const int rows = 64, columns = 1 << 16;
    float *out, *data[rows], **table, values[2] = {2, 0.5f};
    std::vector<float> host(columns);
    OK(cudaMalloc(&out, sizeof(float) * rows * columns));
    OK(cudaMalloc(&table, sizeof data));
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < columns; i++) host[i] = row + i * 0.25f;
        OK(cudaMalloc(&data[row], sizeof(float) * columns));
        OK(cudaMemcpy(data[row], host.data(), sizeof(float) * columns, cudaMemcpyHostToDevice));
    }
    OK(cudaMemcpy(table, data, sizeof data, cudaMemcpyHostToDevice));
    OK(cudaMemcpyToSymbol(scale, values, sizeof values));
    for (int launch = 0; launch < 3; launch++) {
        gather<<<dim3(16, rows), 256>>>(out, table, columns);
        grow<<<(rows * columns + 255) / 256, 256>>>(out, rows * columns);
    }
    OK(cudaDeviceSynchronize());
    std::vector<float> all(rows * columns);
    OK(cudaMemcpy(all.data(), out, sizeof(float) * all.size(), cudaMemcpyDeviceToHost));
    unsigned long long digest = 1469598103934665603ULL;
    for (float value : all) digest = (digest ^ *(unsigned *)&value) * 1099511628211ULL;
    printf("%llx\n", digest);
}
"""

TRITON = """
import hashlib, torch, triton, triton.language as tl
@triton.jit
def scaled(out, x, factor, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count) * factor, mask=at < count)
x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
out = torch.zeros_like(x)
for factor in (1.5, 2.5, 3.5):
    scaled[(1 << 10,)](out, x, factor, x.numel(), BLOCK=1024)
print(hashlib.sha256(out.cpu().numpy().tobytes()).hexdigest())
"""

TORCH = """
import hashlib, torch
x = torch.arange(1 << 20, device="cuda", dtype=torch.float32).view(1024, 1024)
for _ in range(3):
    y = torch.softmax(x * 0.001, dim=1)
print(hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest())
"""


def run(command, environment=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def kernel_of(gridguard, program, folder, wanted):
    """The mangled name of the program's kernel with `wanted` in its name."""
    report = os.path.join(folder, "report.json")
    ran = run([gridguard, "run", "--quiet", "--report", report, "--", *program])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with open(report) as file:
        names = [one["name"] for one in json.load(file)["kernels"]]
    found = [name for name in names if wanted in name]
    assert found, (wanted, names)
    return found[0]


MOVED = "and cannot be placed at the addresses that it had"


def captured(gridguard, program, folder, wanted, number):
    """Captures a launch and replays it. Returns a row for the report, and whether all is right."""
    file = os.path.join(folder, f"{wanted}.tar")
    plain = run(program)
    kernel = kernel_of(gridguard, program, folder, wanted)
    kept = run([gridguard, "run", "--quiet", "--capture", f"{kernel}:{number}", "--capture-to", file, "--", *program])
    row = {"kernel": kernel, "number": number, "same_output": kept.stdout == plain.stdout, "said": kept.stderr.splitlines()}
    if not os.path.exists(file):
        return row, False
    row["file_bytes"] = os.path.getsize(file)
    replayed = run([gridguard, "tune", "--replay", file, "--budget", "60s", "--all"])
    row["replay"] = replayed.stdout.splitlines()
    row["notes"] = replayed.stderr.splitlines()
    # The driver may not give memory at the addresses of the capture. Then a table of pointers cannot be replayed.
    row["replayed"] = MOVED not in replayed.stderr
    told = replayed.returncode in (0, 1) and "gain: " in replayed.stdout
    return row, row["same_output"] and plain.returncode == 0 and (told or not row["replayed"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gridguard")
    parser.add_argument("report")
    options = parser.parse_args()
    gridguard = os.path.abspath(options.gridguard)
    rows, missing, right = [], [], True
    with tempfile.TemporaryDirectory() as folder:
        programs = []
        nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
        if nvcc:
            source, program = os.path.join(folder, "gather.cu"), os.path.join(folder, "gather")
            with open(source, "w") as file:
                file.write(CUDA)
            subprocess.run([nvcc, "-arch=sm_90", "-o", program, source], check=True)
            programs += [([program], "gather", 2), ([program], "grow", 3)]
        else:
            missing.append("nvcc")
        for name, text, kernel in (("triton", TRITON, "scaled"), ("torch", TORCH, "softmax")):
            if run([sys.executable, "-c", f"import {name}"]).returncode:
                missing.append(name)
                continue
            path = os.path.join(folder, f"{name}_program.py")
            with open(path, "w") as file:
                file.write(text)
            programs.append(([sys.executable, path], kernel, 2))
        for program, kernel, number in programs:
            row, fine = captured(gridguard, program, folder, kernel, number)
            rows.append(row)
            right &= fine
            print("right" if fine else "WRONG", json.dumps(row, indent=1))
    # The output names no path of the machine.
    text = json.dumps({"missing": missing, "captured": rows}, indent=1).replace(folder, "FOLDER")
    with open(options.report, "w") as file:
        file.write(text + "\n")
    print("missing:", missing)
    sys.exit(0 if right and rows else 1)


if __name__ == "__main__":
    main()
