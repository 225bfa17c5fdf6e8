"""Checks `gridguard.torch.temporal_block` on a GPU, and times it. All CHECKs run by default."""

from __future__ import annotations

import contextlib
import copy
import sys
from typing import Any

import models
import torch
from gpu_support import (
    close,
    device_us,
    host_us,
    in_threads,
    limited_memory,
    parser_of,
    peak_of,
    run_checks,
    show,
)
from torch import Tensor, nn

import gridguard.torch as ours
from gridguard import GridguardError

MIB = 1 << 20
# Items, frames, channels and heads: AnimateDiff at 320 x 512, its next level, and others.
MOTIVATING = (15_360, 16, 320, 5)
SHAPES = (MOTIVATING, (3840, 16, 640, 10), (15_360, 24, 320, 5), (960, 16, 1280, 8))
# Items at both ends that are compared with double precision.
CHECKED = 16
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float32: 2e-4}

figures: dict[str, Any] = {}


def main() -> int:
    options = parser_of(__doc__).parse_args()
    checks = (
        timing,
        results,
        budgets,
        shortage,
        graphs,
        threads,
        memory,
        compiled,
        training,
        step,
    )
    with torch.no_grad():
        return run_checks(checks, (), options, figures)


def results() -> None:
    """Run every type, with and without position embeddings, also in sizes without a fast kernel."""
    shapes = [*SHAPES, (70_000, 16, 64, 1), (7, 1, 8, 1), (33, 31, 72, 3), (5, 128, 128, 2), (3, 17, 1032, 129)]
    for items, frames, channels, heads in shapes:
        for dtype in TOLERANCES:
            for positions in (None, 128):
                module, x = block(channels, heads, dtype, positions), hidden(items, frames, channels, dtype)
                served = ours.stats().served
                out = ours.temporal_block(module, x)
                what = f"{items}x{frames}x{channels}, {heads} heads, {dtype}, positions {positions}"
                assert ours.stats().served == served + 1, f"{what}: {ours.stats()}"
                check(module, x, out, what)
                del out, x


def budgets() -> None:
    module, x = block(320, 5), hidden(*MOTIVATING[:3])
    expected = ours.temporal_block(module, x)
    for budget in (64 * MIB, 256 * MIB, 1024 * MIB):
        ours.temporal_block(module, x, memory_budget=budget)
        out, used = peak_of(lambda: ours.temporal_block(module, x, memory_budget=budget))  # noqa: B023
        used -= out.nbytes
        figures[f"bytes within {budget // MIB} MiB"] = used
        # The joined weights of queries, keys and values are extra.
        assert used <= budget + 2 * 3 * 320 * 320 * 2 + MIB, used
        check(module, x, out, f"{budget} bytes")
        assert (out - expected).abs().max().item() < 0.05
    try:
        ours.temporal_block(module, x, memory_budget=1000)
    except GridguardError as error:
        assert "smallest" in str(error), error
    else:
        raise AssertionError("a budget of 1000 bytes is enough")


def shortage() -> None:
    module, x = block(320, 5), hidden(*MOTIVATING[:3])
    with limited_memory(600 * MIB):
        out = ours.temporal_block(module, x)
        torch.cuda.synchronize()
    check(module, x, out, "little memory")


def graphs() -> None:
    """Replay graphs after their input and the weights changed."""
    for budget in (None, 64 * MIB):
        module, x = block(320, 5), hidden(2000, 16, 320)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            ours.temporal_block(module, x, memory_budget=budget)
        torch.cuda.current_stream().wait_stream(stream)
        before = ours.stats()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = ours.temporal_block(module, x, memory_budget=budget)
            fallback = ours.temporal_block(module, x[:100], memory_budget=budget)
        after = ours.stats()
        assert after.served == before.served + 1, after
        reason = "temporal block: first call during capture"
        assert after.pytorch[reason] == before.pytorch.get(reason, 0) + 1, after
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            module.attn2.to_v.weight.data.mul_(1.1)
            graph.replay()
            check(module, x, out, "a graph")
            check(module, x[:100], fallback, "a graph's fallback")


def threads() -> None:
    """Run threads on their own streams, with a budget for chunks on two streams."""

    def work(seed: int) -> None:
        with torch.no_grad():
            module, x = block(320, 5, seed=seed), hidden(500 + seed, 16, 320)
            for turn in range(10):
                out = ours.temporal_block(module, x, memory_budget=(None, 32 * MIB)[turn % 2])
                check(module, x, out, f"thread {seed}")

    in_threads(6, work)


def memory() -> None:
    """Find memory leaks of calls, and of new shapes."""
    module = block(64, 1)
    for items in range(1, 200):
        ours.temporal_block(module, hidden(items, 16, 64))
    torch.cuda.synchronize()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    x = hidden(100, 16, 64)
    for _ in range(500):
        ours.temporal_block(module, x)
    for items in range(200, 400):
        ours.temporal_block(module, hidden(items, 16, 64))
    torch.cuda.synchronize()
    del x
    after, free_after = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    figures["memory of new shapes"] = free - free_after
    assert before == after and free - free_after < 256 * MIB, f"{before} {free}, then {after} {free_after}"


def compiled() -> None:
    """Compile a block for several batches, and in CUDA graphs, whose replays read changed weights."""
    for mode in (None, "reduce-overhead"):
        torch.compiler.reset()
        module = block(320, 5)
        function = torch.compile(lambda x: ours.temporal_block(module, x) * 2, fullgraph=True, mode=mode)
        before = ours.stats()
        for items in (2000, 2000, 2000, 3000, 3000, 3000):
            x = hidden(items, 16, 320)
            out = function(x).clone() / 2
            check(module, x, out, f"compiled with {mode}")
            module.attn2.to_v.weight.mul_(1.1)
        after = ours.stats()
        assert after.served > before.served and after.pytorch == before.pytorch, after


def training() -> None:
    """Compare gradients with double precision: eager, compiled, and in a CUDA graph."""
    for dtype, tolerance in TOLERANCES.items():
        module, x = block(320, 5, dtype).requires_grad_(), hidden(300, 16, 320, dtype).requires_grad_()
        wanted, weights = [x, *module.parameters()], torch.randn_like(x)
        exact = copy.deepcopy(module).double()
        given = x.detach().double().requires_grad_()
        with torch.enable_grad():
            out = type(exact).forward(exact, given)
            true = torch.autograd.grad(out, [given, *exact.parameters()], weights.double())
        torch.compiler.reset()
        call = lambda x: ours.temporal_block(module, x)  # noqa: B023, E731
        for name, function in (("eager", call), ("compiled", torch.compile(call, fullgraph=True))):
            before = ours.stats()
            with torch.enable_grad():
                found = torch.autograd.grad(function(x), wanted, weights)
            after = ours.stats()
            assert after.backward == before.backward + 2 and after.pytorch == before.pytorch, after
            for one, other in zip(found, true):
                close(one, other, f"{name} gradients of {dtype}", 4 * tolerance)
        if dtype is torch.float16:
            with torch.enable_grad():
                graphed = torch.cuda.make_graphed_callables(Block(module), (x.detach().clone().requires_grad_(),))
                found = torch.autograd.grad(graphed(x), wanted, weights)
            for one, other in zip(found, true):
                close(one, other, "gradients of a graph", 4 * tolerance)


class Block(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return ours.temporal_block(self.block, x)


def step() -> None:
    """Time forward and backward passes beside those of the module, and of the module with our attention."""
    rows = figures["training"] = []
    for items, frames, channels, heads in ((3840, 16, 320, 5), (70_000, 16, 320, 5)):
        module, x = block(channels, heads).requires_grad_(), hidden(items, frames, channels).requires_grad_()
        row: dict[str, Any] = {"case": f"{items}x{frames}x{channels}, {heads} heads"}
        for name, call in (("module", module), ("installed", module), ("ours", Block(module))):

            def run(x: Tensor) -> None:
                with torch.enable_grad():
                    out = call(x)  # noqa: B023
                    torch.autograd.grad(out, [x, *module.parameters()], out.detach())  # noqa: B023

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                with ours.installed() if name == "installed" else contextlib.nullcontext():
                    row[name] = device_us(run, [x])
            except RuntimeError as error:
                row[name] = str(error).split("\n")[0]
            row[f"{name}, MiB"] = torch.cuda.max_memory_allocated() // MIB
        rows.append(row)
        show(row)


def timing() -> None:
    rows = figures["microseconds"] = []
    for items, frames, channels, heads in SHAPES:
        module, x = block(channels, heads), hidden(items, frames, channels)
        row: dict[str, Any] = {"case": f"{items}x{frames}x{channels}, {heads} heads"}
        row["module"] = device_us(module, [x])
        row["ours"] = device_us(lambda x: ours.temporal_block(module, x), [x])
        for budget in (64, 256):
            row[f"{budget} MiB"] = device_us(lambda x: ours.temporal_block(module, x, budget * MIB), [x])
        row["of the module"] = round(row["ours"] / row["module"], 3)
        rows.append(row)
        show(row)
        del module, x
    module, x = block(64, 1), hidden(2, 2, 64)
    costs = {"ours": host_us(lambda x: ours.temporal_block(module, x), [x]), "module": host_us(module, [x])}
    figures["host microseconds"] = costs
    print(f"  host cost of a call: {costs}")


def block(
    channels: int, heads: int, dtype: torch.dtype = torch.float16, positions: int | None = 128, seed: int = 0
) -> nn.Module:
    embedded = {"positional_embeddings": "sinusoidal", "num_positional_embeddings": positions} if positions else {}
    return models.motion_block(channels, heads, seed, **embedded).to("cuda", dtype)


def hidden(items: int, frames: int, channels: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(items, frames, channels, device="cuda", dtype=dtype)


def check(module: nn.Module, x: Tensor, out: Tensor, what: str) -> None:
    exact = copy.deepcopy(module).double()
    for part in (slice(CHECKED), slice(max(len(x) - CHECKED, 0), len(x))):
        close(out[part], type(exact).forward(exact, x[part].double()), what, TOLERANCES[x.dtype])
    assert not out.isnan().any(), what


if __name__ == "__main__":
    sys.exit(main())
