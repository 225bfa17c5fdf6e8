"""The operators `gridguard::attention` and `gridguard::attention_backward`, which PyTorch traces and differentiates."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gridguard import _counts, _fallback, _gradients, _launch

_CALL = "Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale, bool enable_gqa"
_tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_library = torch.library.Library("gridguard", "DEF")
_library.define(f"attention({_CALL}) -> Tensor", tags=_tags)
_library.define(f"attention_backward(Tensor grad, {_CALL}, bool[3] needed) -> (Tensor, Tensor, Tensor)", tags=_tags)


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


@torch.library.impl(_library, "attention_backward", "CompositeExplicitAutograd")
def _attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    needed: Sequence[bool],
) -> tuple[Tensor, ...]:
    """As `_gradients.first`. Compilers do not look inside: the size of the batch may be known only at run time, and
    PyTorch's kernels must not see an oversized one."""
    return _gradients.first(grad, query, key, value, bias, is_causal, scale, enable_gqa, needed)


@torch.library.register_fake("gridguard::attention_backward", lib=_library)
def _fake_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    inputs = (query, key, value)
    return tuple(torch.empty_like(like) if need else like.new_empty(0) for like, need in zip(inputs, others[-1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.is_causal, ctx.scale, ctx.enable_gqa = inputs
    _refuse_gradient_of_bias(tensors[-1])
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[:3]
    options = (ctx.is_causal, ctx.scale, ctx.enable_gqa)
    found = attention_backward(grad, *ctx.saved_tensors, *options, needed)
    return (*(one if need else None for one, need in zip(found, needed)), None, None, None, None)


def _setup_context_of_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.is_causal, ctx.scale, ctx.enable_gqa, ctx.needed = inputs
    _refuse_gradient_of_bias(tensors[-1])
    ctx.save_for_backward(*tensors)


def _backward_of_backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    options = (ctx.is_causal, ctx.scale, ctx.enable_gqa, ctx.needed)
    grad, query, key, value, bias = ctx.saved_tensors
    found = _gradients.second(upstream, grad, query, key, value, bias, *options, ctx.needs_input_grad[:4])
    return (*found, None, None, None, None, None)


def _refuse_gradient_of_bias(bias: Tensor | None) -> None:
    if bias is not None and bias.requires_grad:
        text = "gridguard::attention has no gradient of its bias: call torch.nn.functional.scaled_dot_product_attention"
        raise NotImplementedError(text)


torch.library.register_autograd(
    "gridguard::attention", _backward, setup_context=_setup_context, lib=_library
)
torch.library.register_autograd(
    "gridguard::attention_backward", _backward_of_backward, setup_context=_setup_context_of_backward, lib=_library
)

attention = torch.ops.gridguard.attention.default
attention_backward = torch.ops.gridguard.attention_backward.default
