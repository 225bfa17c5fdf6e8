"""PyTorch's own attention, in slices where its kernels would overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gridguard import _launch, _native

pytorch: Callable[..., Tensor] = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own function, whatever is in its place when this is imported: that might call ours."""

MOST_SLICE = _native.MAX_GRID_Y
"""PyTorch's kernels have batch and heads on the second and third axis of their grids."""

PLAIN = (Tensor, torch.nn.Parameter)
"""Subclasses may mean something else by the same memory."""


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """PyTorch's function, in slices of batch and heads where these would overflow the grids of its kernels."""
    options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if enable_gqa:
        # PyTorch 2.4 does not know it.
        options["enable_gqa"] = enable_gqa
    if not _overflows(query, key, value):
        return pytorch(query, key, value, mask, **options)

    most = MOST_SLICE
    # Grouped heads would have to be cut between groups.
    heads_at_once = query.shape[1] if enable_gqa else most
    out = None
    for item in range(0, query.shape[0], most):
        for head in range(0, query.shape[1], heads_at_once):
            begin = (item, head)
            size = (most, heads_at_once)
            part = pytorch(
                _slice(query, begin, size),
                _slice(key, begin, size),
                _slice(value, begin, size),
                _slice(mask, begin, size) if isinstance(mask, Tensor) else mask,
                **options,
            )
            if out is None:
                out = part.new_empty((*query.shape[:2], *part.shape[2:]))
            out[item : item + most, head : head + heads_at_once] = part
    assert out is not None
    return out


def _overflows(query: Any, key: Any, value: Any) -> bool:
    """Whether batch or heads of a valid call exceed an axis of a grid."""
    if not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None:
        return False
    tensors = (query, key, value)
    if not all(type(tensor) in PLAIN and not tensor.is_nested for tensor in tensors):
        return False
    if not getattr(query, _launch.SERVED_DEVICE) or any(tensor.dim() != 4 for tensor in tensors):
        return False
    items, heads = query.shape[:2]
    if items <= MOST_SLICE and heads <= MOST_SLICE:
        return False
    return items > 0 and heads > 0 and all(tensor.shape[0] in (1, items) for tensor in tensors)


def _slice(tensor: Tensor, begin: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Some items and heads of a tensor whose last four axes are items, heads and a matrix. Axes of one are
    for all items or heads."""
    for axis, start, length in zip((-4, -3), begin, size):
        if tensor.dim() >= -axis and tensor.shape[axis] > 1:
            # PyTorch checks the number of heads, which may be less than that of the query.
            tensor = tensor.narrow(axis, start, min(length, tensor.shape[axis] - start))
    return tensor
