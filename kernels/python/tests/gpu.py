"""Runs `gridguard.torch` on a GPU: random calls against PyTorch in double precision, large batches, graphs,
compiled code, threads, and timing. Prints what it finds and fails if anything is wrong.

    python gpu.py [--calls 5000] [--native-us MICROSECONDS]

`--native-us` is the time of our own bench for 15360x5x16x64 f16, measured in the same session.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable

import torch
from calls import PYTORCH, differences, random_call

import gridguard.torch as ours

attention = ours.scaled_dot_product_attention
MOTIVATING = (15_360, 5, 16, 64)
MOST_OF_NATIVE = 1.05
MOST_HOST_US = 12.0
# Items at either end that are compared with double precision.
CHECKED = 32


def main() -> int:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--calls", type=int, default=5000)
    cli.add_argument("--native-us", type=float)
    options = cli.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    failed = []
    for check in (random_calls, large_batches, graphs, compiled, threads, devices, workers, memory, masks, timing):
        begun = time.perf_counter()
        try:
            check(options)
        except AssertionError as error:
            failed.append(check.__name__)
            print(f"FAILED {check.__name__}: {error}")
        else:
            print(f"passed {check.__name__} ({time.perf_counter() - begun:.0f} s)")
    print(ours.stats())
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


def random_calls(options: argparse.Namespace) -> None:
    wrong = []
    before = ours.stats()
    for seed in range(options.calls):
        call = random_call(seed, "cuda")
        difference = differences(call, attention)
        if difference is not None:
            wrong.append(f"{seed}: {difference}: {call}")
    after = ours.stats()
    print(f"  {after.served - before.served} served, by PyTorch {after.pytorch}")
    assert not wrong, f"{len(wrong)} calls\n" + "\n".join(wrong[:20])
    assert after.served - before.served > options.calls // 4, "few calls are served"
    wanted = {"strides", "shape", "scale", "length", "lengths differ", "dtype", "dropout", "mask of items or heads"}
    assert wanted <= after.pytorch.keys() or options.calls < 1000, wanted - after.pytorch.keys()


def large_batches(options: argparse.Namespace) -> None:
    """Batches that PyTorch's flash attention refuses, by our kernels and by PyTorch in slices."""
    for items, keys in ((70_000, 16), (1_000_000, 16), (70_000, 24), (200_000, 24)):
        query = torch.randn(items, 2, 16, 32, device="cuda", dtype=torch.float16)
        key, value = (torch.randn(items, 2, keys, 32, device="cuda", dtype=torch.float16) for _ in range(2))
        before = ours.stats().served
        out = attention(query, key, value)
        torch.cuda.synchronize()
        assert (ours.stats().served > before) == (keys == 16), "the path"
        for part in (slice(CHECKED), slice(items - CHECKED, items), slice(65_530, 65_540)):
            close(out[part], PYTORCH(*(t[part].double() for t in (query, key, value))), f"{items} items")
        del query, key, value, out


def graphs(options: argparse.Namespace) -> None:
    tensors = qkv(256, 5, 16, 64)
    attention(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = ours.stats()
    with torch.cuda.graph(graph):
        out = attention(*tensors)
        # Of another shape, which is not prepared yet.
        fallback = attention(*(t[:100] for t in tensors))
    after = ours.stats()
    assert after.served == before.served + 1, "the graph has our kernel"
    assert after.pytorch.get("first call during capture", 0) == 1, after.pytorch
    for _ in range(3):
        for tensor in tensors:
            tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        expected = PYTORCH(*(t.double() for t in tensors))
        close(out, expected, "a graph")
        close(fallback, expected[:100], "a graph's fallback")


def compiled(options: argparse.Namespace) -> None:
    for mode in (None, "reduce-overhead"):
        torch.compiler.reset()
        function = torch.compile(lambda q, k, v: attention(q * 2, k, v).sin(), fullgraph=True, mode=mode)
        before = ours.stats().served
        for _ in range(4):
            tensors = qkv(64, 5, 16, 64)
            exact = [t.double() for t in tensors]
            close(function(*tensors), PYTORCH(exact[0] * 2, *exact[1:]).sin(), f"compiled, mode {mode}")
        assert ours.stats().served > before, "compiled code runs our kernel"
        tensors = [t.requires_grad_() for t in qkv(64, 5, 16, 64)]
        found = torch.autograd.grad(function(*tensors).float().sum(), tensors)
        exact = [t.detach().double().requires_grad_() for t in tensors]
        expected = torch.autograd.grad(PYTORCH(exact[0] * 2, *exact[1:]).sin().sum(), exact)
        for ours_, theirs in zip(found, expected):
            close(ours_, theirs, "gradients of compiled code", 2e-2)


def threads(options: argparse.Namespace) -> None:
    """Each thread on a stream of its own, with shapes that others compile at the same time."""
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for length in (3, 7, 16, 33, 60):
                    tensors = qkv(50 + seed, 3, length, 48)
                    for _ in range(20):
                        out = attention(*tensors)
                    close(out, PYTORCH(*(t.double() for t in tensors)), f"thread {seed}")
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    started = [threading.Thread(target=work, args=(seed % 4,)) for seed in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not errors, errors[0]


def devices(options: argparse.Namespace) -> None:
    """On every device, while the first is current."""
    for index in range(torch.cuda.device_count()):
        tensors = [t.to(f"cuda:{index}") for t in qkv(100, 5, 16, 64)]
        before = ours.stats().served
        out = attention(*tensors)
        assert out.device.index == index and torch.cuda.current_device() == 0
        assert ours.stats().served == before + 1
        close(out, PYTORCH(*(t.double() for t in tensors)), f"device {index}")


class Numbers(torch.utils.data.Dataset):
    """Data that workers compute with the function, on the CPU."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.full((1, 4, 8), float(index))
        return attention(x, x, x)


def workers(options: argparse.Namespace) -> None:
    """Data loaders that are forked after CUDA began."""
    attention(*qkv(2, 5, 16, 64))
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork")
    found = sorted(batch.mean().item() for batch in loader)
    assert found == [float(index) for index in range(8)], found


def memory(options: argparse.Namespace) -> None:
    tensors = qkv(1000, 5, 16, 64)
    mask = torch.ones(16, 16, dtype=torch.bool, device="cuda").tril()
    attention(*tensors, mask)
    torch.cuda.synchronize()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(2000):
        attention(*tensors, mask)
    torch.cuda.synchronize()
    after, free_after = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    assert (before, free) == (after, free_after), f"{before} {free}, then {after} {free_after}"


def masks(options: argparse.Namespace) -> None:
    tensors = qkv(10, 5, 16, 64)
    mask = torch.zeros(16, 16, device="cuda", dtype=torch.float16)
    mask[2] = -torch.inf
    mask[5, 7] = torch.nan
    out = attention(*tensors, mask)
    assert not out[:, :, 2].any(), "a query without keys gives zeros"
    assert out[:, :, 5].isnan().all(), "a NaN in the mask is one in the output"
    assert not out[:, :, 6:].isnan().any()


def timing(options: argparse.Namespace) -> None:
    rows = []
    for name, tensors in cases().items():
        found, theirs = device_us(attention, tensors), device_us(PYTORCH, tensors)
        rows.append((name, found))
        print(f"  {name:24} {found:8.1f} us, PyTorch {theirs:8.1f} us")
    small = qkv(16, 5, 16, 64)
    with torch.no_grad():
        host, host_theirs = host_us(attention, small), host_us(PYTORCH, small)
    print(f"  host cost of a call      {host:8.1f} us, PyTorch {host_theirs:8.1f} us")
    if options.native_us is not None:
        ratio = rows[0][1] / options.native_us
        print(f"  of the native launch     {ratio:8.3f}")
        assert ratio <= MOST_OF_NATIVE, f"{ratio:.3f} of the native launch"
    assert host <= MOST_HOST_US, f"{host:.1f} us on the host"


def cases() -> dict[str, list[torch.Tensor]]:
    items, heads, frames, width = MOTIVATING
    packed = torch.randn(items, frames, 3, heads, width, device="cuda", dtype=torch.float16)
    return {
        "f16": qkv(*MOTIVATING),
        "bf16": qkv(*MOTIVATING, dtype=torch.bfloat16),
        "f32": qkv(*MOTIVATING, dtype=torch.float32),
        "f16, one packed tensor": [packed[:, :, at].transpose(1, 2) for at in range(3)],
    }


def device_us(function: Callable[..., torch.Tensor], tensors: list[torch.Tensor]) -> float:
    """The median of launches back to back between two events."""
    samples = []
    for _ in range(3):
        function(*tensors)
    for _ in range(30):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            function(*tensors)
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 100)
    return statistics.median(samples)


def host_us(function: Callable[..., torch.Tensor], tensors: list[torch.Tensor]) -> float:
    """The median time of calls that the device keeps up with."""
    samples = []
    for _ in range(50):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(100):
            function(*tensors)
        samples.append((time.perf_counter() - begun) * 1e4)
    return statistics.median(samples)


def qkv(*sizes: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    return [torch.randn(*sizes, device="cuda", dtype=dtype) for _ in range(3)]


def close(found: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = 5e-3) -> None:
    error = (found.double() - expected).abs().max().item()
    assert error <= tolerance * (1 + expected.abs().max().item()), f"{what}: off by {error:.3g}"


if __name__ == "__main__":
    sys.exit(main())
