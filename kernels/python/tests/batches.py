"""Batches, a network and a function that counts, for tests of `chunked`."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch):
    """Keep the sizes of a test in a folder of its own."""
    monkeypatch.setenv("GRIDGUARD_PROFILES", str(tmp_path))
    return tmp_path


class Counter:
    """A function that counts its calls and their items."""

    def __init__(self, function, limit=10**9):
        self.function, self.limit, self.sizes = function, limit, []

    def __call__(self, x):
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return self.function(x)


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).double()


def batch(items=20, requires_grad=False):
    return torch.randn(items, 8, dtype=torch.float64, requires_grad=requires_grad)


def gradients(out, leaves):
    weights = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
    return torch.autograd.grad(out, leaves, weights)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
