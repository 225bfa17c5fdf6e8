#!/usr/bin/env python3
"""Runs programs of machine code whose grid is too large under `--fix`, on a device, and checks what they write."""

# repaired.py LIBRARY REPORT.json
#
# Each program prints a digest of its output, once of one launch of 70,000 rows (or 65,536 pairs) with the library, and once
# of two launches of half as many without it. The digests must be equal, and the library must report the launch as fixed. Where a program's
# name does not say so, no variable is set but those of the library, and CUPY_CACHE_DIR: what CuPy finds in its cache has no
# PTX. Missing frameworks are listed. The run fails if all are missing.

import argparse
import collections
import concurrent.futures
import itertools
import os
import subprocess
import sys
import tempfile

import suite

ROWS = 70_000
# Of the two programs below that die at start-up with default sizes: 1,024 sequences of 64 heads, 8,192 tokens of 8 experts.
PAIRS = 65_536
WORKERS = 4

# How programs in Python end: `launch(first, rows)` is called once or twice, and `output()` returns bytes.
END = """
import hashlib, sys
rows = int(sys.argv[1])
try:
    for first in (0,) if sys.argv[2] == "whole" else (0, rows // 2):
        launch(first, rows if sys.argv[2] == "whole" else rows // 2)
    print(hashlib.sha256(output()).hexdigest())
except Exception as error:
    print(type(error).__name__)
"""

PYTHON = {
    "triton": """
import torch, triton, triton.language as tl
@triton.jit
def rows_of(out, first, BLOCK: tl.constexpr):
    row = first + tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    tl.store(out + row * BLOCK + columns, tl.sin(row * 0.37 + columns))
out = torch.zeros(70_000, 32, device="cuda")
def launch(first, rows):
    rows_of[(1, rows)](out, first, BLOCK=32)
def output():
    return out.cpu().numpy().tobytes()
""",
    "cupy": """
import cupy
kernel = cupy.RawKernel(r'''
__constant__ float scale[2] = {0.37f, 0.5f};
__device__ unsigned count;
extern "C" __global__ void rows_of(float *out, int first) {
    int row = first + blockIdx.z;
    out[row * 32 + threadIdx.x] = sinf(row * scale[0] + threadIdx.x * scale[1]);
    if (threadIdx.x == 0) atomicAdd(&count, 1);
}''', "rows_of")
out = cupy.zeros((70_000, 32), dtype=cupy.float32)
def launch(first, rows):
    kernel((1, 1, rows), (32,), (out, cupy.int32(first)))
def output():
    return out.get().tobytes()
""",
    "numba": """
import math, numpy
numpy.row_stack = getattr(numpy, "row_stack", numpy.vstack)
from numba import cuda
@cuda.jit
def rows_of(out, first):
    row = first + cuda.blockIdx.y
    out[row, cuda.threadIdx.x] = math.sin(row * 0.37 + cuda.threadIdx.x)
out = cuda.to_device(numpy.zeros((70_000, 32), dtype=numpy.float32))
def launch(first, rows):
    rows_of[(1, rows), 32](out, first)
def output():
    return out.copy_to_host().tobytes()
""",
    "torch.compile": """
import torch, triton, triton.language as tl
@triton.jit
def rows_of(out, first, BLOCK: tl.constexpr):
    row = first + tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    tl.store(out + row * BLOCK + columns, row * 0.5 + columns)
out = torch.zeros(70_000, 32, device="cuda")
def launch(first, rows):
    torch.compile(lambda: rows_of[(1, rows)](out, first, BLOCK=32))()
def output():
    return (out * 2).cpu().numpy().tobytes()
""",
}

# As vLLM's fused recurrent kernel of GLM (vllm#56973): sequences x heads on z, in the first graph that is captured.
PYTHON["triton, sequences x heads in a graph"] = """
import torch, triton, triton.language as tl
@triton.jit
def recurrent(q, out, first, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    pair = (first + tl.program_id(2)).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    state = tl.zeros((BLOCK,), tl.float32)
    for step in range(4):
        state = state * 0.5 + tl.load(q + pair // HEADS * BLOCK + columns) * (pair % HEADS + step)
    tl.store(out + pair * BLOCK + columns, state)
q = torch.arange(1024 * 32, device="cuda", dtype=torch.float32).sin()
out = torch.zeros(65_536, 32, device="cuda")
recurrent[(1, 1, 1)](q, out, 0, HEADS=64, BLOCK=32)
def launch(first, rows):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recurrent[(1, 1, rows)](q, out, first, HEADS=64, BLOCK=32)
    graph.replay()
    torch.cuda.synchronize()
def output():
    return out.cpu().numpy().tobytes()
"""

# As the product of quantized experts in vLLM's plugin for GGUF (vllm-gguf-plugin#125): tokens x experts on z, and no check.
EXPERTS = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
struct Block { float scale; signed char values[32]; };
__global__ void multiply(const Block *experts, const float *in, float *out, int each, int first) {
    int pair = first + blockIdx.z, expert = pair * 7 % 16;
    const Block &block = experts[expert * gridDim.x + blockIdx.x];
    float sum = block.scale * block.values[threadIdx.x] * in[pair / each * 32 + threadIdx.x];
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x == 0) out[pair * gridDim.x + blockIdx.x] = sum;
}
#define OK(call) do { cudaError_t error = call; if (error) { printf("%s\n", cudaGetErrorString(error)); exit(1); } } while (0)
int main(int, char **words) {
    const int rows = 4, pairs = atoi(words[1]), launches = strcmp(words[2], "whole") ? 2 : 1;
    std::vector<Block> experts(16 * rows);
    std::vector<float> in(pairs / 8 * 32), out(pairs * rows);
    for (size_t i = 0; i < experts.size() * 32; i++) experts[i / 32].values[i % 32] = i * 37, experts[i / 32].scale = 0.01f * (i / 32);
    for (size_t i = 0; i < in.size(); i++) in[i] = i % 101 * 0.1f;
    Block *experts_there;
    float *in_there, *out_there;
    OK(cudaMalloc(&experts_there, experts.size() * sizeof(Block)));
    OK(cudaMalloc(&in_there, in.size() * 4));
    OK(cudaMalloc(&out_there, out.size() * 4));
    OK(cudaMemcpy(experts_there, experts.data(), experts.size() * sizeof(Block), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(in_there, in.data(), in.size() * 4, cudaMemcpyHostToDevice));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < launches; i++)
        multiply<<<dim3(rows, 1, pairs / launches), 32, 0, stream>>>(experts_there, in_there, out_there, 8, i * pairs / launches);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&replay, graph, 0));
    OK(cudaGraphLaunch(replay, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(out.data(), out_there, out.size() * 4, cudaMemcpyDeviceToHost));
    unsigned long long digest = 0xcbf29ce484222325;
    for (float value : out) digest = (digest ^ *(unsigned *)&value) * 0x100000001b3;
    printf("%llx\n", digest);
}
"""

# Launches by the runtime, with variables that the host sets, captured, or between kernels that overlap it.
CUDA = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
__constant__ float scale[2];
__device__ unsigned count, sizes;
__device__ float table[32];
__global__ void slowly(float *in, int rows) {
    cudaTriggerProgrammaticLaunchCompletion();
    for (int i = 0; i < 20000; i++) asm volatile("nanosleep.u32 100;");
    for (int row = threadIdx.x; row < rows; row += blockDim.x) in[row] = row;
}
__global__ void rows_of(float *out, const float *in, int first) {
    cudaGridDependencySynchronize();
    int row = first + blockIdx.y;
#if __CUDA_ARCH__ == 800
    if (row % 4) return; /* as for another number of rows in a block */
#endif
    out[row * 32 + threadIdx.x] = sinf(in[row] * scale[0] + table[threadIdx.x]) * scale[1];
    if (threadIdx.x == 0) atomicAdd(&count, 1);
    cudaTriggerProgrammaticLaunchCompletion();
}
__global__ void checks(unsigned *seen) {
    cudaGridDependencySynchronize();
    *seen = count;
}
#define OK(call) do { cudaError_t error = call; if (error) { printf("%s\n", cudaGetErrorString(error)); exit(1); } } while (0)
int main(int count, char **words) {
    int rows = atoi(words[1]), launches = strcmp(words[2], "whole") ? 2 : 1, repeats = count > 4 ? atoi(words[4]) : 1;
    bool captured = !strcmp(words[3], "captured"), dependent = !strcmp(words[3], "dependent");
    float *out, *in, values[2] = {0.37f, 2}, entries[32];
    unsigned *seen, counted;
    for (int i = 0; i < 32; i++) entries[i] = i * 0.25f;
    OK(cudaMalloc(&out, rows * 128));
    OK(cudaMalloc(&in, rows * 4));
    OK(cudaMalloc(&seen, 4));
    OK(cudaMemset(in, 0xff, rows * 4));
    OK(cudaMemcpyToSymbol(scale, values, sizeof values));
    OK(cudaMemcpyToSymbol(table, entries, sizeof entries));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (captured) OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    slowly<<<1, 128, 0, stream>>>(in, rows);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1, rows / launches);
    config.blockDim = dim3(32);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = dependent;
    for (int i = 0; i < repeats * launches; i++)
        OK(cudaLaunchKernelEx(&config, rows_of, out, (const float *)in, i % launches * rows / launches));
    config.gridDim = dim3(1);
    config.blockDim = dim3(1);
    OK(cudaLaunchKernelEx(&config, checks, seen));
    if (captured) {
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphInstantiate(&replay, graph, 0));
        values[1] = 4; /* the graph reads the constant when it is launched */
        OK(cudaMemcpyToSymbol(scale, values, sizeof values));
        OK(cudaGraphLaunch(replay, stream));
    }
    OK(cudaStreamSynchronize(stream));
    std::vector<unsigned char> bytes(rows * 128);
    OK(cudaMemcpy(bytes.data(), out, bytes.size(), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&counted, seen, 4, cudaMemcpyDeviceToHost));
    unsigned long long digest = 0xcbf29ce484222325;
    for (unsigned char byte : bytes) digest = (digest ^ byte) * 0x100000001b3;
    printf("%llx %u\n", digest, counted);
}
"""

# The driver alone, with NVRTC, or with a compiler that it calls and the cubin that it writes.
NVRTC = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda.h>
#include <nvrtc.h>
static const char *SOURCE = "extern \"C\" __global__ void rows_of(float *out, int first) {"
    " int row = first + blockIdx.y; out[row * 32 + threadIdx.x] = sinf(row * 0.37f + threadIdx.x); }";
#define OK(call) do { int error = call; if (error) { printf("%s: %d\n", #call, error); exit(1); } } while (0)
static std::vector<char> compiled() {
    int major, minor;
    nvrtcProgram program;
    size_t size;
    char option[32];
    OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    snprintf(option, sizeof option, "-arch=sm_%d%d", major, minor);
    const char *options[] = {option, getenv("NVRTC_OPTION")};
    OK(nvrtcCreateProgram(&program, SOURCE, "rows.cu", 0, nullptr, nullptr));
    OK(nvrtcCompileProgram(program, options[1] ? 2 : 1, options));
    OK(nvrtcGetCUBINSize(program, &size));
    std::vector<char> cubin(size);
    OK(nvrtcGetCUBIN(program, cubin.data()));
    OK(nvrtcDestroyProgram(&program));
    return cubin;
}
static std::vector<char> assembled(const char *command, const char *source, const char *path) {
    FILE *file = fopen(source, "w");
    OK(!file || fputs(SOURCE, file) < 0 || fclose(file) || system(command));
    std::vector<char> cubin(1 << 20);
    file = fopen(path, "r");
    OK(!file || !fread(cubin.data(), 1, cubin.size(), file) || fclose(file) || remove(path));
    return cubin;
}
int main(int count, char **words) {
    int rows = atoi(words[1]), launches = strcmp(words[2], "whole") ? 2 : 1;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr out;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    std::vector<char> cubin = count > 3 ? assembled(words[3], words[4], words[5]) : compiled();
    OK(cuModuleLoadData(&module, cubin.data()));
    OK(cuModuleGetFunction(&kernel, module, "rows_of"));
    OK(cuMemAlloc(&out, rows * 128));
    for (int i = 0; i < launches; i++) {
        int first = i * rows / launches;
        void *arguments[] = {&out, &first};
        OK(cuLaunchKernel(kernel, 1, rows / launches, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    }
    std::vector<unsigned char> bytes(rows * 128);
    OK(cuMemcpyDtoH(bytes.data(), out, bytes.size()));
    unsigned long long digest = 0xcbf29ce484222325;
    for (unsigned char byte : bytes) digest = (digest ^ byte) * 0x100000001b3;
    printf("%llx\n", digest);
}
"""

# Blocks that exchange values within clusters of two.
CLUSTERS = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
__global__ void __cluster_dims__(1, 2, 1) rows_of(float *out, int first) {
    __shared__ float value;
    int row = first + blockIdx.y;
    if (threadIdx.x == 0) value = sinf(row * 0.37f);
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    float *other = (float *)__cluster_map_shared_rank(&value, __clusterRelativeBlockRank() ^ 1);
    out[row * 32 + threadIdx.x] = *other + threadIdx.x;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
}
#define OK(call) do { cudaError_t error = call; if (error) { printf("%s\n", cudaGetErrorString(error)); exit(1); } } while (0)
int main(int, char **words) {
    int rows = atoi(words[1]), launches = strcmp(words[2], "whole") ? 2 : 1;
    float *out;
    OK(cudaMalloc(&out, rows * 128));
    for (int i = 0; i < launches; i++) {
        rows_of<<<dim3(1, rows / launches), 32>>>(out, i * rows / launches);
        OK(cudaGetLastError());
    }
    std::vector<unsigned char> bytes(rows * 128);
    OK(cudaMemcpy(bytes.data(), out, bytes.size(), cudaMemcpyDeviceToHost));
    unsigned long long digest = 0xcbf29ce484222325;
    for (unsigned char byte : bytes) digest = (digest ^ byte) * 0x100000001b3;
    printf("%llx\n", digest);
}
"""

# A custom call of JAX, whose library has PTX beside its machine code.
JAX_LIBRARY = r"""
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
__global__ void rows_of(float *out, int first) {
    out[(first + blockIdx.y) * 32 + threadIdx.x] = sinf((first + blockIdx.y) * 0.37f + threadIdx.x);
}
static ffi::Error launch(cudaStream_t stream, int64_t launches, ffi::Result<ffi::Buffer<ffi::F32>> out) {
    int rows = out->element_count() / 32 / launches;
    for (int i = 0; i < launches; i++) rows_of<<<dim3(1, rows), 32, 0, stream>>>(out->typed_data(), i * rows);
    cudaError_t error = cudaGetLastError();
    return error ? ffi::Error::Internal(cudaGetErrorString(error)) : ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    call_rows, launch,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Attr<int64_t>("launches").Ret<ffi::Buffer<ffi::F32>>());
"""
JAX = """
import ctypes, hashlib, os, sys
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax, numpy
library = ctypes.CDLL(sys.argv[3])
jax.ffi.register_ffi_target("rows", jax.ffi.pycapsule(library.call_rows), platform="CUDA")
call = jax.ffi.ffi_call("rows", jax.ShapeDtypeStruct((int(sys.argv[1]), 32), jax.numpy.float32))
try:
    out = call(launches=numpy.int64(1 if sys.argv[2] == "whole" else 2))
    print(hashlib.sha256(numpy.asarray(out).tobytes()).hexdigest())
except Exception as error:
    print(type(error).__name__)
"""


def run(command, folder, reports=None):
    """Run a program, with the library if there is a folder for its reports."""
    settings = {"CUPY_CACHE_DIR": os.path.join(folder, "cupy")}
    if reports:
        name, kept = (os.path.join(reports, name) for name in ("report.json", "kept"))
        settings |= {"LD_PRELOAD": options.library, "GRIDGUARD_RUN_FIX": "1", "GRIDGUARD_RUN_REPORT": name}
        settings |= {"GRIDGUARD_RUN_PTX": kept}
        os.mkdir(kept)
    return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)


# `refused` is the reason that must be given instead of a repair, `fixed` the launches to repair. There is no command if
# something is missing.
Program = collections.namedtuple("Program", "name command more refused fixed rows", defaults=(None, (), None, 1, ROWS))


def check(program, folder):
    """Return the failures of a program."""
    name, command, more, refused, fixed, rows = program
    reports = tempfile.mkdtemp(dir=folder)
    whole = run([*command, str(rows), "whole", *more], folder, reports)
    if refused:
        return [] if refused in whole.stderr else [f"{name}: no {refused!r} in {whole.stderr}"]
    halves = run([*command, str(rows), "halves", *more], folder)
    if halves.returncode or whole.returncode or halves.stdout != whole.stdout or "launch refused" in whole.stderr:
        return [f"{name}: {halves} {whole}"]
    launches = sum(one["fixed"] for one in suite.merged(reports, "report"))
    return [] if launches == fixed else [f"{name}: {launches} launches are fixed: {whole}"]


def programs(folder):
    """Write and compile the programs. Those of a list run one after another."""
    for name, text in PYTHON.items():
        needed = {"cupy": ["cupy"], "numba": ["numba"]}.get(name, ["torch", "triton"])
        if not suite.has(*needed):
            yield [Program(name)]
            continue
        # A file with the name of a module would hide that module.
        path = os.path.join(folder, f"program-{name}.py")
        with open(path, "w") as file:
            file.write(text + END)
        ordered = [Program(name, [sys.executable, path], rows=PAIRS if "heads" in name else ROWS)]
        if name == "cupy":
            # The run before has filled the cache.
            cached = Program("cupy, cached", [sys.executable, path], refused="CuPy took its machine code from its cache")
            in_memory = ["env", "CUPY_CACHE_IN_MEMORY=1", sys.executable, path]
            ordered += [cached, Program("cupy, cached, and compiled again", in_memory)]
            ordered += [Program("cupy, PTX", ["env", "CUPY_COMPILE_WITH_PTX=1", *in_memory[1:]])]
        yield ordered
    if not suite.has_nvcc():
        yield [Program("nvcc")]
        return
    arch = "-arch=sm_" + suite.query("compute_cap")[0].replace(".", "")
    for runtime in ("static", "shared"):
        experts = suite.build(folder, "experts-" + runtime, EXPERTS, arch, "-cudart", runtime)
        yield [Program(f"nvcc-{runtime}, tokens x experts in a graph", [experts], rows=PAIRS)]
        program = suite.build(folder, "rows-" + runtime, CUDA, arch, "-cudart", runtime)
        for how in ("plain", "captured", "dependent"):
            yield [Program(f"nvcc-{runtime}, {how}", [program], (how,))]
        yield [Program(f"nvcc-{runtime}, 1,000 in a graph", [program], ("captured", "1000"), fixed=1000)]
        # The driver compiles the PTX beside the machine code.
        yield [Program(f"nvcc-{runtime}, PTX forced", ["env", "CUDA_FORCE_PTX_JIT=1", program], ("plain",))]
        options_of_ptx = ["-arch=compute_90", "-code=compute_90", "-cudart", runtime]
        program = suite.build(folder, "ptx-" + runtime, CUDA, *options_of_ptx)
        for loading, how in itertools.product(("LAZY", "EAGER"), ("plain", "captured")):
            command = ["env", f"CUDA_MODULE_LOADING={loading}", program]
            yield [Program(f"nvcc-{runtime}, PTX, {loading.lower()}, {how}", command, (how,))]
    for mode in ("speed", "none"):
        program = suite.build(folder, "rows-" + mode, CUDA, arch, "-compress-mode=" + mode)
        yield [Program(f"nvcc, compression for {mode}", [program], ("plain",))]
    program = suite.build(folder, "rows-native", CUDA, "-arch=native")
    yield [Program("nvcc -arch=native", [program], ("plain",), "its fat binary has machine code without PTX")]
    # Machine code whose PTX is not that of its own compilation.
    of_code = f"arch={arch.removeprefix('-arch=').replace('sm', 'compute')},code={arch.removeprefix('-arch=')}"
    program = suite.build(folder, "rows-two", CUDA, "-gencode", of_code, "-gencode", "arch=compute_80,code=compute_80")
    of_another = "no PTX of the compilation that made its code"
    yield [Program("nvcc, PTX of another architecture", [program], ("plain",), of_another)]
    program = suite.build(folder, "rows-option", CUDA, arch, "-Xptxas=-O1")
    yield [Program("nvcc, an option of ptxas", [program], ("plain",), "an option that the driver does not apply")]
    program = suite.build(folder, "nvrtc", NVRTC, "-lnvrtc", "-lcuda")
    yield [Program("nvrtc", [program])]
    with_option = ["env", "NVRTC_OPTION=--ptxas-options=--fmad=false", program]
    yield [Program("nvrtc, an option of ptxas", with_option, refused="an option that the driver does not apply")]
    source, cubin = (os.path.join(folder, "child." + ending) for ending in ("cu", "cubin"))
    child = f"{suite.NVCC} {arch} --cubin -o {cubin} {source}"
    yield [Program("nvcc --cubin, as a child", [program], (child, source, cubin))]
    # The second ptxas fails and leaves the machine code of the first.
    source, ptx, cubin = (os.path.join(folder, "failed." + ending) for ending in ("cu", "ptx", "cubin"))
    ptxas = f"{os.path.join(os.path.dirname(suite.NVCC), 'ptxas')} {arch} -o {cubin} {ptx}"
    failing = f"sed -i 's/sin/cos/; $a unknown;' {ptx} && ! {ptxas} && test -s {cubin}"
    child = f"{suite.NVCC} {arch} --ptx -o {ptx} {source} && {ptxas} && {failing}"
    yield [Program("ptxas that fails, as a child", [program], (child, source, cubin))]
    yield [Program("nvcc, clusters", [suite.build(folder, "clusters", CLUSTERS, arch)])]
    library = suite.build_for_jax(folder, JAX_LIBRARY, arch)
    yield [Program("jax", [sys.executable, "-c", JAX], (library,)) if library else Program("jax")]


def main():
    done, missing, failures = [], [], []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(WORKERS) as workers:
        # Programs run while others are compiled.
        checked = lambda ordered: [(program, program.command and check(program, folder)) for program in ordered]
        for running in [workers.submit(checked, ordered) for ordered in programs(folder)]:
            for program, found in running.result():
                if found is None:
                    missing.append(program.name)
                elif found:
                    failures += found
                else:
                    done.append(program.name)
    suite.finish(options.report, {"passed": done, "missing": missing, "failed": len(failures)}, failures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("report")
    options = parser.parse_args()
    main()
