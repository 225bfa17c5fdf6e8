#!/usr/bin/env python3
"""Ordinary PyTorch work, without a refused launch. `watched.py` runs it with and without the preloaded library."""

# watched_work.py varied SECONDS: small models of many kinds, in turn. Prints the number of runs of each.
# watched_work.py timed: reads a kind of work from each line of the standard input. Prints the mean microseconds of a call
# in a block, and at the end the peak memory in MiB.
# watched_work.py noted: prints what the library, which must be loaded, adds to a launch of Triton.
#
# `adds` are additions in place, back to back; `allocations` are allocations and frees, back to back; `steps` are
# training steps of a transformer. Without a GPU the work runs on the CPU.

import itertools
import json
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def random(*shape, **options):
    return torch.randn(*shape, device=DEVICE, **options)


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def train(model, inputs, steps=3, autocast=False):
    """Train for a few steps on the sum of the squared outputs."""
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE, enabled=autocast)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.float16 if CUDA else torch.bfloat16, enabled=autocast):
            output = model(*inputs)
            output = output[0] if isinstance(output, tuple) else output
            loss = output.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def perceptron():
    train(nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(256), nn.Linear(256, 10)), [random(512, 96)])


def convolutions():
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(4, 16),
              nn.ConvTranspose2d(16, 8, 2, stride=2), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)]
    train(nn.Sequential(*layers), [random(32, 3, 32, 32)], autocast=True)
    train(nn.Sequential(nn.Conv3d(2, 4, 3), nn.InstanceNorm3d(4), nn.ReLU()), [random(2, 2, 8, 16, 16)])
    train(nn.Sequential(nn.Conv1d(4, 8, 5, dilation=2, groups=2), nn.PReLU()), [random(8, 4, 200)])


def recurrent():
    train(nn.LSTM(32, 64, num_layers=2, batch_first=True, bidirectional=True), [random(16, 20, 32)])
    train(nn.GRU(32, 64), [random(20, 16, 32)])


def transformers():
    train(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), [random(8, 32, 64)], autocast=True)
    train(nn.TransformerDecoderLayer(64, 4, 128, batch_first=True), [random(4, 16, 64), random(4, 24, 64)])


def attention():
    for causal, masked in itertools.product([False, True], [False, True]):
        query, key, value = (random(2, 4, 64, 32, requires_grad=True) for _ in range(3))
        mask = random(64, 64) > 0 if masked and not causal else None
        F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal).nan_to_num().sum().backward()


def embeddings():
    words = torch.randint(0, 1000, (64, 20), device=DEVICE)
    train(nn.Sequential(nn.Embedding(1000, 32), nn.Linear(32, 8)), [words])
    train(nn.EmbeddingBag(1000, 32, mode="sum"), [words])


def selections():
    table, rows = random(1000, 100), torch.randint(0, 1000, (5000,), device=DEVICE)
    table.sort(dim=1), table.topk(5), table.argsort(dim=0), rows.unique(return_counts=True), table.kthvalue(3)
    table.index_select(0, rows).cumsum(0).masked_select(table[rows] > 1)
    torch.zeros_like(table).index_add_(0, rows, table[rows]).scatter_reduce_(0, rows[:, None].expand(-1, 100), table[rows], "amax")
    torch.bincount(rows), torch.histc(table), table.nonzero(), torch.multinomial(table.exp(), 3), table.median(dim=1)


def algebra():
    square = random(64, 64)
    positive = square @ square.T + 64 * torch.eye(64, device=DEVICE)
    torch.linalg.cholesky(positive), torch.linalg.svd(square), torch.linalg.eigh(positive), torch.linalg.solve(positive, square)
    torch.fft.rfft2(random(4, 64, 64)), torch.einsum("bij,bjk->bik", random(8, 16, 16), random(8, 16, 16))
    torch.sparse.mm((square * (square > 1)).to_sparse(), square), torch.bmm(random(70_000, 1, 4), random(70_000, 4, 1))


def elementwise():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8):
        numbers = (10 * random(70_000)).to(dtype)
        numbers.clone().add_(1).mul(numbers).sum(), numbers.view(7, -1).amax(1), numbers[::3].flip(0).to(torch.float32).exp()
    (random(1000) + 1j * random(1000)).abs().log(), torch.cdist(random(100, 8), random(50, 8)), random(3, 70_000).var(1)
    F.interpolate(random(2, 3, 16, 16), scale_factor=2, mode="bilinear"), F.pad(random(2, 3, 16, 16), (1, 1, 2, 2), "reflect")


def memory():
    """Use streams, events, copies from pinned memory, and the caching allocator."""
    host = torch.randn(1 << 20, pin_memory=CUDA)
    if not CUDA:
        return host.clone()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        copy = host.to(DEVICE, non_blocking=True).square()
        event.record()
    torch.cuda.current_stream().wait_event(event)
    copy.record_stream(torch.cuda.current_stream())
    copy.sum().item()
    torch.cuda.empty_cache()


def graphs():
    if not CUDA:
        return
    weights, state = random(128, 128), random(16, 128)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        state @ weights
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.tanh(state @ weights)
    for _ in range(5):
        graph.replay()
    result.sum().item()


def loaders():
    """Fork the workers of data loaders after CUDA was initialised."""
    data = DataLoader(TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))), 16, num_workers=2, pin_memory=CUDA)
    for images, labels in data:
        F.cross_entropy(images.to(DEVICE).flatten(1)[:, :10], labels.to(DEVICE))


def profiled():
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * CUDA) as events:
        transformers()
    if CUDA and not any(event.device_type.name == "CUDA" for event in events.events()):
        sys.exit("the profiler saw no kernel")


WORK = [perceptron, convolutions, recurrent, transformers, attention, embeddings, selections, algebra, elementwise, memory,
        graphs, loaders, profiled]


def varied(seconds):
    end, runs = time.monotonic() + seconds, {work.__name__: 0 for work in WORK}
    for work in itertools.cycle(WORK):
        work()
        synchronize()
        runs[work.__name__] += 1
        if time.monotonic() >= end and all(runs.values()):
            return runs


def adds():
    numbers = torch.zeros(1024, device=DEVICE)
    # A block fits into the driver's queue, so that no call waits for the device.
    return lambda: numbers.add_(1), 200


def allocations():
    return lambda: torch.empty(4096, device=DEVICE), 200


def steps(layers=6, width=512, inputs=(16, 128)):
    layer = lambda: nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = nn.Sequential(*(layer() for _ in range(layers))).to(DEVICE)
    optimizer, inputs = torch.optim.AdamW(model.parameters(), lr=1e-4), random(*inputs, width)

    def one():
        optimizer.zero_grad(set_to_none=True)
        model(inputs).square().mean().backward()
        optimizer.step()

    return one, 1


def large_steps():
    # The device computes for longer than the host takes to launch.
    return steps(12, 768, (8, 512))


KINDS = {"adds": adds, "allocations": allocations, "steps": steps, "large_steps": large_steps}


def timed():
    """Time the blocks of calls that the standard input requests."""
    prepared = {}
    for line in sys.stdin:
        kind = line.strip()
        if kind not in prepared:
            prepared[kind] = KINDS[kind]()
        call, calls = prepared[kind]
        synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        if kind.endswith("steps"):
            synchronize()
        print((time.perf_counter() - begun) / calls * 1e6, flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def noted(blocks=400, calls=500):
    """The nanoseconds that the library adds to each launch by Triton's launcher, which is `__self__` of its function."""
    import triton

    @triton.jit
    def nothing(pointer):
        pass

    pointer, arguments = random(1), []
    launcher = nothing[(1, 1, 1)](pointer).run
    with_library, launcher.launch = launcher.launch, lambda *given: arguments.append(given)
    nothing[(1, 1, 1)](pointer)
    assert "launch" in str(with_library.__self__), f"the library has not replaced {with_library}"
    seconds = {with_library: [], with_library.__self__: []}
    for _ in range(blocks):
        for launch, times in seconds.items():
            synchronize()
            begun = time.perf_counter()
            for _ in range(calls):
                launch(*arguments[0])
            times.append((time.perf_counter() - begun) / calls)
    with_it, without = (statistics.median(times) * 1e9 for times in seconds.values())
    return {"with_ns": with_it, "without_ns": without, "more_ns": with_it - without}


def main():
    match sys.argv[1:]:
        case ["varied", seconds]:
            print(json.dumps(varied(float(seconds))))
        case ["timed"]:
            timed()
        case ["noted"]:
            print(json.dumps(noted()))
        case _:
            sys.exit("usage: watched_work.py varied SECONDS | timed | noted")


if __name__ == "__main__":
    main()
