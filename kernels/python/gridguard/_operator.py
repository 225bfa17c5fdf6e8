"""The operator `gridguard::attention`, which PyTorch traces and differentiates."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from gridguard import _counts, _fallback, _launch

_library = torch.library.Library("gridguard", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale, "
    "bool enable_gqa) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def compute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> tuple[Tensor, str | None]:
    """An output, and why the kernels did not write it; None if they did. Tensors that they cannot read where they
    are, are copied."""
    out = torch.empty_like(query)
    options = (is_causal, scale, enable_gqa)
    reason = _launch.submit(query, key, value, out, bias, *options)
    if reason == "alignment" or (reason == "strides" and max(query.shape[-2], key.shape[-2]) <= MOST_COPIED):
        # Where not even copies fit, PyTorch may run without them.
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            query, key, value = map(_copied, (query, key, value))
            result = torch.empty_like(query)
            reason = _launch.submit(query, key, value, result, None if bias is None else _copied(bias), *options)
            if reason is None:
                out.copy_(result)
                _counts.count_copied()
    _counts.count(reason)
    return out, reason


MOST_COPIED = 32
"""The longest sequences that are copied because their axes do not fold into those that the kernels take. With 25 frames
of f16 the kernels take 0.28 of PyTorch's time on an H200, and the copies move 1.5 times as many bytes as the kernels."""


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


@torch.library.impl(_library, "attention", "CompositeExplicitAutograd")
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> Tensor:
    """Attention by the kernels, or by PyTorch where they do not serve it."""
    out, reason = compute(query, key, value, bias, is_causal, scale, enable_gqa)
    if reason is not None:
        out.copy_(_fallback.run(query, key, value, bias, 0.0, is_causal, scale, enable_gqa))
    return out


@torch.library.register_fake("gridguard::attention", lib=_library)
def _fake(query: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(query)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.is_causal, ctx.scale, ctx.enable_gqa = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of PyTorch's own function, which is called again."""
    *inputs, bias = ctx.saved_tensors
    # If the gradients will be differentiated again, the inputs keep their history.
    again = torch.is_grad_enabled()
    needed = ctx.needs_input_grad[:3]
    with torch.enable_grad():
        if not again:
            inputs = [one.detach().requires_grad_(need) for one, need in zip(inputs, needed)]
        # Some of PyTorch's kernels fail where rows are not at multiples of 16 bytes.
        query, key, value = (one if _is_aligned(one) else _copied(one) for one in inputs)
        options = (ctx.is_causal, ctx.scale, ctx.enable_gqa)
        out = _fallback.run(query, key, value, bias, 0.0, *options)
        wanted = [one for one, need in zip(inputs, needed) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again))
    return (*(next(found) if need else None for need in needed), None, None, None, None)


def _is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous, or its rows are and begin at multiples of 16 bytes of its memory."""
    if tensor.is_contiguous():
        return True
    *outer, last = tensor.stride()
    return last == 1 and all(step * tensor.element_size() % 16 == 0 for step in (*outer, tensor.storage_offset()))


torch.library.register_autograd(
    "gridguard::attention", _backward, setup_context=_setup_context, lib=_library
)

attention = torch.ops.gridguard.attention.default
