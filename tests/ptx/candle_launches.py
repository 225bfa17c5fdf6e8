"""Launches of candle-kernels' entries: a grid, a block and arguments for each, from its name."""

# An entry has one launch or more, in a small size for comparisons and a large one for timing.

import dataclasses
import re

import numpy as np

# What an output holds before each launch, unless the entry adds to it.
PATTERN = 0x5A
OUTPUT_BYTES = 64 << 20
NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "f8_e4m3": np.uint8,
         "u8": np.uint8, "u32": np.uint32, "i16": np.int16, "i32": np.int32, "i64": np.int64}
TYPE = "(fp8_e4m3|f8_e4m3|bf16|f16|f32|f64|u8|u32|i64|i32|i16)"
# 3 in each type that NumPy lacks, as bits.
THREE = {"bf16": 0x4040, "f8_e4m3": 0x44}
# Bytes of a quantized block.
BLOCK_BYTES = {"q2_K": 84, "q3_K": 110, "q4_K": 144, "q5_K": 176, "q6_K": 210, "q8_K": 292,
               "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "q8_1": 36}
# Not a multiple of a block's elements, and still work for every block where a thread takes eight elements.
SMALL, SMALL_DIMS = 42_629, (47, 907)


@dataclasses.dataclass
class Input:
    array: np.ndarray


@dataclasses.dataclass
class Output:
    """`start` are its bytes before each launch; the pattern by default."""
    bytes: int
    start: np.ndarray | None = None


NULL = np.uint64(0)


@dataclasses.dataclass
class Launch:
    what: str
    grid: tuple
    block: tuple
    arguments: list
    shared: int = 0

    @property
    def output(self):
        return next(one for one in self.arguments if isinstance(one, Output))

    def layout(self):
        """The offset of each argument, and the bytes of all."""
        offsets, end = [], 0
        for argument in self.arguments:
            size = argument.itemsize if isinstance(argument, np.generic) else 8
            offset = -(-end // size) * size
            offsets.append(offset)
            end = offset + size
        return offsets, end


def width(kind):
    return np.dtype(NUMPY[kind]).itemsize


def values(kind, count, seed=1, whole=False, below=None):
    """The same numbers in each run: of the whole range of an integer type or `below`, else from -4 to 4."""
    random, drawn = np.random.default_rng(seed), min(count, 1 << 20)
    if below is not None:
        array = random.integers(0, below, drawn).astype(NUMPY[kind])
    elif kind == "f8_e4m3" or kind[0] in "ui":
        array = np.frombuffer(random.bytes(drawn * width(kind)), NUMPY[kind])
    else:
        numbers = random.integers(0, 4, drawn) if whole else random.uniform(-4, 4, drawn)
        array = bfloat(numbers) if kind == "bf16" else numbers.astype(NUMPY[kind])
    return Input(np.resize(array, count))


def bfloat(numbers):
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def three(kind):
    return NUMPY[kind](THREE.get(kind, 3))


def quantized(kind, blocks, seed=1):
    """Blocks whose bytes are small enough for every half or float among them to be a positive number below 1."""
    return Input(values("u8", blocks * BLOCK_BYTES[kind], seed, below=0x3C).array)


def sizes(*numbers):
    return [np.uint64(number) for number in numbers]


def words(*numbers):
    return [np.int32(number) for number in numbers]


def numbers(*values_of):
    """An array of sizes on the device."""
    return Input(np.array(values_of, np.uint64))


def rows_of(large, row_bytes, small):
    return max(1, OUTPUT_BYTES // row_bytes) if large else small


def each(large, out, arguments, shapes=1):
    """Launches of a loop over elements: contiguous ones, and small ones also with strides."""
    # `arguments` makes the arguments from the number of elements and their layout: the number of dimensions, and an
    # array of the dimensions and `shapes` times the strides.
    if large:
        count = OUTPUT_BYTES // width(out)
        return [Launch("contiguous", (-(-count // 1024), 1, 1), (1024, 1, 1), arguments(count, [*sizes(0), NULL]))]
    strided = [*sizes(2), numbers(*SMALL_DIMS, *(1, SMALL_DIMS[0]) * shapes)]
    return [Launch(what, (37, 1, 1), (128, 1, 1), arguments(SMALL, layout))
            for what, layout in (("contiguous", [*sizes(0), NULL]), ("strided", strided))]


def covering(what, threads, arguments, block=128):
    """A thread for each element."""
    return [Launch(what, (-(-threads // block), 1, 1), (block, 1, 1), arguments)]


def unary(large, op, kind):
    parameter = [three(kind)] if op in ("uelu", "upowf") else []
    return each(large, kind, lambda count, layout: [
        *sizes(count), *layout, *parameter, values(kind, count), Output(count * width(kind))])


def binary(large, op, kind):
    out = kind if op[0] == "b" else "u8"
    return each(large, out, lambda count, layout: [
        *sizes(count), *layout, values(kind, count), values(kind, count, 2), Output(count * width(out))], 2)


def affine(large, kind):
    return each(large, kind, lambda count, layout: [
        *sizes(count), *layout, values(kind, count), Output(count * width(kind)), three(kind), three(kind)])


def cast(large, source, kind):
    return each(large, kind, lambda count, layout: [
        *sizes(count), *layout, values(source, count), Output(count * width(kind))])


def where(large, index, kind):
    return each(large, kind, lambda count, layout: [
        *sizes(count), *layout, values(index, count, below=2), values(kind, count), values(kind, count, 2),
        Output(count * width(kind))], 3)


def fill(large, kind):
    return each(large, kind, lambda count, _: [Output(count * width(kind)), three(kind), *sizes(count)])[:1]


def const_set(large, kind):
    return each(large, kind, lambda count, layout: [
        *sizes(count), *layout, three(kind), Output(count * width(kind))])


def copy2d(large, kind):
    rows = rows_of(large, 1000 * width(kind), 47)
    return covering("rows", rows * 907, [
        values(kind, rows * 1001), Output(rows * 1000 * width(kind)), *words(rows, 907, 1001, 1000)])


def fast(large, op, kind):
    """One value for each row of 131 elements, or 8 for large ones: a block reduces it."""
    columns, out = 131, "u32" if op.startswith("arg") else kind
    rows = 200_000 if large else 53
    arguments = lambda strides: [*sizes(rows * columns, columns, 2), numbers(rows, columns, *strides),
                                 values(kind, rows * columns), Output(rows * width(out))]
    launches = [Launch("contiguous", (rows, 1, 1), (64, 1, 1), arguments((columns, 1)))]
    return launches if large else [*launches, Launch("strided", (rows, 1, 1), (64, 1, 1), arguments((1, rows)))]


def fast_sum_small(large, kind):
    rows = rows_of(large, width(kind), 5_003)
    arguments = lambda strides: [*sizes(rows, 8, 2), numbers(rows, 8, *strides), values(kind, rows * 8),
                                 Output(rows * width(kind))]
    launches = covering("contiguous", rows, arguments((8, 1)))
    return launches if large else launches + covering("strided", rows, arguments((1, rows)))


def atomic_sum(large, kind):
    """Sums of eight small whole numbers: exact in each type, thus the same in each order of the atomics."""
    rows = (4 << 20) if large else 5_003
    block, grid = (1024, rows * 8 // 1024) if large else (128, 37)
    arguments = lambda strides: [
        *sizes(rows * 8, 2, 1), numbers(rows, 8, *strides, 8, 1),
        values(kind, rows * 8, whole=True, below=4 if kind == "u32" else None),
        Output(rows * width(kind), np.zeros(rows * width(kind), np.uint8))]
    launches = [Launch("contiguous", (grid, 1, 1), (block, 1, 1), arguments((8, 1)))]
    return launches if large else [*launches, Launch("strided", (grid, 1, 1), (block, 1, 1), arguments((1, rows)))]


def softmax(large, kind):
    rows = rows_of(large, 131 * width(kind), 53)
    return [Launch("rows", (rows, 1, 1), (1, 32, 1), [
        values(kind, rows * 131), Output(rows * 131 * width(kind)), *words(131)])]


def norm(large, op, kind):
    launches = []
    for threads, columns in ((32, 131),) if large else ((32, 131), (1024, 1100)):
        rows = rows_of(large, columns * width(kind), 53)
        scales = [values(kind, columns, seed) for seed in ((2, 3) if op == "layernorm" else (2,))]
        launches.append(Launch(f"{threads} threads", (rows, 1, 1), (threads, 1, 1), [
            values(kind, rows * columns), Output(rows * columns * width(kind)), *scales,
            *words(columns, threads), np.float32(1e-5)]))
    return launches


def rope(large, op, kind):
    steps, depth, heads = 16, 64, 4
    batches = rows_of(large, heads * steps * depth * width(kind), 5)
    count, table = batches * heads * steps * depth, batches * steps * depth // 2
    last = {"rope_i": [batches * heads, steps * depth, heads * steps * depth],
            "rope": [batches * heads, steps * depth, depth, heads * steps * depth],
            "rope_thd": [batches, steps, heads, depth, heads * steps * depth]}[op]
    return covering("batches", count // 2, [
        values(kind, count), values(kind, table, 2), values(kind, table, 3), Output(count * width(kind)), *words(*last)])


def looped(large, elements, arguments):
    """A loop over elements. In a small launch each thread has several."""
    block, grid = (1024, -(-elements // 1024)) if large else (64, 37)
    return [Launch("contiguous", (grid, 1, 1), (block, 1, 1), arguments)]


def index_select(large, index, kind):
    left, source, ids, right = rows_of(large, 11 * 401 * width(kind), 13), 7, 11, 401
    count = left * ids * right
    arguments = lambda layout: [
        *sizes(count), *layout, values(index, ids, below=source), values(kind, left * source * right),
        Output(count * width(kind)), *sizes(left, source, ids, right)]
    launches = looped(large, count, arguments([*sizes(0), NULL]))
    if not large:
        launches += looped(large, count, arguments([*sizes(2), numbers(left * source, right, 1, left * source)]))
        launches[1].what = "strided"
    return launches


def gather(large, index, kind):
    left, source, ids, right = rows_of(large, 11 * 401 * width(kind), 13), 7, 11, 401
    count = left * ids * right
    return looped(large, count, [
        *sizes(count), values(index, count, below=source), values(kind, left * source * right),
        Output(count * width(kind)), *sizes(left, source, ids, right)])


def scatter(large, op, index, kind):
    """Each thread writes, or adds to, what no other one writes."""
    left, source, into, right = rows_of(large, 9 * 401 * width(kind), 13), 5, 9, 401
    ids = values(index, source if op == "ia" else left * source * right, below=into)
    start = values(kind, left * into * right, 3).array if op != "s" else None
    inputs, output = values(kind, left * source * right), Output(left * into * right * width(kind), start)
    return looped(large, left * right, [
        ids, *(sizes(source) if op == "ia" else []), inputs, output, *sizes(left, source, into, right)])


def strides_of(dims):
    return [int(np.prod(dims[at + 1:])) for at in range(len(dims))]


def conv(large, op, kind):
    one, taps, in_channels, out_channels = "1d" in op, 3, 3, 4
    transposed, space, padding = "transpose" in op, 1 if one else 2, 1
    length = 30 if one else 20
    out = (length - 1) * 2 - 2 * padding + taps if transposed else (length + 2 * padding - taps) // 2 + 1
    batches = rows_of(large, out_channels * out**space * width(kind), 60 if one else 7)
    source = [batches, in_channels] + [length] * space
    weights = ([in_channels, out_channels] if transposed else [out_channels, in_channels]) + [taps] * space
    count = batches * out_channels * out**space
    geometry = [2, padding, *([0] if transposed else []), 1]
    return covering("padded", count, [
        *sizes(np.prod(source), *[out] * space, *geometry),
        numbers(*source, *strides_of(source), *weights, *strides_of(weights)),
        values(kind, int(np.prod(source))), values(kind, int(np.prod(weights)), 2), Output(count * width(kind))])


def pool(large, kind):
    batches = rows_of(large, 3 * 110 * width(kind), 15)
    source, count = [batches, 3, 21, 23], batches * 3 * 10 * 11
    return covering("images", count, [
        *sizes(np.prod(source), 2, 3, 2, 2), numbers(*source, *strides_of(source)),
        values(kind, int(np.prod(source))), Output(count * width(kind))])


def upsample(large, op, kind):
    batches = rows_of(large, 3 * 600 * width(kind), 3)
    source, count = [batches, 3, 11, 13], batches * 3 * 20 * 30
    scales = [np.float64(11 / 20), np.float64(13 / 30)] if op == "nearest" else [
        np.uint8(0), np.uint8(0), np.float64(0), np.uint8(0), np.float64(0)]
    return covering("images", count, [
        *sizes(20, 30), *scales, numbers(*source, *strides_of(source)), values(kind, int(np.prod(source))),
        Output(count * width(kind))])


def im2col(large, kind):
    batches = rows_of(large, 100 * 27 * width(kind), 2)
    source, count = [batches, 3, 20, 20], batches * 100 * 27
    return covering("images", count, [
        *sizes(count, 10, 10, 3, 3, 2, 1, 1), numbers(*source, *strides_of(source)),
        values(kind, int(np.prod(source))), Output(count * width(kind))])


def im2col1d(large, kind):
    batches = rows_of(large, 15 * 3 * 3 * width(kind), 111)
    source, threads = [batches, 3, 30], batches * 15 * 3
    return covering("rows", threads, [
        *sizes(threads, 15, 3, 2, 1, 1), numbers(*source, *strides_of(source)),
        values(kind, int(np.prod(source))), Output(threads * 3 * width(kind))])


def col2im1d(large, kind):
    batches = rows_of(large, 4 * 61 * width(kind), 21)
    count = batches * 4 * 61
    return covering("rows", count, [
        *sizes(count, 61, 30, 4, 3, 2), values(kind, batches * 30 * 4 * 3), Output(count * width(kind))])


def sort(large, kind):
    columns, padded = 201, 256
    rows = rows_of(large, columns * 4, 53)
    return [Launch("rows", (rows, 1, 1), (256, 1, 1), [
        values(kind, rows * columns), Output(rows * columns * 4), *words(columns, padded)], padded * 4)]


def dequantize(large, quant, kind):
    blocks = rows_of(large, 256 * width(kind), 53)
    per_block, threads = 256 if quant.endswith("K") else 32, 64 if quant in ("q2_K", "q3_K", "q5_K", "q6_K") else 32
    count, grid, last = blocks * 256, blocks, [] if per_block == 256 else words(blocks * 8)
    if quant in ("q5_0", "q5_1"):
        threads, grid, last = 256, -(-count // 512), words(count)
    if threads == 256 and not large:
        threads, grid = 64, -(-count // 128)
    return [Launch("blocks", (grid, 1, 1), (threads, 1, 1), [
        quantized(quant, count // per_block), Output(count * width(kind)), *last])]


def get_rows(large, kind, grid=None):
    """Rows of a table. On y are the blocks of a row; large ones fill the legal grid."""
    rows, blocks = grid or ((64, 1024) if large else (31, 37))
    if kind in BLOCK_BYTES:
        per_block = 256 if kind.endswith("K") else 32
        threads, elements = (32 if kind == "q4_K" else 64, 256) if per_block == 256 else (32, 64)
        hidden = blocks * elements
        stride = hidden // per_block * BLOCK_BYTES[kind]
        table = quantized(kind, 3 * hidden // per_block)
    else:
        threads, hidden = 32, blocks * 32
        stride, table = hidden * width(kind), values(kind, 3 * hidden)
    return [Launch("table", (rows, blocks, 1), (threads, 1, 1), [
        table, values("u32", rows, 2, below=3), Output(rows * hidden * 4), np.int64(hidden), *sizes(stride)])]


def quantize(large, rows=None):
    """Whole numbers, so that the sum of a block is the same in each order."""
    rows, columns, padded = rows or (4096 if large else 37), 4000 if large else 230, 4096 if large else 256
    threads = 256 if large else 32
    return [Launch("rows", (padded // threads, rows, 1), (threads, 1, 1), [
        values("f32", rows * columns, whole=True), Output(rows * padded // 32 * 36), *words(columns, padded)])]


def dequantize_mul_mat_vec(large, quant):
    rows, columns, kind = 16_384 if large else 53, 512, quant.replace("_k", "_K")
    last = [columns] if kind == "q5_K" else [columns, rows]
    return [Launch("rows", (rows, 1, 1), (32, 1, 1), [
        quantized(kind, rows * columns // (256 if kind.endswith("K") else 32)), values("f32", columns, 2),
        Output(rows * 4), *words(*last)])]


def mul_mat_vec(large, quant):
    rows, columns = 65_536 if large else 53, 512
    return [Launch("rows", (rows, 1, 1), (32, 4, 1), [
        quantized(quant, rows * columns // (256 if quant.endswith("K") else 32)), quantized("q8_1", columns // 32, 2),
        Output(rows * 4), *words(columns, rows, columns, rows)])]


def moe(large, quant, grid=None, weights=None, inputs=None):
    rows, batch, chosen = grid or ((512, 64, 8) if large else (29, 9, 8))
    kind, columns, experts = quant if quant == "q8_0" else f"{quant[:2]}_K", 256, 3
    return [Launch("experts", (rows, batch, chosen), (32, 4, 1), [
        weights or quantized(kind, experts * rows * columns // (256 if kind.endswith("K") else 32)),
        inputs or quantized("q8_1", batch * columns // 32, 2), values("u32", batch * chosen, 3, below=experts),
        Output(batch * chosen * rows * 4), *words(rows, columns, batch, chosen, columns, 1)])]


# By file: the names of entries, and what makes their launches from the groups of the name.
ENTRIES = {
    "unary": [(f"(u[a-z]+(?:_erf)?)_{TYPE}", unary)],
    "binary": [(f"(b[a-z]+|eq|ne|lt|le|gt|ge)_{TYPE}", binary)],
    "affine": [(f"affine_{TYPE}", affine)],
    "cast": [(f"cast_{TYPE}_{TYPE}", cast)],
    "ternary": [(f"where_{TYPE}_{TYPE}", where)],
    "fill": [(f"fill_{TYPE}", fill), (f"const_set_{TYPE}", const_set), (f"copy2d_{TYPE}", copy2d)],
    "reduce": [(f"fast_(sum|min|max|argmin|argmax)_{TYPE}", fast), (f"fast_sum_small_{TYPE}", fast_sum_small),
               (f"sum_{TYPE}", atomic_sum), (f"softmax_{TYPE}", softmax), (f"(rmsnorm|layernorm)_{TYPE}", norm),
               (f"(rope|rope_i|rope_thd)_{TYPE}", rope)],
    "indexing": [(f"is_{TYPE}_{TYPE}", index_select), (f"gather_{TYPE}_{TYPE}", gather),
                 (f"(ia|sa|s)_{TYPE}_{TYPE}", scatter)],
    "conv": [(f"(conv1d|conv2d|conv_transpose1d|conv_transpose2d)_{TYPE}", conv),
             (f"(?:avg|max)_pool2d_{TYPE}", pool), (f"upsample_(nearest|bilinear)2d_{TYPE}", upsample),
             (f"im2col_{TYPE}", im2col), (f"im2col1d_{TYPE}", im2col1d), (f"col2im1d_{TYPE}", col2im1d)],
    "sort": [(f"asort_(?:asc|desc)_{TYPE}", sort)],
    "quantized": [(f"dequantize_block_(q._.)_{TYPE}", dequantize), (f"get_rows_(q._.|{TYPE[1:-1]})", get_rows),
                  ("quantize_q8_1", quantize), ("dequantize_mul_mat_vec_(q._.)(?:_cuda)?", dequantize_mul_mat_vec),
                  ("mul_mat_vec_(q._.)_q8_1_cuda1", mul_mat_vec), ("indexed_moe_forward_(q[0-9]k|q8_0)_q8_1", moe)],
}
# What is timed of each file.
TIMED = {
    "unary": ["ucopy_f32", "uexp_f32", "usilu_bf16", "ugelu_f16"],
    "binary": ["badd_f32", "bmul_bf16", "lt_f32", "bdiv_f16"],
    "affine": ["affine_f32", "affine_f16"],
    "cast": ["cast_f32_f16", "cast_u8_f32", "cast_bf16_f32"],
    "ternary": ["where_u8_f32", "where_u32_f16"],
    "fill": ["fill_f32", "const_set_f32", "copy2d_f32"],
    "reduce": ["fast_sum_f32", "fast_max_f32", "fast_sum_small_f32", "sum_f32", "softmax_f32", "rmsnorm_f32",
               "layernorm_f16", "rope_f32"],
    "indexing": ["is_u32_f32", "gather_u32_f32", "ia_u32_f32", "sa_u32_f32", "s_u32_f32"],
    "conv": ["conv1d_f32", "conv2d_f32", "im2col_f32", "avg_pool2d_f32", "upsample_nearest2d_f32"],
    "sort": ["asort_asc_f32"],
    "quantized": ["dequantize_block_q4_K_f32", "dequantize_block_q8_0_f16", "get_rows_f32", "get_rows_q4_K",
                  "quantize_q8_1", "mul_mat_vec_q4_K_q8_1_cuda1", "indexed_moe_forward_q4k_q8_1"],
}


def maker(family, name):
    """What makes the launches of an entry, small or large; None if nothing does."""
    for pattern, make in ENTRIES.get(family, ()):
        if found := re.fullmatch(pattern, name):
            groups = ["f8_e4m3" if group == "fp8_e4m3" else group for group in found.groups()]
            return lambda large=False, **given: make(large, *groups, **given)
    return None
