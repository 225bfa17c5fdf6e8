"""The operations that PyTorch's FLOP counter counts for our operators: as many as for PyTorch's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from gridguard import _operator  # noqa: F401 (defines the operators)


def _product(query: Sequence[int], key: Sequence[int], width: int) -> int:
    """Operations that multiply each query with each key, in rows of `width` elements."""
    return 2 * math.prod(query[:-1]) * key[-2] * width


def _forward(query: Sequence[int], key: Sequence[int], value: Sequence[int], *others: Any, **options: Any) -> int:
    """Scores, and their product with the values. PyTorch does not take a causal call for less, either."""
    return _product(query, key, query[-1]) + _product(query, key, value[-1])


def _backward(
    grad: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *others: Any, **options: Any
) -> int:
    """The scores again, then the gradients of query, key, scores and value."""
    return 3 * _product(query, key, query[-1]) + 2 * _product(query, key, value[-1])


for name, formula in {"attention": _forward, "attention_backward": _backward}.items():
    if hasattr(torch.ops.gridguard, name):
        register_flop_formula(getattr(torch.ops.gridguard, name))(formula)
