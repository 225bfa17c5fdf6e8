"""Checks `gridguard.tune` on a GPU: PyTorch's and Triton's kernels, and a candidate that breaks the context."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from gpu_support import profiles_in

import gridguard

try:
    import triton
    from triton import language as tl
except ImportError:
    triton = None


@gridguard.tune(chunk="auto", PASSES=[8, 1], outputs=["y"])
def double(x, y, *, chunk, PASSES):
    """Write 2 x to y, in chunks, as often as PASSES says."""
    for _ in range(PASSES):
        for part, out in zip(x.split(chunk), y.split(chunk), strict=True):
            torch.mul(part, 2, out=out)


@gridguard.tune(WRONG=[0, 1], outputs=["y"], timeout=30)
def faulty(x, y, *, WRONG):
    """Read outside of x with the second candidate."""
    index = torch.arange(len(x), device=x.device) + WRONG * 2**40
    torch.index_select(x, 0, index, out=y)


if triton is not None:

    @triton.jit
    def add_kernel(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    @gridguard.tune(BLOCK=[32, 128, 1024], outputs=["y"])
    def add(x, y, *, BLOCK):
        """Add one by a kernel of Triton."""
        add_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)


def check() -> dict[str, Any]:
    """Run all checks, and return their figures."""
    with tempfile.TemporaryDirectory() as folder, profiles_in(folder):
        return _check()


def _check() -> dict[str, Any]:
    x = torch.arange(1 << 22, device="cuda", dtype=torch.float32)
    y = torch.zeros_like(x)
    tuned = double.tune(x, y, time_limit=120)
    assert tuned.values["PASSES"] == 1 and tuned.speedup > 4, tuned
    assert not y.any() and double.values(x, y) == tuned.values
    double(x, y)
    assert torch.equal(y, 2 * x)
    assert tuned.profile is not None and not tuned.profile.name.startswith("host-"), tuned.profile

    broken = faulty.tune(x, y, time_limit=120)
    assert broken.values == {"WRONG": 0} and len(broken.failures) == 1, broken
    figures = {"PyTorch": tuned.speedup, "broken": broken.failures[0].splitlines()[0]}
    if triton is not None:
        figures["Triton"] = add.tune(x, y, time_limit=120).speedup
    return figures


if __name__ == "__main__":
    print(check())
