"""The operator `gridguard::attention`, which PyTorch traces and differentiates."""

from __future__ import annotations

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
    out = torch.empty_like(query)
    reason = _launch.submit(query, key, value, out, bias, is_causal, scale, enable_gqa)
    _counts.count(reason)
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
        query, key, value = inputs
        options = (ctx.is_causal, ctx.scale, ctx.enable_gqa)
        out = _fallback.run(query, key, value, bias, 0.0, *options)
        wanted = [one for one, need in zip(inputs, needed) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again))
    return (*(next(found) if need else None for need in needed), None, None, None, None)


torch.library.register_autograd(
    "gridguard::attention", _backward, setup_context=_setup_context, lib=_library
)

attention = torch.ops.gridguard.attention.default
