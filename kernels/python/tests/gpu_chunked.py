"""Checks `chunked` on a GPU: time, memory, gradients, shortages and graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from gpu_support import limited_memory, peak_of
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import gridguard.torch as ours

chunked = ours.chunked
MIB = 2**20
# The goal is 1.01. Other work on the machine may slow one sample down.
MOST_TIME = 1.05
MOST_MEMORY = 1.05


def check() -> dict[str, Any]:
    """Run all checks, and return their figures."""
    figures = {"of a loop": times(), "of the budget": budgets()}
    gradients()
    dropout()
    capture()
    return {**figures, "sizes after a shortage": shortages()}


def feed_forward(channels: int = 320) -> nn.Sequential:
    layers = (nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
    return nn.Sequential(*layers).cuda().half()


def loop(function: Callable[..., Tensor], x: Tensor, chunk: int) -> Tensor:
    """Run chunks as a person would write them."""
    out = torch.empty_like(x)
    for begin in range(0, len(x), chunk):
        out[begin : begin + chunk] = function(x[begin : begin + chunk])
    return out


@torch.no_grad()
def times() -> dict[str, float]:
    """Compare the time of chunks, and of a first call, with a loop by hand."""
    found = {}
    for items, chunk in ((16_384, 2048), (16_384, 512), (16_384, 64)):
        x, model = torch.randn(items, 16, 320, device="cuda", dtype=torch.float16), feed_forward()
        function = chunked(model, chunk=chunk)
        runs = {"loop": lambda: loop(model, x, chunk), "later calls": lambda: function(x)}
        runs["first calls"] = lambda: chunked(model, chunk=chunk)(x)
        expected = runs["loop"]()
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(15):
            for name, run in runs.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                out = run()
                end.record()
                end.synchronize()
                samples[name].append(begin.elapsed_time(end))
                torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)
        of_loop = statistics.median(samples.pop("loop")[3:])
        for name, seconds in samples.items():
            found[f"{items} items by {chunk}, {name}"] = round(statistics.median(seconds[3:]) / of_loop, 4)
        print(f"  {items} items by {chunk}, of {of_loop:.3f} ms: {found}", flush=True)
    assert max(ratio for name, ratio in found.items() if "by 2048" in name) <= MOST_TIME, found
    return found


def budgets() -> dict[str, float]:
    """Compare the peak of a call with its budget, without and with gradients."""
    convolutions = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 32, 3, padding=1)).cuda()
    found = {}
    for name, model, x in (
        ("linear", feed_forward(), torch.randn(20_000, 16, 320, device="cuda", dtype=torch.float16)),
        ("convolution", convolutions, torch.randn(2000, 32, 32, 32, device="cuda")),
    ):
        for budget in (64 * MIB, 300 * MIB):
            for training in (False, True):
                with torch.set_grad_enabled(training):
                    function = chunked(model, memory=budget)
                    function(x)
                    out, used = peak_of(lambda: function(x))  # noqa: B023
                    kind = "training" if training else "inference"
                    found[f"{name}, {budget // MIB} MiB, {kind}"] = (used - out.nbytes) / budget
                    if training:
                        weights, leaves = torch.ones_like(out), list(model.parameters())
                        _, used = peak_of(lambda: torch.autograd.grad(out, leaves, weights))  # noqa: B023
                        found[f"{name}, {budget // MIB} MiB, backward"] = used / budget
    print(f"  of the budget: {found}", flush=True)
    assert max(found.values()) <= MOST_MEMORY, found
    return {name: round(of, 3) for name, of in found.items()}


def gradients() -> None:
    """Compare gradients with those of the whole batch, eager, recomputed and in autocast."""
    model = feed_forward(64).float()
    x = torch.randn(1000, 16, 64, device="cuda", requires_grad=True)
    weights, leaves = torch.randn_like(x), [x, *model.parameters()]
    for autocast in (False, True):
        for recompute in (False, True):
            with torch.autocast("cuda", torch.float16, enabled=autocast):
                outs = [function(x) for function in (model, chunked(model, chunk=300, recompute=recompute))]
            expected, found = (torch.autograd.grad(out, leaves, weights.to(out.dtype)) for out in outs)
            tolerance = 2e-2 if autocast else 1e-3
            for one, other in zip(found, expected):
                error = (one - other).abs().max() / other.abs().max()
                assert error <= tolerance, f"autocast {autocast}, recompute {recompute}: off by {error}"


def dropout() -> None:
    """Draw numbers on the device, and draw them again in the backward pass."""
    x = torch.ones(40, 4096, device="cuda", requires_grad=True)
    for recompute in (False, True):
        out = chunked(nn.Dropout(0.5), chunk=10, recompute=recompute)(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, out) and not torch.equal(out[:10], out[10:20])
    queries = torch.randn(64, 2, 128, 64, device="cuda", dtype=torch.float16)
    chunked(lambda q: functional.scaled_dot_product_attention(q, q, q, dropout_p=0.3), chunk=10)(queries)
    generator = torch.Generator("cuda")
    numbers = chunked(lambda x: x * torch.rand(x.shape, generator=generator, device="cuda"), chunk=10, recompute=True)
    out = numbers(x)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], out), "drawn again"
    chunked(feed_forward(64), chunk=100).verify(torch.randn(300, 16, 64, device="cuda", dtype=torch.float16))


@torch.no_grad()
def shortages() -> list[int]:
    """Run out of memory and beyond the grid of a launch, and finish."""
    x = torch.randn(4096, 16, 320, device="cuda", dtype=torch.float16)
    model = feed_forward()
    expected = loop(model, x, 256)
    with limited_memory(100 * MIB):
        function = chunked(model)
        found = function(x)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    (size,) = function._engine.sizes.values()
    assert size < len(x), "the whole batch does not fit"

    def attention(q: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(q, q, q)

    queries = torch.randn(70_000, 1, 16, 32, device="cuda", dtype=torch.float16)
    limited = chunked(attention)
    torch.testing.assert_close(limited(queries)[-100:], attention(queries[-100:]), rtol=1e-2, atol=1e-2)
    return [size, *limited._engine.sizes.values()]


@torch.no_grad()
def capture() -> None:
    """Capture chunks."""
    x, model = torch.randn(1000, 16, 320, device="cuda", dtype=torch.float16), feed_forward()
    function = chunked(model, chunk=300)
    function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(x)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(out, model(x), rtol=1e-2, atol=1e-2)
