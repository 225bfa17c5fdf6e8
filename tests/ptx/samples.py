#!/usr/bin/env python3
"""Writes the PTX of kernels that other projects' compilers make: samples.py triton|liger|cupy|numba FOLDER.

Needs no GPU, but the project's package. For CuPy it writes a source, which nvcc compiles with CuPy's include folder:

    nvcc -ptx -arch=sm_80 -I cupy/_core/include -o FOLDER/elementwise.ptx FOLDER/elementwise.cu

The kernels have the patterns of each project's tutorials and operators: elementwise, strided, row-wise,
reductions and products. Liger's kernels are its own: its functions run on the host, and each kernel that they
launch is compiled for sm_90 instead.
"""
import pathlib
import sys

project, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)


def write(name, text):
    (folder / f"{name}.ptx").write_text(text)


def numba_samples():
    from numba import cuda, float32, float64, int32, int64, types, void

    def vector(kind, dimensions, layout="C"):
        return types.Array(kind, dimensions, layout)

    def add(out, a, b):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[i] + b[i]

    def scale(out, a, factor):
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            out[i] = a[i] * factor

    def transpose(out, a):
        x, y = cuda.grid(2)
        if x < a.shape[0] and y < a.shape[1]:
            out[y, x] = a[x, y]

    def product(out, a, b):
        i, j = cuda.grid(2)
        if i < out.shape[0] and j < out.shape[1]:
            total = 0.0
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total

    def row_sum(out, a):
        row = cuda.blockIdx.x
        for column in range(cuda.threadIdx.x, a.shape[1], cuda.blockDim.x):
            cuda.atomic.add(out, row, a[row, column])

    def flat(out, a, pitch):
        i = int32(cuda.blockIdx.y) * int32(pitch) + int32(cuda.threadIdx.x)
        out[i] = a[i]

    def gather(out, a, rows):
        i, j = cuda.grid(2)
        if i < rows.size and j < a.shape[1]:
            out[i, j] = a[rows[i], j]

    def stencil(out, a):
        x, y, z = cuda.grid(3)
        if 0 < x < a.shape[0] - 1 and y < a.shape[1] and z < a.shape[2]:
            out[x, y, z] = a[x - 1, y, z] + a[x + 1, y, z]

    one, two, three = vector(float32, 1), vector(float32, 2), vector(float32, 3)
    strided = vector(float64, 2, "A")
    samples = [
        (add, (one, one, one)), (scale, (one, one, float32)), (transpose, (two, two)), (product, (two, two, two)),
        (row_sum, (one, two)), (flat, (one, one, int64)), (gather, (two, two, vector(int64, 1))), (stencil, (three, three)),
    ]
    for function, types_ in samples:
        write(function.__name__, cuda.compile_ptx(function, void(*types_), cc=(8, 0))[0])
    for function in (transpose, product):
        ptx = cuda.compile_ptx(function, void(*[strided] * function.__code__.co_argcount), cc=(8, 0))[0]
        write(f"{function.__name__}_strided", ptx)


def cupy_samples():
    # Sources over CuPy's own array and indexer, as its elementwise kernels use them.
    operations = {"add": "x + y", "multiply": "x * y", "maximum": "x > y ? x : y"}
    text = "#include <cupy/complex.cuh>\n#include <cupy/carray.cuh>\n"
    for operation, formula in operations.items():
        for kind in ("float", "int", "double", "char"):
            for dimensions in range(1, 5):
                for wide in (0, 1):
                    array = f"CArray<{kind}, {dimensions}, {int(dimensions == 1)}, {1 - wide}>"
                    text += f"""extern "C" __global__ void cupy_{operation}_{kind}_{dimensions}_{wide}({array} _x, {array} _y, {array} _out,
        CIndexer<{dimensions}, {1 - wide}> _ind) {{
    CUPY_FOR(i, _ind.size()) {{
        _ind.set(i);
        const {kind} x = _x[_ind.get()], y = _y[_ind.get()];
        _out[_ind.get()] = {formula};
    }}
}}
"""
    (folder / "elementwise.cu").write_text(text)


def triton_samples():
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

    @triton.jit
    def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        value = tl.load(x + row * stride + at, at < columns, -float("inf"))
        value = tl.exp(value - tl.max(value, 0))
        tl.store(out + row * stride + at, value / tl.sum(value, 0), at < columns)

    @triton.jit
    def softmax_wide(x, out, stride, columns, BLOCK: tl.constexpr):
        row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
        value = tl.load(x + row * stride + at, at < columns, -float("inf"))
        value = tl.exp(value - tl.max(value, 0))
        tl.store(out + row * stride + at, value / tl.sum(value, 0), at < columns)

    @triton.jit
    def layer_norm(x, weight, out, stride, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        total = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, columns, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            total += tl.load(x + row * stride + at, at < columns, 0.0)
        mean = tl.sum(total, 0) / columns
        for begin in range(0, columns, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            value = tl.load(x + row * stride + at, at < columns, 0.0) - mean
            tl.store(out + row * stride + at, value * tl.load(weight + at, at < columns), at < columns)

    @triton.jit
    def matmul(a, b, c, m, n, k, am, bk, cm, BLOCK: tl.constexpr):
        rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inner = tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for begin in range(0, k, BLOCK):
            left = tl.load(a + rows[:, None] * am + begin + inner[None, :], rows[:, None] < m, 0.0)
            right = tl.load(b + (begin + inner[:, None]) * bk + columns[None, :], columns[None, :] < n, 0.0)
            total += tl.dot(left, right)
        is_in = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(c + rows[:, None] * cm + columns[None, :], total, is_in)

    @triton.jit
    def batched(x, out, stride_b, stride_h, stride_t, T, BLOCK: tl.constexpr):
        batch, head, tile = tl.program_id(2), tl.program_id(1), tl.program_id(0)
        at = tile * BLOCK + tl.arange(0, BLOCK)
        where = batch * stride_b + head * stride_h + at * stride_t
        tl.store(out + where, tl.load(x + where, at < T), at < T)

    @triton.jit
    def gather(x, rows, out, stride, columns, BLOCK: tl.constexpr):
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        source = tl.load(rows + row)
        tl.store(out + row * stride + at, tl.load(x + source * stride + at, at < columns), at < columns)

    for kernel, pointers in ((add, 3), (softmax, 2), (softmax_wide, 2), (layer_norm, 3), (matmul, 3), (batched, 2), (gather, 3)):
        for block in (64, 128):
            signature = {}
            for place, name in enumerate(kernel.arg_names):
                signature[name] = "constexpr" if name == "BLOCK" else "*fp32" if place < pointers else "i32"
            if kernel is gather:
                signature["rows"] = "*i32"
            source = ASTSource(kernel, signature, constexprs={"BLOCK": block})
            write(f"{kernel.fn.__name__}_{block}", triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"])


def liger_samples():
    import importlib
    import types

    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    class Host:
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, _device=None):
            return 0

        def get_active_torch_device(self):
            return torch.device("cpu")

    compile_or_launch = triton.runtime.JITFunction.run

    def compile_only(self, *arguments, grid, warmup, **options):
        made = compile_or_launch(self, *arguments, grid=grid, warmup=True, **options)
        write(f"{made.name}-{made.hash[:12]}", made.asm["ptx"])
        return made

    triton.runtime.driver.set_active(Host())
    triton.runtime.JITFunction.run = compile_only
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=132)
    rows, columns, words = 64, 1024, 4096

    def call(module, function, *arguments):
        getattr(importlib.import_module(f"liger_kernel.ops.{module}"), function)(*arguments)

    for kind in (torch.float32, torch.bfloat16):
        def empty(*sizes):
            return torch.empty(sizes, dtype=kind)

        x, weight, scores, heads = empty(rows, columns), empty(columns), empty(rows, words), empty(2, 4, 64, 64)
        targets = torch.zeros(rows, dtype=torch.int64)
        call("rms_norm", "rms_norm_forward", x, weight, 1e-6, 0.0, "llama", None)
        call("fused_add_rms_norm", "fused_add_rms_norm_forward", x, x, weight, 1e-6, 0.0, "llama")
        call("layer_norm", "layer_norm_forward", x, weight, weight, 1e-6)
        call("group_norm", "group_norm_forward", empty(4, 64, 256), 64, 8, empty(64), empty(64), 1e-6)
        for gated in ("geglu", "swiglu"):
            call(gated, f"{gated}_forward", x, x)
            call(gated, f"{gated}_backward", x, x, x)
        call("dyt", "liger_dyt_fwd", x, empty(1), weight, weight)
        call("softmax", "_softmax_forward", x)
        call("sparsemax", "_sparsemax_forward", x, -1)
        call("jsd", "jsd_forward", scores, scores, None, 0.5, -100, False)
        call("kl_div", "kldiv_forward_triton", scores, scores, False, "batchmean", 1e-10)
        call("tvd", "tv_distance_forward_triton", scores, scores, None, "batchmean", -100, False)
        call("cross_entropy", "cross_entropy_forward", scores, targets, None, -100, 0.0, 0.1, "mean", None, False)
        rotation = empty(1, 64, 128)
        call("rope", "rope_forward", empty(2, 8, 64, 128), empty(2, 2, 64, 128), rotation, rotation)
        call("multi_token_attention", "_mask_inf_forward", heads)
        call("fused_neighborhood_attention", "fused_neighborhood_attention_forward", heads, heads, heads)


{"triton": triton_samples, "liger": liger_samples, "cupy": cupy_samples, "numba": numba_samples}[project]()
