"""The operators `gridguard::temporal_block` and `gridguard::temporal_block_backward`, which run blocks from tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gridguard import _attention, _launch, _native, _operator, _pytorch, _stats

EPSILON = 1e-5
"""The epsilon of the layer norms in the kernels."""
# For each tensor of the kernels, the number of weights that are joined; for each weight, its rows and columns in
# channels.
_PARTS = [len(names) for names, _, _ in _native.BLOCK_TENSORS]
_SIZES = [(rows // len(names), columns) for names, rows, columns in _native.BLOCK_TENSORS for _ in names]
# The kernels and cuBLASLt load tensors at multiples of this number of bytes.
_ALIGNMENT = 16

_CALL = "Tensor x, Tensor[] weights, Tensor? positions, int heads"
_tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_library = torch.library.Library("gridguard", "FRAGMENT")
_library.define(f"temporal_block({_CALL}, int? budget) -> Tensor", tags=_tags)
_library.define(f"temporal_block_backward(Tensor grad, {_CALL}, bool[] needed) -> Tensor[]", tags=_tags)


class NotServed(Exception):
    """Why the kernels do not serve a call. Nothing was launched."""


def refusal(x: Tensor, weights: Sequence[Tensor], positions: Tensor | None, heads: int) -> str | None:
    """Return why the kernels do not serve a block, as far as compilers can trace it."""
    if len(weights) != len(_SIZES):
        raise ValueError(f"a temporal block has {len(weights)} weights: pass {len(_SIZES)}")
    if not getattr(x, _launch.SERVED_DEVICE):
        return "device"
    if x.dtype not in _launch.DTYPES or torch.is_autocast_enabled(_launch.DEVICE_TYPE):
        return "dtype"
    if x.dim() != 3 or heads <= 0:
        return "shape"
    channels = x.shape[-1]
    for tensor, (rows, columns) in zip(weights, _SIZES):
        if tensor.shape != ((rows * channels, columns * channels) if columns else (rows * channels,)):
            return "shape"
    if positions is not None and (positions.dim() != 3 or positions.shape[::2] != (1, channels)):
        return "shape"
    for tensor in weights if positions is None else (*weights, positions):
        if _pytorch.is_other_type(tensor):
            return "tensor type"
        if tensor.dtype is not x.dtype:
            return "dtype"
        if tensor.get_device() != x.get_device():
            return "device"
        if not tensor.is_contiguous():
            return "strides"
    return None


def launch(x: Tensor, weights: Sequence[Tensor], positions: Tensor | None, heads: int, budget: int | None) -> Tensor:
    """Return the output of the kernels for tensors without a `refusal`, or raise NotServed.

    The weights have the order and parts of `BLOCK_TENSORS`.
    """
    tensors = weights if positions is None else (*weights, positions)
    if x.is_neg() or any(tensor.is_neg() for tensor in tensors):
        raise NotServed("tensor type")
    if any(tensor.data_ptr() % _ALIGNMENT for tensor in tensors):
        raise NotServed("alignment")
    x = x.contiguous()
    if x.data_ptr() % _ALIGNMENT:
        x = x.clone()
    out = torch.empty_like(x)
    with torch.no_grad():
        # In each call: a weight may have changed unnoticed, for example by `weight.data += delta`.
        joined = list(_joined(weights))
    embedded = None if positions is None else positions.shape[1]
    problem = (*x.shape, heads, embedded, _launch.DTYPES[x.dtype], max(x.get_device(), 0), budget)
    addresses = (
        x.data_ptr(),
        out.data_ptr(),
        [tensor.data_ptr() for tensor in joined],
        0 if positions is None else positions.data_ptr(),
    )
    try:
        _run(problem, addresses, x.device)
    except ValueError as error:
        raise NotServed(str(error)) from None
    return out


def _joined(weights: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors of the kernels."""
    parts = iter(weights)
    for count in _PARTS:
        yield next(parts) if count == 1 else torch.cat([next(parts) for _ in range(count)])


def _run(problem: tuple[Any, ...], addresses: tuple[Any, ...], device: torch.device) -> None:
    """Launch a problem on PyTorch's current stream. Raise ValueError or NotServed if the kernels do not serve it."""
    if device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            return _run(problem, addresses, device)
    _launch.load_nvrtc()
    capturing = torch._C._cuda_isCurrentStreamCapturing()
    shortage: Exception | None = None
    while True:
        try:
            needed = _native.block_scratch(problem, capturing)
        except _native.UnavailableError as error:
            _launch.warn_once(str(error))
            raise NotServed("unavailable") from None
        except _native.GridguardError:
            if shortage is None:
                raise
            # There is no smaller chunk.
            raise shortage from None
        try:
            scratch = torch.empty(needed, dtype=torch.uint8, device=device)
            break
        except torch.cuda.OutOfMemoryError as error:
            shortage = error
            problem = (*problem[:-1], needed // 2)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    _native.block(problem, addresses, (scratch.data_ptr(), needed), stream, capturing)


def _compute(x: Tensor, weights: Sequence[Tensor], positions: Tensor | None, heads: int) -> Tensor:
    """Compute a block by PyTorch's operators, which have derivatives, and by our attention."""
    tensors = _joined(weights)
    for _ in range(2):
        normed = _normed(x, tensors)
        if positions is not None:
            normed = normed + positions[:, : x.shape[1]]
        projected = F.linear(normed, next(tensors)).unflatten(-1, (3, heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        attended = _attention.scaled_dot_product_attention(query, key, value)
        x = F.linear(attended.transpose(1, 2).flatten(2), next(tensors), next(tensors)) + x
    values, gates = F.linear(_normed(x, tensors), next(tensors), next(tensors)).chunk(2, -1)
    return F.linear(values * F.gelu(gates), next(tensors), next(tensors)) + x


def _normed(x: Tensor, tensors: Iterator[Tensor]) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], next(tensors), next(tensors), EPSILON)


@torch.library.impl(_library, "temporal_block", "CompositeExplicitAutograd")
def _temporal_block(
    x: Tensor, weights: list[Tensor], positions: Tensor | None, heads: int, budget: int | None
) -> Tensor:
    """Compute a block by the kernels, or by PyTorch if they do not serve it."""
    try:
        reason = refusal(x, weights, positions, heads)
        if reason is not None:
            raise NotServed(reason)
        out = launch(x, weights, positions, heads, budget)
        _stats.count(_stats.SERVED)
    except NotServed as error:
        _stats.count(f"temporal block: {error}")
        out = _compute(x, weights, positions, heads).contiguous()
    return out


@torch.library.register_fake("gridguard::temporal_block", lib=_library)
def _fake_block(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.impl(_library, "temporal_block_backward", "CompositeExplicitAutograd")
def _temporal_block_backward(
    grad: Tensor, x: Tensor, weights: list[Tensor], positions: Tensor | None, heads: int, needed: list[bool]
) -> list[Tensor]:
    """Return the gradients of x, each weight and the positions. Unneeded ones are empty.

    The forward pass is computed again: for the whole batch, or for smaller slices if memory is short.
    """
    inputs = [x, *weights, positions]
    if not any(needed):
        return [x.new_empty(0) for _ in inputs]
    size = max(len(x), 1)
    while True:
        try:
            found = _gradients_in_slices(size, grad, inputs, heads, needed)
            break
        except torch.cuda.OutOfMemoryError:
            if size == 1:
                raise
        size = (size + 1) // 2
    return [x.new_empty(0) if one is None else one for one in found]


@torch.library.register_fake("gridguard::temporal_block_backward", lib=_library)
def _fake_backward(
    grad: Tensor, x: Tensor, weights: list[Tensor], positions: Tensor | None, heads: int, needed: list[bool]
) -> list[Tensor]:
    return [x.new_empty(one.shape if need else 0) for one, need in zip((x, *weights, positions), needed)]


def _gradients_in_slices(
    size: int, grad: Tensor, inputs: Sequence[Tensor | None], heads: int, needed: Sequence[bool]
) -> list[Tensor | None]:
    x, *others = inputs
    out = x.new_empty(x.shape) if needed[0] else None
    total: list[Tensor | None] = [None] * len(others)
    is_whole = size >= len(x)
    with _operator._differentiation(x.device.type):
        for begin in range(0, max(len(x), 1), size):
            part = slice(begin, begin + size)
            pairs = zip((x[part], *others), needed)
            leaves = [one if one is None else one.detach().requires_grad_(need) for one, need in pairs]
            of_part, *found = _gradients(grad[part], leaves, heads, needed)
            if out is not None:
                out[part] = of_part
            if not is_whole:
                # Sums of half precision would lose more digits with each slice.
                found = [one if one is None else one.float() for one in found]
            total = [one if before is None else before + one for before, one in zip(total, found)]
    # The gradients of joined weights are views of one tensor, which operators must not return.
    pairs = zip(total, others)
    return [out, *(one if one is None else like.new_empty(like.shape).copy_(one) for one, like in pairs)]


def _gradients(
    grad: Tensor, inputs: Sequence[Tensor | None], heads: int, needed: Sequence[bool], create_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients of x, weights and positions, where needed."""
    x, *weights, positions = inputs
    wanted = [one for one, need in zip(inputs, needed) if need]
    found = iter(torch.autograd.grad(_compute(x, weights, positions, heads), wanted, grad, create_graph=create_graph))
    return [next(found) if need else None for need in needed]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weights, positions, ctx.heads, _ = inputs
    ctx.save_for_backward(x, *weights, positions)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    of_x, of_weights, of_positions, *_ = ctx.needs_input_grad
    needed = [of_x, *of_weights, of_positions]
    inputs = list(ctx.saved_tensors)
    if torch.is_grad_enabled():
        # Second derivatives. Aliases end the graph here: what computed the inputs is differentiated elsewhere.
        with torch.autocast(grad.device.type, enabled=False):
            aliases = [one if one is None else one.view_as(one) for one in inputs]
            found = _gradients(grad, aliases, ctx.heads, needed, create_graph=True)
    else:
        x, *weights, positions = inputs
        found = torch.ops.gridguard.temporal_block_backward(grad, x, weights, positions, ctx.heads, needed)
        found = [one if need else None for one, need in zip(found, needed)]
    return found[0], found[1:-1], found[-1], None, None


torch.library.register_autograd("gridguard::temporal_block", _backward, setup_context=_setup_context, lib=_library)

temporal_block = torch.ops.gridguard.temporal_block.default
