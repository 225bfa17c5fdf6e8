"""Checks `gridguard.torch` on a GPU, and times it. All CHECKs run by default."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_calls
import gpu_chunked
import gpu_tune
import torch
from calls import MODES, NOT_ALIGNED, PYTORCH, SERVED_DERIVATIVE, shifted
from gpu_support import close, device_us, host_us, in_threads, parser_of, profiles_in, qkv, run_checks, show
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import gridguard.torch as ours
from gridguard import _launch, _measure, _native

attention = ours.scaled_dot_product_attention
MOTIVATING = (15_360, 5, 16, 64)
# Items at both ends that are compared with double precision.
CHECKED = 32

figures: dict[str, Any] = {}


def main() -> int:
    cli = parser_of(__doc__)
    cli.add_argument("--calls", type=int, default=5000, help="the number of random calls")
    cli.add_argument("--seconds", type=float, default=500.0, help="the time limit of random calls, without imports")
    cli.add_argument("--workers", type=int, default=8, help="the number of processes of random calls")
    cli.add_argument("--native", type=Path, help="GRIDGUARD_BENCH_JSON of our bench, for 15360x5x16x64")
    options = cli.parse_args()
    checks = (
        timing,
        host_times,
        borders,
        measured,
        random_calls,
        large_batches,
        graphs,
        compiled,
        threads,
        devices,
        loaders,
        memory,
        masks,
        readers,
        chunks,
        tuned_functions,
    )
    return run_checks(checks, (options,), options, figures)


def random_calls(options: argparse.Namespace) -> None:
    """Compare random calls. A call that ends PyTorch's process counts too."""
    found = gpu_calls.check(options.calls, options.workers, options.seconds)
    kinds, labels, paths = dict(found.kinds), dict(found.labels), dict(found.paths)
    total, seconds = found.kinds.total(), round(found.seconds, 1)
    figures["random calls"] = {
        "asked": options.calls, "compared": total, "seconds": seconds,
        "kinds": kinds, "labels": labels, "wrong": found.wrong, "paths": paths,
    }  # fmt: skip
    print(f"  {total} of {options.calls} calls in {seconds} s, {len(found.wrong)} wrong, {kinds}, {labels}, {paths}")
    assert not found.wrong, f"{len(found.wrong)} calls\n" + "\n".join(found.wrong[:20])
    short = f"no call of {total} was wrong, but {options.calls} do not fit into {options.seconds:g} s"
    assert total == options.calls, f"{short}: lower --calls, or raise --seconds or --workers"
    assert found.paths["served"] > options.calls // 4, "few calls are served"
    if options.calls < 1000:
        return
    wanted = {"copied", "aligned", "strides", "shape", "scale", "length", "dtype", "dropout", "mask"}
    assert wanted <= paths.keys(), wanted - paths.keys()
    assert MODES.keys() | {NOT_ALIGNED} <= labels.keys(), labels
    assert found.labels[NOT_ALIGNED] > options.calls // 10 and found.kinds[SERVED_DERIVATIVE] > options.calls // 200


def large_batches(options: argparse.Namespace) -> None:
    """Run batches that PyTorch's flash attention refuses, by our kernels and by PyTorch in slices."""
    tensors = qkv(70_000, 2, 16, 32)
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            PYTORCH(*tensors)
        torch.cuda.synchronize()
        figures["PyTorch's flash backend at batch 70000"] = "right size"
    except RuntimeError as error:
        figures["PyTorch's flash backend at batch 70000"] = str(error).split("\n")[0]
    for items, keys in ((70_000, 16), (1_000_000, 16), (70_000, 24), (70_000, 516), (200_000, 516)):
        query = torch.randn(items, 2, 16, 32, device="cuda", dtype=torch.float16)
        key, value = (torch.randn(items, 2, keys, 32, device="cuda", dtype=torch.float16) for _ in range(2))
        before = ours.stats().served
        out = attention(query, key, value)
        torch.cuda.synchronize()
        assert (ours.stats().served > before) == (keys <= 512), "the path"
        for part in (slice(CHECKED), slice(items - CHECKED, items), slice(65_530, 65_540)):
            close(out[part], PYTORCH(*(t[part].double() for t in (query, key, value))), f"{items} items")
        del query, key, value, out


def graphs(options: argparse.Namespace) -> None:
    tensors = qkv(256, 5, 16, 64)
    attention(*tensors)
    # A library of PyTorch's takes memory at its first call, which a capture forbids.
    PYTORCH(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = ours.stats()
    with torch.cuda.graph(graph):
        out = attention(*tensors)
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
    """Compile a layer with a bias for each head, which is trained."""
    bias = torch.randn(5, 16, 16, device="cuda", dtype=torch.float16, requires_grad=True)
    for mode in (None, "reduce-overhead"):
        torch.compiler.reset()
        function = torch.compile(lambda q, k, v, bias: attention(q * 2, k, v, bias * 0.5).sin(), fullgraph=True, mode=mode)
        before = ours.stats()
        for items, differentiated in ((64, False), (64, False), (64, False), (64, True), (80, True)):
            wanted = [*(one.requires_grad_(differentiated) for one in qkv(items, 5, 16, 64)), bias]
            exact = [one.detach().double().requires_grad_() for one in wanted]
            true = PYTORCH(exact[0] * 2, *exact[1:3], exact[3] * 0.5).sin()
            with torch.set_grad_enabled(differentiated):
                out = function(*wanted)
            close(out.detach(), true.detach(), f"compiled, mode {mode}")
            if differentiated:
                found, expected = torch.autograd.grad(out.float().sum(), wanted), torch.autograd.grad(true.sum(), exact)
                for one, other in zip(found, expected):
                    close(one, other, "gradients of compiled code", 2e-2)
        after = ours.stats()
        # A graph counts its calls when it is captured.
        assert after.served > before.served and after.backward > before.backward, "compiled code runs our kernels"


def threads(options: argparse.Namespace) -> None:
    """Run threads on their own streams, with shapes that other threads compile at the same time."""

    def work(seed: int) -> None:
        for length in (3, 7, 16, 33, 60):
            tensors = qkv(50 + seed % 4, 3, length, 48)
            for _ in range(20):
                out = attention(*tensors)
            close(out, PYTORCH(*(t.double() for t in tensors)), f"thread {seed}")

    in_threads(8, work)


def devices(options: argparse.Namespace) -> None:
    """Run on every device, while the first is current."""
    for index in range(torch.cuda.device_count()):
        tensors = [t.to(f"cuda:{index}") for t in qkv(100, 5, 16, 64)]
        before = ours.stats().served
        out = attention(*tensors)
        assert out.device.index == index and torch.cuda.current_device() == 0
        assert ours.stats().served == before + 1
        close(out, PYTORCH(*(t.double() for t in tensors)), f"device {index}")
        # A measurement waits for the device of its tensors: PyTorch takes 836 us here on an H200.
        times = _measure.measure(*(t.to(f"cuda:{index}") for t in qkv(*MOTIVATING)), None, False, None, False)
        assert times is not None and times[1][0] > 100_000, f"device {index}: {times}"


class Numbers(torch.utils.data.Dataset):
    """Yield data that workers compute on the CPU with the function."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.full((1, 4, 8), float(index))
        return attention(x, x, x)


def loaders(options: argparse.Namespace) -> None:
    """Fork data loaders after CUDA was initialised."""
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


def readers(options: argparse.Namespace) -> None:
    """Read tensors by DLPack and by attributes, on a stream other than the default."""
    kernels = _launch.kernels
    packed = torch.randn(100, 16, 3, 5, 64, device="cuda", dtype=torch.bfloat16)
    tensors = [packed[:, :, at].transpose(1, 2) for at in range(3)]
    exact = PYTORCH(*(t.double() for t in tensors))
    try:
        for dlpack in (True, False):
            _launch.kernels = _native.Attention(torch, dlpack=dlpack)
            with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                outs = [attention(*tensors) for _ in range(3)]
            torch.cuda.synchronize()
            # The kernel may not be loaded before the first call.
            assert _launch.kernels.counts[0] >= 2, "common calls take the short way"
            for out in outs:
                close(out, exact, f"reader {_launch.kernels.reader}", 2e-2)
    finally:
        _launch.kernels = kernels


def chunks(options: argparse.Namespace) -> None:
    figures["chunks"] = gpu_chunked.check()


def tuned_functions(options: argparse.Namespace) -> None:
    figures["tuned functions"] = gpu_tune.check()


def timing(options: argparse.Namespace) -> None:
    """Time calls on the device, with PyTorch and our bench as references, and on the host."""
    native = native_us(options.native) if options.native else {}
    rows = figures["microseconds"] = []
    for name, tensors in cases():
        found = device_us(attention, tensors)
        row = {"case": name, "ours": found, "PyTorch": device_us(PYTORCH, tensors), "native": native.get(name)}
        row["of native"] = row["native"] and round(found / row["native"], 3)
        rows.append(row)
        show(row)


def host_times(options: argparse.Namespace) -> None:
    """Time calls on the host, forwards and both ways, whose kernels take less time than the host."""

    def inputs_of(*sizes: int, heads: int) -> list[torch.Tensor]:
        query, *others = qkv(*sizes)
        return [one.clone().requires_grad_() for one in (query, *(other[:, :heads] for other in others))]

    leaves, grouped, left = inputs_of(8, 4, 24, 64, heads=4), inputs_of(8, 4, 24, 64, heads=2), inputs_of(1, 1, 128, 128, heads=1)
    boolean = torch.ones(8, 1, 1, 24, device="cuda", dtype=torch.bool)
    calls: dict[str, tuple[list[torch.Tensor], dict[str, Any]]] = {
        "plain": (leaves, {}),
        "causal": (leaves, {"is_causal": True}),
        "boolean mask": (leaves, {"attn_mask": boolean}),
        "boolean mask, expanded": (leaves, {"attn_mask": boolean.expand(8, 1, 24, 24)}),
        "additive mask": (leaves, {"attn_mask": torch.zeros(8, 1, 24, 24, device="cuda", dtype=torch.float16)}),
        "grouped heads": (grouped, {"enable_gqa": True}),
        "left to PyTorch": (left, {"is_causal": True}),
    }
    rows: list[dict[str, Any]] = []
    kernels, _launch.kernels = _launch.kernels, _native.Attention(torch)
    for name, (inputs, given) in calls.items():
        grad = torch.randn_like(inputs[0])

        def forward() -> None:
            with torch.no_grad():
                PYTORCH(*inputs, **given)

        def both() -> None:
            torch.autograd.grad(PYTORCH(*inputs, **given), inputs, grad)

        for what, call in ((name, forward), (f"{name}, forward and backward", both)):
            theirs, before = host_us(call, []), _launch.kernels.counts
            with ours.installed():
                row = {"case": what, "ours": host_us(call, []), "PyTorch": theirs}
            row["ours / PyTorch"] = round(row["ours"] / theirs, 2)
            rows.append(row)
            show(row)
            # All but the first calls, which load code, take the short way.
            new = [after - count for after, count in zip(_launch.kernels.counts, before)]
            wanted = (0, 0, 5000) if inputs is left else (5000, 5000 * (call is both), 0)
            assert all(max(0, most - 2) <= count <= most for count, most in zip(new, wanted)), f"{what}: {new}"
    figures["host microseconds"] = {**rows[0], "cases": rows}
    _launch.kernels = kernels


def borders(options: argparse.Namespace) -> None:
    """Leave calls to PyTorch that it computes faster, eager and compiled, also an oversized batch, and serve others.

    All tensors and gradients begin at an odd element, where PyTorch's own kernels may end the process.
    """
    kernels, _launch.kernels = _launch.kernels, _native.Attention(torch)
    for function in (PYTORCH, torch.compile(lambda *tensors: PYTORCH(*tensors))):
        for sizes in ((16, 2, 512, 128), (66_000, 1, 8, 264), (16, 2, 64, 64)):
            is_left, before = sizes[-1] > 64, _launch.kernels.counts[:2]
            aligned = [tensor.requires_grad_() for tensor in qkv(*sizes)]
            for tensors in (aligned, [shifted(tensor.detach()).requires_grad_() for tensor in aligned]):
                grad = shifted(torch.randn_like(tensors[0]))
                with ours.installed():
                    out = function(*tensors)
                    found = (out, *torch.autograd.grad(out, tensors, grad))
                for part in (slice(8), slice(sizes[0] - 8, None)):
                    exact = [tensor.detach()[part].double().requires_grad_() for tensor in tensors]
                    true = PYTORCH(*exact)
                    for one, other in zip(found, (true, *torch.autograd.grad(true, exact, grad[part].double()))):
                        close(one.detach()[part], other.detach(), f"{sizes}, odd elements")
            assert not is_left or _launch.kernels.counts[:2] == before, sizes
    assert ours.stats().pytorch["slower"] >= 2
    _launch.kernels = kernels


def measured(options: argparse.Namespace) -> None:
    """Measure shapes that no entry decides: once for all threads, and never in a capture, a job or with little memory."""
    kernels, _launch.kernels = _launch.kernels, _native.Attention(torch)
    with tempfile.TemporaryDirectory() as folder, profiles_in(folder):

        def written() -> int:
            return sum(path.read_text().count("attention_choice") for path in Path(folder).glob("*.ron"))

        _native.reload_profiles()
        ours.install(measure=True)
        before = ours.compare_profiles()
        # f32 has no border for this head dimension.
        tensors = qkv(4096, 5, 16, 256, dtype=torch.float32)
        torch.cuda.empty_cache()
        held = torch.empty(torch.cuda.mem_get_info()[0] - (2 << 30), dtype=torch.uint8, device="cuda")
        PYTORCH(*tensors)
        del held
        torch.cuda.empty_cache()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            PYTORCH(*tensors)
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        PYTORCH(*tensors)
        torch.distributed.destroy_process_group()
        assert written() == 0 and ours.compare_profiles() == before, "no time to measure"
        ours.install(measure=True)
        torch.cuda.synchronize()
        # The pause after a shortage ends.
        time.sleep(1)
        in_threads(4, lambda number: close(PYTORCH(*tensors), PYTORCH(*tensors), "measured in threads"))
        mask = torch.ones(16, 16, device="cuda").tril().bool()
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        # A checkpoint counts the tensors that are saved, and its second forward pass measures nothing.
        checkpoint(lambda *inputs: PYTORCH(*inputs, mask).sin(), *leaves, use_reentrant=False).sum().backward()
        # This one measures again, with gradients, in the thread that runs the device's backward passes.
        checkpoint(lambda *inputs: PYTORCH(*inputs, is_causal=True).sin(), *leaves, use_reentrant=True).sum().backward()
        after = ours.compare_profiles()
        assert written() == 4 and after != before
        _native.reload_profiles()
        out = PYTORCH(*tensors)
        assert written() == 4 and ours.compare_profiles() == after, "another process reads the answers"
        ours.uninstall()
        close(out, PYTORCH(*(tensor.double() for tensor in tensors)), "measured")
        figures["measured"] = [path.read_text() for path in Path(folder).glob("*.ron")]
    _launch.kernels = kernels
    _native.reload_profiles()


def native_us(path: Path) -> dict[str, float]:
    """Return our bench's microseconds for the motivating case, by the names of `cases`."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if row["shape"] == "x".join(map(str, MOTIVATING)) and "us" in row]
    found = {row["dtype"]: row["us"] for row in rows if row["case"] == "ours"}
    strided = {"f16, one packed tensor": row["us"] for row in rows if row["case"] == "strided"}
    return {**found, **strided}


def cases() -> Iterator[tuple[str, list[torch.Tensor]]]:
    yield "f16", qkv(*MOTIVATING)
    yield "bf16", qkv(*MOTIVATING, dtype=torch.bfloat16)
    yield "f32", qkv(*MOTIVATING, dtype=torch.float32)
    items, heads, frames, width = MOTIVATING
    packed = torch.randn(items, frames, 3, heads, width, device="cuda", dtype=torch.float16)
    yield "f16, one packed tensor", [packed[:, :, at].transpose(1, 2) for at in range(3)]
    del packed
    items, heads, _, width = MOTIVATING
    yield "f16, 77 keys", [qkv(*MOTIVATING)[0], *qkv(items, heads, 77, width)[1:]]
    hidden = torch.rand(items, 1, 1, 16, device="cuda") < 0.2
    yield "f16, mask of items", [*qkv(*MOTIVATING), hidden.half().masked_fill(hidden, -torch.inf)]
    del hidden
    # AnimateDiff's widest motion modules have 1,280 channels in 8 heads.
    yield "f16, 3840x8x16x160", qkv(3_840, 8, 16, 160)
    yield "f32, 3840x8x16x160", qkv(3_840, 8, 16, 160, dtype=torch.float32)
    for items in (70_000, 200_000, 1_000_000):
        yield f"f16, {items}x2x16x64", qkv(items, 2, 16, 64)


if __name__ == "__main__":
    sys.exit(main())
