"""Checks the gradients of `gridguard.torch` on a GPU: masks, windows, all sizes. All CHECKs run by default."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from calls import PYTORCH
from gpu_support import TYPES, close, limited_memory, parser_of, qkv, run_checks
from torch import Tensor

import gridguard.torch as ours
from gridguard import _launch, _native

# All kernels are checked, also those that take longer than PyTorch's.
_launch.kernels = _native.Attention(torch, compares=False)
attention = ours.scaled_dot_product_attention
HALF = (torch.float16, torch.bfloat16)

figures: dict[str, Any] = {}


def main() -> int:
    options = parser_of(__doc__).parse_args()
    torch.manual_seed(0)
    return run_checks((masks, windows, sizes, batches, shortage), (), options, figures)


def compare(what: str, tensors: Sequence[Tensor], mask: Tensor | None, **options: Any) -> tuple[bool, bool]:
    """Compare output and gradients with double precision. Return whether the kernels computed output and gradients."""
    tolerance = TYPES[tensors[0].dtype]
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    has_gradient = mask is not None and mask.is_floating_point()
    given = mask.detach().requires_grad_() if has_gradient else mask
    wanted = [*tensors, given] if has_gradient else tensors
    exact = [tensor.detach().double().requires_grad_() for tensor in wanted]
    before = ours.stats()
    out = attention(*tensors, given, **options)
    weights = torch.randn_like(out)
    found = torch.autograd.grad(out, wanted, weights)
    after = ours.stats()
    again = torch.autograd.grad(attention(*tensors, given, **options), wanted, weights)
    true = PYTORCH(*exact[:3], exact[3] if has_gradient else given, **options)
    true_gradients = torch.autograd.grad(true, exact, weights.double())
    served = (after.served > before.served, after.backward > before.backward)
    for name, one, other in zip(("out", "dq", "dk", "dv", "dmask"), (out, *found), (true, *true_gradients)):
        close(one.detach(), other.detach(), f"{what}: {name}", tolerance)
    if served[1]:
        assert all(torch.equal(one, other) for one, other in zip(found, again)), f"{what}: other bits in a second run"
    new = {reason: count - before.pytorch.get(reason, 0) for reason, count in after.pytorch.items()}
    paths = figures.setdefault("paths", {})
    paths[what] = [reason for reason, count in new.items() if count] or "kernels"
    return served


def masks() -> None:
    """Run masks with gradients: for each head, item, key, and shared by all."""
    items, heads = 40, 6
    for dtype, (queries, keys) in itertools.product(TYPES, ((49, 49), (16, 77), (11, 11), (128, 128), (144, 144), (256, 256))):
        tensors = [torch.randn(items, heads, rows, 32, device="cuda", dtype=dtype) for rows in (queries, keys, keys)]
        shared = [(queries, keys), (heads, queries, keys), (items, 1, queries, keys), (items, 1, 1, keys), (items, heads, queries, keys)]
        for sizes in shared:
            mask = torch.randn(sizes, device="cuda", dtype=dtype)
            served = compare(f"mask {sizes} of {dtype}", tensors, mask)
            if dtype in HALF and max(queries, keys) <= 128:
                assert served == (True, True), (sizes, dtype, ours.stats())
        hidden = torch.rand(items, 1, queries, keys, device="cuda") < 0.3
        hidden[:, :, 0] = True
        compare(f"hidden keys, {queries}x{keys} of {dtype}", tensors, ~hidden)
    for dtype, rows in itertools.product(TYPES, (16, 100)):
        # Heads beside the head dimension, as a linear layer writes them.
        grouped = [torch.randn(items, rows, heads, 64, device="cuda", dtype=dtype).transpose(1, 2) for heads in (6, 2, 2)]
        for sizes in ((), (rows, rows), (items, 1, rows, rows), (6, rows, rows)):
            mask = torch.randn(sizes, device="cuda", dtype=dtype) if sizes else None
            served = compare(f"mask {sizes} of grouped heads of {dtype}", grouped, mask, enable_gqa=True)
            assert sizes or dtype not in HALF or served == (True, True), (dtype, rows, ours.stats())


def windows() -> None:
    """Run windows of images: contiguous, and with heads beside the head dimension as a linear layer writes them."""
    images, count, heads, rows = 8, 9, 6, 49
    for dtype, heads_last in itertools.product(HALF, (False, True)):

        def tensor() -> Tensor:
            sizes = (images, count, rows, heads, 32) if heads_last else (images, count, heads, rows, 32)
            one = torch.randn(sizes, device="cuda", dtype=dtype)
            return one.transpose(2, 3) if heads_last else one

        tensors = [tensor() for _ in range(3)]
        for sizes in ((1, count, 1, rows, rows), (count, heads, rows, rows), (heads, rows, rows), (images, count, 1, rows, rows)):
            scores = torch.randn(sizes, device="cuda")
            for mask in (scores.to(dtype), scores > -0.7):
                served = compare(f"windows {sizes} {mask.dtype}, heads last {heads_last}", tensors, mask)
                assert served == (True, True), (sizes, heads_last, ours.stats())


def sizes() -> None:
    """Run the ends of all sizes. PyTorch computes what no kernel takes, with a reason."""
    lengths = [(length, 64) for length in (1, 2, 127, 128, 129, 144, 163, 256, 384, 512, 513)]
    widths = [(length, width) for length in (16, 64) for width in (1, 3, 8, 60, 160, 256, 504, 511, 512, 513)]
    for dtype, (length, width) in itertools.product(TYPES, [*lengths, *widths, (163, 32), (256, 32)]):
        for options in ({}, {"is_causal": True}):
            what = f"{length}x{width} of {dtype} {options}"
            served = compare(what, qkv(6, 2, length, width, dtype=dtype), None, **options)
            if dtype in HALF and width % 8 == 0 and width <= 160 and length <= 128:
                assert served == (True, True), what
            assert served != (True, True) or length <= _native.MAX_LENGTH
    for queries, keys in ((16, 1), (1, 16), (144, 16), (16, 256)):
        tensors = [torch.randn(6, 2, rows, 64, device="cuda", dtype=torch.float16) for rows in (queries, keys, keys)]
        compare(f"{queries}x{keys}x64", tensors, None)
    for sizes in ((0, 2, 16, 64), (2, 2, 0, 64)):
        tensors = [tensor.requires_grad_() for tensor in qkv(*sizes)]
        assert all(one.numel() == 0 for one in torch.autograd.grad(attention(*tensors).sum(), tensors))
    assert ours.stats().pytorch["empty"] >= 2


def batches() -> None:
    """Run 2^20 items, and repeated keys, whose gradients are added."""
    tensors = [tensor.requires_grad_() for tensor in qkv(1 << 20, 1, 8, 16)]
    mask = torch.randn(8, 8, device="cuda", dtype=torch.float16, requires_grad=True)
    weights, before = torch.randn_like(tensors[0]), ours.stats()
    out = attention(*tensors, mask)
    found = torch.autograd.grad(out, tensors, weights)
    assert (ours.stats().served, ours.stats().backward) == (before.served + 1, before.backward + 1)
    for part in (slice(16), slice(65_530, 65_540), slice((1 << 20) - 16, 1 << 20)):
        exact = [tensor.detach()[part].double().requires_grad_() for tensor in tensors]
        true = PYTORCH(*exact, mask.detach().double())
        for one, other in zip(found, torch.autograd.grad(true, exact, weights[part].double())):
            close(one[part], other, "2^20 items", TYPES[torch.float16])
    query, key, value = (one.requires_grad_() for one in qkv(64, 2, 16, 32, dtype=torch.float32))
    shared = key.detach()[:1].requires_grad_()
    [found] = torch.autograd.grad(attention(query, shared.expand(64, 2, 16, 32), value).square().sum(), shared)
    exact = shared.detach().double().requires_grad_()
    true = PYTORCH(query.detach().double(), exact.expand(64, 2, 16, 32), value.detach().double())
    [expected] = torch.autograd.grad(true.square().sum(), exact)
    close(found, expected, "repeated keys", TYPES[torch.float32])


def shortage() -> None:
    """Compute gradients of a mask whose scores do not fit: PyTorch's need as much, and its error is raised."""
    tensors = [tensor.requires_grad_() for tensor in qkv(16_000, 1, 128, 8)]
    mask = torch.zeros(128, 128, device="cuda", dtype=torch.float16, requires_grad=True)
    wanted = [*tensors, mask]
    out = attention(*tensors, mask)
    weights = torch.ones_like(out)
    before = ours.stats().pytorch.get("backward pass: memory", 0)
    with limited_memory(256 << 20):
        try:
            torch.autograd.grad(out, wanted, weights, retain_graph=True)
            figures["gradients without memory"] = "computed by PyTorch"
        except torch.cuda.OutOfMemoryError:
            figures["gradients without memory"] = "torch.cuda.OutOfMemoryError"
    assert ours.stats().pytorch["backward pass: memory"] == before + 1
    before = ours.stats().backward
    assert all(one.isfinite().all() for one in torch.autograd.grad(out, wanted, weights))
    assert ours.stats().backward == before + 1


if __name__ == "__main__":
    sys.exit(main())
