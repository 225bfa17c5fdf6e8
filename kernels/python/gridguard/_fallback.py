"""PyTorch's own attention, on tensors that its kernels can read, in slices where they would overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gridguard import _launch, _native, _pytorch
from gridguard._aligned import PLAIN, align_gradient, aligned

pytorch: Callable[..., Tensor] = _pytorch.unserved

MOST_SLICE = _native.MAX_GRID_Y
"""PyTorch's kernels have batch and heads on the second and third axis of their grids."""

_ITEMS, _HEADS = -4, -3


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
    if not _may_be_fused(query, key, value, mask):
        return pytorch(query, key, value, mask, **options)
    if mask is not None and mask.dim() >= 2 and mask.shape[-1] == 1:
        # PyTorch's kernels refuse the layout that it makes of a mask of one column itself.
        mask = mask.expand(*mask.shape[:-1], key.shape[-2])
    query, key, value, mask = aligned(query, key, value, mask)  # type: ignore[assignment]
    if not overflows(query, key, value, mask, enable_gqa):
        return _differentiable(pytorch(query, key, value, mask, **options))
    if enable_gqa and query.shape[_HEADS] > MOST_SLICE:
        # Slices would have to end between groups.
        key, value = (one.repeat_interleave(query.shape[_HEADS] // one.shape[_HEADS], _HEADS) for one in (key, value))
        del options["enable_gqa"]
    return _run_slices(_ITEMS, [query, key, value, mask], options)


def slices(tensor: Tensor | None, axis: int, size: int) -> list[Tensor | None]:
    """A tensor in slices of an axis that has `size` in the whole call. All slices share a tensor that has no such axis,
    or one element of it."""
    count = (size + MOST_SLICE - 1) // MOST_SLICE
    if tensor is None or tensor.dim() < -axis or tensor.shape[axis] == 1:
        return [tensor] * count
    # Of nearly equal sizes: a compiler would take a last slice of one item for a constant.
    return list(tensor.chunk(count, axis))


def _run_slices(axis: int, tensors: list[Tensor | None], options: dict[str, Any]) -> Tensor:
    """PyTorch's function, in slices of this axis and of those between it and the matrices."""
    if axis > _HEADS:
        return _differentiable(pytorch(*tensors, **options))
    query = tensors[0]
    assert query is not None
    size = query.shape[axis]
    if size <= MOST_SLICE:
        return _run_slices(axis + 1, tensors, options)
    parts = (
        _run_slices(axis + 1, list(part), options) for part in zip(*(slices(tensor, axis, size) for tensor in tensors))
    )
    needs_grad = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)
    if needs_grad or _pytorch.is_compiling():
        return torch.cat(list(parts), axis)
    return _joined(parts, axis, size)


def _joined(parts: Iterator[Tensor], axis: int, size: int) -> Tensor:
    """As `torch.cat`, but only one of the parts is in memory at a time."""
    out, begin = None, 0
    for part in parts:
        if out is None:
            sizes = list(part.shape)
            sizes[axis] = size
            out = part.new_empty(sizes)
        out.narrow(axis, begin, part.shape[axis]).copy_(part)
        begin += part.shape[axis]
    assert out is not None
    return out


def _differentiable(out: Tensor) -> Tensor:
    if not _pytorch.is_compiling():
        align_gradient(out)
    return out


def _may_be_fused(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether PyTorch may run fused kernels on a GPU. It runs anything else in kernels without these limits."""
    compiling = _pytorch.is_compiling()
    if not compiling and torch._C._get_tracing_state() is not None:
        return False
    types = _pytorch.traced_types() if _pytorch.thread.is_traced else PLAIN
    for tensor in (query, key, value) if mask is None else (query, key, value, mask):
        if type(tensor) not in types or tensor.is_nested or tensor.layout is not torch.strided:
            return False
        if not getattr(tensor, _launch.SERVED_DEVICE):
            return False
    return bool(query.dim() == 4 and key.dim() == 4 and value.dim() == 4)


def overflows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool) -> bool:
    """Whether a call of valid sizes overflows the grids of PyTorch's kernels: it raises its errors for others."""
    # A comparison would bound the number of items in an exported program.
    if _is_exporting():
        return False
    items, heads = query.shape[:2]
    if (items <= MOST_SLICE and heads <= MOST_SLICE) or items == 0 or heads == 0:
        return False
    for tensor in (key, value):
        if tensor.shape[0] not in (1, items) or tensor.shape[1] == 0:
            return False
        if heads % tensor.shape[1] != 0 if enable_gqa else tensor.shape[1] not in (1, heads):
            return False
    if mask is None:
        return True
    sizes = (items, heads, query.shape[-2], key.shape[-2])
    return mask.dim() <= 4 and all(own in (1, full) for own, full in zip(mask.shape[::-1], sizes[::-1]))


def _is_exporting() -> bool:
    """Whether `torch.export` traces this. Dynamo takes PyTorch's own function for true whenever it compiles."""
    return getattr(torch.compiler, "_is_exporting_flag", False)
