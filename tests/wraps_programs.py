"""Programs for wraps.py. Each checks what its launches write, and prints how many results it checked."""

PYTHON_START = """
import random
random.seed(7)
checked = 0
def check(got, expected, tolerance=0):
    global checked
    # NaN fails, too.
    worst = (got.double() - expected.double()).abs().max().item()
    assert got.shape == expected.shape and worst <= tolerance, (worst, tolerance, got.shape)
    checked += 1
def sizes(count, most):
    return [random.choice([1, 2, 16, 64]) * random.randint(1, most // 64) for _ in range(count)]
"""

# Textbook kernels of Triton, whose offsets have 32 bits.
KERNELS = """
import torch, triton, triton.language as tl
@triton.jit
def add(out, x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count) + tl.load(y + at, mask=at < count), mask=at < count)
@triton.jit
def softmax(out, x, stride, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < columns
    row = tl.load(x + at, mask=mask, other=-float("inf")).to(tl.float32)
    row = tl.exp(row - tl.max(row, 0))
    tl.store(out + at, row / tl.sum(row, 0), mask=mask)
@triton.jit
def layer_norm(out, x, weight, bias, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total, squares = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        part = tl.load(x + row * stride + at, mask=at < columns, other=0.0)
        total += part
        squares += part * part
    mean = tl.sum(total, 0) / columns
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns - mean * mean + 1e-5)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mask = at < columns
        part = (tl.load(x + row * stride + at, mask=mask) - mean) * scale
        tl.store(out + row * stride + at, part * tl.load(weight + at, mask=mask) + tl.load(bias + at, mask=mask), mask=mask)
@triton.jit
def matmul(c, a, b, M, N, K, a_row, b_row, c_row, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    sum = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * a_row + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * b_row + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        sum = tl.dot(left, right, sum)
    tl.store(c + m[:, None] * c_row + n[None, :], sum, mask=(m[:, None] < M) & (n[None, :] < N))
@triton.jit
def transpose(out, x, rows, columns, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.program_id(1) * B + tl.arange(0, B)
    mask = (r[:, None] < rows) & (c[None, :] < columns)
    tl.store(out + c[None, :] * rows + r[:, None], tl.load(x + r[:, None] * columns + c[None, :], mask=mask), mask=mask)
@triton.jit
def gather(out, table, index, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(index + tl.program_id(0))
    value = tl.load(table + row * columns + at, mask=at < columns)
    tl.store(out + tl.program_id(0) * columns + at, value, mask=at < columns)
random_ = lambda *shape: torch.randn(*shape, device="cuda")
"""

TRITON = KERNELS + """
for count in sizes(120, 1 << 20):
    x, y, out = random_(count), random_(count), torch.empty(count, device="cuda")
    add[(triton.cdiv(count, 1024),)](out, x, y, count, BLOCK=1024)
    check(out, x + y)
for rows, columns in zip(sizes(100, 4096), sizes(100, 1024)):
    x = random_(rows, columns)
    out = torch.empty_like(x)
    softmax[(rows,)](out, x, columns, columns, BLOCK=1024)
    check(out, torch.softmax(x.double(), 1), 1e-5)
for rows, columns in zip(sizes(100, 2048), sizes(100, 4096)):
    x, weight, bias = random_(rows, columns), random_(columns), random_(columns)
    out = torch.empty_like(x)
    layer_norm[(rows,)](out, x, weight, bias, columns, columns, BLOCK=256)
    check(out, torch.layer_norm(x.double(), (columns,), weight.double(), bias.double()), 1e-2)
for m, n, k in zip(sizes(60, 1024), sizes(60, 1024), sizes(60, 512)):
    a, b = random_(m, k).half(), random_(k, n).half()
    c = torch.empty(m, n, device="cuda")
    grid = triton.cdiv(m, 64), triton.cdiv(n, 64)
    matmul[grid](c, a, b, m, n, k, k, n, n, BM=64, BN=64, BK=32)
    check(c, a.double() @ b.double(), 0.2)
for rows, columns in zip(sizes(100, 4096), sizes(100, 4096)):
    x = random_(rows, columns)
    out = torch.empty(columns, rows, device="cuda")
    transpose[triton.cdiv(rows, 32), triton.cdiv(columns, 32)](out, x, rows, columns, B=32)
    check(out, x.T)
for rows, columns in zip(sizes(60, 4096), sizes(60, 512)):
    table, index = random_(rows, columns), torch.randint(rows, (777,), device="cuda")
    out = torch.empty(777, columns, device="cuda")
    gather[(777,)](out, table, index, columns, BLOCK=512)
    check(out, table[index])
# The largest sizes whose offsets fit.
count = (1 << 31) - 1024
x, y = (torch.randint(-9, 9, (count,), device="cuda", dtype=torch.int8) for _ in range(2))
out = torch.empty_like(x)
add[(count // 1024,)](out, x, y, count, BLOCK=1024)
assert torch.equal(out[-1024:], x[-1024:] + y[-1024:]) and torch.equal(out[: 1 << 28], x[: 1 << 28] + y[: 1 << 28])
del x, y, out
x = torch.randn(32768, 65536, device="cuda", dtype=torch.float16)
out = torch.empty_like(x)
softmax[(32768,)](out, x, 65536, 65536, BLOCK=65536, num_warps=16)
check(out[-99:], torch.softmax(x[-99:].double(), 1), 1e-3)
print(checked + 1)
"""

# One row more: it lands before the tensor, in memory that is there.
TRITON_WRAPS = KERNELS + """
buffers = [torch.full(((1 << 31) + 32769 * 65536,), -7.0, device="cuda", dtype=torch.float16) for _ in range(2)]
x, out = (buffer[1 << 31:].view(32769, 65536) for buffer in buffers)
x[:] = torch.arange(65536, device="cuda") % 7
softmax[(32769,)](out, x, 65536, 65536, BLOCK=65536, num_warps=16)
check(out[:100], torch.softmax(x[:100].double(), 1), 1e-3)
assert (out[32768] == -7).all() and (buffers[1][:65536] != -7).all()
print(checked)
"""

COMPILED = """
import torch, torch.nn.functional as F
torch._dynamo.config.recompile_limit = 64
random_ = lambda *shape: torch.randn(*shape, device="cuda")
@torch.compile(dynamic=True)
def gelu(x, y):
    return F.gelu(x) * 2 + y
@torch.compile(dynamic=True)
def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
@torch.compile(dynamic=True)
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v
@torch.compile(dynamic=True)
def loss(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none")
@torch.compile(dynamic=True)
def rotated(x, angle):
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)
@torch.compile(dynamic=True)
def pooled(x):
    return F.avg_pool2d(F.relu(x), 2).permute(0, 2, 3, 1).contiguous()
for rows, columns in zip(sizes(40, 2048), sizes(40, 2048)):
    rows, columns = rows + 1, columns + 1
    x, y, weight = random_(rows, columns), random_(rows, columns), random_(columns)
    check(gelu(x, y), F.gelu(x.double()) * 2 + y.double(), 1e-4)
    check(norm(x, weight), x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * weight, 1e-3)
    labels = torch.randint(columns, (rows,), device="cuda")
    check(loss(x, labels), F.cross_entropy(x.double(), labels, reduction="none"), 1e-3)
    x, angle = random_(rows, 2 * columns), random_(rows, columns)
    first, second = x.double().chunk(2, -1)
    turn = torch.polar(torch.ones_like(first), angle.double()) * torch.complex(first, second)
    check(rotated(x, angle), torch.cat([turn.real, turn.imag], -1), 1e-4)
    q, k, v = (random_(2, 4, rows % 300 + 2, 64) for _ in range(3))
    exact = torch.softmax(q.double() @ k.double().transpose(-1, -2) * 0.125, -1) @ v.double()
    check(attention(q, k, v), exact, 1e-2)
    x = random_(3, 5, 2 * (rows % 200 + 1), 2 * (columns % 200 + 1))
    check(pooled(x), F.avg_pool2d(F.relu(x.double()), 2).permute(0, 2, 3, 1), 1e-4)
layers = [torch.nn.Linear(96, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 10)]
model = torch.nn.Sequential(*layers).cuda()
trained = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = random_(512, 96)
before = None
for _ in range(20):
    optimizer.zero_grad()
    value = trained(x).square().mean()
    check(value, model(x).square().mean(), 1e-3)
    assert before is None or value.item() < before
    before = value.item()
    value.backward()
    optimizer.step()
# More than 2^31 elements: Inductor takes 64-bit offsets.
x = torch.randint(-9, 9, ((1 << 31) + 4096,), device="cuda", dtype=torch.int8)
out = torch.compile(lambda x: x * 3 + 1)(x)
assert torch.equal(out[-8192:], x[-8192:] * 3 + 1)
print(checked + 1)
"""

NVRTC = """
import torch
source = '''
extern "C" __global__ void scale(float* out, const float* in, int factor, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) out[i] = in[i] * factor;
}
extern "C" __global__ void turn(float* out, const float* in, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns) out[c * rows + r] = in[r * columns + c];
}
'''
scale, turn = (torch.cuda._compile_kernel(source, name) for name in ("scale", "turn"))
for rows, columns in zip(sizes(150, 2048), sizes(150, 2048)):
    x = torch.randn(rows, columns, device="cuda")
    out, turned = torch.empty_like(x), torch.empty(columns, rows, device="cuda")
    scale((min(rows, 1000), 1, 1), (256, 1, 1), (out, x, 3, rows * columns))
    turn(((columns + 31) // 32, (rows + 7) // 8, 1), (32, 8, 1), (turned, x, rows, columns))
    check(out, x * 3)
    check(turned, x.T)
print(checked)
"""

CUPY = """
import cupy, numpy
triple = cupy.ElementwiseKernel("T x, T y", "T out", "out = x * 3 + y", "triple")
count = 0
for rows, columns in zip(sizes(100, 2048), sizes(100, 2048)):
    x, y = cupy.random.rand(rows, columns), cupy.random.rand(rows, columns)
    for got, expected in [
        (triple(x, y), cupy.asnumpy(x) * 3 + cupy.asnumpy(y)),
        (triple(x[::2], y[::2]), cupy.asnumpy(x)[::2] * 3 + cupy.asnumpy(y)[::2]),
        (cupy.ascontiguousarray(x.T), cupy.asnumpy(x).T),
        (x.sum(axis=1), cupy.asnumpy(x).sum(axis=1)),
    ]:
        assert numpy.allclose(cupy.asnumpy(got), expected, rtol=1e-9)
        count += 1
# More than 2^31 elements: CuPy takes 64-bit offsets.
x = cupy.ones((1 << 31) + 4096, dtype=cupy.int8)
assert int(triple(x, x)[-1]) == 4
print(count + 1)
"""

PROGRAMS = {
    "triton": (("torch", "triton"), TRITON),
    "triton-wraps": (("torch", "triton"), TRITON_WRAPS),
    "compiled": (("torch", "triton"), COMPILED),
    "nvrtc": (("torch",), NVRTC),
    "cupy": (("cupy", "numpy"), CUPY),
}

SOURCES = {
    "nvcc": r"""
#include <cstdio>
#include <cstdlib>
#include <vector>
__global__ void fill(int* out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) out[i] = i % 1000;
}
__global__ void row_sum(int* out, const int* in, int columns) {
    __shared__ int sum;
    if (!threadIdx.x) sum = 0;
    __syncthreads();
    int own = 0;
    for (int j = threadIdx.x; j < columns; j += blockDim.x) own += in[blockIdx.x * columns + j];
    atomicAdd(&sum, own);
    __syncthreads();
    if (!threadIdx.x) out[blockIdx.x] = sum;
}
__global__ void turn(int* out, const int* in, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns) out[c * rows + r] = in[r * columns + c];
}
#define OK(call) do { cudaError_t error = call; if (error) { printf("%s\n", cudaGetErrorString(error)); exit(1); } } while (0)
int main() {
    const int most = 1 << 22;
    int *in, *out, *turned, checked = 0;
    OK(cudaMalloc(&in, 4 * most)); OK(cudaMalloc(&out, 4 * most)); OK(cudaMalloc(&turned, 4 * most));
    std::vector<int> sums(most), all(most);
    srand(7);
    for (int run = 0; run < 100; run++) {
        int rows = rand() % 2000 + 1, columns = rand() % 2000 + 1, n = rows * columns;
        fill<<<rand() % 500 + 1, 256>>>(in, n);
        row_sum<<<rows, 128>>>(out, in, columns);
        turn<<<dim3((columns + 31) / 32, (rows + 7) / 8), dim3(32, 8)>>>(turned, in, rows, columns);
        OK(cudaMemcpy(sums.data(), out, 4 * rows, cudaMemcpyDeviceToHost));
        OK(cudaMemcpy(all.data(), turned, 4 * n, cudaMemcpyDeviceToHost));
        for (int r = 0; r < rows; r++) {
            int sum = 0;
            for (int c = 0; c < columns; c++) {
                sum += (r * columns + c) % 1000;
                if (all[c * rows + r] != (r * columns + c) % 1000) exit(2);
            }
            if (sums[r] != sum) exit(3);
        }
        checked += 2;
    }
    printf("%d\n", checked);
}
""",
}
